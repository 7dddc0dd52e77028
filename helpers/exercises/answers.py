"""The learner's files: mine/answers/<exercise>.cu, made from the stub when it is first graded."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..base.mode import replay_is_forced
from ..base.paths import KERNELS, MINE

ANSWERS = MINE / "answers"


def shown_name(name: str) -> str:
    """The learner's file as messages have it, below the root of the repository."""
    return f"{MINE.name}/{ANSWERS.name}/{name}.cu"


def answer(name: str) -> Path:
    """The file to grade: the learner's; where a replay is forced, so that committed outputs do not
    depend on what is in mine/, the stub.

    Makes the learner's from the stub if it is not there; raises `OSError` if that cannot be.
    """
    stub = KERNELS / "exercises" / f"{name}.cu"
    if replay_is_forced():
        return stub
    own = ANSWERS / f"{name}.cu"
    if not own.exists():
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(stub, own)
    return own
