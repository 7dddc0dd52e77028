"""Operations and problems, independent of any kernel or GPU.

The modules, lowest first:

    operations  the operations: their arguments and features
    problem     `Problem`: an operation at a shape, dtype and layout
    shapes      families of matrix shapes, and the problems of fused and related operations
"""
