"""The functions that the notebooks use to load, launch, check, profile, time and plot kernels.

Each package imports only from those listed before it, and no
module imports `helpers` itself; tests/helpers/test_layers.py enforces both rules. The docstring of
each package lists its modules in the same way.

    simt       the SIMT machine: runs a kernel on numpy arrays, counts events, finds bugs
    base       folders, files, the GPU in use, live or replay mode
    problem    operations, and the problems (shape, dtype, layout) they are computed on
    catalogue  kernel files: header contract, registry, dispatch heuristic
    run        run a kernel and check its result
    export     export a kernel as a single file for another program
    measure    timings, profiler data, tuning, and their records
    page       notebook output: listings, figures, predictions, tables
    exercises  exercises, and the grading of an answer
    commands   command-line entry points; no other package imports them
"""

import signal
import sys

if sys.argv[0] == "-m" and "helpers.commands" in " ".join(sys.orig_argv):
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends an import without a traceback

from .catalogue.dispatch import choose
from .catalogue.header import header
from .catalogue.registry import with_hints
from .catalogue.tuned import load_tuned
from .exercises.grading import grade
from .measure.comparison import (
    comparison_cases,
    comparison_origin,
    load_comparisons,
    load_unseen,
)
from .measure.pipelines import ORDINARY, pipeline_cases
from .measure.profiler import loads_in_a_row, numerics, opcodes, sass
from .measure.records import load_record, predictions
from .page import draw, profile, show
from .page.comparison_text import unseen_lines
from .page.profile import unfused_launches
from .page.replay import predict, timings
from .page.rich import source
from .problem.shapes import FEW_SHAPES, REFERENCE_SHAPE
from .run.bound import bind, load
from .run.check import check_softmax
from .run.launch import check_kernel, simulate
from .run.references import make_input, poisoned, reference, ulp
from .simt import CompileError
