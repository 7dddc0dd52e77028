"""What the tests of exported files share."""

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from unittest import mock

import pytest

from helpers import bound, catalogue
from tests.helpers.export.exported_file import imported


@pytest.fixture(scope="module", autouse=True)
def kernel_files_are_read_once() -> Iterator[None]:
    """They plan ten thousands of matrices and change no kernel file; other tests change some."""
    kept = cache(catalogue.source)
    with mock.patch.object(catalogue, "source", kept), mock.patch.object(bound, "source", kept):
        yield


@pytest.fixture
def here(text: str, request: pytest.FixtureRequest) -> object:
    """A fresh import of the exported file, with the package and the driver that it uses."""
    return request.module.Here(text)


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    return torch


@pytest.fixture(scope="session")
def fast(torch: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The exported PyTorch file: one copy, since operators are those of a process's first copy."""
    return imported("torch", "fast_softmax", tmp_path_factory.mktemp("torch"))
