"""Random programs give bit by bit what gcc and a GPU make of them, and no finding."""

from pathlib import Path

import pytest

from tests.copied.compilers import needs_host_compiler
from tests.hardware import random_kernels
from tests.simt import random_programs
from tests.simt.random_programs import BlockProgram, Program, by_the_machine, cuda_source

KNOWN = random_kernels.stored()
recorded = pytest.mark.skipif(
    not KNOWN, reason="no tests/data/random_kernels_h200.json: run tests.hardware.random_kernels"
)


@needs_host_compiler
def test_programs_give_what_gcc_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert random_programs.against_gcc(range(8), tmp_path) == []
    planted = cuda_source([Program(1)]).replace(" - ", " + ")
    monkeypatch.setattr(random_programs, "cuda_source", lambda programs: planted)
    assert random_programs.against_gcc([1], tmp_path)


@recorded
@pytest.mark.parametrize("number", [0, random_kernels.COUNT // random_kernels.TOGETHER])
def test_kernels_give_what_the_gpu_gave(number: int) -> None:
    batch = random_kernels.batches()[number][:8]
    assert random_kernels.differences(batch, KNOWN) == []
    known = {program.name: {"source": "", "results": ""} for program in batch[:1]}
    (told,) = random_kernels.differences(batch[:1], known)
    assert "another program" in told


@recorded
def test_the_gpu_ran_them_all() -> None:
    names = [program.name for batch in random_kernels.batches() for program in batch]
    assert list(KNOWN) == names and len(names) >= 600


def test_a_block_without_its_barriers_races() -> None:
    programs = [BlockProgram(number) for number in range(10)]
    source = cuda_source(programs).replace("__syncthreads();", "")
    found = [by_the_machine(source, one)[1].findings for one in programs]
    assert sum(bool(findings) for findings in found) >= 4
