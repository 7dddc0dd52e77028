"""Every stub fails its checker, every solution passes, and the verdict says what to do."""

import re

import pytest

from helpers.catalogue import source, step_number, steps
from helpers.exercises import EXERCISES, grade
from helpers.paths import KERNELS


@pytest.mark.parametrize("name", EXERCISES)
def test_stub_fails_and_says_where_to_work(name):
    last = grade(name).splitlines()[-1]
    assert last.startswith("Work on step") and f"kernels/exercises/{name}.cu" in last


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("07_half_warps", "4. .* no - 1 read and 1 write passes, 8 sectors a load and 8 a store"),
        ("08_two_blocks", "2. is right: no - .*rows do not sum to 1; the worst sums to 2"),
        ("09_letters", "4. waits for .* no - a block went on although the other one had not"),
        ("10_eight_at_once", "2. is right: no - .* elements are wrong"),
    ],
)
def test_stub_fails_at_what_it_is_about(name, seen):
    assert re.match(seen, grade(name).splitlines()[-2])


@pytest.mark.parametrize("name", EXERCISES)
def test_solution_passes(name):
    lines = grade(name, solution=True).splitlines()
    assert lines[-1] == "passed"
    assert all(": yes" in line for line in lines[:-1])


def test_every_notebook_number_has_one_exercise_with_stub_and_solution():
    numbers = sorted(name[:2] for name in EXERCISES)
    assert numbers == sorted({f"{step_number(step):02}" for step in steps()})
    for folder in (KERNELS / "exercises", KERNELS / "exercises" / "solutions"):
        assert sorted(file.stem for file in folder.glob("*.cu")) == sorted(EXERCISES)


@pytest.mark.parametrize(
    ("name", "broken", "mended", "complaint"),
    [
        # A syntax error, a read past the end, a forgotten pass: each stops at its own step.
        ("02_two_pairs", "const float sum = sum_even", "const float sum = oops", "1. runs"),
        ("02_two_pairs", "x[col + 1]", "x[col + 1 + (long long)rows * cols]", "out-of-bounds"),
        ("02_two_pairs", "y[col] = expf(x[col] - row_max)",
         "y[col] = (x[(col + 1) % cols] == 1e38f ? 0 : 1) * expf(x[col] - row_max)", "3 read"),
        ("00_copy_a_row", "int col = threadIdx.x; col < cols; col += blockDim.x",
         "int col = 0; col < cols; ++col", "128 read and 128 write passes"),
        ("00_copy_a_row", 'extern "C" ', "", "no kernel named"),
        ("00_copy_a_row", "__global__", "__device__", "needs its header and one __global__"),
        ("01_columns", "(long long)row * cols + col", "(long long)col * rows + row", "2. is right"),
        # Rows of one warp mixed; lanes past the last row gone; stores of single columns.
        ("07_half_warps", "distance = 8", "distance = 16", "2. is right: no"),
        ("07_half_warps", "const float4* x4", "if (row >= rows) return; const float4* x4",
         "lane missing from a warp operation"),
        ("07_half_warps", "y4[pack] = make_float4(v.x / sum, v.y / sum, v.z / sum, v.w / sum)",
         "for (int c = 0; c < 4; ++c) y[row * cols + 4 * pack + c] = (&v.x)[c] / sum",
         "16 sectors a load and 16 a store, 2.5 bytes"),
        # Read before it is written, or after its block has ended; its own pair for the other's.
        ("08_two_blocks", "cluster_barrier();  // both pairs are written", "", "race on shared"),
        ("08_two_blocks", "cluster_barrier();  // both are read", "//", "that may have ended"),
        ("08_two_blocks", "1 - rank)", "rank)", "2. is right: no"),
        # Its own box for the other's, no waiting, a loop without loads, a letter left.
        ("09_letters", "(blockIdx.x ^ 1)", "blockIdx.x", "2. is right: no"),
        ("09_letters", "while (letter == 0) letter", "letter", "the other one had not started"),
        ("09_letters", "volatile Letter* own", "Letter* own", "has the compiler moved a load"),
        ("09_letters", "*own_box = 0;", "", "5. empties its own box, and that alone: no - letters"),
        ("09_letters", "*own_box = 0;", "*other_box = 0;", "its owner may not have read yet"),
        # Half of the precision lost in one place; single columns in another.
        ("10_eight_at_once", "sum += expf", "sum = __half2float(__float2half(sum)) + expf",
         "2. is right: no"),
        ("10_eight_at_once", "to[pack] = v", "for (int c = 0; c < 8; ++c)"
         " y[8 * pack + c] = v.column[c]", "a load and a store: no"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(name, broken, mended, complaint, monkeypatch):
    from helpers import exercises

    def edited(file):
        text = source(file)
        assert broken in text
        return text.replace(broken, mended)

    monkeypatch.setattr(exercises, "source", edited)
    verdict = grade(name, solution=True)
    assert complaint in verdict and "passed" not in verdict


def test_unknown_exercise_is_refused():
    with pytest.raises(ValueError, match="no exercise 'nope'; there are: 00_copy_a_row, 01_col"):
        grade("nope")
