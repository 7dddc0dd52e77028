"""What the notebooks import: load a kernel, launch it, check it, count it, time it, plot it.

The packages, lowest first. Each imports from those above it in this list alone, and nobody imports
`helpers` itself from within; tests/helpers/test_layers.py holds them to it. The docstring of each
package lists its modules in the same way.

    simt       the SIMT machine: runs a kernel on numpy arrays, counts, finds bugs
    base       folders, files, the GPU in use, the mode
    problem    what is computed on what
    catalogue  kernel files: header contract, registry, dispatch
    run        run a kernel and check its result
    export     a kernel as one file for another program
    measure    timings, profiler data, tuning, and their records
    page       what a notebook shows: listings, figures, predictions, tables
    exercises  exercises, and the grading of an answer
    commands   command-line entry points; imported by nobody
"""

from .catalogue.dispatch import choose
from .catalogue.header import header
from .catalogue.registry import asking, source
from .exercises import grade
from .measure.comparison import comparison_cases, comparison_origin, load_comparisons
from .measure.pipelines import ORDINARY, pipeline_cases
from .measure.profiler.numerics import numerics
from .measure.profiler.sass import loads_in_a_row, opcodes, sass
from .measure.records import load_record, predictions
from .page import draw, profile, show
from .page.comparison_text import OUTSIDE
from .page.predict import predict
from .page.profile import unfused_launches
from .page.replay import timings
from .problem.shapes import FEW_SHAPES, REFERENCE_SHAPE
from .run.bound import bind, load
from .run.check import check_kernel, check_softmax
from .run.launch import launch, simulate
from .run.references import make_input, poisoned, reference, ulp
from .simt import CompileError

__all__ = [
    "FEW_SHAPES",
    "ORDINARY",
    "OUTSIDE",
    "REFERENCE_SHAPE",
    "CompileError",
    "asking",
    "bind",
    "pipeline_cases",
    "check_kernel",
    "check_softmax",
    "choose",
    "draw",
    "grade",
    "header",
    "launch",
    "load",
    "load_comparisons",
    "load_record",
    "loads_in_a_row",
    "make_input",
    "numerics",
    "opcodes",
    "poisoned",
    "predict",
    "predictions",
    "profile",
    "comparison_cases",
    "comparison_origin",
    "reference",
    "sass",
    "show",
    "simulate",
    "source",
    "timings",
    "ulp",
    "unfused_launches",
]
