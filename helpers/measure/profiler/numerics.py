"""numerics.jsonl: the error of the arithmetic that the kernels use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypedDict

import numpy as np

from ...base.arguments import checked
from ...base.json_files import Must
from ...catalogue import store
from ...catalogue.store import Run
from ...run.launch import launch
from .launches import Profiled, ProfilerFile, ToolRun

# x is the argument of an exponential, s a sum: the arithmetic of the kernels of 03 to 06.
NUMERICS = {
    "expf(x)": ("expf(x)", lambda x, s: np.exp(x)),
    "__expf(x)": ("__expf(x)", lambda x, s: np.exp(x)),
    "exp2f(x * log2e)": ("exp2f(x * 1.44269504f)", lambda x, s: np.exp(x)),
    "expf(x) / s": ("expf(x) / s", lambda x, s: np.exp(x) / s),
    "expf(x) * (1 / s)": ("expf(x) * (1.0f / s)", lambda x, s: np.exp(x) / s),
}


Ulp = Annotated[float, Must("0 or more", lambda number: number >= 0)]


class Errors(TypedDict):
    """Errors against fp64 in ulp of the fp32 result."""

    max_ulp: Ulp
    mean_ulp: Ulp


@dataclass(frozen=True)
class Formula(Profiled):
    """The accuracy of a formula."""

    file = "numerics"

    run: Run
    formula: str
    expression: str  # in CUDA
    errors: dict[str, Errors]  # range of x -> errors of the results

    @property
    def key(self) -> str:
        return self.formula

    @property
    def made_of(self) -> str:
        return self.expression


@checked
def numerics(gpu: str | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """Formula -> range of x -> its largest and mean error against fp64, in ulp of fp32."""
    return {one.formula: one.errors for one in store.read(Formula, gpu)}


class NumericsFile(ProfilerFile):
    """Measured in one go, if an error of any of `NUMERICS` is missing."""

    kind, title = Formula, "numerics"
    protocol = {"version": 1, "inputs": "2^20 random x and s, seed 0"}

    def wanted(self) -> dict[str, str]:
        return {formula: expression for formula, (expression, _) in NUMERICS.items()}

    def batches(self, missing: Sequence[str], steps: Sequence[str]) -> list[ToolRun]:
        return [ToolRun("errors of the arithmetic")] if missing else []

    def look(self, batch: ToolRun) -> list[Formula]:
        errors = measure_errors()
        return [
            Formula(self.run, formula, expression, errors[formula])
            for formula, expression in self.wanted().items()
        ]


def measure_errors() -> dict[str, dict[str, Errors]]:
    """Formula -> range of x -> largest and mean error against fp64, in ulp of the fp32 result.

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
    return found
