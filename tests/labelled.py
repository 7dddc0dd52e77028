"""How the SIMT machine does on public suites of programs that are labelled with their defects.

    python -m tests.labelled ScoR=FOLDER ESBMC-GPU=FOLDER ... --log labelled.jsonl

A program with a `main` runs whole: g++ compiles its host code with `host_side.h`, and each launch
runs on the machine, on the program's own arrays, in both orders of blocks. A file without one is
launched as its comments say, with the arguments of tests/survey.py. The log has a line of JSON per
case and keeps what ran; its table becomes that of tests/data/labelled_suites.md, whose judgements
of differences stay.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from helpers.base.paths import ROOT
from helpers.simt import cuda_text, simulate, sources
from helpers.simt.compile import include_folders
from helpers.simt.loading import load_kernel
from helpers.simt.machine import compiled, declarations
from tests.survey import refusal, value

SECONDS = 20  # of processor time for one program
LIMIT = 5_000_000  # instructions of a launch
OWN_CHECK = "the program's own assertion"
TABLE = ROOT / "tests" / "data" / "labelled_suites.md"
LAUNCH = re.compile(r"(\w+)\s*<<<(.*?)>>>", re.DOTALL)
ESBMC_LAUNCH = re.compile(r"ESBMC_verify_kernel\w*\s*\(\s*(\w+)\s*,([^,]+),([^,)]+),?")
# GPUVerify's annotations: a precondition that names a value gives it, as a comment does that says
# what the verifier found; others say nothing here.
PRECONDITION = re.compile(r"(?:__requires\(|^//)(\w+) ==? (\d+)\b", re.MULTILINE)
ANNOTATIONS = tuple(
    f"-D__{name}={meaning}"
    for name, meaning in {
        **dict.fromkeys(("requires(x)", "requires_fresh_array(x)", "ensures(x)", "axiom(x)"), ""),
        **dict.fromkeys(("invariant(x)", "global_invariant(x)", "assume(x)"), "((void)0)"),
        "assert(x)": "((x) ? (void)0 : __trap())",
        "implies(a,b)": "(!(a) || (b))",
        "builtin_memcpy": "memcpy",
        "builtin_memset": "memset",
    }.items()
)
MAIN = re.compile(r"\b(?:int|void)?\s*\bmain\s*\(([^)]*)\)")


GCC = ["g++", "-std=c++17", "-w", "-fpermissive", "-fPIC"]
GCC += [f"-I{one}" for one in include_folders()]


@dataclass(frozen=True)
class Case:
    """A program of a suite."""

    suite: str
    name: str
    path: str
    defect: bool  # by its label
    arguments: tuple[str, ...] = ()  # of main
    sizes: tuple = ()  # grid and block of a file without main
    options: tuple[str, ...] = ()
    volatile: str = "relaxed"


# ---- the suites ----


def scor(folder: Path) -> Iterator[Case]:
    for path in sorted((folder / "microbenchmarks" / "src").glob("*.cu")):
        yield Case("", path.stem, str(path), path.name.startswith("race"))


def scor_plain(folder: Path) -> Iterator[Case]:
    for case in scor(folder):
        yield replace(case, volatile="plain")


def esbmc(folder: Path) -> Iterator[Case]:
    root = folder / "regression" / "cuda"
    for path in sorted((*root.glob("pug/*/main.cu"), *root.glob("*/supported/*/*/main.cu"))):
        label = (path.parent / "test.desc").read_text()
        name, defect = str(path.parent.relative_to(root)), "^VERIFICATION FAILED" in label
        # Some define N before they include cuda.h, which uses the name.
        yield Case("", name, str(path), defect, options=("--pre-include=cuda.h",))


def gpuverify(folder: Path) -> Iterator[Case]:
    root = folder / "testsuite" / "CUDA"
    for path in sorted(root.rglob("*.cu")):
        text = path.read_text(errors="replace")
        label, line = text.splitlines()[:2]
        given = dict(re.findall(r"--(\w+)=\[?([\d,]+)", line))
        sizes = [tuple(map(int, given[one].split(","))) for one in ("gridDim", "blockDim")]
        more = ["--pre-include=curand_kernel.h"] * ("curand" in text)
        more += ["-Duint=unsigned"] * ("#include" not in text)
        options = (*re.findall(r"-D\S+", line), *ANNOTATIONS, *more)
        name, defect = str(path.parent.relative_to(root)), label.lower().startswith("//xfail")
        yield Case("", name, str(path), defect, sizes=tuple(sizes), options=options)


def sanitizer(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.rglob("*.cu")):
        if path.parent.name in ("Memcheck", "Racecheck", "Synccheck", "Initcheck", "Suppressions"):
            yield Case("", path.stem, str(path), True)


def indigo(folder: Path) -> Iterator[Case]:
    """Of the programs that the suite's generator has made, with at most one bug each, the last of
    each algorithm and bug."""
    graph = str(folder / "inputs" / "undirect2dim_rand_torus_100n_400e.egr")
    chosen: dict[tuple, Path] = {}
    for path in sorted((folder / "generatedCodes").rglob("*.cu")):
        words = path.stem.split("_")
        bugs = [one for one in words if one.endswith("Bug") and not one.startswith("No")]
        if len(bugs) < 2:
            chosen[(words[0], *bugs)] = path
    for (_, *bugs), path in chosen.items():
        name = re.sub(r"_(No[A-Z]\w*?Bug|CUDA)(?=_|$)", "", path.stem)
        options = (f"-I{folder / 'lib'}",)
        yield Case("", name, str(path), bool(bugs), (graph, "1", "0"), options=options)


SUITES = {
    "ScoR": ("csl-iisc/ScoR 6dc3507ecc41", scor),
    "ScoR-plain": ("csl-iisc/ScoR 6dc3507ecc41, --volatile plain", scor_plain),
    "ESBMC-GPU": ("ssvlab/esbmc-gpu 408a1f83585c", esbmc),
    "GPUVerify": ("mc-imperial/gpuverify 49219770aad0", gpuverify),
    "compute-sanitizer": ("NVIDIA/compute-sanitizer-samples 1e1fab8e2514", sanitizer),
    "Indigo3": ("burtscher/Indigo3Suite f351177756f7", indigo),
}


# ---- one program, in a process of its own ----


def host_text(path: Path, folders: list[Path], seen: set[Path]) -> str:
    """A program for g++, its own headers in place: kernels call the machine, and other functions
    of the device are empty."""

    def included(match: re.Match) -> str:
        places = [one / match[2] for one in (path.parent, *folders)]
        own = next((one for one in places if one.is_file()), None)
        if own is not None:
            return "" if own in seen or seen.add(own) else host_text(own, folders, seen)
        there = ["/usr/include", "/usr/include/x86_64-linux-gnu"]  # CUDA's are in host_side.h
        known = "." not in match[2] or any((Path(one) / match[2]).is_file() for one in there)
        return f"{match[0]}\n" if known else ""

    text = cuda_text.strip_comments(sources.read(path))
    plain = sources.plain_text(text)
    for start, stop, body, _ in sorted(sources.declarations(plain), reverse=True):
        head = plain[start:body]
        if body < 0 or not re.search(r"__(global|device)__", head) or "__host__" in head:
            continue
        call = "std::abort();"
        if "__global__" in head and (names := cuda_text.kernel_names(head + "{}")):
            given = [one.name for one in cuda_text.signature(head + "{}", names[0])]
            places = ", ".join(f"(const void*)&{one}" for one in given)
            call = f'host_launch("{names[0]}", {{{places}}});'
        end = plain.rindex("}", body, stop) + 1
        if not re.search(r"\b(class|struct|union)\b[^()]*$|=\s*$", head):
            text = f"{text[:body]}{{ {call} }}{text[end:]}"
    text = LAUNCH.sub(r"host_configure(\2), \1", text)
    text = ESBMC_LAUNCH.sub(r"host_configure(\2,\3), \1(", text)
    return sources.INCLUDE.sub(included, text)


@functools.cache
def header() -> Path:
    """host_side.h, compiled."""
    folder = Path(tempfile.mkdtemp())
    copied = Path(shutil.copy(Path(__file__).with_name("host_side.h"), folder))
    subprocess.run([*GCC, "-o", f"{copied}.gch", str(copied)], check=True)
    return copied


def library(case: Case, folder: Path) -> ctypes.CDLL:
    """The host code of a program as a library; raises `ValueError` with what g++ says."""
    path = Path(case.path)
    folders = [Path(one[2:]) for one in case.options if one.startswith("-I")]
    text = host_text(path, folders, {path})
    main = MAIN.search(sources.plain_text(text))
    taken = "count, words" if main[1].strip() not in ("", "void") else ""
    text = MAIN.sub(r"int host_main(\1)", text)
    text += 'extern "C" void host_start(decltype(host_run) run, int count, char** words) '
    text += f"{{ host_run = run; host_main({taken}); }}\n"
    (folder / "host.cpp").write_text(text)
    made = folder / "host.so"
    given = ["-include", str(header()), "-shared", "-o", str(made), str(folder / "host.cpp")]
    told = subprocess.run([*GCC, *given], capture_output=True, text=True)
    if told.returncode:
        raise ValueError(f"g++: {told.stderr}"[:2000])
    return ctypes.CDLL(str(made))


class Program:
    """A case with the kernels that it has launched so far."""

    def __init__(self, case: Case, told: Path):
        self.case, self.told = case, told
        self.kernels: dict = {}

    def tell(self, **line) -> None:
        with self.told.open("a") as file:
            file.write(f"{json.dumps(line)}\n")

    def run(self) -> None:
        """Run it to its end; what was found is told launch by launch, since it may not come to its
        end."""
        if self.case.sizes:
            text = sources.read(Path(self.case.path))
            for name in cuda_text.kernel_names(text):
                self.launch(name, *self.case.sizes, 0, None)
        else:
            try:
                with tempfile.TemporaryDirectory() as folder:
                    self.host = library(self.case, Path(folder))
            except Exception as error:
                self.tell(kind="failed", said=f"host: {error}")
                return
            self.host.host_left.restype = ctypes.c_size_t
            call = ctypes.CFUNCTYPE(
                None,
                ctypes.c_char_p,
                ctypes.POINTER(ctypes.c_uint),
                ctypes.POINTER(ctypes.c_void_p),
            )
            words = [b"program", *map(str.encode, self.case.arguments)]
            given = (ctypes.c_char_p * len(words))(*words)
            self.host.host_start(call(self.launched), len(words), given)
        self.tell(kind="end")

    def launched(self, name: bytes, sizes, places) -> None:
        grid, block = tuple(sizes[:3]), tuple(sizes[3:6])
        self.launch(name.decode(), grid, block, sizes[6], places)

    def launch(self, name: str, grid, block, shared: int, places) -> None:
        kind = "failed"
        try:
            if name not in self.kernels:
                self.kernels[name] = load_kernel(Path(self.case.path), name, self.case.options)[0]
            kernel = self.kernels[name]
            declared = cuda_text.signature(declarations(kernel), kernel.name)
            if places is None:
                known = dict(PRECONDITION.findall(sources.read(Path(self.case.path))))
                values = [
                    one.dtype.type(known[one.name]) if one.name in known else value(one)
                    for one in declared
                ]
            else:
                self.arrays: dict = {}
                every = enumerate(zip(declared, compiled(kernel)[1].parameters, strict=True))
                values = [self.argument(places[k], one, ptx) for k, (one, ptx) in every]
            trace = simulate(
                kernel,
                grid,
                block,
                values,
                shared,
                orders=2,
                volatile=self.case.volatile,
                instruction_limit=LIMIT,
            )
            found = sorted({f"{one.kind}:{one.line}" for one in trace.findings})
            self.tell(kind="ran", kernel=name, found=found)
        except Exception as error:
            kind, said = refusal(error, kind)
            self.tell(kind=kind, kernel=name, said=said)

    # ---- arguments that the program passes ----

    def argument(self, place: int, declared: cuda_text.Parameter, ptx):
        """An argument from its bytes; arrays are the program's own."""
        given = ctypes.string_at(place, ptx.size)
        if declared.pointer:
            address = int.from_bytes(given, "little")
            if declared.table:
                held = self.array(address, np.dtype(np.uint64))
                dtype = declared.dtype
                return None if held is None else [self.array(int(one), dtype) for one in held]
            return self.array(address, declared.dtype)
        if not ptx.struct:
            dtype = declared.dtype or np.dtype(f"i{ptx.size}")
            return np.frombuffer(given, dtype)[0]
        words = range(0, ptx.size - 7, 8)
        addresses = {k: int.from_bytes(given[k : k + 8], "little") for k in words}
        arrays = {k: self.array(one, None) for k, one in addresses.items()}
        fields = {k: "O" for k, one in arrays.items() if one is not None}  # the others are bytes
        fields |= {k: "u1" for k in range(ptx.size) if k // 8 * 8 not in fields}
        names = [f"byte{k}" for k in fields]
        made = {"names": names, "formats": [*fields.values()], "offsets": [*fields]}
        values = (arrays[k] if kind == "O" else given[k] for k, kind in fields.items())
        return np.array(tuple(values), np.dtype({**made, "itemsize": ptx.size}))[()]

    def array(self, address: int, dtype: np.dtype | None) -> np.ndarray | None:
        """The array of the device from an address on; None if there is none."""
        dtype = np.dtype(np.uint8) if dtype is None else dtype
        left = self.host.host_left(ctypes.c_void_p(address))
        if left < dtype.itemsize:
            return None
        if (address, dtype) not in self.arrays:
            memory = (ctypes.c_char * left).from_address(address)
            self.arrays[address, dtype] = np.frombuffer(memory, dtype, left // dtype.itemsize)
        return self.arrays[address, dtype]


# ---- all programs ----


def run(case: Case, told: Path, said: Path) -> None:
    """Run a case in this process, which may end with it; `said` gets what it prints."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    with said.open("wb") as file, open(os.devnull) as nothing:
        os.chdir(told.parent)  # some write files
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        Program(case, told).run()
    os._exit(0)  # there are no threads to be joined, as Python expects of a process with a pool


def outcome(case: Case) -> dict:
    """What became of a case: its kind ("ran", "refused", "failed", "stopped"), what was found."""
    with tempfile.TemporaryDirectory() as folder:
        told, said = Path(folder) / "told.jsonl", Path(folder) / "said"
        child = multiprocessing.get_context("fork").Process(target=run, args=(case, told, said))
        child.start()
        child.join()
        status = child.exitcode
        lines = (
            [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
        )
        said = said.read_text(errors="replace")[-300:]
    late = status in (-signal.SIGXCPU, -signal.SIGKILL)
    said = f"over {SECONDS} seconds" if late else said
    kinds = [line["kind"] for line in lines]
    others = [line for line in lines if line["kind"] not in ("ran", "end")]
    found = sorted({one for line in lines for one in line.get("found", ())})
    if others:
        kind, said = others[0]["kind"], others[0]["said"]
    elif "ran" in kinds:
        kind = "stopped" if late else "ran"
    else:
        kind, said = "no launch", f"status {status}: {said}"
    own = status == -6 and "Assertion" in said
    return {"suite": case.suite, "case": case.name, "defect": case.defect, "kind": kind} | {
        "found": found + [OWN_CHECK] * own,
        "said": "" if kind == "ran" and not own else said,
        "status": status,
    }


def table(log: list[dict]) -> str:
    kept = judgements()
    check = "by its own check alone"
    heads = ["cases", "run", "refused by name", "not run", "labelled defects run", "found", check]
    heads += ["missed", "clean ones run", "flagged", check]
    rows = [f"| suite | {' | '.join(heads)} |", "|---" * 12 + "|"]
    differences = ["| suite | case | label | found | judgement |", "|---" * 5 + "|"]
    for suite, (shown, _) in SUITES.items():
        own = [one for one in log if one["suite"] == suite]
        if not own:
            continue
        kinds = Counter(one["kind"] for one in own)
        ran = [one for one in own if one["kind"] in ("ran", "stopped")]
        numbers = [len(own), len(ran), kinds["refused"], len(own) - len(ran) - kinds["refused"]]
        for defect in (True, False):
            labelled = [one for one in ran if one["defect"] == defect]
            found = [one for one in labelled if one["found"]]
            alone = sum(one["found"] == [OWN_CHECK] for one in found)
            numbers += [len(labelled), len(found), alone]
            numbers += [len(labelled) - len(found)] * defect
            for one in labelled:
                if defect != bool(one["found"]):
                    name, label = one["case"], "defect" if defect else "clean"
                    seen = "; ".join(one["found"])
                    why = kept.get((suite, name), "")
                    differences.append(f"| {suite} | {name} | {label} | {seen} | {why} |")
        rows.append(f"| {shown} | {' | '.join(map(str, numbers))} |")
    return "\n".join([*rows, "", *differences])


def judgements() -> dict[tuple[str, str], str]:
    """What the table says of each difference, which a person has written."""
    lines = TABLE.read_text().splitlines() if TABLE.exists() else []
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {(one[0], one[1]): one[4] for one in cells if len(one) == 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+", help="NAME=FOLDER, of " + ", ".join(SUITES))
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--only", default="", help="a part of the cases' names")
    given = parser.parse_args()
    log = (
        [json.loads(one) for one in given.log.read_text().splitlines()]
        if given.log.exists()
        else []
    )
    done = {(one["suite"], one["case"]) for one in log}
    cases = []
    for one in given.suites:
        suite, _, folder = one.partition("=")
        cases += [replace(case, suite=suite) for case in SUITES[suite][1](Path(folder).resolve())]
    cases = [one for one in cases if (one.suite, one.name) not in done and given.only in one.name]
    header()  # before there are threads
    with ThreadPoolExecutor(2) as pool, given.log.open("a") as file:
        for call in as_completed([pool.submit(outcome, one) for one in cases]):
            log.append(call.result())
            file.write(f"{json.dumps(log[-1])}\n")
            file.flush()
    intro = TABLE.read_text().partition("|")[0] if TABLE.exists() else ""
    TABLE.write_text(f"{intro}{table(sorted(log, key=lambda one: one['case']))}\n")


if __name__ == "__main__":
    main()
