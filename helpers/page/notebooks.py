"""Execute notebooks, normalise their outputs, and compare them with the committed ones."""

from __future__ import annotations

import asyncio
import atexit
import copy
import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import nbclient
import nbformat

from ..base.paths import BUILD, NOTEBOOKS
from .rich import FIGURE


class Executed(NamedTuple):
    """A notebook that ran to its end or to a failing cell."""

    path: Path
    notebook: nbformat.NotebookNode
    failure: str  # "" if no cell failed
    seconds: float


def execute(paths: Sequence[Path], jobs: int, ended: Callable[[Executed], None]) -> None:
    """Execute notebooks, `jobs` at a time, each by a kernel in the notebook's folder.

    `ended` is called in the order in which notebooks end. Executed notebooks are also written to
    build/, deeper ones to build/deeper/. On Ctrl-C it raises `KeyboardInterrupt` after all kernels
    have ended.
    """
    gate = asyncio.Semaphore(jobs)

    async def one(path: Path) -> None:
        async with gate:
            ended(await _execute(path))

    async def every() -> None:
        # Otherwise nbclient handles Ctrl-C, and ends one kernel; asyncio cancels all tasks.
        asyncio.get_running_loop().add_signal_handler = _not_supported
        await asyncio.gather(*map(one, paths))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(every())


def _not_supported(*_) -> None:
    raise NotImplementedError


async def _execute(path: Path) -> Executed:
    """Execute one notebook; its kernel has ended when this returns or is cancelled."""
    began = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,  # one text output per cell, however it was flushed
        extra_arguments=["--log-level=40"],  # no advice on stderr about how kernels are reached
        shutdown_kernel="immediate",
    )
    failure = ""
    try:
        await client.async_execute(env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
    except nbclient.exceptions.CellExecutionError as error:
        failure = f"{error.ename}: {error.evalue}"
    except (nbclient.exceptions.CellTimeoutError, nbclient.exceptions.DeadKernelError) as error:
        failure = str(error)
    finally:
        if client.km is not None and client.km.has_kernel:  # cancelled while it started
            await client.km.shutdown_kernel(now=True)
        atexit.unregister(client._cleanup_kernel)  # it fails after a cancelled cleanup
    copy_of_it = BUILD / path.relative_to(NOTEBOOKS)
    copy_of_it.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, copy_of_it)
    return Executed(path, notebook, failure, time.perf_counter() - began)


def code_cells(notebook) -> int:
    """The number of code cells of a notebook."""
    return sum(cell.cell_type == "code" for cell in notebook.cells)


def save_if_changed(notebook, path: Path, force: bool = False) -> bool:
    """Replace the committed notebook by an executed one if its text or the data of a figure
    changed, or with `force`; return whether it was replaced.

    Without `force`, a figure with unchanged data keeps its committed picture.
    """
    committed = nbformat.read(path, as_version=4)
    tidied = copy.deepcopy(notebook)
    tidy(tidied)
    if not force and text_of(tidied) == text_of(committed):
        return False
    if not force:
        drawn = {data[FIGURE]: data["image/png"] for data in _figures(committed)}
        for data in _figures(tidied):
            data["image/png"] = drawn.get(data[FIGURE], data["image/png"])
    nbformat.write(tidied, path)
    return True


def _figures(notebook) -> list:
    """The data of each output that is a figure with a digest."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return [output.data for output in outputs if FIGURE in output.get("data", {})]


def tidy(notebook) -> None:
    """Remove metadata that differs between machines and carries no information."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "accelerator": "GPU",
        "colab": {"gpuType": "T4"},
    }
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)


def text_of(notebook) -> list:
    """The content that a reader sees: sources and outputs; for figures their data, not the
    pixels."""
    cells = copy.deepcopy(notebook.cells)
    for output in (output for cell in cells for output in cell.get("outputs", [])):
        output.pop("traceback", None)
        output.get("data", {}).pop("image/png", None)
    return [(cell.source, cell.get("execution_count"), cell.get("outputs", [])) for cell in cells]
