"""printf and assert in a kernel."""

import numpy as np
import pytest

from helpers.simt import KernelText, Trace, simulate
from tests.simt.launching import FILE


def run(body: str, grid: int = 1, block: int = 1, before: str = "") -> Trace:
    code = f"{FILE}{before}\n__global__ void k(int* y)\n{{\n{body}\n}}\n"
    return simulate(KernelText(code, "k"), grid, block, (np.arange(64, dtype=np.int32),))


# What C prints, from glibc.
PRINTED = {
    'printf("plain\\n");': "plain\n",
    'printf("%d %i %u", -3, 4, -1);': "-3 4 4294967295",
    'printf("%5d|%-5d|%05d|%+d", 42, 42, 42, 42);': "   42|42   |00042|+42",
    'printf("%x %X %#x %o %#o", 255, 255, 255, 8, 8);': "ff FF 0xff 10 010",
    'printf("%f %.2f %10.3e %g", 1.5f, 2.345, 12345.678, 1e-5);': "1.500000 2.35  1.235e+04 1e-05",
    'printf("%lld %llu %ld", -5000000000ll, 18446744073709551615ull, 7ll);': (
        "-5000000000 18446744073709551615 7"
    ),
    'printf("%c%c %s%%", 65, 66, "text");': "AB text%",
    'printf("%*d|%.*f", 6, 42, 1, 3.14159);': "    42|3.1",
    'printf("%hhd %hu", 300, 65537);': "44 1",
    'printf("%d %f %d %s %d", 1, 2.0, 3, "four", 5);': "1 2.000000 3 four 5",
    'printf("%f %f", 1.0f / y[0], -1.0f / y[0]);': "inf -inf",
    'printf("%5s|%-5s|%.2s", "ab", "ab", "abc");': "   ab|ab   |ab",
    'printf("%zu", sizeof(int));': "4",
}


@pytest.mark.parametrize("call", PRINTED)
def test_printf_prints_what_c_prints(call: str) -> None:
    trace = run(call)
    assert trace.printed == PRINTED[call] and not trace.findings


def test_what_is_printed_comes_block_after_block() -> None:
    before = '__device__ __noinline__ void say(int b, int t) { printf("%d.%d ", b, t); }'
    body = "if (blockIdx.x == 0) for (int i = 0; i < 9; i++) y[i]++;\nsay(blockIdx.x, threadIdx.x);"
    trace = run(body, 3, 2, before)
    assert sorted(trace.printed.split()) == ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]
    assert [one[0] for one in trace.printed.split()] == ["0", "0", "1", "1", "2", "2"]
    body = 'if (threadIdx.x == 0 && blockIdx.x > 1022) printf("%d ", blockIdx.x);'
    assert run(body, 1025, 32).printed == "1023 1024 "  # in two batches


def test_a_failed_assertion_names_its_condition_and_ends_the_threads_that_it_fails_for() -> None:
    body = '    assert(threadIdx.x < 3 && "few threads");\n    y[threadIdx.x] = 9;'
    y = np.arange(64, dtype=np.int32)
    code = f"{FILE}\n__global__ void k(int* y)\n{{\n{body}\n}}"
    trace = simulate(KernelText(code, "k"), 1, 8, (y,))
    (found,) = trace.findings
    assert 'the assertion `threadIdx.x < 3 && "few threads"` failed' in found.message
    assert (found.file, found.line, found.thread, found.count) == ("kernels/x.cu", 4, (3, 0, 0), 5)
    assert y[:9].tolist() == [9, 9, 9, 3, 4, 5, 6, 7, 8]
