"""What several test files ask for."""

import pytest

from tests.simt.launching import Run, on_gpu, on_simt


@pytest.fixture(params=["simt", pytest.param("gpu", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest) -> Run:
    """Compile the kernel `k` and run it on numpy arrays, in place."""
    return on_simt if request.param == "simt" else on_gpu
