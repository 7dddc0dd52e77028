"""Every wrong answer in wrong_blanks.txt is refused, with words that lead to what is wrong."""

import pytest

from tests.helpers.exercises.answers import Answer, answers, id_of


@pytest.mark.parametrize("answer", answers("wrong_blanks"), ids=id_of)
def test_wrong_answer_is_refused(answer: Answer) -> None:
    answer.check()
