"""The learner's files: mine/answers/<exercise>.cu, made from the stub when it is first graded."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..base.mode import replay_is_forced
from ..base.paths import KERNELS, MINE

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
