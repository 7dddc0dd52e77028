"""Run a kernel on the GPU or the SIMT machine, and check its result.

The modules, lowest first:

    references  inputs, fp64 references and tolerances for each operation
    check       compare the outputs of a kernel with their reference
    execute     run a cupy.RawKernel once
    bound       a kernel bound to a shape, a dtype and a GPU
    launch      launch a kernel that the reader compiled; check a kernel over shapes and layouts
"""
