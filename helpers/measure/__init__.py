"""Measure on a GPU, and read and write what was measured.

The modules, lowest first:

    workers       work dealt out to GPUs
    campaign      the loop of every campaign
    samples       medians and their run-to-run variation
    records       timings of the steps: reader and writer
    problems      what is timed: arrays on the GPU, and the check of the result
    bench         how a kernel is timed
    contests      problems of the comparison: operations, shapes, numbers
    tuning        search for a faster plan on the GPU in use
    foreign       CuPy arrays as other libraries take them
    peers_around  baselines for operations around softmax
    peers         baselines for softmax
    contested     what comparison and pipelines share: cases, tasks, the file
    races         the comparison with the baselines: reader and writer
    chain         how softmax is timed between a producer and a consumer
    chains        what was timed so: reader and writer
    export_times  timings of the exported PyTorch file: reader and writer
    evidence      profiler data: counters, sanitizer, disassembly
"""
