"""The exercises: a learner's kernel is graded, condition by condition, on the SIMT machine.

The modules, lowest first. Each only imports from those above it in this list.

    attempt      a graded kernel, its runs, and the expected y
    conditions   the conditions that an answer must satisfy, and bugs in a learner's words
    grading      the exercises, and one grading, from the learner's file to the verdict

A stub is in kernels/exercises/, its solution in kernels/exercises/solutions/ and the learner's
answer, made from the stub, in mine/answers/: all three have the exercise's name.
"""

from .grading import EXERCISES, Verdict, grade
