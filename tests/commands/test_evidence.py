"""Profiling goes on where it stopped: ncu, cuobjdump and compute-sanitizer are scripts here
that say what the real ones would and keep a list of what they were asked."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.base import gpu
from helpers.catalogue import registry
from helpers.catalogue.registry import UNFUSED
from helpers.commands import measure as command
from helpers.measure import records, workers
from helpers.measure.evidence import cases as launches
from helpers.measure.evidence import counters, numerics, part, sanitizer, sass
from helpers.measure.evidence.cases import (
    UNFUSED_CASE,
    Batch,
    EvidenceCase,
    cases,
    run_tool,
    worker_command,
)
from helpers.measure.records import launch_of, step_hash
from helpers.problem.problem import Problem
from helpers.run.bound import load
from helpers.run.execute import device_dtype
from helpers.run.references import make_input
from tests import made_up

# The cases follow --worker in every command. A metric counts up from run to run, so that a test
# sees which entries are new.
TOOL = """#!{python} -IS
import csv, json, os, sys
from pathlib import Path
here = Path({folder!r})
tool, asked = Path(sys.argv[0]).name, sys.argv[1:]
cases = asked[asked.index("--worker") + 1 :] if "--worker" in asked else []
with open(here / "log", "a") as log:
    environment = {{name: os.environ.get(name) for name in ("SOFTMAX_REPLAY", "TMPDIR")}}
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    log.write(json.dumps([tool, asked, cases, gpu, environment]) + "\\n")
run = len((here / "log").read_text().splitlines())
plan = json.loads((here / "plan").read_text())
if any(case in plan["break"] for case in cases):
    sys.exit("broken")
if tool == "ncu":
    print("==PROF== connected\\n")
    writer = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL)
    writer.writerow(["ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"])
    names = ["op"] * 6 if cases == [{unfused!r}] else [plan["names"][case] for case in cases]
    for place, name in enumerate(names[plan["lose"]:]):
        writer.writerow([place, name + "(float *)", "run", "", f"1,{{run:03d}}"])
        writer.writerow([place, name + "(float *)", "missing", "", "n/a"])
elif tool == "cuobjdump":
    print("        /*0000*/                   LDG.E R1, [R2] ;\\n        /*0010*/   @P0 EXIT ;")
    print("        /*0020*/                   FADD R1, R1 ;")
else:
    found = sum(case in plan["errors"] for case in cases)
    print(f"========= ERROR SUMMARY: {{found}} errors")
    sys.exit(1 if found or plan["crash"] else 0)
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU with two steps, a variant and a trial; `run` is profiling on it, `asked` what the
    tools were asked since the last time, `plan` what they do."""
    (tmp_path / "bin").mkdir()
    text = TOOL.format(python=sys.executable, folder=str(tmp_path), unfused=str(UNFUSED_CASE))
    for name in ("ncu", "cuobjdump", "compute-sanitizer"):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    versions = {"driver": "1", "nvrtc": "13.0", "cupy": "14.2.0", "commit": "abc"}
    step_list, variant_list = ["01_naive", "07_warp"], ["variants/01_naive_fast"]
    trials = ("07_warp-ROWS2",)
    for module, name, replacement in (
        (records, "RECORDS", tmp_path),
        (gpu, "has_gpu", lambda: True),
        (gpu, "describe_device", lambda: made_up.DEVICE),
        (gpu, "describe_versions", lambda: dict(versions)),
        (registry, "steps", lambda: step_list),
        (registry, "variants", lambda: variant_list),
        (registry, "TRIALS", trials),
        (launches, "SMALL_TRIALS", ()),
        (sass, "compile_cubin", lambda code, options, arch: b"cubin"),
        (numerics, "collect_numerics", lambda: {"errors": dict.fromkeys(numerics.NUMERICS, {})}),
        (workers, "gpu_is_usable", lambda: True),
        (workers, "gpu_names", lambda jobs: ["0", "1"][:jobs]),
    ):
        monkeypatch.setattr(module, name, replacement)
    plan = {"break": [], "errors": [], "lose": 0, "crash": False}
    fake = SimpleNamespace(folder=tmp_path / "nvidia-test", versions=versions, plan=plan, seen=0)

    def run(*options: str) -> int:
        names = {str(case): load(case.step).name for case in cases()}
        (tmp_path / "plan").write_text(json.dumps({**plan, "names": names}))
        return command.main(["profile", *options])

    def asked() -> list[tuple[str, list[str]]]:
        log = tmp_path / "log"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        new, fake.seen = lines[fake.seen :], len(lines)
        fake.last = new
        return [(tool, cases) for tool, _, cases, _, _ in new]

    def file(name: str) -> dict:
        return part.read_file(fake.folder / f"{name}.json")

    fake.run, fake.asked, fake.file = run, asked, file
    return fake


def of_step(step: str, which: str = "all") -> list[str]:
    return [str(case) for case in cases(which) if case.step == step]


NAMES = ["01_naive", "07_warp", "variants/01_naive_fast", "07_warp-ROWS2"]


def test_counters_are_read_step_by_step_and_only_once(tools) -> None:
    assert tools.run("--only", "counters") == 0
    assert tools.asked() == [
        ("ncu", [str(UNFUSED_CASE)]),
        *(("ncu", of_step(name)) for name in NAMES),
    ]
    assert all(line[4]["SOFTMAX_REPLAY"] == "0" for line in tools.last)
    assert len({line[4]["TMPDIR"] for line in tools.last}) == 5
    data = tools.file("counters")
    assert list(map(counters.case_of, data["cases"])) == cases()
    assert len(data[UNFUSED]) == 6 and set(data[UNFUSED][0]) == {"kernel", "metrics"}
    for entry in data["cases"]:
        case = counters.case_of(entry)
        assert entry["launch"] == launch_of(case.step, case.at)
        assert entry["metrics"] == {"run": 1002.0 + NAMES.index(case.step)}
    files = ("01_naive", "07_warp", "variants/01_naive_fast")
    assert data["hashes"] == {name: step_hash(name) for name in files}
    assert data["command"].startswith("ncu --profile-from-start off ")
    assert data["command"].endswith(" python -m helpers.commands.measure profile --worker CASE ...")

    before = (tools.folder / "counters.json").read_text()
    assert tools.run("--only", "counters") == 0
    assert tools.asked() == [] and (tools.folder / "counters.json").read_text() == before


def test_readers_read_what_is_written(tools) -> None:
    tools.run()
    nsight = counters.nsight("07_warp", 64, 1024, "bfloat16", gpu="nvidia-test")
    assert nsight == {"run": 1003.0}
    assert len(counters.nsight_unfused("nvidia-test")) == 6
    assert sass.sass("01_naive", gpu="nvidia-test") == ["LDG.E", "EXIT"]
    counted = {"LDG": 1, "EXIT": 1, "FADD": 1}
    assert sass.opcodes("01_naive", gpu="nvidia-test") == counted
    with pytest.raises(KeyError, match="no disassembly of 07_warp on nvidia-test; of 07") as error:
        sass.opcodes("07_warp", gpu="nvidia-test")
    assert "07_warp at 262144 x 1024 float16, " in str(error.value)
    assert "naive" not in str(error.value), "those of the step alone"
    with pytest.raises(
        KeyError, match="no disassembly of 99_none on nvidia-test; run make measure ARGS=profile"
    ):
        sass.opcodes("99_none", gpu="nvidia-test")
    shape = (262144, 1024)
    assert sass.sass("07_warp", shape, "float16", "nvidia-test") == ["LDG.E", "EXIT"]
    assert list(numerics.numerics("nvidia-test")) == list(numerics.NUMERICS)


def test_interrupted_run_keeps_the_batches_that_were_done(tools, monkeypatch) -> None:
    calls = []

    def interrupted(command: list[str]):
        calls.append(command)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run_tool(command)

    with monkeypatch.context() as patch:
        patch.setattr(counters, "run_tool", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tools.run("--only", "counters")
    data = tools.file("counters")
    assert {entry["step"] for entry in data["cases"]} == {"01_naive"} == set(data["hashes"])
    assert len(data[UNFUSED]) == 6
    tools.asked()
    assert tools.run("--only", "counters") == 0
    assert tools.asked() == [("ncu", of_step(name)) for name in NAMES[1:]]
    assert list(map(counters.case_of, tools.file("counters")["cases"])) == cases()


def test_failing_batch_is_reported_and_the_others_are_kept(tools, capsys) -> None:
    tools.plan["break"] = of_step("01_naive")[1:2]
    assert tools.run("--only", "counters") == 1
    steps = {entry["step"] for entry in tools.file("counters")["cases"]}
    assert steps == {"07_warp", "variants/01_naive_fast", "07_warp-ROWS2"}
    said = "at 01_naive: 7 launches: ncu ended with status 1\n"
    assert capsys.readouterr().err.endswith(said)
    tools.plan["break"] = []
    tools.asked()
    assert tools.run("--only", "counters") == 0
    assert tools.asked() == [("ncu", of_step("01_naive"))]


@pytest.mark.parametrize("lost", [1, 3])
def test_launches_that_ncu_missed_are_no_counters(tools, lost: int) -> None:
    tools.plan["lose"] = lost
    assert tools.run("--only", "counters", "--steps", "01_naive", UNFUSED) == 1
    written = (tools.folder / "counters.json").exists()
    assert written == (lost == 1), "five of the six launches of the array version are enough"
    if written:
        assert tools.file("counters")["cases"] == []


def test_other_kernels_than_asked_for_are_refused(tools) -> None:
    batch = Batch("01_naive", (EvidenceCase("07_warp", 64, 1024),))
    tools.run("--only", "numerics")
    counters.profile_batch(batch)
    names = {str(batch.cases[0]): "softmax_other"}
    (tools.folder.parent / "plan").write_text(json.dumps({**tools.plan, "names": names}))
    with pytest.raises(workers.Failure, match="ncu saw softmax_other"):
        counters.profile_batch(batch)


def test_what_is_looked_at_again(tools, tmp_path, monkeypatch) -> None:
    """Changed code: the step and its trials; a changed launch: the cases that it concerns."""
    tools.run()
    tools.asked()
    files = made_up.Kernels(tmp_path, monkeypatch)

    def asked_after(change: tuple[str, str]) -> list[tuple[str, list[str]]]:
        files.edit("07_warp.cu", change)
        kept = {path: path.read_text() for path in tools.folder.glob("*.json")}
        assert tools.run() == 0
        for path, text in kept.items():
            path.write_text(text)
        files.edit("07_warp.cu")
        return tools.asked()

    ours = ["07_warp", "07_warp-ROWS2"]
    compiled = len([name for name, *_ in sass.compilations() if name.startswith("07_warp at")])
    everything = [
        *(("ncu", of_step(name)) for name in ours),
        *[("cuobjdump", [])] * compiled,
        *[("compute-sanitizer", of_step("07_warp", "small"))] * len(sanitizer.TOOLS),
    ]
    assert asked_after(("softmax", "softmax ")) == everything, "another code"
    # two rows a warp at 1024 columns, as the trial has them anyway: the code stays as it is
    two_rows = ("ROWS  = 1", "ROWS  = 2 when cols == 1024\n//                 | 1")
    assert asked_after(two_rows) == [
        ("ncu", [case for case in of_step("07_warp") if ":1024:" in case]),
        *everything[2:],
    ]
    assert asked_after(("// Idea: ", "// Idea:  ")) == []
    monkeypatch.setattr(sass, "KEPT", sass.KEPT - {"EXIT"})
    assert tools.run() == 0
    assert tools.asked() == [("cuobjdump", [])] * len(sass.compilations())


def test_another_driver_or_compiler_means_all_of_it(tools, capsys) -> None:
    name = records.MUST_NOT_CHANGE[-1]
    options = ("--only", "counters", "sanitizer", "--steps", "01_naive")
    tools.run(*options)
    first = tools.asked()
    tools.versions[name] = "another"
    tools.run(*options)
    assert tools.asked() == first and len(first) == 5
    assert f"sanitizer.json is of another {name}" in capsys.readouterr().out


def test_options_choose_files_and_steps_and_fresh_looks_again(tools) -> None:
    tools.run()
    tools.asked()
    before = tools.file("counters")
    assert tools.run("--fresh", "--steps", "01_naive", "--only", "counters", "sanitizer") == 0
    small = of_step("01_naive", "small")
    assert tools.asked() == [
        ("ncu", of_step("01_naive")),
        *[("compute-sanitizer", small)] * len(sanitizer.TOOLS),
    ]
    after = tools.file("counters")
    assert list(map(counters.case_of, after["cases"])) == cases()
    changed = [
        new["step"] for old, new in zip(before["cases"], after["cases"], strict=True) if old != new
    ]
    assert changed == ["01_naive"] * len(of_step("01_naive"))
    assert after[UNFUSED] == before[UNFUSED]
    with pytest.raises(SystemExit):
        tools.run("--steps", "99_missing")


def test_a_head_stays_until_all_of_its_file_is_made_anew(tools) -> None:
    only = ("--fresh", "--only", "sanitizer")
    tools.run(*only)
    tools.versions["commit"] = "def"
    assert tools.run(*only, "--steps", "01_naive") == 0
    assert tools.file("sanitizer")["versions"]["commit"] == "abc"
    assert tools.run(*only) == 0
    assert tools.file("sanitizer")["versions"]["commit"] == "def"


def test_what_is_not_asked_for_any_more_is_dropped(tools, monkeypatch) -> None:
    tools.run()
    monkeypatch.setattr(registry, "steps", lambda: ["07_warp"])
    tools.asked()
    assert tools.run() == 0 and tools.asked() == []
    for name in ("counters", "sass", "sanitizer"):
        assert "01_naive" not in tools.file(name)["hashes"]
    assert {entry["step"] for entry in tools.file("counters")["cases"]} == set(NAMES[1:])
    assert {step for step, *_ in tools.file("sanitizer")["cases"]} == {"07_warp"}


def test_verdicts_are_of_each_tool_and_step(tools, capsys) -> None:
    bad = of_step("07_warp", "small")[0]
    tools.plan["errors"] = [bad]
    assert tools.run("--only", "sanitizer") == 1
    data = tools.file("sanitizer")
    assert list(data["tools"]) == list(sanitizer.TOOLS)
    for tool, verdict in data["tools"].items():
        assert verdict["steps"] == {"01_naive": 0, "07_warp": 1} and verdict["errors"] == 1
        ours = "--report-api-errors no " if tool == "memcheck" else ""
        assert verdict["command"].startswith(f"compute-sanitizer --tool {tool} {ours}python -m ")
    assert [tuple(case) for case in data["cases"]] == cases("small")
    assert data["launches"] == [launch_of(case.step, case.at) for case in cases("small")]
    said = capsys.readouterr().err
    assert "memcheck found 1 errors in 07_warp" in said and "= ERROR SUMMARY: 1 err" in said
    tools.plan["errors"] = []
    assert tools.run("--only", "sanitizer") == 1, "what was found stays until it is looked at again"
    assert tools.run("--only", "sanitizer", "--fresh", "--steps", "07_warp") == 0


def test_worker_that_fails_is_no_clean_verdict(tools) -> None:
    tools.plan["crash"] = True
    assert tools.run("--only", "sanitizer") == 1
    assert not (tools.folder / "sanitizer.json").exists()


def test_without_a_tool_it_says_which(tools, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", "")
    assert tools.run("--only", "sanitizer") == 1
    assert "needs compute-sanitizer of the CUDA toolkit" in capsys.readouterr().err
    assert tools.run("--only", "numerics") == 0


# ---- the program that the tools watch ------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dtype"), [((64, 1024), "float32"), ((1024, 1024), "bfloat16")])
def test_inputs_of_the_worker(monkeypatch, shape: tuple[int, int], dtype: str) -> None:
    names = ("float32", "uint16", "linspace", "ascontiguousarray", "random")
    monkeypatch.setitem(
        sys.modules, "cupy", SimpleNamespace(**{name: getattr(np, name) for name in names})
    )
    monkeypatch.setattr(launches, "to_gpu", lambda x: x.view(device_dtype(x.dtype)))
    x = launches.input_on_gpu(Problem(*shape, dtype))
    assert x.shape == shape and x.dtype == device_dtype(np.dtype(dtype)) and x.flags.c_contiguous
    values = x.view(dtype).astype(np.float64)
    if shape == (64, 1024):
        assert (x.view(dtype) == make_input(*shape, dtype=dtype)).all()
    else:
        assert (values.mean(axis=1) > 190).any() and (values.mean(axis=1) < -190).any()
    assert (values.std(axis=1) > 0.5).all() and (values.std(axis=1) < 3).all()


@pytest.mark.gpu
def test_worker_runs_on_a_gpu() -> None:
    cases = ["07_warp:64:1024:float16", "05_float4:65536:4096:float32", str(UNFUSED_CASE)]
    done = run_tool(worker_command([*cases, "07_warp:262144:1024:bfloat16"]))
    assert (done.returncode, done.stderr) == (0, "")
