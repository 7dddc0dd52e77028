"""Races are found from who comes before whom, whatever the values are: in global memory, by flags
in shared memory, by volatile values and by halves of barriers."""

import numpy as np
import pytest

from helpers.simt import KernelText, simulate
from tests.golden import golden
from tests.simt import global_races, order_races
from tests.simt.global_races import Rules

RULES = [(one.RULES, name) for one in (global_races, order_races) for name in one.CASES]


@pytest.mark.parametrize(("rules", "name"), RULES, ids=[name for _, name in RULES])
def test_the_racy_twin_is_found_and_the_right_one_has_no_finding(rules: Rules, name: str) -> None:
    racy, right = rules.run(name, racy=True), rules.run(name, racy=False)
    findings = racy.findings
    if rules is global_races.RULES:
        findings = [one for one in findings if one.kind == "race on global memory"]
    text = "\n".join(one.message for one in findings)
    assert rules.cases[name].says in text, text or "nothing found"
    assert not right.findings, str(right.findings)
    golden.hold(rules.file, f"{name}, racy", racy)
    golden.hold(rules.file, f"{name}, right", right)


# Stores of unordered threads: silent as they stand, a race with the text after the arrow. As they
# stand, all store the same, which the compiler does not know.
STORES = {
    "threads of a block, global": ("y[b] = sum / 64;", "sum", "(sum + 64 * t)"),
    "threads of two blocks": ("y[0] = sum / 64;", "sum", "(sum + 64 * b)"),
    "threads of a block, shared": ("s[0] = sum / 64;", "sum", "(sum + 64 * t)"),
    "one constant by two instructions, global": (
        "if (t == 1) { y[b] = 7; __syncwarp(2); } if (t == 40) y[b] = 7;",
        "y[b] = 7; _",
        "y[b] = 8; _",
    ),
    "one constant by two instructions, shared": (
        "if (t == 1) { s[0] = 7; __syncwarp(2); } if (t == 40) s[0] = 7;",
        "s[0] = 7; _",
        "s[0] = 8; _",
    ),
    "a constant by an ordinary and a volatile store, global": (
        "if (t == 1) { y[b] = 7; __syncwarp(2); } if (t == 40) *(volatile int*)(y + b) = 7;",
        "y[b] = 7; _",
        "y[b] = 8; _",
    ),
    "a constant by an ordinary and a volatile store, shared": (
        "if (t == 1) { s[0] = 7; __syncwarp(2); } if (t == 40) *(volatile int*)s = 7;",
        "s[0] = 7; _",
        "s[0] = 8; _",
    ),
    "a constant by an ordinary and two volatile stores, shared": (
        "if (t == 1) { s[0] = 7; __syncwarp(2); } if (t == 40) { *(volatile int*)s = 7; "
        "__syncwarp(256); *(volatile int*)s = 7; }",
        "s[0] = 7; _",
        "s[0] = 8; _",
    ),
    "bytes of a vector": (
        "*(int4*)(y + 4 * b) = make_int4(sum, 1, 2, 3);",
        "sum, 1, 2",
        "sum, 1, t",
    ),
}


@pytest.mark.parametrize("name", STORES)
def test_stores_of_equal_bits_do_not_race_wherever_the_threads_are(name: str) -> None:
    body, equal, different = STORES[name]

    assert not stored(body)
    memory = "shared" if "shared" in name else "global"
    assert stored(body.replace(equal, different)) == {f"race on {memory} memory"}


@pytest.mark.parametrize(("memory", "place"), [("global", "y[b]"), ("shared", "s[0]")])
def test_computed_values_that_happen_to_be_equal_race(memory: str, place: str) -> None:
    body = f"if (t == 1) {{ {place} = sum; __syncwarp(2); }} if (t == 40) {place} = x[1] * 64;"
    assert stored(body) == {f"race on {memory} memory"}
    assert not stored(body.replace("if (t == 40)", "__syncthreads(); if (t == 40)"))


def stored(text: str) -> set[str]:
    """The kinds of findings in a kernel with these stores."""
    code = f"""extern "C" __global__ void k(const int* x, int* y) {{
        __shared__ int s[2];
        int t = threadIdx.x, b = blockIdx.x, sum = 0;
        for (int k = 0; k < 64; ++k) sum += x[k];
        {text}
        __syncthreads();
        if (t == 0) y[8 + b] = s[b > 9] * (b > 9);
    }}"""
    values = np.full(64, 5, np.int32), np.zeros(16, np.int32)
    return {one.kind for one in simulate(KernelText(code, "k"), 2, 64, values).findings}
