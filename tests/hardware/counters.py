"""Nsight Compute's counters of the kernels beside this file, for comparison with the SIMT machine.

Runs `ncu` over groups of launches: those whose counters must be equal, the measured access patterns
of shared memory, those that are only reported (all in `cases.py`), and, if it is asked for by name,
`ragged` loops (`ragged.py`), which have a file of their own. Every launch is
checked against numpy, so that the counters are those of a kernel that did its work. Needs a GPU and
the right to read counters. The metrics are those that ncu knows on an H200.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import cupy
import numpy as np

from helpers.base.gpu import describe_device, describe_versions, has_gpu
from helpers.measure.profiling import parse_ncu
from helpers.run.execute import to_gpu
from helpers.simt import NSIGHT_METRICS, SHARED_METRICS
from helpers.simt.cuda_text import token_hash

from .cases import DATA, Case, compared, measured_patterns, patterns, reported, source
from .processes import Done, run, write_data, write_text
from .ragged import ragged

# Counter of the SIMT machine -> metric that must be equal.
COMPARED_METRICS = {**NSIGHT_METRICS, **SHARED_METRICS}
BANK_METRICS = (
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
)
OTHER_METRICS = (
    "smsp__inst_executed.sum",
    "smsp__inst_executed_op_local_ld.sum",
    "smsp__inst_executed_op_local_st.sum",
    "l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_local_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "smsp__inst_executed_op_global_red.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_atom.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_red.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_red.sum",
    "smsp__inst_executed_op_shared_atom.sum",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_atom.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_atom.sum",
    "smsp__inst_executed_op_ldgsts.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l1tex__m_l1tex2xbar_write_bytes.sum",
    "l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum",
    "l1tex__m_l1tex2xbar_write_bytes_mem_global_op_tma_st.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_write.sum",
)
EVERY = (*COMPARED_METRICS.values(), *BANK_METRICS, *OTHER_METRICS)
GROUPS = {"compared": compared, "patterns": patterns, "reported": reported, "ragged": ragged}
USUAL = ("compared", "patterns", "reported")
METRICS = {
    "compared": (*COMPARED_METRICS.values(), *BANK_METRICS, OTHER_METRICS[0]),
    "patterns": (*SHARED_METRICS.values(), *BANK_METRICS),
    "reported": EVERY,
    "ragged": (*COMPARED_METRICS.values(), OTHER_METRICS[0]),
}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.counters", description=__doc__)
    parser.add_argument(
        "groups", nargs="*", default=USUAL, help=f"of {', '.join(GROUPS)} ({', '.join(USUAL)})"
    )
    parser.add_argument("--out", type=Path, default=DATA / "counters_h200.json", metavar="FILE")
    parser.add_argument("--seconds", type=float, default=150, help="time limit of each group (150)")
    parser.add_argument("--worker", choices=GROUPS, help=argparse.SUPPRESS)
    parser.add_argument("--checked", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if unknown := [group for group in options.groups if group not in GROUPS]:
        parser.error(f"no group {unknown[0]!r}: there are {', '.join(GROUPS)}")
    if not has_gpu():
        print("the counters are a GPU's, and CuPy finds no GPU", file=sys.stderr)
        return 1
    if options.worker:
        return work(options.worker, options.checked)
    if not shutil.which("ncu"):
        print("needs ncu of the CUDA toolkit on the PATH", file=sys.stderr)
        return 1
    return collect(options)


def files_of(groups: Iterable[str]) -> list[str]:
    """The kernel files of groups, each once."""
    return list(dict.fromkeys(case.kernel.file for group in groups for case in GROUPS[group]()))


# ---- the program that ncu watches ---------------------------------------------------------------


def work(group: str, checked: Path) -> int:
    """Launch each case of a group once; write the names of those with wrong results."""
    cupy.cuda.set_allocator(None)
    launched, wrong = [], []
    chosen = GROUPS[group]()
    for number, case in enumerate(chosen, 1):
        print(f"  {group} {number}/{len(chosen)} {case.name}", file=sys.stderr, flush=True)
        if launch_on_gpu(case):
            wrong.append(case.name)
            print(f"  WRONG RESULT: {case.name}", file=sys.stderr, flush=True)
        launched.append(case.name)
    write_text(checked, json.dumps({"launched": launched, "wrong": wrong}))
    return 3 if wrong else 0


def launch_on_gpu(case: Case) -> list[int]:
    """Run one case; returns the arguments that do not hold what they must."""
    launch = case.launch()
    kernel = cupy.RawKernel(source(case.kernel.file), case.kernel.name)
    arguments = launch.arguments()
    arrays = {
        place: to_gpu(value)
        for place, value in enumerate(arguments)
        if isinstance(value, np.ndarray)
    }
    values = [arrays.get(place, value) for place, value in enumerate(arguments)]
    values = [np.int32(value) if isinstance(value, int) else value for value in values]
    grid, block = (
        sizes if isinstance(sizes, tuple) else (sizes,) for sizes in (launch.grid, launch.block)
    )
    kernel(grid, block, tuple(values), shared_mem=launch.shared_mem)
    cupy.cuda.get_current_stream().synchronize()
    for place, array in arrays.items():
        arguments[place][...] = array.get()
    return launch.wrong(arguments)


# ---- the program that starts ncu ----------------------------------------------------------------


def collect(options: argparse.Namespace) -> int:
    data = {
        "device": describe_device(),
        "versions": {**describe_versions(), "ncu": ncu_version()},
        "utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "hashes": {file: token_hash(source(file)) for file in files_of(options.groups)},
    }
    commands, failures, wrong, groups = {}, {}, [], {}
    for group in options.groups:
        print(f"reading counters: {group}", flush=True)
        words = ["python" if word == sys.executable else word for word in command(group)]
        commands[group] = " ".join(words)
        done, checked = run_ncu(group, options.seconds)
        wrong += checked.get("wrong", [])
        try:
            groups[group] = assign(group, parse(done.out), checked)
        except ValueError as error:
            failures[group] = str(error)
            groups[group] = []
            print(f"FAILED: {error}\n{done.out[-1500:]}", file=sys.stderr)
    data.update(commands=commands, failures=failures, wrong_results=wrong, **groups)
    write_data(options.out, data)
    counts = {group: len(rows) for group, rows in groups.items()}
    print(f"wrote {options.out}: {counts}; wrong results: {wrong or 'none'}")
    return 1 if failures or wrong else 0


def ncu_version() -> str:
    found = re.search(r"Version ([\d.]+)", run(["ncu", "--version"], 60).out)
    return found[1] if found else "unknown"


def command(group: str, checked: Path | None = None) -> list[str]:
    ncu = ["ncu", "--clock-control", "none", "--csv", "--print-units", "base"]
    names = "|".join(dict.fromkeys(case.kernel.name for case in GROUPS[group]()))
    ncu += ["--kernel-name", f"regex:^({names})$"]  # none of CuPy's, that fill arrays
    worker = [sys.executable, "-m", f"{__package__}.counters", "--worker", group]
    worker += ["--checked", str(checked)] if checked else []
    return [*ncu, "--metrics", ",".join(METRICS[group]), *worker]


def run_ncu(group: str, seconds: float) -> tuple[Done, dict]:
    """(what ncu printed, what the launches gave)"""
    with tempfile.TemporaryDirectory() as folder:
        checked = Path(folder) / "checked.json"
        done = run(command(group, checked), seconds, echo=True)
        return done, json.loads(checked.read_text()) if checked.exists() else {}


def parse(text: str) -> list[dict]:
    """ncu's CSV as {"kernel", "metrics"} in the order of the launches."""
    return [
        {
            "kernel": kernel,
            "metrics": {
                name: int(value) if value.is_integer() else value for name, value in metrics.items()
            },
        }
        for kernel, metrics in parse_ncu(text)
    ]


def assign(group: str, rows: list[dict], checked: dict) -> list[dict]:
    """Say of each launch which case it is. Raises `ValueError` if they do not fit together."""
    cases = GROUPS[group]()
    if len(rows) != len(cases):
        launched = len(checked.get("launched", []))
        raise ValueError(f"{len(cases)} launches wanted, {launched} done, {len(rows)} counted")
    found = []
    for case, row in zip(cases, rows, strict=True):
        if row["kernel"].split("(")[0] != case.kernel.name:
            raise ValueError(f"ncu saw {row['kernel']} where {case.name} was launched")
        launch = case.launch()
        entry = {"kernel": case.kernel.name, "shape": list(case.shape)}
        if group == "patterns":
            named = measured_patterns()[case.shape[0]]
            entry.update(type=named["type"], pattern=named["pattern"])
        entry.update(grid=launch.grid, block=launch.block, shared_mem=launch.shared_mem)
        found.append({**entry, "metrics": row["metrics"]})
    return found


if __name__ == "__main__":
    sys.exit(main())
