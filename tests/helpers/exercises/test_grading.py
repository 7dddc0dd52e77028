"""Every solution passes, a learner's file is made once and kept, and the verdict has a plain and a
rich form. What the verdict on each stub says stands in its notebook, which nbval compares."""

import re

import pytest

from helpers.base.paths import KERNELS
from helpers.catalogue.registry import step_number, steps
from helpers.exercises import EXERCISES, grade
from helpers.exercises.grading import judge, violated
from tests.helpers.exercises.answers import Answer, answers, id_of, solution

BLANK = re.compile(r"^ *// ---- (write|and) here ----$", flags=re.MULTILINE)


def stub(name: str) -> str:
    return (KERNELS / "exercises" / f"{name}.cu").read_text(encoding="utf-8")


def code_lines(text: str) -> list[str]:
    """The lines of a kernel file after its header."""
    return [line for line in text.partition("\n\n")[2].splitlines() if line.strip()]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder for the learner's answers, in a session that keeps them."""
    monkeypatch.delenv("SOFTMAX_REPLAY", raising=False)
    monkeypatch.setattr("helpers.exercises.grading.ANSWERS", tmp_path / "answers")
    return tmp_path / "answers"


# ---- stubs and solutions ----------------------------------------------------------------------


@pytest.mark.parametrize("name", EXERCISES)
def test_solution_passes(name):
    verdict = judge(name, solution(name))
    assert verdict.passed, str(verdict)
    taken, _, after = str(verdict).partition(f"\npassed: {name}\n")
    assert all(line.startswith("yes ") for line in taken.splitlines())
    before, now, ours = re.split(r"\n(?! )", after)
    wrong = violated(name)
    words = " ".join(before.removeprefix("before: ").split())
    assert before.startswith("before: ") and len(words) > 20 and words in wrong.complaint
    now = " ".join(now.removeprefix("now: ").split())
    assert wrong.asked.startswith(now) and f"yes  {now[:70]}" in taken
    assert ours == f"Our solution: kernels/exercises/solutions/{name}.cu"


def test_every_notebook_has_a_repair_and_a_blank_with_stub_and_solution():
    numbers = [name[:2] for name in EXERCISES]
    assert numbers == sorted(2 * [f"{step_number(step):02}" for step in steps()])
    for folder in (KERNELS / "exercises", KERNELS / "exercises" / "solutions"):
        assert sorted(file.stem for file in folder.glob("*.cu")) == sorted(EXERCISES)
    repairs, blanks = [*EXERCISES][::2], [*EXERCISES][1::2]
    assert all(not BLANK.search(stub(name)) for name in repairs)
    assert all(BLANK.search(stub(name)) for name in blanks)


@pytest.mark.parametrize("name", [*EXERCISES][1::2])
def test_solution_of_a_blank_adds_lines_and_changes_none(name):
    """So what is given is right, and the blank the one place to work at."""
    solved = iter(code_lines(solution(name)))
    given = code_lines(stub(name))
    assert all(line in solved for line in given)
    assert "// ---- write here ----" in [line.strip() for line in given]


FILES = ("wrong_blanks", "wrong_repairs", "right_answers")


@pytest.mark.parametrize("answer", [one for name in FILES for one in answers(name)], ids=id_of)
def test_wrong_answers_are_refused_in_words_and_other_right_ones_pass(answer: Answer) -> None:
    answer.check()


# ---- the learner's file -----------------------------------------------------------------------


def test_first_grading_makes_the_file_from_the_stub_and_later_ones_keep_it(own):
    name = "00_flat_copy"
    assert not grade(name).passed
    file = own / f"{name}.cu"
    assert file.read_text(encoding="utf-8") == stub(name)
    file.write_text(solution(name), encoding="utf-8")
    assert grade(name).passed
    file.write_text(stub(name) + "// mine\n", encoding="utf-8")
    assert not grade(name).passed and file.read_text(encoding="utf-8").endswith("// mine\n")


def test_forced_replay_grades_the_stub_and_writes_nothing(own, monkeypatch):
    name = "00_flat_copy"
    monkeypatch.setenv("SOFTMAX_REPLAY", "1")
    verdict = grade(name)
    assert not verdict.passed and not own.exists()
    own.mkdir()
    (own / f"{name}.cu").write_text(solution(name), encoding="utf-8")
    assert str(grade(name)) == str(verdict)
    monkeypatch.delenv("SOFTMAX_REPLAY")
    assert grade(name).passed


@pytest.mark.parametrize("text", ["", "no kernel\n", "// Launch: block = 128\n"])
def test_a_file_that_is_no_kernel_is_refused_in_words(own, text):
    own.mkdir()
    (own / "00_flat_copy.cu").write_text(text, encoding="utf-8")
    assert "the file needs its header and one __global__ function" in " ".join(
        str(grade("00_flat_copy")).split()
    )


# ---- the verdict ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["00_copy_a_row", "03_one_array", "10_widen"])
def test_verdict_is_text_within_80_columns_and_a_page_that_marks_the_line(name):
    verdict = judge(name, stub(name))
    assert max(map(len, str(verdict).splitlines())) <= 80
    forms = verdict._repr_mimebundle_()
    assert forms["text/plain"] == str(verdict)
    page = forms["text/html"]
    assert f"<summary>mine/answers/{name}.cu" in page and "__global__" in page
    assert page.count("\u2717") == 1
    line = re.search(r"[Ll]ine (\d+)", str(verdict))
    assert page.count(f"{line[1]} &gt; " if line else "&gt; <") >= bool(line)


@pytest.mark.parametrize("folder, up", [("mine", ""), ("mine/deeper", "../")])
def test_links_lead_from_the_notebook_to_the_line_and_to_the_solution(
    own, tmp_path, monkeypatch, folder, up
):
    monkeypatch.setattr("helpers.exercises.grading.ANSWERS", tmp_path / "mine/answers")
    (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / folder)
    name = "06_read_once"
    text = f"mine/answers/{name}.cu"
    link = f'<b>Edit <a href="{up}answers/{name}.cu#line=28">{text}</a> and run'
    verdict = grade(name)
    assert link in verdict.html and f"Edit {text} and run" in verdict.plain
    (tmp_path / f"mine/answers/{name}.cu").write_text(solution(name), encoding="utf-8")
    page = grade(name).html
    href = re.search(r'Our solution: <a href="([^"#]+)">kernels/exercises/solutions/', page)[1]
    assert (tmp_path / folder / href).read_text(encoding="utf-8") == solution(name)
    monkeypatch.setenv("SOFTMAX_REPLAY", "1")
    assert "<a " not in grade(name).html, "committed outputs are read from more than one folder"


def test_a_line_past_a_comment_of_several_lines_is_numbered_right():
    text = solution("04_butterfly")
    text = text.replace("0xffffffff", "__activemask()")
    text = text.replace("\nextern", "\n/* one\n   two\n   three */\nextern", 1)
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "__activemask" in one)
    assert f"Line {line}: __activemask()" in str(judge("04_butterfly", text))
