"""Every wrong answer in wrong_repairs.txt is refused, with words that lead to what is wrong."""

import pytest

from tests.helpers.exercises.wrong import WrongAnswer, id_of, wrong_answers


@pytest.mark.parametrize("wrong", wrong_answers("wrong_repairs"), ids=id_of)
def test_wrong_answer_is_refused(wrong: WrongAnswer) -> None:
    wrong.check()
