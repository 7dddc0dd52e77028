"""What the tests of exported Python files share: inputs, and changed files that a test has to
notice."""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from helpers.export.asked import request
from helpers.export.python import write
from helpers.gpu import Gpu

OLD = Gpu(80, 8, 2**20)
DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
ERRORS = AssertionError, ValueError, RuntimeError, TypeError, LookupError, ArithmeticError
ERRORS += (pytest.fail.Exception,)  # where the test waits for an error that does not come


def values(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 3, shape).astype(dtype)


def imported(framework: str, name: str, folder: Path) -> ModuleType:
    """The exported file of a framework, written to a folder and imported from there."""
    file = folder / f"{name}.py"
    file.write_text(write(request("best", [], name), framework), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where compilers look for it
    spec.loader.exec_module(module)
    return module


def on_gpu(torch: ModuleType, *shape: int, dtype: str = "float32", scale: float = 4.0):
    """A tensor of PyTorch on the GPU, the same for the same shape."""
    generator = torch.Generator(device="cuda").manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator, device="cuda") * scale
    return x.to(getattr(torch, dtype))


def check_noticed(noticed: Callable, text: str, here: Callable, line: str, changed: str) -> None:
    """A test fails where a line of the file is changed; it takes the `text`, or what `here` makes
    of it."""
    assert line in text
    text = text.replace(line, changed)
    takes_text = "text" in inspect.signature(noticed).parameters
    with pytest.raises(ERRORS):
        noticed(**{"text": text} if takes_text else {"here": here(text)})
