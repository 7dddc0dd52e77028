"""Functions that call themselves, and functions called through their address: what they compute,
against Python, and what is found where they go wrong."""

import functools

import numpy as np
import pytest

from helpers.simt import KernelText, Trace, UnsupportedPTX, simulate
from helpers.simt.scheduler import MOST_NESTED
from tests.simt.launching import FILE

THREADS = 64


def run(before: str, body: str, y: np.ndarray, block: int = THREADS, grid: int = 1) -> Trace:
    """Launch `__global__ void k(int* y)`, whose thread is t."""
    head = "__global__ void k(int* y)\n{ const int t = threadIdx.x + blockIdx.x * blockDim.x;\n"
    return simulate(KernelText(f"{FILE}{before}\n{head}{body}\n}}\n", "k"), grid, block, (y,))


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def on_the_stack(values: list[int], n: int) -> int:
    here = [value + n for value in values]
    return here[3] if n == 0 else on_the_stack(here, n - 1) + here[n % 4]


def until_40(n: int) -> int:
    return 2 if n > 40 else until_40(n + 8) * 3 + n


TWO = """
__device__ __noinline__ int twice(int v) { return v * 2; }
__device__ __noinline__ int next(int v) { return v + 1; }
typedef int (*Function)(int);
"""
SHAPES = """
struct Shape { int v; __device__ Shape(int v) : v(v) {}
  __device__ virtual int area() const = 0; __device__ virtual ~Shape() {} };
struct Square : Shape { using Shape::Shape;
  __device__ int area() const override { return v * v; } };
struct Strip : Shape { using Shape::Shape;
  __device__ int area() const override { return 3 * v; } };
"""

# What is declared before the kernel, its body, and what thread t leaves in y[t], which holds t.
COMPUTED = {
    "a function calls itself twice": (
        "__device__ int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }",
        "y[t] = f(t % 11);",
        lambda t: fibonacci(t % 11),
    ),
    "two functions call each other": (
        "__device__ int odd(int n);\n"
        "__device__ __noinline__ int even(int n) { return n == 0 ? 1 : odd(n - 1); }\n"
        "__device__ __noinline__ int odd(int n) { return n == 0 ? 0 : even(n - 1); }",
        "y[t] = even(t) * 2 + odd(t / 2);",
        lambda t: (t % 2 == 0) * 2 + t // 2 % 2,
    ),
    "each call has its own array, and reads its caller's": (
        "__device__ int f(int* a, int n)\n{ int here[4]; for (int i = 0; i < 4; i++) "
        "here[i] = a[i] + n;\n  return n == 0 ? here[3] : f(here, n - 1) + here[n % 4]; }",
        "int z[4] = {1, 2, 3, 4}; y[t] = f(z, t);",
        lambda t: on_the_stack([1, 2, 3, 4], t),
    ),
    "a struct comes back": (
        "struct P { long long a; int b; char c; };\n"
        "__device__ P f(int n) { if (n == 0) return {1, 2, 3}; P p = f(n - 1); p.a += n; p.b -= n; "
        "p.c ^= n; return p; }",
        "P p = f(t); y[t] = (int)p.a * 10000 + p.b * 10 + p.c % 2;",
        lambda t: (
            (1 + t * (t + 1) // 2) * 10000
            + (2 - t * (t + 1) // 2) * 10
            + (3 ^ functools.reduce(int.__xor__, range(t + 1))) % 2
        ),
    ),
    "a table of functions in constant memory": (
        TWO + "__constant__ Function table[3] = {next, twice, next};",
        "y[t] = table[t % 3](t);",
        lambda t: 2 * t if t % 3 == 1 else t + 1,
    ),
    "lanes choose between functions": (
        TWO,
        "Function f = t & 4 ? twice : next; y[t] = f(f(t));",
        lambda t: 4 * t if t & 4 else t + 2,
    ),
    "a virtual function": (
        SHAPES,
        "Square a(t); Strip b(t); Shape* s = y[t] > 9 ? (Shape*)&a : &b; y[t] = s->area();",
        lambda t: t * t if t > 9 else 3 * t,
    ),
    "threads of a called function meet at a barrier": (
        "__device__ __noinline__ void meet(int* s, int t, int v) { s[t] = v; __syncthreads(); }\n"
        "__device__ __noinline__ void other(int* s, int t, int v) { s[t] = -v; __syncthreads(); }",
        "__shared__ int s[64]; void (*f)(int*, int, int) = y[0] ? other : meet;\n"
        "__syncthreads(); f(s, t, t); y[t] = s[63 - t];",
        lambda t: 63 - t,
    ),
    "lanes exchange values inside calls of different depth": (
        "__device__ int f(int n, int v)\n{ if (n == 0) return v; int w = f(n - 1, v + n);\n"
        "  return w + __shfl_xor_sync(__activemask(), n, 1); }",
        "y[t] = f(t / 32 + 2, t);",
        lambda t: t + 2 * sum(range(1, t // 32 + 3)),
    ),
    "threads end inside a call": (
        '__device__ int f(int n) { if (n == 7) asm volatile("exit;"); '
        "return n > 40 ? 2 : f(n + 8) * 3 + n; }",
        "y[t] = f(t % 9);",
        lambda t: t if t % 9 == 7 else until_40(t % 9),
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_calls_compute_what_python_does(name: str) -> None:
    before, body, expected = COMPUTED[name]
    y = np.arange(THREADS, dtype=np.int32)
    trace = run(before, body, y)
    assert y.tolist() == [expected(t) for t in range(THREADS)] and not trace.findings
    assert "call" in trace.ptx  # the compiler has left one


def test_recursion_in_many_blocks_and_a_partial_warp() -> None:
    y = np.zeros(7 * 40, np.int32)
    run("__device__ int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }", "y[t] = f(t % 9);",
        y, 40, 7)  # fmt: skip
    assert y.tolist() == [fibonacci(t % 9) for t in range(len(y))]


def test_calls_are_nested_as_deep_as_is_said() -> None:
    f = "__device__ int f(int n) { return n == 0 ? 0 : f(n - 1) * 3 + n; }"
    y = np.zeros(1, np.int32)
    assert not run(f, f"y[t] = f({MOST_NESTED});", y, 1).findings  # the first is inlined
    found = run(f, f"y[t] = f({MOST_NESTED + 1});", y, 1).findings
    assert [one.kind for one in found] == ["stack overflow"]


# What is declared before the kernel, its body, the kind of the one finding, which is in the line
# that is marked, and its words.
WRONG = {
    "a recursion without an end": (
        "__device__ int f(int n)\n{\n  return f(n + (n & 1)) * 2 + n; // <-\n}",
        "y[t] = f(t);",
        "stack overflow",
        f"{MOST_NESTED} calls are nested here: a recursion without an end",
    ),
    "arrays too large for the depth": (
        "__device__ int f(int n)\n{\n  int a[400]; for (int i = 0; i < 400; i++) a[i] = i * n;\n"
        "  int below = n ? f(n - 1) : 0; // <-\n  return below + a[n];\n}",
        "y[t] = f(100);",
        "stack overflow",
        "too deep for the stack of a thread",
    ),
    "a null pointer": (
        TWO,
        "Function f = y[t] < 40 ? next : (Function)(y[t] >> 20);\ny[t] = f(t); // <-",
        "call of no function",
        "a null pointer",
    ),
    "a number for a function": (
        TWO,
        "Function f = y[t] == 3 ? (Function)12345 : y[t] & 1 ? twice : next;\ny[t] = f(t); // <-",
        "call of no function",
        "0x3039",
    ),
    "other parameters": (
        TWO + "__device__ __noinline__ int both(int a, int b) { return a * b; }",
        "Function f = y[t] ? (Function)both : next;\ny[t] = f(t); // <-",
        "call of no function",
        "both is called here with other parameters than it takes",
    ),
    "a function that nobody has chosen": (
        TWO,
        "Function f[2]; f[y[t] & 1] = next;\ny[t] = f[y[t] >> 5 & 1](t); // <-",
        "read of an uninitialised variable",
        "",
    ),
    "a variable of a call that nobody has set": (
        "__device__ int f(int n)\n{\n  int a[8]; a[n & 3] = n;\n"
        "  int below = n ? f(n - 1) : 0;\n  return below + a[n / 2 & 7]; // <-\n}",
        "y[t] = f(t % 7);",
        "read of an uninitialised variable",
        "",
    ),
    "a race in a called function": (
        "__device__ __noinline__ void put(int* y, int v)\n{\n  *y = v; // <-\n}",
        "put(y + t / 2, t);",
        "race on global memory",
        "they need an atomic",
    ),
    "a race in a function called through its address": (
        "__device__ __noinline__ void put(int* y, int v)\n{\n  y[1] = v; // <-\n}\n"
        "__device__ __noinline__ void leave(int* y, int v)\n{\n}",
        "void (*f)(int*, int) = gridDim.x > 9 ? leave : put;\nf(y + t / 2, t);",
        "race on global memory",
        "they need an atomic",
    ),
    "past the end in a recursive function": (
        "__device__ void f(int* y, int n)\n{\n  y[n + 40] = n * n; // <-\n  if (n) f(y, n - 1);\n"
        "  y[n] += n;\n}",
        "if (t == 0) f(y, 24);",
        "out-of-bounds store",
        "0 bytes past the end",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_goes_wrong_in_calls_is_found_in_its_line(name: str) -> None:
    before, body, kind, words = WRONG[name]
    trace = run(before, body, np.arange(THREADS, dtype=np.int32))
    lines = trace.code.splitlines()[1:]  # behind #line
    (marked,) = (number for number, line in enumerate(lines, 1) if line.endswith("// <-"))
    found = [(one.kind, one.line) for one in trace.findings]
    assert found == [(kind, marked)], "\n".join(map(str, trace.findings))
    assert words in str(trace.findings[0])


def test_other_threads_go_on_after_a_call_of_no_function() -> None:
    y = np.arange(THREADS, dtype=np.int32)
    run(TWO, "Function f = y[t] < 40 ? next : (Function)(y[t] >> 20);\ny[t] = f(t);", y)
    assert y.tolist() == [*range(1, 41), *range(40, 64)]


def test_what_cannot_run_is_refused_when_it_is_called() -> None:
    """A virtual destructor frees memory, whether or not anybody asks for it."""
    y = np.arange(THREADS, dtype=np.int32)
    assert not run(SHAPES, "Square a(t); const Shape* s = &a; y[t] = s->area();", y).findings
    with pytest.raises(UnsupportedPTX, match="free and delete in a kernel"):
        run(SHAPES, "Square a(t); Strip b(t); Shape* s = y[t] ? (Shape*)&a : &b; delete s;", y)
