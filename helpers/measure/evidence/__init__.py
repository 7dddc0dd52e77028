"""Profiler data, stored beside the records: a module for each file, which reads it for notebooks
and tests and writes it for `make measure ARGS=profile`.

The modules, lowest first:

    cases      what is profiled, and how a tool is started
    forms      the files validated against types
    part       one file: what is current, what is missing
    counters   Nsight Compute's counters
    numerics   errors of the kernels on a GPU
    sanitizer  compute-sanitizer's verdicts
    sass       the instructions that the hardware executes
"""
