"""What is computed on what; nothing here knows a GPU or a kernel.

The modules, lowest first:

    operations  what kernels compute: their arguments and features, one row per operation
    problem     `Problem`: an operation at a shape, dtype and layout
    shapes      families of matrix shapes
"""
