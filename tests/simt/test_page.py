"""What docs/simt.md and the README tell people to type works, and shows what they say."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import yaml

from helpers import simt
from helpers.base.paths import ROOT
from helpers.simt.command import main

PAGE = (ROOT / "docs/simt.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
JOINED = PAGE.replace("\\\n", " ")
(KERNELS,) = re.findall(r"```cuda\n(.*?)```", PAGE, re.DOTALL)
(SHOWN,) = re.findall(r"```\n(mine\.cu:.*?)```", PAGE, re.DOTALL)
(WORKFLOW,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
STEPS = yaml.safe_load(WORKFLOW)["jobs"]["simt"]["steps"]
CHECK = re.search(r"^### Check a kernel.*?^## ", README, re.MULTILINE | re.DOTALL)[0]
TYPED = re.findall(r"^    simt (.*)", JOINED, re.MULTILINE)
IN_CI = [step["run"] for step in STEPS if step.get("run", "").startswith("simt ")]
FAULTY = '"float32[1000]" "float32[1000]" 1000 0.5'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.cu").write_text(KERNELS)
    np.save("x.npy", np.random.default_rng(0).normal(size=(64, 100)).astype(np.float32))
    return tmp_path


@pytest.mark.parametrize("line", [*TYPED, *(run.removeprefix("simt ") for run in IN_CI)])
def test_a_command_of_the_page_runs(line: str, capsys) -> None:
    assert main(shlex.split(line)) == int(FAULTY in line), capsys.readouterr()
    if FAULTY in line:
        assert capsys.readouterr().out.endswith(SHOWN)


def test_all_commands_are_taken_from_the_page() -> None:
    assert len(TYPED) == 8 and len(IN_CI) == 2
    assert {*re.findall(r"^    simt (.*)", CHECK, re.MULTILINE)} < {*TYPED}
    assert re.search(r"```\n(mine\.cu:.*\n)```", CHECK)[1] in SHOWN
    for option in ("--self-test", "--orders 2", "--volatile plain", "--args"):
        assert any(option in line for line in TYPED), option


def test_options_of_the_page_and_the_readme_exist(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    known = {*re.findall(r"--[\w-]+", capsys.readouterr().out), "--shape", "--name"}
    for text in (PAGE, CHECK):
        assert {*re.findall(r"(?<![\w-])--[a-z][\w-]*", text)} <= known


def test_the_workflow_uploads_what_the_command_writes() -> None:
    (line,) = [run for run in IN_CI if "sarif" in run]
    assert main(shlex.split(line.removeprefix("simt "))) == 0
    (upload,) = [step for step in STEPS if "upload-sarif" in step.get("uses", "")]
    assert Path(upload["with"]["sarif_file"]).exists() and upload["if"] == "always()"
    assert len(WORKFLOW.splitlines()) <= 16


def test_the_example_in_python_runs(capsys) -> None:
    exec(EXAMPLE.replace("from simt import", f"from {simt.__name__} import"), {})
    assert capsys.readouterr().out == "no findings 125\n"


def test_a_status_of_the_page_is_that_of_the_command(capsys) -> None:
    told = dict(re.findall(r"^\| (\d) \| (.*?)[,;:]", PAGE, re.MULTILINE))
    assert {*told} == {"0", "1", "2"} and told["2"].startswith("the kernel could not be run")
    assert main(["mine.cu", "--kernel", "scale", "--grid", "1", "--block", "1", "--args"]) == 2
