"""numerics.json: the error of the arithmetic that the kernels use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...base.arguments import checked
from ...run.launch import launch
from ..store import REFERENCE_GPU
from .cases import Batch
from .part import Part, read_part

# x is the argument of an exponential, s a sum: what the kernels of 03 to 06 compute from them.
NUMERICS = {
    "expf(x)": ("expf(x)", lambda x, s: np.exp(x)),
    "__expf(x)": ("__expf(x)", lambda x, s: np.exp(x)),
    "exp2f(x * log2e)": ("exp2f(x * 1.44269504f)", lambda x, s: np.exp(x)),
    "expf(x) / s": ("expf(x) / s", lambda x, s: np.exp(x) / s),
    "expf(x) * (1 / s)": ("expf(x) * (1.0f / s)", lambda x, s: np.exp(x) / s),
}


@checked
def numerics(gpu: str = REFERENCE_GPU) -> dict[str, dict[str, dict[str, float]]]:
    """Formula -> range of x -> its largest and mean error against fp64, in ulp of fp32."""
    return read_part("numerics", gpu)["errors"]


class NumericsPart(Part):
    """Measured in one go, if the file has not the errors of all of `NUMERICS`."""

    name = title = "numerics"
    entries = "errors"

    def __init__(self, stored: dict, device: dict):
        super().__init__(stored, device)
        self.found = {name: stored[name] for name in ("inputs", "errors") if name in stored}

    def batches(self, steps: Sequence[str], fresh: bool) -> list[Batch]:
        complete = list(self.found.get("errors", ())) == list(NUMERICS)
        return [] if complete and not fresh else [Batch("errors of the arithmetic")]

    def look(self, batch: Batch) -> dict:
        return collect_numerics()

    def keep(self, batch: Batch, found: dict) -> None:
        self.found = found

    def content(self) -> dict:
        return self.found


def collect_numerics() -> dict:
    """The file: largest and mean error of each formula against fp64, in ulp of the fp32 result.

    Over 2^20 arguments from [-20, 0], and from [-80, 0] for the tails, with sums in [1, 4096].
    """
    import cupy

    random = np.random.default_rng(0)
    s = np.exp(random.uniform(0, np.log(4096), 2**20)).astype(np.float32)
    found = {}
    for lowest in (-20, -80):
        x = random.uniform(lowest, 0, 2**20).astype(np.float32)
        for name, (formula, exact) in NUMERICS.items():
            code = (
                'extern "C" __global__ void probe(const float* xs, const float* ss, float* y) {'
                " const int i = blockIdx.x * blockDim.x + threadIdx.x;"
                f" const float x = xs[i], s = ss[i]; y[i] = {formula}; }}"
            )
            y = np.empty_like(x)
            launch(cupy.RawKernel(code, "probe"), 2**12, 2**8, (x, s, y))
            wanted = exact(x.astype(np.float64), s.astype(np.float64))
            normal = wanted >= np.finfo(np.float32).smallest_normal
            ulp = np.spacing(wanted[normal].astype(np.float32)).astype(np.float64)
            error = np.abs(y[normal] - wanted[normal]) / ulp
            found.setdefault(name, {})[f"x in [{lowest}, 0]"] = {
                "max_ulp": round(float(error.max()), 2),
                "mean_ulp": round(float(error.mean()), 3),
            }
    return {"inputs": "2^20 random x and s, seed 0", "errors": found}
