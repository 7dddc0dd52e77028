"""Every wrong answer is refused with words that lead to what is wrong; every right one passes,
though it is another one than ours."""

import pytest

from tests.helpers.exercises.answers import Answer, answers, id_of

FILES = ("wrong_blanks", "wrong_repairs", "right_answers")


@pytest.mark.parametrize("answer", [one for name in FILES for one in answers(name)], ids=id_of)
def test_answer_has_its_verdict(answer: Answer) -> None:
    answer.check()
