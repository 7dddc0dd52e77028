"""What the notebooks import: load a kernel, launch it, check it, count it, time it, plot it.

The modules, lowest first. Each imports from those above it in this list alone, and nobody imports
this package from within; tests/helpers/test_layers.py holds them to it.

    simt          the SIMT machine: runs a kernel on numpy arrays, counts, finds bugs
    paths         the folders of the repository
    lean          imports that nothing here needs, left out
    home          a home folder that can be written
    shapes        families of matrix shapes
    json_files    files that name themselves when they are damaged
    typed_json    JSON held against types
    arguments     arguments held against annotations
    rich          rich output with a plain form; code in colour
    gpu           the GPU at hand, or an H200
    mode          live or replay
    tuned         plans that were tuned on the reader's GPU: reader and writer
    expressions   C's integer expressions, as headers write them
    operations    what kernels compute: arguments, features, bytes
    plan          what a header says: shapes that are taken, how a kernel is built and launched
    header        reading a header: its keys, its Build table
    catalogue     which kernel files there are, and which suits a shape
    references    what each operation gives: inputs, fp64 references, tolerances
    show          kernels, differences, findings and tables, as a notebook shows them
    machine_code  do two texts compile to the same instructions?
    execute       run a cupy.RawKernel once, on the GPU or the SIMT machine
    bound         one object: a kernel bound to a shape, a dtype and a GPU
    export        a kernel as one file for another program
    launch        launch a kernel that the reader built
    check         does a kernel compute what it says?
    exercises     exercises, and the grading of an answer
    workers       work dealt out to GPUs
    samples       samples of timings, and what they say for sure
    records       what was timed: reader and writer
    problems      what is timed: arrays on the GPU, and whether what came out is right
    bench         how a kernel is timed
    contests      what is raced around softmax: operations, their shapes and numbers
    tuning        a kernel's plan, searched on the GPU at hand
    foreign       CuPy's arrays as other libraries take them
    peers_around  what other libraries offer around softmax
    peers         softmax of other libraries
    contested     what race and pipelines have alike: cases, tasks, the file
    races         the race against them: reader and writer
    chain         how softmax is timed in a pipeline
    chains        what was timed so: reader and writer
    race_text     what the README says of the race
    export_times  what a call of the exported softmax costs in PyTorch: reader and writer
    replay        timings of a notebook: measured, or of the records
    evidence      what profiler, sanitizer and disassembler say: reader and writer of each
    profile       counters as named quantities
    predict       what a reader predicts, beside what we predicted
    tables        tables of text
    draw          figures: of a trace, of a record, of the machine
    stamps        records whose kernel's text changed and whose machine code did not
    notebooks     running notebooks
    reading       how long a notebook takes to read
    commands      what can be run, with python -m; imported by nobody
"""

from . import draw, profile, show
from .bound import bind, load
from .catalogue import choose, source
from .check import check_kernel, check_softmax
from .evidence.numerics import numerics
from .evidence.sass import loads_in_a_row, opcodes, sass
from .exercises import grade
from .header import header
from .launch import launch, simulate
from .predict import predict
from .races import race_cases, race_origin
from .records import load_record, predictions
from .replay import timings
from .shapes import REFERENCE_SHAPE

__all__ = [
    "REFERENCE_SHAPE",
    "bind",
    "check_kernel",
    "check_softmax",
    "choose",
    "draw",
    "grade",
    "header",
    "launch",
    "load",
    "load_record",
    "loads_in_a_row",
    "numerics",
    "opcodes",
    "predict",
    "predictions",
    "profile",
    "race_cases",
    "race_origin",
    "sass",
    "show",
    "simulate",
    "source",
    "timings",
]
