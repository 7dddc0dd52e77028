"""Random programs give bit by bit what a GPU made of them, and no finding."""

import pytest

from tests.hardware import random_kernels
from tests.simt.random_programs import BlockProgram, by_the_machine, cuda_source

KNOWN = random_kernels.stored()


@pytest.mark.parametrize("number", [0, random_kernels.COUNT // random_kernels.TOGETHER])
def test_kernels_give_what_the_gpu_gave(number: int) -> None:
    batch = random_kernels.batches()[number][:8]
    assert random_kernels.differences(batch, KNOWN) == []


def test_the_gpu_ran_them_all() -> None:
    names = [program.name for batch in random_kernels.batches() for program in batch]
    assert list(KNOWN) == names and len(names) >= 600


def test_a_block_without_its_barriers_races() -> None:
    programs = [BlockProgram(number) for number in range(10)]
    source = cuda_source(programs).replace("__syncthreads();", "")
    found = [by_the_machine(source, one)[1].findings for one in programs]
    assert sum(bool(findings) for findings in found) >= 4
