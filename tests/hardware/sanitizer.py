"""compute-sanitizer over the kernels with planted bugs, beside what the SIMT machine finds.

Runs each kernel of tests/simt/kernels with a planted bug, and its twin without, in a process of its
own under memcheck, racecheck, synccheck and initcheck. A kernel that does not end is stopped and
noted as a hang. Needs a GPU and compute-sanitizer.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cupy
import numpy as np

from helpers.base.gpu import describe_device, describe_versions, has_gpu
from helpers.measure.profiling import OPTIONS as TOOLS
from helpers.simt import byte_offset, include_folders
from helpers.simt.cuda_text import token_hash
from tests.simt.launches import PLANTED

from .processes import Done, run, write_data
from .races import RACES

DATA = Path(__file__).parent.parent / "data"
OPTIONS = ("-lineinfo",)  # so that the tools can name a line
# Headlines of the tools that are no report about the kernel.
NO_REPORT = re.compile(
    r"COMPUTE-SANITIZER|\w+ SUMMARY|Program hit|The |Target |Internal |No "
    r"|(Error|Warning): (?!Race|Potential)"
)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.sanitizer", description=__doc__)
    parser.add_argument("--races", action="store_true", help="the races on global memory")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the verdicts are or go")
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time (8)")
    parser.add_argument("--seconds", type=float, default=12, help="limit of one kernel (12)")
    parser.add_argument("--table", action="store_true", help="print --out as Markdown and stop")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("kernel", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        return work(options.worker, options.kernel, options.seconds)
    name = "global_races_h200.json" if options.races else "sanitizer_h200.json"
    options.out = options.out or DATA / name
    if options.table:
        print(table(json.loads(options.out.read_text())))
        return 0
    if not has_gpu():
        print("compute-sanitizer watches a GPU, and CuPy finds no GPU", file=sys.stderr)
        return 1
    if not shutil.which("compute-sanitizer"):
        print("needs compute-sanitizer of the CUDA toolkit on the PATH", file=sys.stderr)
        return 1
    return run_all(options, RACES if options.races else PLANTED)


# ---- the program that the tools watch -----------------------------------------------------------


def work(launches: Path, name: str, seconds: float) -> int:
    """Launch a kernel of a pickle; every array an allocation of its own, so that the tools see its
    end. One that takes longer than `seconds` ends the process."""
    cupy.cuda.set_allocator(None)
    one = pickle.loads(launches.read_bytes())[name]
    print(f"preparing {name}", flush=True)
    kernel = make_kernel(one)
    values = [to_gpu(*value) if isinstance(value, tuple) else value for value in one["args"]]
    cupy.cuda.Device().synchronize()

    def stop() -> None:
        print(f"hang {name}", flush=True)
        os._exit(9)

    watchdog = threading.Timer(seconds, stop)
    watchdog.daemon = True
    print(f"launching {name}", flush=True)
    watchdog.start()
    try:
        kernel(one["grid"], one["block"], tuple(values), shared_mem=one["shared_mem"])
        cupy.cuda.Device().synchronize()
    except Exception as error:  # the driver's, of a type that depends on the version
        print(f"failed {name}: {' '.join(str(error).split())[:200]}", flush=True)
        os._exit(8)
    watchdog.cancel()
    print(f"done {name}", flush=True)
    return 0


def make_kernel(one: dict):
    """The compiled kernel of a launch."""
    together = one["cooperative"]
    kernel = cupy.RawKernel(
        one["code"], one["kernel"], one["options"], enable_cooperative_groups=together
    )
    kernel.compile()
    if one["shared_mem"] > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = one["shared_mem"]
    return kernel


def to_gpu(offset: int, array):
    """A copy that starts so many bytes into its allocation and ends where that ends."""
    space = cupy.zeros(offset + array.nbytes, cupy.uint8)
    device = space[offset:].view(array.dtype)
    device.set(array.reshape(-1))
    return device


# ---- the program that starts the tools ----------------------------------------------------------


def pickled(one) -> dict:
    """A launch with its arrays as (offset in the allocation, values)."""
    launch = one.launch
    args = [
        (byte_offset(value), np.ascontiguousarray(value))
        if isinstance(value, np.ndarray)
        else value
        for value in launch.values
    ]
    sizes = (size if isinstance(size, tuple) else (size,) for size in (launch.grid, launch.block))
    return {
        **dict(zip(("grid", "block"), sizes, strict=True)),
        **{"kernel": one.kernel, "code": one.code, "shared_mem": launch.shared_mem, "args": args},
        "cooperative": getattr(one, "cooperative", False),
        "options": (*one.options, *OPTIONS, *(f"-I{folder}" for folder in include_folders())),
    }


def run_all(options: argparse.Namespace, planted: dict) -> int:
    """Run everything, print progress, write the data."""
    head = {
        "device": describe_device(),
        "versions": {**describe_versions(), "compute-sanitizer": sanitizer_version()},
        "utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": "compute-sanitizer --tool TOOL python -m tests.hardware.sanitizer --worker ..",
    }
    launches = {name: pickled(one) for name, one in planted.items()}
    files = {(one.file, one.options): launches[name] for name, one in planted.items()}
    print(f"compiling {len(files)} texts", flush=True)
    for one in files.values():
        make_kernel(one)  # the processes find it in CuPy's cache
    outputs: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "launches.pickle"
        path.write_bytes(pickle.dumps(launches))

        def under(case: tuple[str, str]) -> str:
            name, tool = case
            worker = [sys.executable, "-m", f"{__package__}.sanitizer", "--worker", str(path)]
            worker += ["--seconds", str(options.seconds), name]
            command = ["compute-sanitizer", "--tool", tool, *worker]
            return as_text(run(command, 33 + options.seconds))

        cases = [(name, tool) for name in planted for tool in TOOLS]
        with ThreadPoolExecutor(options.jobs) as pool:
            for case, text in zip(cases, pool.map(under, cases), strict=True):
                outputs[case] = text
                found = verdict(text, case[0], [])
                print(
                    f"  {len(outputs)}/{len(cases)} {' '.join(case)}: {found['outcome']}",
                    flush=True,
                )
    return write(options.out, head, planted, outputs)


def as_text(done: Done) -> str:
    if done.status is None:
        done.out += "\nran past its time\n"
    return done.out + "".join(f"stderr: {line}\n" for line in done.err.splitlines()[-20:])


def sanitizer_version() -> str:
    found = re.search(r"Version ([\d.]+)", run(["compute-sanitizer", "--version"], 60).out)
    return found[1] if found else "unknown"


# ---- what the tools said ------------------------------------------------------------------------


def verdict(text: str, name: str, marked: list[tuple[str, int]]) -> dict:
    """What one tool's output says of a kernel; `marked` are the (kind, line) of its bugs.

    outcome: "ran", "hang" (stopped), "launch failed" (the driver ended it), "not run"
    errors:  what the tool reported, without complaints about calls of the CUDA API
    """
    found = reports(text)
    outcome = "not run"
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if rest.split(":")[0] == name or line == "ran past its time" and outcome == "launched":
            outcome = {
                "launching": "launched",
                "done": "ran",
                "failed": "launch failed",
                "hang": "hang",
                "ran": "hang",
            }.get(word, outcome)
    if outcome == "launched":
        outcome = "launch failed"  # the process died of it
    lines = sorted({line for report in found for line in report["lines"]})
    return {
        "outcome": outcome,
        "errors": sum(report["count"] for report in found),
        "on_the_line": sorted({line for _, line in marked} & set(lines)),
        "reports": found,
    }


def reports(text: str) -> list[dict]:
    """The reports of a tool: what it says, the source lines that it names, how often."""
    found: list[tuple[str, list[int]]] = []
    current: list[int] | None = None
    for line in text.splitlines():
        if not line.startswith("========="):
            continue
        body = line[9:]
        if not body.strip():
            current = None
            continue
        if not body.startswith("  "):
            headline = body.strip()
            current = None
            if not NO_REPORT.match(headline):
                current = []
                found.append((headline.split(" at ")[0].rstrip("."), current))
        if current is not None:
            for number in re.findall(r"\.cu:(\d+)", body):
                if int(number) not in current:
                    current.append(int(number))
    counts = collections.Counter((what, tuple(lines)) for what, lines in found)
    return [
        {"what": what, "lines": list(lines), "count": count}
        for (what, lines), count in counts.items()
    ]


def write(out: Path, head: dict, planted: dict, outputs: dict[tuple[str, str], str]) -> int:
    """Write the data; returns 1 if a tool ran nothing."""
    kernels = {}
    tools = [tool for tool in TOOLS if any(tool == other for _, other in outputs)]
    for name, one in planted.items():
        kernels[name] = {
            "bugs": one.marks,
            **{
                tool: verdict(outputs[name, tool], name, one.marks)
                for tool in tools
                if (name, tool) in outputs
            },
        }
    head["hashes"] = {one.file: token_hash(one.code) for one in planted.values()}
    write_data(out, {**head, "kernels": kernels})
    missed = [
        f"{name} {tool}"
        for name, kernel in kernels.items()
        for tool in tools
        if kernel.get(tool, {}).get("outcome", "not run") == "not run"
    ]
    print(f"wrote {out}: {len(kernels)} kernels, {len(tools)} tools; not run: {missed or 'none'}")
    return 1 if missed else 0


def table(data: dict) -> str:
    """Markdown: every planted bug, and which tool of compute-sanitizer sees it.

    "line": the tool reports it and names its line; "found": it reports it elsewhere; "fails": the
    driver ends the kernel and the tool says no more; "hangs": the kernel does not end and the tool
    says nothing; "-": nothing.
    """
    tools = tools_of(data)
    rows = [
        f"| Kernel | Planted, found by the SIMT machine | {' | '.join(tools)} |",
        "|---" * (2 + len(tools)) + "|",
    ]
    seen: dict[str, int] = dict.fromkeys(tools, 0)
    bugs = {name: kernel for name, kernel in data["kernels"].items() if kernel["bugs"]}
    by_any = 0
    for name, kernel in bugs.items():
        words = [in_a_word(kernel[tool]) for tool in tools]
        for tool, word in zip(tools, words, strict=True):
            seen[tool] += word in ("line", "found")
        by_any += any(word in ("line", "found") for word in words)
        kinds = "; ".join(dict.fromkeys(kind for kind, _ in kernel["bugs"]))
        rows.append(f"| `{name}` | {kinds} | {' | '.join(words)} |")
    rows.append(
        f"| seen of {len(bugs)} | {len(bugs)} | {' | '.join(str(seen[tool]) for tool in tools)} |"
    )
    wrong = [
        f"{name} ({tool})"
        for name, kernel in data["kernels"].items()
        for tool in tools
        if not kernel["bugs"] and kernel[tool]["errors"]
    ]
    rows += ["", f"At least one tool sees {by_any} of {len(bugs)}."]
    rows += [f"Reports about kernels without a bug: {', '.join(wrong) or 'none'}."]
    return "\n".join(rows)


def tools_of(data: dict) -> list[str]:
    """The tools whose verdicts the data holds."""
    first = next(iter(data.get("kernels", {}).values()), {})
    return [name for name in first if name != "bugs"]


def in_a_word(found: dict) -> str:
    if found["on_the_line"]:
        return "line"
    if found["errors"]:
        return "found"
    return {"hang": "hangs", "launch failed": "fails", "not run": "not run"}.get(
        found["outcome"], "-"
    )


if __name__ == "__main__":
    sys.exit(main())
