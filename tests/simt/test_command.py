"""The command `simt`: what it lists, what it refuses and how, and its reports for programs."""

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from helpers.base.paths import ROOT
from helpers.simt import Findings, KernelText, command, reports, simulate
from helpers.simt.command import main
from helpers.simt.findings import Finding

CODE = """#include <cstdio>
struct Pair { int a, b; };
template <typename T> __global__ void twice(const T* x, T* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void scale(const float* x, float* y, int n, float a)
{
    int i = threadIdx.x;
    if (i <= n) y[i] = a * x[i];
    if (i == 0) printf("a & b < %d\\n", n);
}
__global__ void many(bool f, unsigned u, long long l, Pair p, float** rows, const int* z) {}
int main() { scale<<<1, 2>>>(0, 0, 0, 0); }
"""
CLEAN = ["float32[100]", "float32[100]", "99", "0.5"]
BUGGY = ["float32[100]", "float32[100]", "100", "0.5"]


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("a file.cu")
    path.write_text(CODE)
    return path


def scale(*options: str, args=tuple(CLEAN)) -> int:
    sizes = ["--kernel", "scale", "--grid", "1", "--block", "128"]
    return main(["a file.cu", *sizes, *options, "--args", *args])


def test_help_explains_arguments_by_examples_that_run(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0 and shown.index("Check a CUDA kernel") < shown.index("--grid is")
    assert "next backward branch" in " ".join(shown.split())  # what --limit limits
    examples = re.findall(r"^ +(\w+\(.*\))\n +--args (.*)$", shown, re.MULTILINE)
    Path("help.cu").write_text("".join(f"__global__ void {one} {{}}\n" for one, _ in examples))
    np.save("x.npy", np.zeros((64, 1024), np.float32))
    for declared, args in examples:
        name = declared.partition("(")[0]
        sizes = ["--kernel", name, "--grid", "4", "2", "--block", "32", "8"]
        assert main(["help.cu", *sizes, "--args", *shlex.split(args)]) == 0, capsys.readouterr().err
    assert len(examples) == 3


def test_a_grid_that_takes_hours_is_announced(capsys) -> None:
    sizes = ["--kernel", "scale", "--grid", "2147483647", "--block", "1024"]
    assert main(["a file.cu", *sizes, "--args", "float64[4]", *CLEAN[1:]]) == 2
    assert capsys.readouterr().err == (
        "2,199,023,254,528 threads may take hours: try a smaller --grid\n"
        "x is float64, the kernel takes float32 (float*)\n"
    )


def test_a_printed_trace_is_the_report() -> None:
    trace = simulate(
        KernelText("__global__ void k(int* y) { y[threadIdx.x] = 1; }", "k"),
        1,
        8,
        (np.zeros(7, np.int32),),
    )
    assert str(trace) == repr(trace) == f"{trace.report()}\n{trace.findings}"
    assert len(trace.findings) == 1 and len(str(trace)) < 1000


def test_a_program_for_nvcc_runs_and_shows_what_it_prints(capsys) -> None:
    assert scale() == 0
    shown = capsys.readouterr().out
    assert "printed:\na & b < 99" in shown and "no findings" in shown


def test_even_a_fault_of_its_own_is_no_traceback(capsys, monkeypatch) -> None:
    monkeypatch.setattr(command, "simulate", lambda *_, **__: 1 / 0)
    assert scale() == 2
    assert capsys.readouterr().err == "ZeroDivisionError: division by zero\n"


def test_who_reads_may_close_the_pipe() -> None:
    code = "import sys; from helpers.simt.command import main; sys.exit(main())"
    root = Path(__file__).parents[2]
    line = [sys.executable, "-c", code, str(Path("a file.cu").resolve())]
    done = subprocess.Popen(line, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    done.stdout.close()
    assert (done.wait(), done.stderr.read()) == (0, b"")


def many_blocks() -> int:
    np.save("pair.npy", np.array((1, 2), [("a", "i4"), ("b", "i4")]))
    line = "--kernel many --grid 100 --block 1024 --args 1 1 1 pair.npy null null"
    return main(["a file.cu", *line.split()])


def test_a_large_launch_tells_how_far_it_is_on_a_terminal_alone(monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "PATIENCE", 0)
    assert many_blocks() == 0 and capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert many_blocks() == 0
    shown = capsys.readouterr().err
    assert "32 of 100 blocks, about 0 s left" in shown and shown.endswith("\r\x1b[K")


def test_a_long_launch_says_once_in_a_log_how_long_it_will_take(monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "LONG", 0)
    monkeypatch.setattr(command, "PATIENCE", 1000)
    assert many_blocks() == 0
    said = capsys.readouterr().err
    assert said == "32 of 100 blocks, about 0 s left; a smaller --grid takes less\n"


def test_a_long_wait_for_the_first_blocks_is_told_once(monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "LONG", 0)
    monkeypatch.setattr(command, "PATIENCE", 0)
    Path("slow.cu").write_text("__global__ void k(volatile int* y) { while (y[0]) y[1] = 1; }\n")
    assert main("slow.cu --grid 1 --block 1 --limit 5000 --args int[2]".split()) == 1
    waiting = "the first blocks still run; --limit says after how many instructions they hang\n"
    assert capsys.readouterr().err.startswith(waiting)


@pytest.mark.parametrize(("limit", "status"), [(3, 1), (100_000, 0)])
def test_the_limit_holds_in_a_kernel_without_a_loop(limit: int, status: int, capsys) -> None:
    assert scale("--limit", str(limit)) == status
    assert ("hang" in capsys.readouterr().out) == bool(status)


LATE = """__global__ void late(int* y, int* lock) {
    while (atomicCAS(lock, 0, 1) != 0);
    __threadfence();
    if (blockIdx.x == 0) lock[1] = y[0];
    __threadfence();
    atomicExch(lock, 0);
    if (blockIdx.x == 1) y[0] = 2;
}"""


NEXT = "__global__ void next(volatile int* y) { y[threadIdx.x + 1] = y[threadIdx.x] + 1; }"
# A kernel without a finding by default, its launch, and the options with which it has one.
BY_OPTION = {
    "the second order of blocks": (
        LATE,
        "--grid 2 --block 1 --args int32[1] lock.npy",
        ("--orders 1", "--orders 2"),
        "reverse order",
    ),
    "volatile accesses that count as ordinary ones": (
        NEXT,
        "--grid 1 --block 32 --args int32[33]",
        ("--volatile relaxed", "--volatile plain"),
        "race on global memory",
    ),
}


@pytest.mark.parametrize("case", BY_OPTION)
def test_more_is_found_by_an_option(case: str, capsys) -> None:
    text, launch, options, says = BY_OPTION[case]
    Path("k.cu").write_text(text)
    np.save("lock.npy", np.zeros(2, np.int32))
    for option, found in zip(options, (False, True), strict=True):
        assert main(f"k.cu {launch} {option}".split()) == found
        assert (says in capsys.readouterr().out) == found


def test_the_version_is_that_of_the_package(capsys, monkeypatch) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = re.search(r'^version = "(.*)"$', project, re.MULTILINE)[1]
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"simt {wanted}\n"
    monkeypatch.setattr(reports, "__file__", str(Path("lib/site/simt/reports.py").resolve()))
    monkeypatch.setattr(reports.metadata, "version", lambda name: f"{name} 7.8")
    assert reports.version() == "simt-machine 7.8"
    monkeypatch.undo()
    monkeypatch.setattr(reports, "PACKAGE", "a-package-that-nobody-has-installed")
    assert reports.version() == "unknown"


def test_the_self_test_passes(capsys) -> None:
    assert main(["--self-test"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(line.startswith("passed: ") for line in lines)


EXTRA = Finding("hang", "", "", 1, (0, 0, 0), (0, 0, 0), "")
SPOILT = {  # what becomes of every finding, and how many of four checks then fail
    "blind": (lambda found: Findings(), 3),
    "another line": (lambda found: Findings(replace(one, line=one.line + 1) for one in found), 3),
    "another kind": (lambda found: Findings(replace(one, kind="hang") for one in found), 3),
    "false alarms": (lambda found: Findings([*found, EXTRA]), 4),
    "another result": (lambda found: found, 1),
}


@pytest.mark.parametrize("name", SPOILT)
def test_the_self_test_fails_if_the_machine_is_wrong(name: str, capsys, monkeypatch) -> None:
    change, count = SPOILT[name]

    def spoilt(kernel, grid, block, args):
        trace = simulate(kernel, grid, block, args)
        args[1][5] += name == "another result"
        return replace(trace, findings=change(trace.findings))

    monkeypatch.setattr(command, "simulate", spoilt)
    assert main(["--self-test"]) == 1
    assert capsys.readouterr().out.count("FAILED: ") == count


def test_python_m_is_the_command() -> None:
    line = [sys.executable, "-m", "helpers.simt", Path("a file.cu").resolve()]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "3 kernels" in done.stdout


# ---- reports ------------------------------------------------------------------------------------


def test_json_holds_what_the_text_says(capsys) -> None:
    assert scale("--format", "json", args=BUGGY) == 1
    content = json.loads(capsys.readouterr().out)
    (found, *_) = content["findings"]
    assert (found["kind"], found["file"], found["line"]) == ("out-of-bounds load", "a file.cu", 7)
    assert found["thread"] == [100, 0, 0] and content["status"] == 1
    assert content["counters"]["load_requests"] == 4
    assert content["standing"]["load_requests"] == {"is": "exact"}
    assert content["standing"].keys() == content["counters"].keys()
    assert content["outputs"]["y"]["shape"] == [100] and content["printed"] == "a & b < 100\n"


def test_json_has_no_number_that_json_does_not_have(capsys) -> None:
    args = ("float32[100]", "float32[100]", "99", "inf")
    assert scale("--format", "json", args=args) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_junit_has_a_case_for_each_finding(capsys) -> None:
    assert scale("--format", "junit", args=BUGGY) == 1
    root = ElementTree.fromstring(capsys.readouterr().out.encode())
    suite = root.find("testsuite")
    cases = suite.findall("testcase")
    assert root.tag == "testsuites" and len(cases) == int(suite.get("failures")) == 2
    assert cases[0].get("file") == "a file.cu" and cases[0].get("line") == "7"
    assert cases[0].find("failure").get("type") == "out-of-bounds load"


def test_junit_has_one_case_that_passes_or_is_an_error(capsys) -> None:
    assert scale("--format", "junit") == 0
    suite = ElementTree.fromstring(capsys.readouterr().out.encode()).find("testsuite")
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    assert suite.find("system-out").text == "a & b < 99\n"
    assert scale("--format", "junit", args=("\x1b", *CLEAN[1:])) == 2
    suite = ElementTree.fromstring(capsys.readouterr().out.encode()).find("testsuite")
    assert suite.get("errors") == "1" and suite.find("testcase/error").text.startswith("x: ")


def sarif(status: int, kinds: tuple[str, ...], notes: dict) -> dict:
    """The report of SARIF 2.1.0 on findings in line 7, without their messages."""
    ids = [kind.replace(" ", "-") for kind in kinds]
    rules = [
        {
            "id": one,
            "name": "".join(word.capitalize() for word in one.split("-")),
            "shortDescription": {"text": kind},
            "defaultConfiguration": {"level": "error"},
        }
        for one, kind in zip(ids, kinds, strict=True)
    ]
    file = {"uri": "a%20file.cu", "uriBaseId": "%SRCROOT%"}
    place = {"artifactLocation": file, "region": {"startLine": 7}}
    results = [
        {
            "ruleId": rule["id"],
            "ruleIndex": number,
            "level": "error",
            "locations": [{"physicalLocation": place}],
            "occurrenceCount": 1,
            "partialFingerprints": {"kernelKindLine/v1": f"scale:{kinds[number]}:7"},
        }
        for number, rule in enumerate(rules)
    ]
    run = {
        "tool": {"driver": {"name": "simt", "rules": rules}},
        "invocations": [{"executionSuccessful": status < 2, "exitCode": status, **notes}],
        "columnKind": "utf16CodeUnits",
        "results": results,
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return {"$schema": schema, "version": "2.1.0", "runs": [run]}


KINDS = "out-of-bounds load", "out-of-bounds store"
SAID = "n: 'x' is not a number, an array such as float32[64,1024], a .npy file or null"
NOTES = {"toolExecutionNotifications": [{"level": "error", "message": {"text": SAID}}]}


@pytest.mark.parametrize(
    ("args", "status", "kinds", "notes"),
    [
        (CLEAN, 0, (), {}),
        (BUGGY, 1, KINDS, {}),
        (["float32[1]", "float32[1]", "x", "1"], 2, (), NOTES),
    ],
)
def test_sarif_has_the_public_shape(args, status: int, kinds, notes: dict, capsys) -> None:
    assert scale("--format", "sarif", args=args) == status
    content = json.loads(capsys.readouterr().out)
    for result in content["runs"][0]["results"]:
        assert result.pop("message")["text"].startswith("4 bytes not inside any array")
    assert content == sarif(status, kinds, notes)


def test_a_finding_in_a_header_names_the_header(tmp_path: Path, capsys) -> None:
    folder = Path("src")
    folder.mkdir()
    (folder / "put.h").write_text(
        "__device__ __noinline__ void put(int* y, int i)\n{\n    y[i] = i;\n}\n"
    )
    text = '#include "put.h"\n__global__ void k(int* y) { put(y, threadIdx.x); }\n'
    (folder / "k.cu").write_text(text)
    arguments = ["--grid", "1", "--block", "8", "--format", "json", "--args", "int32[4]"]
    for file in ("src/k.cu", str(tmp_path / "src" / "k.cu")):
        assert main([file, *arguments]) == 1
        (found,) = json.loads(capsys.readouterr().out)["findings"]
        assert (found["file"], found["line"]) == ("src/put.h", 3)


def test_a_report_goes_to_a_file_and_text_to_the_screen(capsys) -> None:
    assert scale("--format", "sarif", "-o", "out.sarif", args=BUGGY) == 1
    assert "out-of-bounds load" in capsys.readouterr().out
    assert len(json.loads(Path("out.sarif").read_text())["runs"][0]["results"]) == 2
    assert sorted(path.name for path in Path().iterdir()) == ["a file.cu", "out.sarif"]


def test_a_report_that_cannot_be_written_is_status_2(capsys, monkeypatch) -> None:
    def full(path: Path, content: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "_write", full)
    assert scale("--format", "json", "-o", "x.json") == 2
    assert capsys.readouterr().err == "cannot write x.json: No space left on device\n"


def test_text_is_no_format_for_a_run_that_was_none() -> None:
    assert reports.report(reports.KernelRun(Path("x.cu"), error="because"), "text") == "because"
