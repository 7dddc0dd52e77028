"""Profiling goes on where it stopped: ncu, cuobjdump and compute-sanitizer are scripts here
that say what the real ones would and keep a list of what they were asked."""

import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.base import gpu
from helpers.catalogue import registry, store
from helpers.catalogue.dispatch import launch_of, step_hash
from helpers.catalogue.registry import UNFUSED
from helpers.commands import measure as command
from helpers.measure import campaign, profiler, profiling
from helpers.measure.profiler import (
    UNFUSED_LAUNCH,
    Formula,
    Launch,
    NsightCounters,
    SanitizerResult,
)
from helpers.measure.profiling import launches, run_tool, worker_command
from helpers.problem.problem import Problem
from helpers.run.bound import load
from tests import made_up

SEEN = "gpu__time_duration.sum"

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
if tool == "ncu":
    print("==PROF== connected\\n")
    writer = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL)
    writer.writerow(["ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"])
    names = ["op"] * 6 if cases == [{unfused!r}] else [plan["names"][case] for case in cases]
    for place, name in enumerate(names[plan["lose"]:]):
        writer.writerow([place, name + "(float *)", {seen!r}, "", f"1,{{run:03d}}"])
        writer.writerow([place, name + "(float *)", "dram__bytes_read.sum", "", "n/a"])
elif tool == "cuobjdump":
    print("        /*0000*/                   LDG.E R1, [R2] ;\\n        /*0010*/   @P0 EXIT ;")
    print("        /*0020*/                   FADD R1, R1 ;")
else:
    found = sum(case in plan["errors"] for case in cases)
    print(f"========= ERROR SUMMARY: {{found}} errors")
    sys.exit(1 if found else 0)
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU with two steps, a variant and a trial; `run` is profiling on it, `asked` what the
    tools were asked since the last time, `plan` what they do."""
    (tmp_path / "bin").mkdir()
    where = {"python": sys.executable, "folder": str(tmp_path)}
    text = TOOL.format(**where, unfused=str(UNFUSED_LAUNCH), seen=SEEN)
    for name in ("ncu", "cuobjdump", "compute-sanitizer"):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    versions = {"driver": "1", "nvrtc": "13.0", "cupy": "14.2.0", "commit": "abc"}
    step_list, variant_list = ["01_naive", "07_warp"], ["variants/01_naive_fast"]
    trials = ("07_warp-ROWS2",)
    made_up.on_a_gpu(
        *(tmp_path, monkeypatch),
        (gpu, "describe_versions", lambda: dict(versions)),
        (registry, "steps", lambda: step_list),
        (registry, "variants", lambda: variant_list),
        (registry, "TRIALS", trials),
        (profiling, "SMALL_TRIALS", ()),
        (profiling, "compile_cubin", lambda code, options, arch: b"cubin"),
        (profiling, "measure_errors", lambda: dict.fromkeys(profiler.NUMERICS, {})),
    )
    plan = {"errors": [], "lose": 0}
    fake = SimpleNamespace(folder=tmp_path / "nvidia-test", versions=versions, plan=plan, seen=0)

    def run(*options: str) -> int:
        names = {str(case): load(case.step).name for case in launches()}
        (tmp_path / "plan").write_text(json.dumps({**plan, "names": names}))
        return command.main(["profile", *options])

    def asked() -> list[tuple[str, list[str]]]:
        log = tmp_path / "log"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        new, fake.seen = lines[fake.seen :], len(lines)
        fake.last = new
        return [(tool, cases) for tool, _, cases, _, _ in new]

    fake.run, fake.asked = run, asked
    fake.read = lambda kind: store.read(kind, "nvidia-test")
    fake.path = lambda kind: store.path_of(kind, "nvidia-test")
    return fake


def of_step(step: str, which: str = "all") -> list[str]:
    return [str(case) for case in launches(which) if case.step == step]


NAMES = ["01_naive", "07_warp", "variants/01_naive_fast", "07_warp-ROWS2"]


def test_counters_are_read_step_by_step_and_only_once(tools) -> None:
    assert tools.run("--only", "counters") == 0
    assert tools.asked() == [
        ("ncu", [str(UNFUSED_LAUNCH)]),
        *(("ncu", of_step(name)) for name in NAMES),
    ]
    assert all(line[4]["SOFTMAX_REPLAY"] == "0" for line in tools.last)
    assert len({line[4]["TMPDIR"] for line in tools.last}) == 5
    unfused, *data = tools.read(NsightCounters)
    assert [one.key for one in data] == launches()
    assert len(unfused.metrics) == 6
    for one in data:
        assert (one.launch, one.kernel_hash) == (launch_of(one.step, one.at), step_hash(one.step))
        assert one.metrics == [(f"{load(one.step).name}(float *)", seen_in(one.step))]
        assert one.run.protocol["command"].startswith("ncu --profile-from-start off ")

    before = tools.path(NsightCounters).read_text()
    assert tools.run("--only", "counters") == 0
    assert tools.asked() == [] and tools.path(NsightCounters).read_text() == before


def seen_in(step: str) -> dict[str, float]:
    """Of the first run: the array version, and then the steps."""
    return {SEEN: 1002.0 + NAMES.index(step)}


def test_readers_read_what_is_written(tools) -> None:
    tools.run()
    at = Problem(64, 1024, "bfloat16")
    ((_, nsight),) = profiler.profiled("07_warp", at, "nvidia-test").metrics
    assert nsight == seen_in("07_warp")
    with pytest.raises(KeyError, match="no Nsight counters of 07_warp at 64 x 1025 float32"):
        profiler.profiled("07_warp", Problem(64, 1025), "nvidia-test")
    assert len(profiler.nsight_unfused("nvidia-test")) == 6
    assert profiler.sass("01_naive", gpu="nvidia-test") == ["LDG.E", "EXIT"]
    counted = {"LDG": 1, "EXIT": 1, "FADD": 1}
    assert profiler.opcodes("01_naive", gpu="nvidia-test") == counted
    with pytest.raises(KeyError, match="no disassembly of 07_warp on nvidia-test; of 07") as error:
        profiler.opcodes("07_warp", gpu="nvidia-test")
    assert "07_warp at 262144 x 1024 float16, " in str(error.value)
    assert "naive" not in str(error.value), "those of the step alone"
    with pytest.raises(
        KeyError, match="no disassembly of 99_none on nvidia-test; run make measure ARGS=profile"
    ):
        profiler.opcodes("99_none", gpu="nvidia-test")
    shape = (262144, 1024)
    assert profiler.sass("07_warp", shape, "float16", "nvidia-test") == ["LDG.E", "EXIT"]
    assert list(profiler.numerics("nvidia-test")) == list(profiler.NUMERICS)


@pytest.mark.parametrize("lost", [1, 3])
def test_launches_that_ncu_missed_are_no_counters(tools, lost: int) -> None:
    tools.plan["lose"] = lost
    assert tools.run("--only", "counters 01_naive", f"counters {UNFUSED}") == 1
    written = tools.path(NsightCounters).exists()
    assert written == (lost == 1), "five of the six launches of the array version are enough"
    if written:
        assert [one.step for one in tools.read(NsightCounters)] == [UNFUSED]


def test_other_kernels_than_asked_for_are_refused(tools) -> None:
    asked = [Launch("07_warp", Problem(64, 1024))]
    tools.run("--only", "numerics")
    profiling.profile_launches(asked)
    names = {str(asked[0]): "softmax_other"}
    (tools.folder.parent / "plan").write_text(json.dumps({**tools.plan, "names": names}))
    with pytest.raises(campaign.Failure, match="ncu saw softmax_other"):
        profiling.profile_launches(asked)


def test_verdicts_are_of_each_tool_and_step(tools, capsys) -> None:
    bad = of_step("07_warp", "small")[0]
    tools.plan["errors"] = [bad]
    assert tools.run("--only", "sanitizer") == 1
    found = tools.read(SanitizerResult)
    of_each = itertools.product(profiling.OPTIONS, ["01_naive", "07_warp"])
    assert [one.key for one in found] == [(step, tool) for tool, step in of_each]
    for one in found:
        assert one.errors == (one.step == "07_warp")
        ours = " --report-api-errors no" if one.tool == "memcheck" else ""
        command = one.run.protocol["command"][one.tool]
        assert command == f"compute-sanitizer --tool {one.tool}{ours}"
        assert one.launches == {
            at.place(dtype=True): launch_of(step, at)
            for step, at in launches("small")
            if step == one.step
        }
    asked = {line[1][1]: line[1] for line in tools.asked() and tools.last}
    assert asked["memcheck"][:4] == ["--tool", "memcheck", "--report-api-errors", "no"]
    said = capsys.readouterr().err
    assert "memcheck found 1 errors in 07_warp" in said and "= ERROR SUMMARY: 1 err" in said
    tools.plan["errors"] = []
    assert tools.run("--only", "sanitizer") == 1, "what was found stays until it is looked at again"
    assert tools.run("--only", "sanitizer .* 07_warp", "--fresh") == 0


def test_an_edited_formula_is_measured_again(tools, monkeypatch) -> None:
    tools.run("--only", "numerics")
    assert all(one.is_current() for one in tools.read(Formula))
    monkeypatch.setitem(profiler.NUMERICS, "expf(x)", ("exp2f(x)", None))
    assert [one.formula for one in tools.read(Formula) if not one.is_current()] == ["expf(x)"]
    tools.run("--only", "numerics")
    assert tools.read(Formula)[0].expression == "exp2f(x)"


def test_without_a_tool_it_says_which(tools, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", "")
    assert tools.run("--only", "sanitizer") == 1
    assert "needs compute-sanitizer of the CUDA toolkit" in capsys.readouterr().err
    assert tools.run("--only", "numerics") == 0


# ---- the program that the tools watch ------------------------------------------------------------


@pytest.mark.gpu
def test_worker_runs_on_a_gpu() -> None:
    texts = (
        "07_warp at 64 x 1024 float16",
        "05_float4 at 65536 x 4096 float32",
        str(UNFUSED_LAUNCH),
    )
    chosen = [*map(Launch.parse, texts), Launch("07_warp", Problem(262144, 1024, "bfloat16"))]
    done = run_tool(worker_command(chosen))
    assert (done.returncode, done.stderr) == (0, "")
