"""Profiler data, stored beside the records: a module for each file, which reads it for notebooks
and tests and writes it for `make measure ARGS=profile`.

The modules, lowest first:

    launches   what is profiled, how a tool is started, and what a file lacks
    counters   Nsight Compute's counters
    numerics   errors of the kernels' arithmetic on a GPU
    sanitizer  compute-sanitizer's verdicts
    sass       the instructions that the hardware executes
"""
