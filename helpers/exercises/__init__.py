"""The exercises: a learner's kernel is graded, condition by condition, on the SIMT machine.

The modules, lowest first. Each imports from those above it in this list alone.

    results      what y should be, and the first place where it is something else
    words        bugs and compiler errors in a learner's words
    attempt      a kernel that is graded, and its runs
    conditions   what an answer must keep to
    table        the exercises: what each asks for
    answers      the learner's files
    verdict      what a grading says
    grading      one grading, from the file to the verdict

A stub is in kernels/exercises/, its solution in kernels/exercises/solutions/ and the learner's
answer, made from the stub, in mine/answers/: all three have the exercise's name.
"""

from .grading import grade
from .table import EXERCISES
from .verdict import Verdict

__all__ = ["EXERCISES", "Verdict", "grade"]
