"""Random programs, each from its number, whose results must be a GPU's.

`Program` is for one thread at a time: integers and floats, branches, loops, switches, jumps.
`BlockProgram` adds what a block does together: barriers, shuffles, votes, shared memory.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cached_property

import numpy as np

from helpers.simt import KernelText, Trace, simulate

INPUTS = 256  # elements of x and of f
BLOCKS, THREADS = 3, 64
RESULTS = 4  # unsigned ones of each thread, and as many floats
OPTIONS = ("-fmad=false",)
# `tame` keeps floats away from subnormals, zeros of either sign, infinities and NaN.
FUNCTIONS = """
#define POPC __popc
#define CLZ __clz
#define TAME(v) tame(v)
typedef unsigned long long u64;
__device__ float tame(float v)
{
    float size = fabsf(v);
    return size > 0.0625f && size < 1e6f ? v : 1.5f;
}
__device__ unsigned whole(float v) { return v > -1e6f && v < 1e6f ? (unsigned)(int)v : 7u; }
"""

UNSIGNED, FLOATS = ("a", "b", "c", "d"), ("p", "q", "r")


class Program:
    """A function of `const unsigned* x, const float* f, unsigned* y, float* g`, for thread i."""

    JUMPS = True

    def __init__(self, number: int):
        self.chance = random.Random(f"{type(self).__name__} {number}")
        self.number = number
        self.loops = 0

    @property
    def name(self) -> str:
        return f"program_{self.number}"

    # ---- expressions ----

    def pick(self, *choices):
        return self.chance.choice(choices)

    def unsigned(self, depth: int = 2) -> str:
        """An expression of 32 bits without a sign."""
        if depth == 0 or self.chance.random() < 0.15:
            constant = self.pick(0, 1, 7, 31, 255, 65537, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
            return self.pick(*UNSIGNED, *UNSIGNED, "i", f"{constant}u", f"s[{self.pick(0, 3, 7)}]")
        one, two = self.unsigned(depth - 1), self.unsigned(depth - 1)
        value, number = self.floating(depth - 1), self.pick(1, 3, 8, 13, 24)
        return self.pick(
            *(f"({one} {sign} {two})" for sign in "+-*^&|"),
            *(f"({one} {sign} ({two} & 31))" for sign in ("<<", ">>")),
            *(f"({one} {sign} ({two} | 1))" for sign in "/%"),
            f"({self.condition(depth - 1)} ? {one} : {two})",
            f"(~{one})",
            f"(unsigned)((int)({one}) >> {number})",
            f"(unsigned)((int)({one}) / {number})",
            f"(unsigned)(unsigned short)({one})",
            f"(unsigned)(signed char)({one})",
            f"(unsigned)(((u64)({one}) * ({two})) >> {number})",
            f"(unsigned)((long long)(int)({one}) * (int)({two}) >> {number})",
            f"(unsigned)(((u64)({one}) << 32 | ({two})) / ((u64)({two}) + {number}))",
            f"(unsigned)POPC({one})",
            f"(unsigned)CLZ({one})",
            f"x[({one}) % {INPUTS}]",
            f"s[({one}) & 7]",
            f"whole({value})",
        )

    def floating(self, depth: int = 2) -> str:
        """An expression of a float."""
        if depth <= 0 or self.chance.random() < 0.15:
            return self.pick(*FLOATS, *FLOATS, "0.75f", "-3.0f", "1.1f", "1000.5f")
        one, two = self.floating(depth - 1), self.floating(depth - 1)
        place = self.unsigned(depth - 1)
        return self.pick(
            *(f"({one} {sign} {two})" for sign in "+-*"),
            f"({one} / (fabsf({self.pick(*FLOATS)}) + 1.0f))",
            f"fminf({one}, {two})",
            f"fmaxf({one}, {two})",
            f"(- {one})",
            f"fabsf({one})",
            f"sqrtf(fabsf({one}))",
            f"floorf({one})",
            f"truncf({one})",
            f"fmaf({one}, {two}, {self.pick(*FLOATS)})",
            f"(float)(int)({place})",
            f"(float)({place})",
            f"(float)((double)({one}) * 1.25)",
            f"f[({place}) % {INPUTS}]",
            f"({self.condition(depth - 1)} ? {one} : {two})",
        )

    def condition(self, depth: int = 2) -> str:
        sign = self.pick("<", "<=", ">", ">=", "==", "!=")
        if depth <= 0 or self.chance.random() < 0.4:
            return f"({self.unsigned(1)} {sign} {self.unsigned(0)})"
        return self.pick(
            f"((int)({self.unsigned(depth - 1)}) {sign} (int)({self.unsigned(depth - 1)}))",
            f"({self.floating(depth - 1)} {self.pick('<', '>')} {self.floating(depth - 1)})",
            f"({self.condition(depth - 1)} && {self.condition(depth - 1)})",
            f"({self.condition(depth - 1)} || {self.condition(depth - 1)})",
            f"({self.unsigned(depth - 1)} & 1)",
        )

    # ---- statements ----

    def statement(self, depth: int, inside: bool = False) -> str:
        """One statement; `inside` a loop it may leave that."""
        simple = depth == 0 or self.chance.random() < 0.45
        if simple:
            choices = [
                f"{self.pick(*UNSIGNED)} {self.pick('=', '+=', '^=', '-=')} {self.unsigned()};",
                f"{self.pick(*FLOATS)} = TAME({self.floating()});",
                f"s[({self.unsigned(1)}) & 7] = {self.unsigned(2)};",
            ]
            if inside:
                choices.append(f"if ({self.condition()}) {self.pick('break', 'continue')};")
            elif self.JUMPS and self.chance.random() < 0.1:
                choices.append(f"if ({self.condition()}) goto out;")
            return self.pick(*choices)
        body = self.statements(depth - 1, inside)
        self.loops += 1
        k, rounds = f"k{self.loops}", f"({self.unsigned(1)}) % {self.pick(3, 6, 11)}"
        loop = self.statements(depth - 1, True)
        return self.pick(
            f"if ({self.condition()}) {{ {body} }}",
            f"if ({self.condition()}) {{ {body} }} else {{ {self.statements(depth - 1, inside)} }}",
            f"for (unsigned {k} = 0, e = {rounds}; {k} < e; {k}++) {{ a += {k}; {loop} }}",
            f"for (unsigned {k} = 9; {self.condition()} && {k}--;) {{ {loop} }}",
            f"{{ unsigned {k} = 5; do {{ {loop} }} while ({self.condition()} && --{k}); }}",
            f"switch (({self.unsigned(2)}) % 5) {{ case 0: b += 3; {self.statements(0, False)} "
            f"case 1: c ^= a; break; case 3: {self.statements(0, False)} break; default: d++; }}",
        )

    def statements(self, depth: int, inside: bool = False) -> str:
        return " ".join(self.statement(depth, inside) for _ in range(self.chance.randint(1, 3)))

    # ---- the whole ----

    def lines(self) -> list[str]:
        return [self.statement(2) for _ in range(self.chance.randint(4, 8))]

    @cached_property
    def body(self) -> str:
        return "\n    ".join(
            [
                f"unsigned a = x[i % {INPUTS}], b = i, c = x[(i + 7) % {INPUTS}], d = 1;",
                f"float p = f[i % {INPUTS}], q = 2.5f, r = f[(3 * i + 1) % {INPUTS}];",
                "unsigned s[8];",
                "for (unsigned k = 0; k < 8; k++) s[k] = k * b;",
                *self.lines(),
                "out:" if self.JUMPS else "",
                *(f"y[{RESULTS} * i + {n}] = {name};" for n, name in enumerate(UNSIGNED)),
                *(f"g[{RESULTS} * i + {n}] = {name};" for n, name in enumerate(FLOATS)),
                f"g[{RESULTS} * i + 3] = (float)(s[a & 7] & 65535);",
            ]
        )

    PARAMETERS = "const unsigned* x, const float* f, unsigned* y, float* g"

    def in_cuda(self) -> str:
        return (
            f'extern "C" __global__ void {self.name}({self.PARAMETERS})\n{{\n'
            "    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
            f"    {self.body}\n}}\n"
        )


class BlockProgram(Program):
    """A kernel in which the threads of a block meet: what they do together stands where all come,
    under conditions that a block's threads share; between, each goes its own way.

    Values go through shared memory s (an array of its own no more), z in global memory, shuffles
    and votes; barriers stand between the writers of a place and its readers.
    """

    JUMPS = False  # over a barrier

    @property
    def name(self) -> str:
        return f"block_program_{self.number}"

    def place(self, count: int) -> str:
        """A place of its own for each thread of a block, of so many, a power of two."""
        return (
            f"(t * {self.chance.randrange(1, count, 2)} + {self.chance.randrange(count)}) % {count}"
        )

    def shuffled(self, mask: str, width: int) -> str:
        name, kind = self.pick(("a", "unsigned"), ("p", "float"), ("c", "unsigned"))
        value = self.unsigned(1) if kind == "unsigned" else f"TAME({self.floating(1)})"
        lane = self.chance.randrange(1, width)
        how = self.pick("xor", "up", "down", "any")
        if how == "any":
            return f"{name} += __shfl_sync({mask}, {value}, {self.unsigned(1)} % {width}, {width});"
        return f"{name} += __shfl_{how}_sync({mask}, {value}, {lane}, {width});"

    def met(self) -> str:
        """One thing that the block does together."""
        size = THREADS
        own, value, real = self.place(size), self.unsigned(1), f"TAME({self.floating(1)})"
        other, other_real = f"({self.unsigned(1)}) % {size}", f"({self.unsigned(0)}) % {size}"
        atomic = self.pick("atomicAdd", "atomicXor", "atomicMax", "atomicMin", "atomicOr")
        half = self.pick("< 16", ">= 16")
        mask = "0x0000ffffu" if half == "< 16" else "0xffff0000u"
        return self.pick(
            f"m[{own}] = {value}; __syncthreads(); b ^= m[{other}]; __syncthreads();",
            f"n[{own}] = {real}; __syncthreads(); q = TAME(n[{other_real}] - p); __syncthreads();",
            f"z[{size} * blockIdx.x + {own}] = {value}; __syncthreads(); "
            f"c += z[{size} * blockIdx.x + {other}]; __syncthreads();",
            f"m[t] = {value}; __syncthreads(); {atomic}(&m[{other}], {self.pick('b', 'c')}); "
            f"__syncthreads(); d += m[{other}]; __syncthreads();",
            f"m[t] = a; __syncwarp(); a -= m[t ^ {self.pick(1, 5, 16, 31)}]; __syncthreads();",
            self.shuffled("0xffffffffu", self.pick(8, 16, 32, 32)),
            self.shuffled("0xffffffffu", 32),
            f"if (t % 32 {half}) {{ {self.shuffled(mask, 16)} }}",
            f"a += __ballot_sync(0xffffffffu, {self.condition(1)});",
            f"b += __popc(__ballot_sync(0xffffffffu, {self.condition(1)}));",
            f"c ^= __{self.pick('any', 'all')}_sync(0xffffffffu, {self.condition(1)});",
            f"d ^= __match_any_sync(0xffffffffu, ({value}) % 4);",
            f"a += __reduce_{self.pick('add', 'min', 'max', 'xor')}_sync(0xffffffffu, {value});",
            f"b += __syncthreads_{self.pick('count', 'or', 'and')}({self.condition(1)});",
        )

    def uniform(self, depth: int) -> str:
        """Statements that all threads of a block reach."""
        parts = []
        for _ in range(self.chance.randint(2, 4)):
            if self.chance.random() < 0.35:
                parts.append(self.statement(1))
            elif depth and self.chance.random() < 0.4:
                inner = self.uniform(depth - 1)
                self.loops += 1
                u = f"u{self.loops}"
                parts.append(
                    self.pick(
                        f"for (unsigned {u} = 0; {u} < {self.pick(2, 3)} + blockIdx.x; {u}++) "
                        f"{{ a += {u}; {inner} }}",
                        f"if (blockIdx.x {self.pick('==', '!=')} 1) {{ {inner} }}",
                        f"if (__syncthreads_or({self.condition(1)})) {{ {inner} }}",
                    )
                )
            else:
                parts.append(self.met())
        return "\n    ".join(parts)

    def lines(self) -> list[str]:
        return [
            f"__shared__ unsigned m[{THREADS}];",
            f"__shared__ float n[{THREADS}];",
            "const unsigned t = threadIdx.x;",
            self.uniform(2),
        ]

    PARAMETERS = f"{Program.PARAMETERS}, unsigned* z"


def cuda_source(programs: Iterable[Program]) -> str:
    return FUNCTIONS + "".join(one.in_cuda() for one in programs)


def arrays() -> list[np.ndarray]:
    """x, f, y, g before a launch."""
    chance = np.random.default_rng(0)
    x = chance.integers(0, 2**32, INPUTS, dtype=np.uint32)
    x[::3] >>= 24  # small ones too
    f = (chance.integers(-(2**16), 2**16, INPUTS) / 512).astype(np.float32)
    f[np.abs(f) < 0.0625] = 1
    count = RESULTS * BLOCKS * THREADS
    return [x, f, np.zeros(count, np.uint32), np.zeros(count, np.float32)]


def by_the_machine(source: str, program: Program) -> tuple[list[np.ndarray], Trace]:
    """(y and g, the trace)"""
    given = arrays()
    places = [np.zeros(BLOCKS * THREADS, np.uint32)] * isinstance(program, BlockProgram)
    kernel = KernelText(source, program.name, OPTIONS)
    trace = simulate(kernel, BLOCKS, THREADS, [*given, *places])
    return given[2:], trace
