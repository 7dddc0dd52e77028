"""Every stub fails its checker, every solution passes, and the verdict says what to do."""

import pytest

from helpers.exercises import EXERCISES, grade
from helpers.kernels import FOLDER, source, steps


@pytest.mark.parametrize("name", EXERCISES)
def test_stub_fails_and_says_where_to_work(name):
    last = grade(name).splitlines()[-1]
    assert last.startswith("Work on step") and f"kernels/exercises/{name}.cu" in last


@pytest.mark.parametrize("name", EXERCISES)
def test_solution_passes(name):
    lines = grade(name, solution=True).splitlines()
    assert lines[-1] == "passed"
    assert all(": yes" in line for line in lines[:-1])


def test_every_notebook_number_has_one_exercise_with_stub_and_solution():
    numbers = sorted(name[:2] for name in EXERCISES)
    assert numbers == sorted({step[:2] for step in steps()})
    for folder in (FOLDER / "exercises", FOLDER / "exercises" / "solutions"):
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
    with pytest.raises(KeyError):
        grade("99_nothing")
