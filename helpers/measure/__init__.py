"""Measure on a GPU.

The modules, lowest first:

    campaign         the loop of every campaign: what is due, its tasks and their records
    samples          medians and their run-to-run variation
    records          timings of the steps
    profiler         profiler data: counters, sanitizer, disassembly
    gpu_arrays       arrays of timed kernels on the GPU, and the check of the result
    bench            the timer: candidates in turn, each in a CUDA graph
    tuning           search for a faster plan on the GPU in use
    interop          calls of other libraries on CuPy arrays
    baselines        these libraries as baselines: what they support
    comparison       our kernels compared with the baselines: the records and what they say
    pipelines        softmax between a producer and a consumer: the same, and its timer
    side_by_side     time our kernels and the baselines in turn
    profiling        collect profiler data
"""
