"""Kernels that nbval forks are as good as those that it starts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.paths import ROOT

kernels = pytest.importorskip("nbval.kernel")  # not where kernels are only recorded and tested

from jupyter_client.provisioning import local_provisioner  # noqa: E402

from tests import warm_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Iterator[list]:
    """Two kernels in folders of their own, which are gone at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_provisioner, "launch_kernel", local_provisioner.launch_kernel)
        patch.setenv("MPLBACKEND", "agg")
        patch.setenv("HERE", "yes")
        warm_kernels.use()
        name = kernels.CURRENT_ENV_KERNEL_NAME
        started = []
        try:
            for number in range(2):
                folder = tmp_path_factory.mktemp(f"kernel{number}")
                started.append(kernels.RunningKernel(name, cwd=str(folder)))
            yield started
        finally:
            processes = [one.km.provisioner.process.process for one in started]
            for one in started:
                one.stop()
            assert not any(process.is_alive() for process in processes)


def said(kernel, code: str) -> str:
    """What a cell prints."""
    asked = kernel.execute_cell_input(f"print({code}, end='')", allow_stdin=False)
    text = ""
    while True:
        message = kernel.get_message("iopub", timeout=60)
        if message["parent_header"].get("msg_id") != asked:
            continue
        content = message["content"]
        text += content.get("text", "") + content.get("ename", "")
        if content.get("execution_state") == "idle":
            return text


def test_each_has_a_process_a_folder_and_a_namespace_of_its_own(two) -> None:
    first, second = ([said(one, code) for code in ("__import__('os').getpid()",)] for one in two)
    assert first != second and str(os.getpid()) not in (*first, *second)
    said(two[0], "globals().update(seen=1)")
    assert (said(two[0], "seen"), said(two[1], "seen")) == ("1", "NameError")
    folders = [Path(said(one, "__import__('os').getcwd()")).name for one in two]
    assert [name[:7] for name in folders] == ["kernel0", "kernel1"]


def test_packages_are_there_and_helpers_have_to_be_found(two) -> None:
    """As in a fresh interpreter: a notebook whose first cell does not say where fails."""
    loaded = said(two[0], "{'matplotlib.figure', 'cupy', 'helpers'} & {*__import__('sys').modules}")
    assert "cupy" in loaded and "matplotlib.figure" in loaded and "helpers" not in loaded
    assert said(two[0], "__import__('helpers')") == "ModuleNotFoundError"
    path = said(two[0], "__import__('sys').path")
    assert repr(str(ROOT)) not in path  # its .venv may be


def test_environment_and_backend_are_those_of_a_kernel(two) -> None:
    assert said(two[0], "__import__('os').environ['HERE']") == "yes"
    assert "inline" in said(two[0], "__import__('matplotlib').get_backend()")
