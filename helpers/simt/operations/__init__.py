"""What each arithmetic PTX opcode computes, as numpy functions.

Lowest first; each imports from those above it in this list alone.

    base          the table of opcodes
    rounding      floats rounded up, down, to odd; subnormals flushed
    convert       mov, cvta, cvt; setp, set, selp, slct
    floats        arithmetic of fp32 and fp64
    integer       arithmetic of integers, logic, shifts, fields
    small_floats  arithmetic of fp16 and bf16, conversions of 8-bit floats

To add an opcode, write a function of arrays and decorate it with `@form`, which says what may be
written behind the opcode and how the bits of the sources are read. Sources arrive as arrays of
their types (shape `(threads,)`, or `(1,)` if the value is the same in every thread).

Semantics follow the PTX ISA manual, section 9.7, with these limits: `.approx` functions are
correctly rounded here and up to 2 ulp off on the hardware (more for 16-bit floats), an fp32 fused
multiply-add to nearest goes through float64 (a double rounding in about one case in 2^29), `.ftz`
looks at a result after rounding (the hardware before), and max or min of +0 and -0 may give
either. All else is exact: fp64 and 16-bit fused multiply-adds round once.
"""

from . import convert, floats, integer, small_floats  # noqa: F401, they fill the table
