"""What these tests ask for."""

import pytest

from tests.simt.features.support import Run, on_gpu, on_simt


@pytest.fixture(params=["simt", pytest.param("gpu", marks=pytest.mark.gpu)])
def run(request: pytest.FixtureRequest) -> Run:
    """Launch a kernel of a file on numpy arrays, in place."""
    return on_simt if request.param == "simt" else on_gpu
