"""What these tests ask for."""

import cupy
import pytest

from tests.simt.features.support import text
from tests.simt.launching import Run, on_gpu


@pytest.fixture
def launch(run: Run) -> Run:
    """Run a kernel of a file, by its name, on numpy arrays in place."""
    if run is on_gpu and int(cupy.cuda.Device().compute_capability) < 90:
        pytest.skip("needs a GPU of compute capability 9.0")

    def launch_named(file: str, name: str, *sizes_and_args, **options) -> None:
        run(text(file), *sizes_and_args, name=name, **options)

    return launch_named
