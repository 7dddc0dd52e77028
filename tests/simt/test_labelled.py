"""The programs of labelled suites: tests/labelled.py runs host code and kernels together."""

from pathlib import Path

import pytest

from tests import labelled
from tests.copied.compilers import needs_host_compiler

PROGRAM = """#include <cassert>
struct Rows { int count; const int* data; };
__global__ void add(Rows rows, int* sum) {
    if (threadIdx.x < rows.count) ADD(sum, rows.data[threadIdx.x]);
}
int main(int count, char** words) {
    int numbers[64], sum = 0, *total;
    for (int i = 0; i < 64; ++i) numbers[i] = i;
    Rows rows = {atoi(words[1]), nullptr};
    cudaMalloc((void**)&rows.data, sizeof numbers);
    cudaMalloc((void**)&total, sizeof sum);
    cudaMemcpy((void*)rows.data, numbers, sizeof numbers, cudaMemcpyHostToDevice);
    add<<<1, 96>>>(rows, total);
    cudaMemcpy(&sum, total, sizeof sum, cudaMemcpyDeviceToHost);
    assert(sum == 2016);
}
"""
RACE = "race on global memory:4"
ASSERTED = labelled.OWN_CHECK
FOUND = {
    "a right program": ("atomicAdd(a, b)", "64", []),
    "a race": ("(*a += b)", "64", [RACE, ASSERTED]),
    "a count that is too large": ("atomicAdd(a, b)", "65", ["out-of-bounds load:4", ASSERTED]),
}


@needs_host_compiler
@pytest.mark.parametrize("case", FOUND)
def test_a_program_runs_with_its_host_code(case: str, tmp_path: Path) -> None:
    add, count, found = FOUND[case]
    path = tmp_path / "add.cu"
    path.write_text(PROGRAM)
    options = (f"-DADD(a,b)={add}",)
    told = labelled.outcome(labelled.Case("", case, str(path), True, (count,), (), options))
    assert (told["kind"], told["found"]) == ("ran", found), told
