"""Figures of traces, records and the machine. Each call shows a figure and a sentence.

The modules, lowest first:

    style      colours, markers, boxes and words; how figures are displayed, and their digest
    accesses   the events of a trace in order; select an access, and its cost
    charts     bars, dots, curves and heat maps; maps of tuned plans
    memory     sectors, banks, and memory traffic per source line
    owners     which thread, warp or block loads which element
    reduction  how values are merged, level by level
    life       warps that wait: of a block, and in time; messages
    step       the speed of a step: the plot of a notebook and that of the series; predictions
    overview   where the time of each kernel goes; launch levels and memories
    comparison  our kernels compared with other libraries
"""

from .charts import bars, curves, dots, heat, plans
from .comparison import baselines, speedups, unseen
from .life import life, messages, waiting
from .memory import banks, moves, sectors
from .overview import lost_time, machine
from .owners import owners
from .reduction import reduction
from .step import ledger, series, step
