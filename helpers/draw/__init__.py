"""Figures: of a trace, of a record, of the machine. Each call shows one and says a sentence.

The modules, lowest first:

    style     colours, markers, and the one way in which a figure reaches the page
    canvas    a figure to draw boxes, words and arrows on
    machine   where we are: what is launched, and where it lives
    memory    what a kernel asks of memory: lanes on sectors, on banks, traffic beside the source
    owners    of a trace: who loads which element
"""

from .machine import machine
from .memory import banks, moves, sectors
from .owners import owners

__all__ = ["banks", "machine", "moves", "owners", "sectors"]
