"""What a run showed, for people and for programs: text, JSON, JUnit's XML, SARIF 2.1.0.

JUnit has no standard; this is what Jenkins, GitLab and GitHub's actions read: a test case for each
finding, or one that passed. SARIF is that of OASIS, as code hosts take it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path, PurePath
from urllib.parse import quote
from xml.etree import ElementTree

import ml_dtypes
import numpy as np

from .findings import Finding
from .places import short_name
from .trace import Trace

FORMATS = ("text", "json", "junit", "sarif")
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
TOOL = "simt"
PACKAGE = "simt-machine"
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def version() -> str:
    """The package's version, as pyproject.toml has it: from there in a checkout, otherwise from the
    metadata of the installed package; "unknown" for a copy that has neither."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    text = project.read_text(encoding="utf-8") if project.is_file() else ""
    if match := re.search(rf'^name = "{PACKAGE}"\nversion = "(.*)"$', text, re.MULTILINE):
        return match[1]
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class KernelRun:
    """One run of a kernel, or why there was none."""

    file: Path
    kernel: str = ""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    outputs: dict[str, np.ndarray] = field(default_factory=dict)
    trace: Trace | None = None
    error: str = ""
    left_out: tuple[str, ...] = ()  # what of the file was not compiled, and why

    @property
    def findings(self) -> list[Finding]:
        return list(self.trace.findings) if self.trace else []

    @property
    def status(self) -> int:
        """Exit status: 0 clean, 1 findings, 2 could not run."""
        return 2 if self.trace is None else int(bool(self.findings))

    def path_of(self, finding: Finding) -> str:
        """The file of a finding as a code host knows it: below this folder, if it is the kernel's
        own or stands beside it."""
        path = self.file.parent / finding.file
        if finding.file == short_name(self.file.as_posix()):
            path = self.file
        elif not path.is_file():
            return finding.file
        try:
            return path.resolve().relative_to(Path.cwd()).as_posix()
        except ValueError:
            return path.resolve().as_posix()


def report(run: KernelRun, form: str) -> str:
    """The run in one of `FORMATS`, without a line feed at the end."""
    return {"text": text, "json": as_json, "junit": junit, "sarif": sarif}[form](run)


def text(run: KernelRun) -> str:
    if run.trace is None:
        return run.error
    lines = [
        f"{run.kernel}: grid {run.grid}, block {run.block}, {run.shared} bytes of dynamic shared "
        "memory"
    ]
    lines += [f"left out: {', '.join(run.left_out)}"] if run.left_out else []
    lines += [described(name, array) for name, array in run.outputs.items()]
    lines.append(str(run.trace))
    return "\n".join(lines)


def as_json(run: KernelRun) -> str:
    content: dict = {"file": run.file.as_posix(), "kernel": run.kernel, "status": run.status}
    if run.trace is None:
        return json.dumps(content | {"error": run.error}, indent=2)
    trace = run.trace
    content |= {"left_out": list(run.left_out)} if run.left_out else {}
    content |= {
        "grid": list(run.grid),
        "block": list(run.block),
        "shared_bytes": run.shared,
        "outputs": {
            name: {"dtype": str(array.dtype), "shape": list(array.shape)} | _finite(array)
            for name, array in run.outputs.items()
        },
        "counters": {name: count for name, count in vars(trace.counters).items() if count},
        "standing": {
            name: {"is": one.word} | ({"more": one.more} if one.more else {})
            for name, one in trace.standing().items()
        },
        "lines": [
            {"file": file, "line": line}
            | {name: count for name, count in vars(one).items() if count}
            | ({"requests_more": trace.more[file, line]} if (file, line) in trace.more else {})
            for (file, line), one in sorted(trace.lines.items())
            if line and any(vars(one).values())
        ],
        "printed": trace.printed,
        "findings": [
            {
                "kind": one.kind,
                "message": one.message + one.use,
                "file": run.path_of(one),
                "line": one.line,
                "block": [int(place) for place in one.block],
                "thread": [int(place) for place in one.thread],
                "count": int(one.count),
                "ptx": one.ptx,
            }
            for one in run.findings
        ],
    }
    return json.dumps(content, indent=2)


def is_float(dtype: np.dtype) -> bool:
    return dtype.kind in "fc" or dtype == np.dtype(ml_dtypes.bfloat16)


def statistics(array: np.ndarray) -> dict[str, float | int | None]:
    """Least, largest and mean value of an output, and how many are NaN; nothing for structs and
    raw bytes."""
    if array.dtype.type is np.void or not array.size:
        return {}
    missing = np.isnan(array) if is_float(array.dtype) else np.zeros(array.shape, bool)
    kept = array[~missing]
    numbers = {"nan": int(missing.sum())}
    if kept.size and array.dtype.kind != "c":
        wide = kept.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinities of both signs
            mean = float(wide.mean())
        numbers |= {"min": float(wide.min()), "max": float(wide.max()), "mean": mean}
    return numbers


def described(name: str, array: np.ndarray) -> str:
    """An output in one line, to see at a glance whether it is what was meant."""
    about, head = statistics(array), f"{name}: {array.dtype}{list(array.shape)}"
    if "min" not in about:
        return f"{head}, all NaN" if about.get("nan") else head
    return (
        f"{head}, min {about['min']:.6g}, max {about['max']:.6g}, mean {about['mean']:.6g}, "
        f"{about['nan']} NaN"
    )


def _finite(array: np.ndarray) -> dict:
    """Statistics as JSON has numbers: what is not finite is text."""
    about = statistics(array)
    return {k: v if math.isfinite(v) else str(v) for k, v in about.items()}


def junit(run: KernelRun) -> str:
    cases = [
        (f"{run.kernel}: {one.kind} in line {one.line}", run.path_of(one), one)
        for one in run.findings
    ]
    attributes = {
        "tests": str(max(1, len(cases))),
        "failures": str(len(cases)),
        "errors": str(int(run.trace is None)),
    }
    root = ElementTree.Element("testsuites", {"name": TOOL, **attributes})
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": run.file.as_posix(), **attributes, "time": "0"}
    )
    for name, path, one in cases:
        place = {"classname": run.file.stem, "name": name, "file": path, "line": str(one.line)}
        case = ElementTree.SubElement(suite, "testcase", {**place, "time": "0"})
        about = {"type": one.kind, "message": _clean(one.message + one.use)}
        ElementTree.SubElement(case, "failure", about).text = _clean(str(one))
    if not cases:
        place = {"classname": run.file.stem, "name": run.kernel or run.file.name}
        case = ElementTree.SubElement(suite, "testcase", {**place, "time": "0"})
        if run.trace is None:
            about = {"type": "could not run", "message": _clean(run.error.partition("\n")[0])}
            ElementTree.SubElement(case, "error", about).text = _clean(run.error)
    if run.trace and run.trace.printed:
        ElementTree.SubElement(suite, "system-out").text = _clean(run.trace.printed)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, "unicode")


def _clean(text: str) -> str:
    """Without characters that XML does not have."""
    return NO_XML.sub("?", text)


def sarif(run: KernelRun) -> str:
    kinds = list(dict.fromkeys(one.kind for one in run.findings))
    invocation: dict = {"executionSuccessful": run.trace is not None, "exitCode": run.status}
    if run.trace is None:
        invocation["toolExecutionNotifications"] = [
            {"level": "error", "message": {"text": run.error}}
        ]
    driver = {
        "name": TOOL,
        "rules": [
            {
                "id": _rule(kind),
                "name": "".join(word.capitalize() for word in re.findall(r"\w+", kind)),
                "shortDescription": {"text": kind},
                "defaultConfiguration": {"level": "error"},
            }
            for kind in kinds
        ],
    }
    results = [
        {
            "ruleId": _rule(one.kind),
            "ruleIndex": kinds.index(one.kind),
            "level": "error",
            "message": {
                "text": f"{one.message}{one.use} (first in block {one.block}, thread {one.thread})"
            },
            "locations": [_location(run, one)],
            "occurrenceCount": max(1, int(one.count)),
            "partialFingerprints": {"kernelKindLine/v1": f"{run.kernel}:{one.kind}:{one.line}"},
        }
        for one in run.findings
    ]
    content = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "invocations": [invocation],
                "columnKind": "utf16CodeUnits",
                "results": results,
            }
        ],
    }
    return json.dumps(content, indent=2)


def _rule(kind: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", kind.lower()))


def _location(run: KernelRun, finding: Finding) -> dict:
    path = run.path_of(finding)
    absolute = PurePath(path).is_absolute()
    uri = Path(path).as_uri() if absolute else quote(path)
    physical: dict = {"artifactLocation": {"uri": uri}}
    if not absolute:
        physical["artifactLocation"]["uriBaseId"] = "%SRCROOT%"
    if finding.line > 0:
        physical["region"] = {"startLine": int(finding.line)}
    return {"physicalLocation": physical}
