"""Figures: of a trace, of a record, of the machine. Each call shows one and says a sentence.

The modules, lowest first:

    digest     of what a figure draws, for make test to compare
    style      colours, markers, and the one way in which a figure reaches the page
    canvas     a figure to draw boxes, words and arrows on
    machine    where we are: what is launched, and where it lives
    accesses   which access of a trace a figure is of, and what it costs
    memory     what a kernel asks of memory: lanes on sectors, on banks, traffic beside the source
    walk       through a trace: events with their accesses, in the order of the run
    owners     of a trace: who loads which element
    reduction  who takes whose value, level by level
    life       what the warps of a block do, and where they wait
    letters    what blocks send each other
    labels     names of lines that hide neither lines nor each other
    charts     bars, curves and heat maps of any numbers
    step       how fast a step is: the plot of a notebook, and that of the series
    ledger     what was predicted, beside what was measured
    comparison  our kernels beside other libraries, at some shapes and over all
"""

from .charts import bars, curves, heat
from .comparison import baselines, not_ahead, speedups
from .ledger import ledger
from .letters import letters
from .life import life
from .machine import machine
from .memory import banks, moves, sectors
from .owners import owners
from .reduction import reduction
from .step import series, step

__all__ = [
    "banks",
    "bars",
    "baselines",
    "curves",
    "heat",
    "ledger",
    "letters",
    "life",
    "machine",
    "moves",
    "not_ahead",
    "owners",
    "reduction",
    "sectors",
    "series",
    "speedups",
    "step",
]
