"""What is computed on what; nothing here knows a GPU or a kernel.

The modules, lowest first:

    shapes      families of matrix shapes
    operations  what kernels compute: arguments, features, bytes
"""
