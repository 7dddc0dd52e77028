"""Notebooks as they are run from a command: executed, tidied, compared."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

import nbclient
import nbformat

from .paths import BUILD, NOTEBOOKS


class Client(nbclient.NotebookClient):
    """Stops at Ctrl-C, its kernel too. nbclient stops the kernel alone, and then fails in ways that
    hang on where it was."""

    stopped = False

    async def async_start_new_kernel(self, **kwargs) -> None:
        """Also take the place of nbclient's handler, which was set just before."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            # nbclient's watch over the kernel finds it gone, which is what is wanted.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            self.stopped, self.shutdown_kernel = True, "immediate"
            task.cancel()

        with contextlib.suppress(NotImplementedError):  # Windows: KeyboardInterrupt comes through
            loop.add_signal_handler(signal.SIGINT, stop)
        await super().async_start_new_kernel(**kwargs)


def execute(path: Path, progress: Callable[[int, int], None]) -> tuple[object, str]:
    """(the executed notebook, why it failed or ""); what was executed is written to build/ too, a
    deeper notebook to build/deeper/.

    `progress(done, total)` is called after each of its code cells. Raises `KeyboardInterrupt` at
    Ctrl-C, when the notebook's kernel is gone.
    """
    notebook = nbformat.read(path, as_version=4)
    total, done = code_cells(notebook), 0

    def on_cell_executed(**_) -> None:
        nonlocal done
        done += 1
        progress(done, total)

    client = Client(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,  # one text output a cell, however it was flushed
        extra_arguments=["--log-level=40"],  # no advice on stderr about how kernels are reached
        on_cell_executed=on_cell_executed,
    )
    failure = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            client.execute(env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"})
        except nbclient.exceptions.CellExecutionError as error:
            failure = f"{error.ename}: {error.evalue}"
        except (nbclient.exceptions.CellTimeoutError, nbclient.exceptions.DeadKernelError) as error:
            failure = str(error)
        except asyncio.CancelledError:
            if not client.stopped:
                raise
    if client.stopped:
        raise KeyboardInterrupt
    copy_of_it = BUILD / path.relative_to(NOTEBOOKS)
    copy_of_it.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, copy_of_it)
    return notebook, failure


def code_cells(notebook) -> int:
    """How many code cells a notebook has."""
    return sum(cell.cell_type == "code" for cell in notebook.cells)


def save_if_changed(notebook, path: Path, force: bool = False) -> bool:
    """Put an executed notebook in the place of the committed one if what a reader reads changed, or
    `force`; returns whether it did."""
    committed = nbformat.read(path, as_version=4)
    tidied = copy.deepcopy(notebook)
    tidy(tidied)
    if not force and text_of(tidied) == text_of(committed):
        return False
    nbformat.write(tidied, path)
    return True


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
    """What a reader reads: sources and outputs without the pixels of plots."""
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
