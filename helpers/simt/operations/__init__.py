"""What each arithmetic PTX opcode computes, as numpy functions: a room for each kind of type.

Lowest first; each imports from those above it in this list alone.

    base         the table of opcodes
    rounding     floats rounded up, down, to odd; subnormals flushed
    compare      setp, set, selp, slct
    convert      mov, cvta, cvt
    floats       arithmetic of fp32 and fp64
    integer      arithmetic of integers, logic, shifts, fields
    sixteen_bit  arithmetic of fp16 and bf16
    eight_bit    conversions of 8-bit floats

To add an opcode, write a function that takes the instruction's modifiers and returns an
`PtxOperation`, and decorate it with `@opcode("name", kinds=(INTEGER,))`. It removes the modifiers
that it knows. The last one of most opcodes is the type ("f32", "s64"), which is also how the bits
of the sources are read. Sources arrive as arrays of that type (shape `(threads,)`, or `(1,)` if
the value is the same in every thread); the result is an array of the same kind.

Semantics follow the PTX ISA manual, section 9.7, with these limits: `.approx` functions are
correctly rounded here and up to 2 ulp off on the hardware (more for 16-bit floats), an fp32 fused
multiply-add to nearest goes through float64 (a double rounding in about one case in 2^29), `.ftz`
looks at a result after rounding (the hardware before), and max or min of +0 and -0 may give
either. All else is exact: fp64 and 16-bit fused multiply-adds round once.
"""

from . import compare, convert, eight_bit, floats, integer, sixteen_bit  # fill the table
from .base import INTEGER, OPCODES, PtxOperation, find_operation, kind_of
from .compare import COMPARISONS
from .rounding import flush

__all__ = [
    "COMPARISONS",
    "INTEGER",
    "OPCODES",
    "PtxOperation",
    "find_operation",
    "flush",
    "kind_of",
]
__all__ += ["compare", "convert", "eight_bit", "floats", "integer", "sixteen_bit"]
