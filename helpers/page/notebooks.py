"""Notebooks as they are run from a command: executed, tidied, compared."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import nbclient
import nbformat

from ..base.paths import BUILD, NOTEBOOKS
from .rich import FIGURE

# What nbformat raises of what is no notebook.
NO_NOTEBOOK = (
    *(nbformat.ValidationError, ValueError, TypeError, LookupError, AttributeError),
    AssertionError,
)


class Executed(NamedTuple):
    """A notebook that has run to its end, or to the cell that failed."""

    path: Path
    notebook: nbformat.NotebookNode
    failure: str  # "" if no cell failed
    seconds: float


def execute(
    paths: Sequence[Path],
    jobs: int,
    ended: Callable[[Executed], None],
    progress: Callable[[Path, int, int], None] = lambda path, done, total: None,
) -> None:
    """Execute notebooks, `jobs` at a time, each by a kernel in the notebook's folder.

    `ended(executed)` is called in the order in which they end, `progress(path, done, total)` after
    each code cell; both in another thread, one call at a time. What was executed is written to
    build/ too, a deeper notebook to build/deeper/. At Ctrl-C it raises `KeyboardInterrupt` when
    all kernels are gone.
    """
    gate, stopped = asyncio.Semaphore(jobs), False

    async def one(path: Path) -> None:
        async with gate:
            executed = await _execute(path, progress)
        if not stopped:
            ended(executed)

    async def every() -> None:
        tasks = {asyncio.create_task(one(path)) for path in paths}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await _cancel(tasks)
            await _cancel(asyncio.all_tasks() - {asyncio.current_task()})  # nbclient's watches
        for task in tasks:
            if not task.cancelled():
                task.result()  # raises what it raised

    # In a thread: there nbclient does not take Ctrl-C for itself, and it arrives here.
    loop = asyncio.new_event_loop()
    task = loop.create_task(every())
    with warnings.catch_warnings(), concurrent.futures.ThreadPoolExecutor(1) as thread:
        warnings.simplefilter("ignore")
        running = thread.submit(loop.run_until_complete, task)
        try:
            while not running.done():
                concurrent.futures.wait([running], timeout=0.5)  # Windows: not for ever
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
            stopped = True
            loop.call_soon_threadsafe(task.cancel)
            concurrent.futures.wait([running])
            raise
        finally:
            loop.close()
    running.result()


async def _cancel(tasks: set[asyncio.Task]) -> None:
    """Cancel tasks and wait until each has tidied up."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _execute(path: Path, progress: Callable[[Path, int, int], None]) -> Executed:
    """Execute one notebook; its kernel is gone when this returns or is cancelled."""
    began = time.perf_counter()
    notebook = nbformat.read(path, as_version=4)
    total, done = code_cells(notebook), 0

    def on_cell_executed(**_) -> None:
        nonlocal done
        done += 1
        progress(path, done, total)

    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,  # one text output a cell, however it was flushed
        extra_arguments=["--log-level=40"],  # no advice on stderr about how kernels are reached
        shutdown_kernel="immediate",
        on_cell_executed=on_cell_executed,
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
    copy_of_it = BUILD / path.relative_to(NOTEBOOKS)
    copy_of_it.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, copy_of_it)
    return Executed(path, notebook, failure, time.perf_counter() - began)


def code_cells(notebook) -> int:
    """How many code cells a notebook has."""
    return sum(cell.cell_type == "code" for cell in notebook.cells)


def save_if_changed(notebook, path: Path, force: bool = False) -> bool:
    """Put an executed notebook in the place of the committed one if its text or what a figure
    draws changed, or `force`; return whether it did.

    Without `force`, a figure that draws the same keeps its committed picture.
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
    """The data of each output that is a figure with its digest."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return [output.data for output in outputs if FIGURE in output.get("data", {})]


def tidy(notebook) -> None:
    """Drop what differs between machines and says nothing."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "accelerator": "GPU",
        "colab": {"gpuType": "T4"},
    }
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)


def text_of(notebook) -> list:
    """What a reader reads: sources and outputs, of figures what they draw and not the pixels."""
    return [
        (
            cell.source,
            cell.get("execution_count"),
            [
                {
                    key: {kind: text for kind, text in value.items() if kind != "image/png"}
                    if key == "data"
                    else value
                    for key, value in output.items()
                    if key != "traceback"
                }
                for output in cell.get("outputs", [])
            ],
        )
        for cell in notebook.cells
    ]
