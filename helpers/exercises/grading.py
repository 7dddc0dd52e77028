"""Grade an answer, from the learner's file to the verdict. The file is mine/answers/<exercise>.cu,
made from the stub when it is first graded.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from ..base.arguments import checked
from ..base.mode import replay_is_forced
from ..base.paths import KERNELS, MINE
from ..simt import CompileError, UnsupportedPTX
from .attempt import Attempt
from .conditions import Condition, compiles, no_bug, right, right_far_apart, right_special
from .table import EXERCISES, Exercise
from .verdict import Step, Verdict, verdict
from .words import of_compiler

ANSWERS = MINE / "answers"


def shown_name(name: str) -> str:
    """The path of the learner's file in messages, relative to the root of the repository."""
    return f"{MINE.name}/{ANSWERS.name}/{name}.cu"


def answer(name: str) -> Path:
    """The file to grade: the learner's, or in a forced replay the stub, so that committed outputs
    do not depend on mine/.

    Copies the stub if there is no answer yet; raises `OSError` if that fails.
    """
    stub = KERNELS / "exercises" / f"{name}.cu"
    if replay_is_forced():
        return stub
    own = ANSWERS / f"{name}.cu"
    if not own.exists():
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(stub, own)
    return own


REFUSED = (CompileError, UnsupportedPTX, ValueError, TypeError, KeyError)


@checked
def grade(name: str) -> Verdict:
    """Grade the learner's answer to an exercise, mine/answers/<name>.cu, which is copied from the
    stub if it does not exist yet.

    A cell that ends with it shows the folded file and the verdict; `print` shows the verdict. The
    verdict lists the conditions up to the first that does not hold, and says where and why.
    `passed` of the result is whether all hold. If SOFTMAX_REPLAY=1 forces a replay, the stub is
    graded and nothing is written.

    Raises `ValueError` that lists the exercises for an unknown one, and `OSError` if the file
    cannot be made.
    """
    if name not in EXERCISES:
        raise ValueError(f"no exercise {name!r}; there are: {', '.join(EXERCISES)}")
    return judge(name, answer(name).read_text(encoding="utf-8"))


def judge(name: str, code: str) -> Verdict:
    """The verdict on the text of a kernel file as an answer to an exercise."""
    exercise, file = EXERCISES[name], shown_name(name)
    attempt = Attempt(f'#line 1 "{file}"\n{code}', file, exercise.dtype)
    steps: list[Step] = []
    for condition in conditions(exercise):
        if steps and not steps[-1].kept:
            steps.append(Step(condition.asked, None))
            continue
        try:
            complaint = condition.complaint(attempt)
        except CompileError as error:
            complaint = f"It does not compile: {of_compiler(str(error))}"
        except REFUSED as error:
            complaint = str(error.args[0]) if isinstance(error, KeyError) else str(error)
        if complaint and complaint[-1] not in ".?!)":
            complaint += "."
        steps.append(Step(condition.asked, not complaint, complaint))
    complaint = next((step.complaint for step in steps if step.complaint), "")
    named = re.search(r"\b[Ll]ines? (\d+)", complaint)
    return verdict(name, steps, file, code, int(named[1]) if named else None)


def conditions(exercise: Exercise) -> list[Condition]:
    """All conditions, in the order in which they are checked."""
    shapes = exercise.shapes
    found = [compiles(shapes[0]), no_bug(shapes), right(exercise.asked, exercise.goal, shapes)]
    if exercise.special:
        about = exercise.goal, exercise.special, exercise.columns
        found += [right_far_apart(*about), right_special(*about)]
    return [*found, *exercise.conditions]
