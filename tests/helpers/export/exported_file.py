"""What the tests of exported Python files share: inputs, and how a file is imported."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np

from helpers.base.gpu import Gpu
from helpers.export.python import write
from helpers.export.request import export_request

OLD = Gpu(80, 8, 2**20)
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)


def values(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 3, shape).astype(dtype)


def imported(
    framework: str,
    name: str,
    folder: Path,
    step: str = "best",
    edited: Callable[[str], str] = lambda text: text,
) -> ModuleType:
    """The exported Python file of a kernel, edited, written to a folder and imported from there."""
    file = folder / f"{name}.py"
    file.write_text(edited(write(export_request(step, [], name), framework)), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where compilers look for it
    spec.loader.exec_module(module)
    return module
