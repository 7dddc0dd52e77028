"""Measure on a GPU, and read and write what was measured.

The modules, lowest first:

    workers          work dealt out to GPUs
    campaign         the loop of every campaign
    samples          medians and their run-to-run variation
    store            files of what was measured, a line for each observation
    records          timings of the steps
    gpu_arrays       what is timed: arrays on the GPU, and the check of the result
    bench            how a kernel is timed
    problem_groups   problems of the comparison: operations, shapes, numbers
    tuning           search for a faster plan on the GPU in use
    interop          CuPy arrays as other libraries take them
    fused_baselines  baselines for operations around softmax
    baselines        baselines for softmax
    comparison       our kernels beside the baselines
    pipeline_timer   how softmax is timed between a producer and a consumer
    pipelines        what was timed so
    call_times       timings of the exported PyTorch file
    profiler         profiler data: counters, sanitizer, disassembly
"""
