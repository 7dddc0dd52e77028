"""What the tests of exported files share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from types import ModuleType
from unittest import mock

import pytest

from helpers.catalogue import dispatch, registry
from helpers.run import bound
from tests.helpers.export.exported_file import imported


@pytest.fixture(scope="module", autouse=True)
def kernel_files_are_read_once() -> Iterator[None]:
    """They plan ten thousands of matrices and change no kernel file; other tests change some."""
    kept = cache(registry.source)
    with ExitStack() as stack:
        for module in (registry, bound, dispatch):
            stack.enter_context(mock.patch.object(module, "source", kept))
        yield


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    return pytest.importorskip("torch", reason="no PyTorch: pip install torch")


class Place:
    """Where the exported PyTorch file runs: over the SIMT machine with CPU tensors, or on a GPU."""

    def __init__(self, torch: ModuleType, module: ModuleType, device: str):
        self.torch, self.module, self.device = torch, module, device
        self.noted: list[str] = []
        launcher = module._launcher

        def noting(function: object, plan: object, *others: object) -> Callable:
            launch = launcher(function, plan, *others)

            def noted(*given: object) -> None:
                launch(*given)
                self.noted.append(plan.kernel)

            return noted

        module._launcher = noting

    def kernels(self) -> list[str]:
        """The kernels that were launched since it was last asked."""
        found, self.noted = self.noted, []
        return found

    def values(self, *shape: int, dtype: str = "float32", scale: float = 4.0):
        """A tensor, the same for the same shape."""
        generator = self.torch.Generator(self.device).manual_seed(sum(shape))
        x = self.torch.randn(shape, generator=generator, device=self.device) * scale
        return x.to(getattr(self.torch, dtype))

    def mask(self, *shape: int):
        """A mask that hides a third, and no row wholly."""
        mask = self.values(*shape) < -2
        mask[..., 0] = False
        return mask


@pytest.fixture(scope="session")
def gpu(torch: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One copy of the file: operators are those of a process's first copy."""
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    return Place(torch, imported("torch", "fast_softmax", tmp_path_factory.mktemp("torch")), "cuda")


@pytest.fixture(scope="session")
def cpu(torch: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Place:
    from tests.helpers.export.torch_on_cpu import on_cpu

    return Place(torch, on_cpu(tmp_path_factory.mktemp("torch"), "softmax_on_cpu"), "cpu")


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest) -> Place:
    """Each test that takes it runs with PyTorch on the CPU, and where there is a GPU, on that."""
    place = request.getfixturevalue(request.param)
    place.kernels()
    return place
