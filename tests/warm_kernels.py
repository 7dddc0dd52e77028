"""Kernels for nbval, forked from a process that has imported what every notebook uses: two seconds
less for each. A notebook still has a process of its own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]  # that of helpers.base.paths, which no kernel may have imported
PRELOADED = ["cuda.bindings.nvrtc", "cupy", "ipykernel.kernelapp"]
PRELOADED += ["matplotlib.backends.backend_agg", "matplotlib.figure", "matplotlib.ticker"]
PRELOADED += ["concurrent.futures.process", "ml_dtypes", "numpy.random", "statistics"]
PRELOADED += ["PIL.PngImagePlugin", "pygments.formatters", "pygments.lexers", "helpers"]
# What a kernel imports before its first cell: all that CuPy imports when it is first asked for it.
PRELOADED += ["IPython.core.debugger", "cupy.testing", "cupyx", "psutil", "sqlite3"]
PRELOADED += ["tornado.platform.asyncio"]


def use() -> None:
    """Have jupyter_client start such kernels in this process, on a system that forks."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        from jupyter_client.provisioning import local_provisioner

        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as ipykernel does
        multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
        local_provisioner.launch_kernel = launched


def launched(command: list[str], cwd: str, env: dict[str, str], **_: Any) -> Forked:
    """In place of `jupyter_client.launcher.launch_kernel`, which starts a new interpreter."""
    arguments = command[command.index("ipykernel_launcher") + 1 :]
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_run, args=(arguments, str(cwd), dict(env)))
    process.start()
    while process.is_alive() and os.getpgid(process.pid) != process.pid:
        time.sleep(0.001)  # jupyter_client sends its signals to the kernel's group
    return Forked(process)


class Forked:
    """As much of `subprocess.Popen` as jupyter_client asks of a kernel's process."""

    stdin = stdout = stderr = None

    def __init__(self, process: BaseProcess) -> None:
        self.process, self.pid = process, process.pid
        self.kill, self.terminate = process.kill, process.terminate

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        return self.poll()


def _run(arguments: list[str], cwd: str, env: dict[str, str]) -> None:
    """In the forked process."""
    from ipykernel.kernelapp import launch_new_instance

    sys.modules["debugpy"] = None  # no cell is debugged
    os.setsid()
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silent, stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT))]  # a notebook adds it
    gc.freeze()  # what is loaded stays; and a launch on the SIMT machine makes very many objects
    gc.set_threshold(200_000, 20, 20)
    launch_new_instance(argv=arguments)
