"""How many kernels of public repositories load and run on the SIMT machine.

    python -m tests.survey FOLDER... [--option=-IFOLDER/Common]... --log kernels.jsonl

Each folder is a repository. A kernel is tried in every file that includes it until it runs, a
template by the first instance that the host code launches, else by a guess. It runs with one
cluster of blocks of 256 threads, on arrays of random numbers, with 32 for each integer and 1 for
each other number. Diagnostics do not count: a program would pass other sizes. The log has a line of
JSON per kernel and keeps what ran; the result is a table for tests/data.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from helpers.simt import UnsupportedPTX, cuda_text, simulate, sources
from helpers.simt.loading import launched, load_kernel
from helpers.simt.machine import compiled, declarations

KINDS = ("ran", "refused", "no arguments", "loaded", "failed", "behind #if")  # best first
SECONDS = 15  # of processor time for one kernel
COUNT = 1 << 16  # elements of an array
VECTOR = re.compile(r"(u?)(char|short|int|long|longlong|float|double)([1-4])")
GUESS = {"typename": "float", "class": "float", "bool": "true"}  # arguments of a template


def instance(source: sources.Source, name: str) -> str:
    """The name to load a kernel by."""
    template = cuda_text.template_of("\n".join(source.texts.values()), name)
    if template is None:
        return name
    items = [one for one in cuda_text.split_items(template.template) if "=" not in one]
    guess = ", ".join(GUESS.get(re.sub(r"\W.*", "", one), "32") for one in items)
    return next(iter(launched(source.original, name)), f"{name}<{guess}>")


def value(parameter: cuda_text.Parameter):
    """An argument; raises `LookupError` for a struct, which no rule can fill."""
    dtype, width, random = parameter.dtype, 1, np.random.default_rng(0)
    if vector := VECTOR.fullmatch(parameter.type):
        dtype, width = cuda_text.C_DTYPES[vector[2].replace("longlong", "long")], int(vector[3])
        dtype = np.dtype(f"u{dtype.name}") if vector[1] else dtype
    if parameter.table:
        return [value(cuda_text.Parameter("", parameter.type, True, False)) for _ in range(16)]
    if not parameter.pointer and dtype is None:
        raise LookupError(parameter.type)
    if not parameter.pointer:
        number = dtype.type(32 if dtype.kind in "iu" else 1)
        return np.full(1, number, [("v", dtype, width)])[0] if width > 1 else number
    if dtype is None or dtype.kind not in "iuf":
        return np.zeros(8 * COUNT, np.uint8 if dtype is None else dtype)
    made = random.integers(0, 64, COUNT) if dtype.kind in "iu" else random.standard_normal(COUNT)
    return np.repeat(made.astype(dtype), width)


def tried(path: Path, source: sources.Source, name: str, options: list[str]) -> tuple[str, str]:
    """(a kind, a message) of one kernel."""
    kind = "failed"
    try:
        together = "this_grid" in source.original
        kernel, _ = load_kernel(path, instance(source, name), options, together)
        parsed = compiled(kernel)[1]
        declared = cuda_text.signature(declarations(kernel), kernel.name)
        kind = "no arguments"
        values = [value(one) for one in cuda_text.parameter_types(parsed.name) or declared]
        kind, threads = "loaded", min(parsed.most_threads, 256)
        block = (int(threads**0.5),) * 2 if "threadIdx.y" in source.original else (threads,)
        trace = simulate(kernel, parsed.cluster, block, values, 16384, instruction_limit=2_000_000)
    except KeyboardInterrupt:  # by the timer
        return "loaded", f"over {SECONDS} seconds"
    except Exception as error:
        return refusal(error, kind)
    found = sorted({one.kind for one in trace.findings})
    return "loaded" if "hang" in found else "ran", "; ".join(found)


def refusal(error: Exception, kind: str) -> tuple[str, str]:
    """(the kind, the message) of a kernel that does not run; `kind` is how far it came."""
    if isinstance(error, UnsupportedPTX):
        refused = str(error).startswith("the SIMT machine does not run ")
        return "refused" if refused else "failed", str(error)
    kind = "behind #if" if "an #if leaves it out" in str(error) else kind
    return kind, f"{type(error).__name__}: {error}"[:2000]


def survey(path: Path, options: list[str], log: Path) -> list[dict]:
    """A line for each kernel that a file and its headers define, and that has not run yet."""
    signal.signal(signal.SIGPROF, signal.default_int_handler)
    done = {(one["file"], one["kernel"]) for one in logged(log) if one["kind"] in KINDS[:3]}
    source, found = sources.prepare(path, options), []
    for one, text in source.texts.items():
        plain, file = sources.plain_text(text), os.path.realpath(one)
        every = sources.declarations(plain)
        defined = "\n".join(plain[start:stop] for start, stop, body, *_ in every if body >= 0)
        for name in cuda_text.kernel_names(defined):
            if (file, name) not in done:
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                kind, message = tried(path, source, name, options)
                signal.setitimer(signal.ITIMER_PROF, 0)
                about = {"file": file, "kernel": name, "kind": kind, "message": message}
                found.append({**about, "template": cuda_text.is_template(text, name)})
    return found


def logged(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def table(log: Path, folders: list[Path]) -> str:
    """Of each repository, without and with templates, how many kernels are of each kind."""
    lines = sorted(logged(log), key=lambda one: -KINDS.index(one["kind"]))
    best = {(one["file"], one["kernel"]): one for one in lines}.values()
    rows = [f"| repository | templates | kernels | {' | '.join(KINDS)} |", "|---" * 9 + "|"]
    for folder in folders:
        own = [one for one in best if Path(one["file"]).is_relative_to(folder.resolve())]
        for template, answer in ((False, "no"), (True, "yes")):
            kinds = Counter(one["kind"] for one in own if one["template"] == template)
            counts = " | ".join(str(kinds[kind]) for kind in KINDS)
            rows.append(f"| {folder.name} | {answer} | {kinds.total()} | {counts} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--log", type=Path, required=True)
    given = parser.parse_args()
    every = [one for folder in given.folders for one in sorted(folder.rglob("*.*"))]
    with ProcessPoolExecutor(2) as pool, given.log.open("a") as log:
        for end in (".cu", ".cuh", ".h"):  # headers by themselves only if no file includes them
            seen = {one["file"] for one in logged(given.log)}
            files = [one for one in every if one.suffix == end]
            if end != ".cu":
                files = [one for one in files if b"__global__" in one.read_bytes()]
                files = [one for one in files if str(one.resolve()) not in seen]
            calls = [pool.submit(survey, one, given.option, given.log) for one in files]
            for call in as_completed(calls):
                log.writelines(f"{json.dumps(line)}\n" for line in call.result())
                log.flush()
    print(table(given.log, given.folders))


if __name__ == "__main__":
    main()
