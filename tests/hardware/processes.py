"""Runs the tools: with a time limit, all of their output kept, and files written at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from helpers.base.gpu import SWITCH
from helpers.base.paths import ROOT


@dataclass
class Done:
    status: int | None  # None: it ran past its time and was killed
    out: str
    err: str


def run(command: list[str], seconds: float, echo: bool = False) -> Done:
    """Run a command that needs the GPU, with everything that it starts, for so long at most.

    `echo` passes its standard error on instead of keeping it.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=None if echo else subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=ROOT,
        env={**os.environ, SWITCH: "0"},
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return Done(None, out, err or "")
    return Done(process.returncode, out, err or "")


def write_data(path: Path, data: dict) -> None:
    """Write JSON with one line for each entry of a list or a table; atomic."""
    parts = []
    for key, value in data.items():
        rows = None
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = "[\n", [json.dumps(row) for row in value], "\n]"
        elif isinstance(value, dict) and value and isinstance(next(iter(value.values())), dict):
            lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in value.items()]
            rows = "{\n", lines, "\n}"
        text = rows[0] + ",\n".join(f"  {row}" for row in rows[1]) + rows[2] if rows else None
        parts.append(f"{json.dumps(key)}: {text or json.dumps(value)}")
    write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)
