"""Results of the SIMT machine on public suites of programs that are labelled with their defects.

    python -m tests.labelled ScoR=FOLDER ESBMC-GPU=FOLDER ... --log labelled.jsonl

A program with a `main` runs whole: g++ compiles its host code with `host_side.h`, and each launch
runs on the machine, on the program's own arrays, in both orders of blocks. A file without one is
launched as its comments say, with the arguments of tests/survey.py. The log has one line of JSON
per case, and cases in it do not run again. tests/data/labelled_suites.md gets new rows for each
given suite that the log contains completely. It keeps the rows of the other suites, and the
judgement of a difference as long as the findings are unchanged.
"""

from __future__ import annotations

import argparse
import atexit
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
from tests.survey import logged, refusal, value

SECONDS = 20  # of processor time for one program
LIMIT = 5_000_000  # instructions of a launch
OWN_CHECK = "the program's own assertion"
TABLE = ROOT / "tests" / "data" / "labelled_suites.md"
LAUNCH = re.compile(r"(\w+)\s*<<<(.*?)>>>", re.DOTALL)
ESBMC_LAUNCH = re.compile(r"ESBMC_verify_kernel\w*\s*\(\s*(\w+)\s*,([^,]+),([^,)]+),?")
# GPUVerify's annotations. A precondition, or a comment with the verifier's counterexample, can give
# a parameter its value; the other annotations are ignored, except assertions.
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
    """The last generated program of each algorithm and bug, of those with at most one bug."""
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
    """A program for g++ with its own headers inlined. A kernel's body calls the machine, and any
    other device function aborts."""

    def included(match: re.Match) -> str:
        places = [one / match[2] for one in (path.parent, *folders)]
        own = next((one for one in places if one.is_file()), None)
        if own is not None:
            return "" if own in seen or seen.add(own) else host_text(own, folders, seen)
        folders_of_cuda = map(Path, include_folders())  # host_side.h includes what programs need
        if "." in match[2] and any((one / match[2]).is_file() for one in folders_of_cuda):
            return ""
        name = match[0][match[0].index(match[1]) :]
        return f"#if __has_include({name})\n{match[0]}\n#endif\n"

    text = cuda_text.strip_comments(sources.read(path))
    plain = sources.plain_text(text)
    for start, stop, body, *_ in sorted(sources.declarations(plain), reverse=True):
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
    """The path of host_side.h beside its precompiled form, in a folder that lasts as long as this
    process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    copied = Path(shutil.copy(Path(__file__).with_name("host_side.h"), folder))
    subprocess.run([*GCC, "-o", f"{copied}.gch", str(copied)], check=True)
    return copied


def library(case: Case, folder: Path) -> ctypes.CDLL:
    """The host code of a program as a library; raises `ValueError` with the stderr of g++."""
    path = Path(case.path)
    folders = [Path(one[2:]) for one in case.options if one.startswith("-I")]
    text = host_text(path, folders, {path})
    main = MAIN.search(sources.plain_text(text))
    taken = "count, words" if main[1].strip() not in ("", "void") else ""
    text = MAIN.sub(r"int host_main(\1)", text)
    text += 'extern "C" void host_start(decltype(host_run) run, int count, char** words) '
    text += f"{{ host_run = run; host_main({taken}); }}\n"
    code, made = folder / "host.cpp", folder / "host.so"
    code.write_text(text)
    command = [*GCC, "-include", str(header()), "-shared", "-o", str(made), str(code)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise ValueError(f"g++: {ended.stderr}"[:2000])
    return ctypes.CDLL(str(made))


class Program:
    """A case with the kernels that it has launched so far. Its log gets a line per launch, because
    the program may end this process."""

    def __init__(self, case: Case, log: Path):
        self.case, self.log = case, log
        self.kernels: dict = {}

    def write(self, **line) -> None:
        with self.log.open("a") as file:
            file.write(f"{json.dumps(line)}\n")

    def run(self) -> None:
        """Run the host code, or launch each kernel of a file that has none."""
        if self.case.sizes:
            for name in cuda_text.kernel_names(sources.read(Path(self.case.path))):
                self.launch(name, *self.case.sizes, 0, None)
            return
        try:
            self.host = library(self.case, self.log.parent)
        except Exception as error:
            return self.write(kind="failed", message=f"host: {error}")
        self.host.host_left.restype = ctypes.c_size_t
        pointers = map(ctypes.POINTER, (ctypes.c_uint, ctypes.c_void_p))
        call = ctypes.CFUNCTYPE(None, ctypes.c_char_p, *pointers)
        words = [b"program", *map(str.encode, self.case.arguments)]
        given = (ctypes.c_char_p * len(words))(*words)
        self.host.host_start(call(self.launched), len(words), given)

    def launched(self, name: bytes, sizes, places) -> None:
        self.launch(name.decode(), tuple(sizes[:3]), tuple(sizes[3:6]), sizes[6], places)

    def launch(self, name: str, grid, block, shared: int, places) -> None:
        """Run a kernel with the arguments at these addresses, or with guesses if there are none."""
        path, self.arrays = Path(self.case.path), {}
        settings = {"orders": 2, "volatile": self.case.volatile, "instruction_limit": LIMIT}
        try:
            if name not in self.kernels:
                self.kernels[name] = load_kernel(path, name, self.case.options)[0]
            kernel = self.kernels[name]
            declared = cuda_text.signature(declarations(kernel), kernel.name)
            if places is None:
                known = dict(PRECONDITION.findall(sources.read(path)))
                values = [
                    one.dtype.type(known[one.name]) if one.name in known else value(one)
                    for one in declared
                ]
            else:
                every = enumerate(zip(declared, compiled(kernel)[1].parameters, strict=True))
                values = [self.argument(places[k], one, ptx) for k, (one, ptx) in every]
            trace = simulate(kernel, grid, block, values, shared, **settings)
            found = sorted({f"{one.kind}:{one.line}" for one in trace.findings})
            self.write(kind="ran", found=found)
        except Exception as error:
            kind, message = refusal(error, "failed")
            self.write(kind=kind, message=message)

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


def run(case: Case, log: Path, output: Path) -> None:
    """Run a case in this process, which it may end, with its output in a file."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))  # SIGXCPU, then SIGKILL
    with output.open("wb") as file, open(os.devnull) as nothing:
        os.chdir(log.parent)  # some write files
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        Program(case, log).run()
    os._exit(0)  # there are no threads to be joined, as Python expects of a process with a pool


def outcome(case: Case) -> dict:
    """Run a case and return its outcome: a kind ("ran", "stopped", "no launch", or that of a
    refusal), its findings, a message and the exit status."""
    header()  # compiled here, because a child does not remove it
    with tempfile.TemporaryDirectory() as folder:
        log, output = Path(folder) / "log.jsonl", Path(folder) / "output"
        child = multiprocessing.get_context("fork").Process(target=run, args=(case, log, output))
        child.start()
        child.join()
        status, lines = child.exitcode, logged(log)
        message = f"status {status}: {output.read_text(errors='replace')[-300:]}"
    own = status == -signal.SIGABRT and "Assertion" in message
    message = f"over {SECONDS} seconds" if status == -signal.SIGXCPU else message
    found = sorted({one for line in lines for one in line.get("found", ())}) + [OWN_CHECK] * own
    kind = "ran" if lines else "no launch"
    if others := [line for line in lines if line["kind"] != "ran"]:
        kind, message = others[0]["kind"], others[0]["message"]
    elif lines and status in (-signal.SIGXCPU, -signal.SIGKILL):
        kind = "stopped"
    message = "" if kind == "ran" and not own else message
    about = {"suite": case.suite, "case": case.name, "defect": case.defect, "kind": kind}
    return {**about, "found": found, "message": message, "status": status}


def table(log: list[dict], old: list[str]) -> str:
    """The tables of a log. The old lines stay for suites that are not in the log, and for unchanged
    differences, whose judgements are written by hand."""
    check = "by a host assertion only"
    heads = ["suite", "cases", "run", "refused by name", "not run", "labelled defects run", "found"]
    heads += [check, "missed", "clean ones run", "flagged", check]
    rows = [f"| {' | '.join(heads)} |", "|---" * 12 + "|"]
    differences = ["| suite | case | label | found | judgement |", "|---" * 5 + "|"]
    for suite, (shown, _) in SUITES.items():
        own = [one for one in log if one["suite"] == suite]
        if not own:
            rows += [line for line in old if line.startswith(f"| {shown} |")]
            differences += [line for line in old if line.startswith(f"| {suite} |")]
            continue
        ran = [one for one in own if one["kind"] in ("ran", "stopped")]
        refused = sum(one["kind"] == "refused" for one in own)
        numbers = [len(own), len(ran), refused, len(own) - len(ran) - refused]
        for defect in (True, False):
            labelled = [one for one in ran if one["defect"] == defect]
            found = [one["found"] for one in labelled if one["found"]]
            numbers += [len(labelled), len(found), found.count([OWN_CHECK])]
            numbers += [len(labelled) - len(found)] * defect
            for one in labelled:
                if defect != bool(one["found"]):
                    label, seen = "defect" if defect else "clean", "; ".join(one["found"])
                    start = f"| {suite} | {one['case']} | {label} | {seen} |"
                    same = (line for line in old if line.startswith(start))
                    differences.append(next(same, f"{start}  |"))
        rows.append(f"| {shown} | {' | '.join(map(str, numbers))} |")
    return "\n".join([*rows, "", *differences])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="+", help="NAME=FOLDER, of " + ", ".join(SUITES))
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--only", default="", help="a part of the cases' names")
    given = parser.parse_args()
    log, cases = {(one["suite"], one["case"]): one for one in logged(given.log)}, {}
    for suite, _, folder in (one.partition("=") for one in given.suites):
        for case in SUITES[suite][1](Path(folder).resolve()):
            cases[suite, case.name] = replace(case, suite=suite)
    missing = [one for key, one in cases.items() if key not in log and given.only in one.name]
    with ThreadPoolExecutor(2) as pool, given.log.open("a") as file:
        for call in as_completed([pool.submit(outcome, one) for one in missing]):
            line = call.result()
            log[line["suite"], line["case"]] = line
            file.write(f"{json.dumps(line)}\n")
            file.flush()
    partial = {suite for suite, name in cases if (suite, name) not in log}
    for suite in sorted(partial):
        print(f"{TABLE.name} keeps its rows of {suite}, because the log lacks some of its cases")
    text, whole = TABLE.read_text(), [log[key] for key in sorted(cases) if key[0] not in partial]
    TABLE.write_text(f"{text.partition('|')[0]}{table(whole, text.splitlines())}\n")


if __name__ == "__main__":
    main()
