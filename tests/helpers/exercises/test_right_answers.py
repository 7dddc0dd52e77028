"""Every answer in right_answers.txt passes, though it is another one than ours."""

import pytest

from tests.helpers.exercises.answers import Answer, answers, id_of


@pytest.mark.parametrize("answer", answers("right_answers"), ids=id_of)
def test_another_right_answer_passes(answer: Answer) -> None:
    answer.check()
