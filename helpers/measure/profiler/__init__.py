"""Profiler data, stored beside the records: a module for each file, which reads it for notebooks
and tests and writes it for `make measure ARGS=profile`.

The modules, lowest first:

    launches   what is profiled, and how a tool is started
    update     one file: what is missing, and the loop that measures it
    counters   Nsight Compute's counters
    numerics   errors of the kernels' arithmetic on a GPU
    sanitizer  compute-sanitizer's verdicts
    sass       the instructions that the hardware executes
"""
