"""Measure on a GPU, and read and write what was measured.

The modules, lowest first:

    workers       work dealt out to GPUs
    campaign      the loop of every campaign
    samples       medians and their run-to-run variation
    store         files of what was measured, a line for each observation
    records       timings of the steps
    problems      what is timed: arrays on the GPU, and the check of the result
    bench         how a kernel is timed
    contests      problems of the comparison: operations, shapes, numbers
    tuning        search for a faster plan on the GPU in use
    foreign       CuPy arrays as other libraries take them
    peers_around  baselines for operations around softmax
    peers         baselines for softmax
    races         the comparison with the baselines
    chain         how softmax is timed between a producer and a consumer
    chains        what was timed so
    export_times  timings of the exported PyTorch file
    evidence      profiler data: counters, sanitizer, disassembly
"""
