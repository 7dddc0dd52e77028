"""Check a CUDA kernel without a GPU.

The file is compiled as nvcc would compile it; host code, including main, is ignored. The command
runs one kernel on a simulated GPU and prints statistics of the arrays that the kernel wrote, its
memory traffic line by line, the output of printf, and the bugs that were found. With a file alone,
it lists the kernels of the file.

    simt mine.cu
    simt mine.cu --kernel scale --grid 4 --block 256 \\
        --args "float32[1024]" "float32[1024]" 1024 0.5
    simt mine.cu --kernel "scale<float, 4>" ... --format sarif -o findings.sarif

--grid is the number of blocks and --block the number of threads per block, as in
kernel<<<grid, block>>>. A two- or three-dimensional launch has a number per dimension, x first:
--grid 4 2 --block 32 8.

--args are the arguments of the kernel, in the order of its parameters:

    number      1024, 0x400, 0.5, true or false
    pointer     an array such as "float32[64,1024]": random values for a pointer to const, otherwise
                NaN (-1 for integers), so that elements that the kernel does not write are easy to
                spot; or a .npy file; or null
    float**     arrays with semicolons between them: "float32[64];float32[64]"
    struct      a .npy file that holds one element of a structured dtype

A __constant__ or __device__ variable gets a value by its name: NAME=VALUE, anywhere among --args.

Quotation marks keep the shell from interpreting brackets and semicolons. Four examples:

    scale(const float* x, float* y, int n, float a)
        --args "float32[1024]" "float32[1024]" 1024 0.5
    softmax(const float* x, float* y, int rows, int cols)
        --args x.npy "float32[64,1024]" 64 1024
    add_rows(float** rows, const float* bias, int cols)
        --args "float32[64];float32[64]" null 64
    __constant__ float weights[5]; smooth(const float* x, float* y, int n)
        --args "float32[1024]" "float32[1024]" 1024 "weights=float32[5]"

Exit status: 0 if no bug was found, 1 if one was, 2 if the kernel cannot be run.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from tokenize import TokenError

import numpy as np

from . import interrupts, reports
from .arguments import check_count, launch_shape, scalar
from .cache import put
from .cuda_text import C_DTYPES, Parameter, signature, variables
from .geometry import Shape
from .loading import listing, load_kernel
from .machine import INSTRUCTION_LIMIT, KernelText, declarations, simulate
from .reports import KernelRun, is_float
from .trace import Trace
from .words import at_least, counted, duration

DESCRIPTION = __doc__
CANNOT = 2
PATIENCE = 0.5  # seconds between two words on progress
LONG = 10.0  # seconds after which a run says how long it will take, if no one can see its progress
MANY = 1 << 32  # threads that may take hours
# Errors whose message is a sentence.
KNOWN = (ImportError, OSError, ValueError, TypeError, LookupError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel with all that one launch needs."""

    kernel: KernelText
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    values: tuple
    symbols: dict = field(default_factory=dict)  # values of __constant__ variables by name


class Launches:
    """How a command line is read as a launch, and run; a program with options of its own may read
    them in another way."""

    prog = "simt"
    description = DESCRIPTION

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options to those that there are."""

    def check(self, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
        """Call `parser.error` for options that do not go together."""

    def plans(self, options: argparse.Namespace) -> bool:
        """Whether `launch` finds sizes, arguments and compiler options itself."""
        return False

    def launch(self, options: argparse.Namespace, kernel: KernelText) -> KernelLaunch:
        """Raises `ValueError` with one sentence for what does not make a launch."""
        if not options.grid or not options.block:
            raise ValueError("--grid and --block are needed to run a kernel")
        declared = signature(declarations(kernel), kernel.name)
        constants = variables(declarations(kernel))
        texts, named = _separated(options.args or [], constants)
        check_count(kernel.name, declared, texts, len(declared))
        random = np.random.default_rng(0)
        pairs = zip(texts, declared, strict=True)
        values = tuple(argument(text, parameter, random) for text, parameter in pairs)
        symbols = {name: argument(text, constants[name], random) for name, text in named.items()}
        sizes = tuple(options.grid), tuple(options.block)
        return KernelLaunch(kernel, *sizes, options.shared or 0, values, symbols)

    def run(self, launch: KernelLaunch, **options) -> Trace:
        """Simulate it; `options` go to `simulate`."""
        sizes, options["symbols"] = (launch.grid, launch.block), launch.symbols
        return simulate(launch.kernel, *sizes, launch.values, launch.shared, **options)


def _separated(texts: list[str], constants: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """(arguments of the kernel, values of `__constant__` variables by name). Raises `ValueError`
    for the name of another variable."""
    given, named = [], {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or os.path.exists(text):
            given.append(text)
        elif name in named:
            raise ValueError(f"{name} has two values among --args: leave one out")
        elif name in constants:
            named[name] = value
        else:
            known = ", ".join(constants) or "none"
            raise ValueError(
                f"{name} is not a __constant__ or __device__ variable of this file; it has: {known}"
            )
    return given, named


def main(arguments: list[str] | None = None, launches: Launches | None = None) -> int:
    """Command line; returns the exit status. Whatever goes wrong is told, not raised."""
    launches = launches or Launches()
    interrupts.command_begins()
    options = _parse(arguments, launches)
    if options.version:
        _show(f"{reports.TOOL} {reports.version()}")
        return 0
    try:
        if options.self_test:
            passed, said = self_test()
            _show(said)
            return int(not passed)
        if _asks_for_list(options, launches):
            _show(listing(options.file, options.option))
            return 0
        run = _run(options, launches)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # a tool that guards a CI does not end in a traceback
        run = KernelRun(options.file or Path(), options.kernel or "", error=_sentence(error))
    return _deliver(run, options)


def _parse(arguments: list[str] | None, launches: Launches) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=launches.prog,
        description=launches.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, nargs="?", help="a CUDA source file")
    parser.add_argument("--version", action="store_true", help="print the version, and stop")
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="check that planted bugs are found, and that kernels without them are clean, and stop",
    )
    parser.add_argument(
        "--kernel",
        help='name of the kernel, "scale<float, 4>" for a template; if left out, the only one',
    )
    parser.add_argument("--grid", type=at_least(1), nargs="+", help="blocks: x, or x y, or x y z")
    parser.add_argument("--block", type=at_least(1), nargs="+", help="threads per block, likewise")
    parser.add_argument("--args", nargs="*", help="the kernel's arguments in order, see above")
    parser.add_argument("--shared", type=at_least(0), help="bytes of dynamic shared memory (0)")
    parser.add_argument(
        "--cooperative",
        action="store_true",
        default=None,
        help="all blocks run at once, and may synchronise",
    )
    parser.add_argument(
        "--option", action="append", default=[], help="compiler option, as --option=-DTILE=32"
    )
    parser.add_argument(
        "--limit",
        type=at_least(1),
        default=INSTRUCTION_LIMIT,
        help="instructions of a batch of blocks after which its next backward branch or function "
        "call counts as a hang (%(default)s); a kernel without either stops at the limit itself",
    )
    parser.add_argument(
        "--orders",
        type=int,
        choices=(1, 2),
        default=1,
        help="2: execute the blocks once more in reverse order, and report what that shows too",
    )
    parser.add_argument(
        "--volatile",
        choices=("relaxed", "plain"),
        default="relaxed",
        help="how volatile accesses count when races are judged: relaxed, as in PTX, never racing "
        "with each other, or plain, as ordinary ones",
    )
    parser.add_argument("--format", choices=reports.FORMATS, default="text", help="of the report")
    parser.add_argument(
        "-o", "--output", type=Path, help="write the report there, and text to the screen"
    )
    launches.add_options(parser)
    given = sys.argv[1:] if arguments is None else arguments
    # A word with a space is no option to argparse, as a negative number is none.
    given = [f" {word}" if word in ("-inf", "-nan") else word for word in given]
    options = parser.parse_args(_joined(given))
    if options.version or options.self_test:
        return options
    if options.file is None:
        parser.error("a CUDA source file is needed, as in: simt mine.cu")
    launches.check(parser, options)
    _check_output(parser, options)
    if _asks_for_list(options, launches) and (options.output or options.format != "text"):
        parser.error("--format and -o are for the report of a run: pass --grid and --block too")
    return options


def _asks_for_list(options: argparse.Namespace, launches: Launches) -> bool:
    """Whether nothing but a file is given."""
    given = (options.kernel, options.grid, options.block, options.args)
    return not launches.plans(options) and all(one is None for one in given)


def _joined(words: list[str]) -> list[str]:
    """`--option -DX` as `--option=-DX`, since argparse takes -DX for another option."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == "--option" and word.startswith("-"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _check_output(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Call `parser.error` for a report that cannot be written, or would overwrite what is read."""
    output = options.output
    if output is None:
        return
    if output.resolve() == options.file.resolve():
        parser.error(f"-o {output} is the file to be checked: name another for the report")
    arrays = re.split("[=;]", ";".join(options.args or []))
    if output.resolve() in {Path(one).resolve() for one in arrays if one.endswith(".npy")}:
        parser.error(f"-o {output} is an argument of the kernel: name another file for the report")
    if output.is_dir():
        parser.error(f"-o {output} is a folder: name a file in it for the report")
    if not output.parent.is_dir():
        parser.error(f"-o {output}: there is no folder {output.parent}; create it first")


def _run(options: argparse.Namespace, launches: Launches) -> KernelRun:
    complete = not launches.plans(options)
    kernel, left_out = load_kernel(
        options.file, options.kernel, options.option, bool(options.cooperative), complete
    )
    launch = launches.launch(options, kernel)
    shape = Shape(launch_shape(launch.grid, "grid"), launch_shape(launch.block, "block"))
    if shape.blocks * shape.threads > MANY:
        threads = counted(shape.blocks * shape.threads, "thread")
        print(f"{threads} may take hours: try a smaller --grid", file=sys.stderr)
    with _progress() as progress:
        trace = launches.run(
            launch,
            instruction_limit=options.limit,
            orders=options.orders,
            volatile=options.volatile,
            progress=progress,
        )
    declared = signature(declarations(launch.kernel), launch.kernel.name)
    outputs = {
        parameter.name: value
        for parameter, value in zip(declared, launch.values, strict=True)
        if not parameter.const and isinstance(value, np.ndarray) and value.ndim
    }
    sizes = launch.grid, launch.block, launch.shared
    return KernelRun(options.file, launch.kernel.name, *sizes, outputs, trace, left_out=left_out)


@contextlib.contextmanager
def _progress():
    """A function that says how many blocks have run and how long the others will take: now and then
    on a terminal, else once, if the run is a long one. While none has, that is said."""
    terminal = sys.stderr.isatty()
    start = last = time.monotonic()
    waiting = "the first blocks still run; --limit says after how many instructions they hang"
    timer = threading.Timer(LONG + PATIENCE, print, (waiting,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()

    def tell(done: int, blocks: int) -> None:
        nonlocal last
        timer.cancel()
        now = time.monotonic()
        if done >= blocks or now - last <= (PATIENCE if terminal else LONG):
            return
        left = duration((now - start) / done * (blocks - done))
        said = f"{done:,} of {blocks:,} blocks, about {left} left"
        if terminal:
            last = now
            print(f"\r\x1b[K{said} ", end="", file=sys.stderr, flush=True)
        else:
            last = math.inf  # once is enough in a log
            print(f"{said}; a smaller --grid takes less", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        timer.cancel()
        if terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _deliver(run: KernelRun, options: argparse.Namespace) -> int:
    """Write the report to where it is wanted."""
    if run.error:
        print(run.error, file=sys.stderr)
    if options.output is None:
        if not run.error or options.format != "text":
            _show(reports.report(run, options.format))
        return run.status
    try:
        _write(options.output, reports.report(run, options.format) + "\n")
    except OSError as error:
        print(f"cannot write {options.output}: {error.strerror or error}", file=sys.stderr)
        return CANNOT
    if not run.error:
        _show(reports.text(run))
    return run.status


def _write(path: Path, content: str) -> None:
    """Whole or not at all; into what is no regular file, such as /dev/null, as it is."""
    if path.exists() and not path.is_file():
        path.write_text(content, encoding="utf-8")
        return
    put(path, content.encode(), f".{path.name}-", 0o644)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"cannot read {error.filename}: {error.strerror}"
    said = error.args[0] if isinstance(error, KeyError) and error.args else error
    known = isinstance(error, KNOWN) and str(said)
    return str(said) if known else f"{type(error).__name__}: {said}"


def _show(text: str) -> None:
    """Print; who reads may have had enough, as `head -1` has."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, errors="replace").decode(encoding), flush=True)
    except BrokenPipeError:  # so that Python's own flush at the end does not fail either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- arguments from text ------------------------------------------------------------------------


ARRAY = re.compile(r"(\w+)\[([\d, ]+)\]")
NULLS = ("null", "NULL", "nullptr")
KINDS = "biufcV"  # of numpy dtypes that a kernel can take; ml_dtypes' are "V"


def argument(text: str, parameter: Parameter, random: np.random.Generator):
    """One argument: a number, true, false or null, a .npy file, an array such as float32[64,32], or
    several of these with semicolons between them, for a pointer to pointers.

    Raises `ValueError` with one sentence that names the parameter.
    """
    try:
        value = _argument(text, parameter, random) if ";" not in text else None
        if ";" in text:
            if not parameter.table and (parameter.pointer or parameter.dtype is not None):
                kind = parameter.type + "*" * parameter.pointer
                raise ValueError(f"the kernel takes {kind}, not the list of arrays {text}")
            value = [_argument(part, parameter, random) for part in text.split(";") if part]
    except (ValueError, TypeError, OverflowError, MemoryError, OSError, EOFError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{parameter.name}: {said}") from None
    if isinstance(value, int | float) and parameter.dtype is not None:
        return scalar(parameter.name, parameter.type, parameter.dtype, value)
    return value


def _argument(text: str, parameter: Parameter, random: np.random.Generator):
    if text in NULLS:
        if parameter.dtype is not None and not parameter.pointer:
            raise ValueError(f"the kernel takes {parameter.type}, not {text}")
        return None
    if text.endswith(".npy"):
        return _loaded(text)
    if match := ARRAY.fullmatch(text):
        return _array(text, match[1], match[2], parameter, random)
    if text in ("true", "false"):
        text = str(int(text == "true"))
    try:
        number = float(text) if re.search(r"[.eEn]", text) and "0x" not in text else int(text, 0)
    except ValueError:
        if re.fullmatch(r"-?0[\d_]+", text):
            raise ValueError(f"{text} may be read as octal: write {int(text)}") from None
        raise ValueError(
            f"{text!r} is not a number, an array such as float32[64,1024], a .npy file or null"
        ) from None
    if parameter.pointer:
        raise ValueError(
            f"the kernel takes {parameter.type}*, not {text}: pass an array such as float32[1024], "
            "a .npy file, or null"
        )
    if isinstance(number, float) and np.isinf(number) and "inf" not in text:
        raise ValueError(f"{text} is too large for a number")
    return number


def _loaded(path: str) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, EOFError, TokenError):  # NumPy reads the header as Python
        raise ValueError(f"{path} is not a .npy file of numbers") from None


def _array(
    text: str, dtype: str, sizes: str, parameter: Parameter, random: np.random.Generator
) -> np.ndarray:
    """Random if the kernel only reads it, else NaN or -1."""
    try:
        kind = np.dtype(C_DTYPES.get(dtype, dtype))
    except TypeError:
        raise ValueError(f"{dtype!r} is not a dtype such as float32, int32 or bfloat16") from None
    if kind.kind not in KINDS or kind.hasobject or not kind.itemsize:
        raise ValueError(f"{dtype!r} is not a dtype of numbers")
    if not parameter.pointer and parameter.dtype is not None:
        raise ValueError(f"the kernel takes {parameter.type}, not the array {text}")
    shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    if not shape:
        raise ValueError(f"{text} has no size")
    count = prod(shape)
    if count * kind.itemsize > _memory() // 4:  # the machine keeps copies
        raise ValueError(
            f"{text} has {count * kind.itemsize / 2**30:.3g} GB, too much to allocate here"
        )
    if not parameter.const:
        return np.full(shape, np.nan if is_float(kind) else -1).astype(kind)
    if is_float(kind):
        return random.standard_normal(shape).astype(kind)
    return random.integers(0, 2 if kind.kind == "b" else 100, shape).astype(kind)


def _memory() -> int:
    """Bytes of this machine's memory; where it does not say, 16 GB."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 16 << 30


# ---- the self-test ----

# The kernel reverses the 64 numbers of each block. What is wrong with BUG = 1, 2 and 3, by the kind
# of the finding, which has to be in the marked line.
BUGS = {
    "race on shared memory": "a missing __syncthreads()",
    "out-of-bounds store": "an index that passes the end of an array",
    "race on global memory": "a store to the elements of another block",
}
PLANTED = """__global__ void reverse(const float* x, float* y)
{
    __shared__ float row[64];
    const int t = threadIdx.x, first = 64 * blockIdx.x;
    row[t] = x[first + t];
    if (BUG != 1) __syncthreads();
    const int to = BUG == 2 ? first + t + 1 : BUG == 3 ? t : first + t;
    y[to] = row[63 - t];  // <-
}
"""


def self_test() -> tuple[bool, str]:
    """Run the kernel without a bug and with each: (whether all is as it must be, a line for each).

    Raises what `simulate` raises where kernels cannot be compiled.
    """
    lines = PLANTED.splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if text.endswith("// <-"))
    checks: list[tuple[bool, str]] = []
    for bug, kind in enumerate(["", *BUGS]):
        x = np.arange(128, dtype=np.float32)
        y = np.full_like(x, np.nan)
        trace = simulate(KernelText(PLANTED, "reverse", (f"-DBUG={bug}",)), 2, 64, (x, y))
        found = [(one.kind, one.line) for one in trace.findings]
        if bug:
            said = f"{BUGS[kind]} is reported as '{kind}' in line {line}"
            checks.append((found == [(kind, line)], said))
        else:
            right = np.array_equal(y.reshape(-1, 64), x.reshape(-1, 64)[:, ::-1])
            said = "the kernel without a bug has no finding and is correct"
            checks.append((right and not found, said))
    said = [f"{'passed' if passed else 'FAILED'}: {what}" for passed, what in checks]
    return all(passed for passed, _ in checks), "\n".join(said)
