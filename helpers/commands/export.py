"""Write a kernel as one file for another program, which needs nothing of this project.

    python -m helpers.commands.export 08_cluster 8192x50304 1..4096x32000 --name fast_softmax
    python -m helpers.commands.export best 8192x50257 1..64x32000 --dtype float32,bfloat16
    python -m helpers.commands.export softmax-MASK2-LOG1 8192x8192 --name causal_log_softmax
    python -m helpers.commands.export best --as torch -o softmax.py
    python -m helpers.commands.export 08_cluster --as cuda

KERNEL is a step, a variant or a trial, an operation with its features (cross_entropy,
softmax_backward-LOG1), or "best" for the kernels that should be fastest for softmax. SHAPES are
rows x columns, or outer x dim x inner for step 13, each a number or LOW..HIGH. C++ is compiled for
these shapes, Python when it is called, so SHAPES, --dtype, --gpu, --strides and --anywhere only
apply to C++. CUDA is the kernel file alone, with what it includes: its header says how to compile
and launch it. The plan is that of the header for the GPU in use or an H200; --gpu names one or more
other GPUs. The file is exports/NAME.cu or exports/NAME.py, which git ignores, or the one that -o
names; --force replaces an existing file.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from ..base.gpu import Gpu
from ..catalogue.registry import self_contained, source, split_trial
from ..export import cpp, python
from ..export.request import ExportError, ExportRequest, export_request
from ..problem.problem import DTYPES

FOLDER = Path("exports")  # listed in .gitignore
SUFFIXES = {"cpp": ".cu", "torch": ".py", "cupy": ".py", "cuda": ".cu"}
# Modules that a file of the same name would hide.
HIDDEN = {"torch", "cupy", *sys.stdlib_module_names}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 0, or 2 if there is no such export."""
    options = parse_arguments(arguments)
    try:
        request = export_request(
            options.kernel,
            options.shapes,
            options.name,
            options.dtype,
            options.gpu,
            options.strides,
            options.anywhere,
        )
        if options.language != "cpp" and (useless := only_cpp(options)):
            raise ExportError(
                f"only C++ is written for certain shapes and GPUs: leave out {', '.join(useless)}"
            )
        file = options.output or FOLDER / f"{request.name}{SUFFIXES[options.language]}"
        if file.suffix == ".py" and file.stem in HIDDEN:
            raise ExportError(
                f"{file} would hide the module of that name; -o or --name gives another"
            )
        if file.exists() and not options.force:
            raise ExportError(f"{file} exists; --force replaces it")
        text = written(request, options.language, file.name)
        if not options.output:
            FOLDER.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except (ExportError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{file}: {text.count(chr(10))} lines")
    if options.language == "cpp":
        print(cpp.compile_line(request, shlex.quote(str(file))))
    return 0


def only_cpp(options: argparse.Namespace) -> list[str]:
    """The given options that only apply to C++."""
    given = vars(options)
    names = (name for name in ("dtype", "gpu", "strides", "anywhere") if given[name])
    return [*options.shapes, *(f"--{name}" for name in names)]


def written(request: ExportRequest, language: str, name: str) -> str:
    """The text of a file of that name. Raises `ExportError`."""
    if language == "cpp":
        return cpp.write(request, name)
    if language != "cuda":
        return python.write(request, language)
    (kernel, *others) = request.kernels
    if others or split_trial(kernel).file != kernel:
        raise ExportError("--as cuda takes the name of a kernel file, such as 08_cluster")
    return self_contained(source(f"{kernel}.cu"))


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.commands.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kernel", metavar="KERNEL")
    parser.add_argument("shapes", nargs="*", metavar="SHAPES", help="8192x50304, 1..4096x32000")
    parser.add_argument(
        "--as", dest="language", choices=SUFFIXES, default="cpp", help="cpp if not given"
    )
    help = "of the function, in Python of the file; softmax if not given"
    parser.add_argument("--name", help=help)
    parser.add_argument(
        "--dtype",
        type=dtypes,
        default=(),
        help=f"in C++, some of {', '.join(DTYPES)}, with commas",
    )
    help = "in C++, multiprocessors, bytes of L2 and compute capability: 132,62914560,90"
    parser.add_argument("--gpu", type=gpu, action="append", default=[], help=help)
    help = "in C++, accept a row stride greater than cols"
    parser.add_argument("--strides", action="store_true", help=help)
    help = "in C++, of x and y that may start at any element"
    parser.add_argument("--anywhere", action="store_true", help=help)
    parser.add_argument("-o", "--output", type=Path, help="the file, instead of one in exports")
    parser.add_argument("--force", action="store_true", help="replace the file")
    return parser.parse_intermixed_args(arguments)  # shapes may come after options


def dtypes(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if other := [name for name in names if name not in DTYPES]:
        raise argparse.ArgumentTypeError(f"{', '.join(other)} is not of {', '.join(DTYPES)}")
    return names


def gpu(text: str) -> Gpu:
    try:
        sms, l2, capability = map(int, text.split(","))
    except ValueError:
        said = f"{text!r} is not SMS,L2,CAPABILITY, as 132,62914560,90 is"
        raise argparse.ArgumentTypeError(said) from None
    if min(sms, l2, capability) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} has a number below 1")
    return Gpu(capability, sms, l2)


if __name__ == "__main__":
    sys.exit(main())
