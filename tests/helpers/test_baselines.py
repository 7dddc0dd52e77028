"""The baselines' adapters, as far as no GPU and none of their packages are needed."""

import ctypes
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.base.paths import ROOT
from helpers.measure import baselines, interop
from helpers.problem.problem import Problem
from helpers.run.check import WrongResult
from helpers.run.references import make_input, reference


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(interop, "cudnn", lambda: ctypes.CDLL(None))
    monkeypatch.setattr(interop, "folders", lambda *_: [ROOT])
    monkeypatch.setattr(interop, "nvcc", lambda: "nvcc")


def test_first_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"torch": 1, "triton": 1, "tvm_ffi": 1, "cutlass": 1}
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    assert baselines.why_not("torch", Problem(8, 8)) == ""
    assert baselines.why_not("liger", Problem(8, 8)) == "liger_kernel is not installed"
    assert baselines.why_not("quack", Problem(8, 8)) == "quack is not installed"


def test_cudnn_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "cudnn", lambda: None)
    assert baselines.why_not("cudnn", Problem(8, 8)) == "cuDNN is not installed"
    assert "cudnn" not in baselines.versions()


# ---- FlashInfer ---------------------------------------------------------------------------------


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package of headers and an nvcc that writes down what it is asked for."""
    include = tmp_path / "flashinfer" / "data" / "include"
    (include / "flashinfer").mkdir(parents=True)
    (include / "flashinfer" / "sampling.cuh").write_text("// a header")
    curand = tmp_path / "nvidia" / "curand" / "include"
    curand.mkdir(parents=True)
    (curand / "curand.h").write_text("")
    compiler = tmp_path / "nvcc"
    compiler.write_text(
        '#!/bin/sh\necho "$@" >> "$0.log"\n'
        'while [ "$1" != -o ]; do shift; done\necho built > "$2"\n'
    )
    compiler.chmod(0o755)

    def find_spec(name: str):
        place = str(tmp_path / name)
        return SimpleNamespace(submodule_search_locations=[place])

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(interop, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(interop, "nvcc", lambda: str(compiler))
    return tmp_path


def test_flashinfer_without_headers_or_nvcc_is_not_installed(flashinfer, monkeypatch) -> None:
    assert baselines.why_not("flashinfer", Problem(8, 1000)) == ""
    assert baselines.why_not("flashinfer", Problem(8, 77, "bfloat16")).startswith(
        "FlashInfer's softmax takes"
    )
    monkeypatch.setattr(interop, "nvcc", lambda: None)
    reason = baselines.why_not("flashinfer", Problem(8, 1000))
    assert reason == "nvcc, with which flashinfer is built, is not installed"
    monkeypatch.setattr(interop, "folders", lambda *_: [])
    reason = baselines.why_not("flashinfer", Problem(8, 1000))
    assert reason == "flashinfer is not installed" and reason.endswith(baselines.ABSENT)


@pytest.mark.parametrize(
    ("name", "cols", "dtype", "reason"),
    [
        ("triton", 65536, "float32", ""),
        ("triton", 65537, "float32", "a row of more than 65536 columns"),
        ("liger", 65536, "bfloat16", ""),
        ("liger", 65537, "bfloat16", "Liger refuses more than 65536 columns"),
        ("quack", 12, "float32", ""),
        ("quack", 10, "float32", "QuACK needs cols % 4 == 0"),
        ("quack", 12, "bfloat16", "QuACK needs cols % 8 == 0"),
        ("quack", 12, "float16", "QuACK needs cols % 8 == 0"),
        ("quack", 262144, "float32", ""),
        ("quack", 1048576, "bfloat16", ""),
        ("quack", 1048576, "float32", "QuACK holds a row in the shared memory"),
        ("torch", 50257, "bfloat16", ""),
        ("compile", 1048576, "float32", ""),
        ("cudnn", 77, "float32", ""),
        ("flashinfer", 50257, "float32", ""),
        ("flashinfer", 4096, "bfloat16", "FlashInfer's softmax takes float32 alone"),
    ],
)
def test_shapes_that_a_baseline_refuses(all_installed, name, cols, dtype, reason) -> None:
    answer = baselines.why_not(name, Problem(64, cols, dtype))
    assert answer.startswith(reason) if reason else answer == ""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_result_may_be_rounded_more_often_but_not_wrong(dtype: str) -> None:
    x = make_input(9, 300, dtype=dtype)
    y = reference(x)
    baselines.check_softmax(x, (y * (1 + 3e-5)).astype(x.dtype))
    assert baselines.check_softmax(x, y.astype(x.dtype)) == 0
    for wrong in (y * 1.01, np.zeros_like(y), np.where(y == y.min(), np.nan, y), y[::-1]):
        with pytest.raises(WrongResult, match=r"of 2700 elements (are|is) wrong, by up to .* ulp"):
            baselines.check_softmax(x, wrong.astype(x.dtype))


def test_result_of_one_more_rounding_is_less_precise_and_of_several_is_wrong() -> None:
    """Planted: the sum in 8 bits less, two more roundings, a row scaled by 2%."""
    x = make_input(9, 300, dtype="bfloat16")
    exact = x.astype(np.float64)
    terms = np.exp(exact - exact.max(axis=-1, keepdims=True))
    total = terms.sum(axis=-1, keepdims=True)
    once = (terms / total.astype(x.dtype).astype(np.float64)).astype(x.dtype)
    keep = baselines.Precision()
    keep(x, reference(x).astype(x.dtype))
    assert keep.worst_ulp == 0
    keep(x, once)
    assert 0.5 < keep.worst_ulp <= 1.5
    for wrong in (once * 1.02, terms / (2.0 ** np.floor(np.log2(total)))):
        with pytest.raises(WrongResult, match="wrong, by up to"):
            keep(x, wrong.astype(x.dtype))


def test_rows_with_nan_or_infinity_are_nan_in_the_result_too() -> None:
    x = make_input(4, 300, dtype="bfloat16")
    x[0, 3], x[1, 5], x[2, :] = np.nan, np.inf, -np.inf
    y = reference(x).astype(x.dtype)
    assert np.isnan(y[:3].astype(float)).all() and baselines.check_softmax(x, y) == 0
    y[1, 5] = 1
    with pytest.raises(WrongResult, match="1 of 1200 elements is wrong"):
        baselines.check_softmax(x, y)


@pytest.mark.parametrize(("dtype", "ulps"), [("float32", 4096), ("bfloat16", 3)])
def test_error_is_given_in_ulp_of_the_dtype(dtype: str, ulps: int) -> None:
    x = make_input(9, 300, dtype=dtype)
    y = reference(x).astype(x.dtype)
    bits = y.view({4: np.uint32, 2: np.uint16}[x.itemsize])
    row, col = 4, int(reference(x)[4].argmax())
    bits[row, col] += ulps
    with pytest.raises(WrongResult, match="1 of 2700 elements is wrong") as caught:
        baselines.check_softmax(x, y)
    told = float(re.search(r"([\d.]+) ulp", str(caught.value))[1])
    assert told == pytest.approx(ulps, abs=0.6)


def test_cudnn_is_told_shape_stream_and_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    calls = []

    def record(name):
        def function(*arguments) -> int:
            calls.append((name, *(getattr(a, "value", a) for a in arguments)))
            return 0

        return function

    class Library:
        def __getattr__(self, name: str):
            return record(name)

    stream = SimpleNamespace(ptr=77)
    monkeypatch.setattr(interop, "cudnn", lambda: Library())
    monkeypatch.setattr(interop, "cudnn_handle", lambda: ctypes.c_void_p(5))
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: stream)
    x, y = (SimpleNamespace(data=SimpleNamespace(ptr=ptr)) for ptr in (1024, 2048))
    baselines.candidate("cudnn", Problem(3, 500, "bfloat16")).run(x, y)
    calls = {name: arguments for name, *arguments in calls}
    assert calls["cudnnSetTensor4dDescriptor"][1:] == [0, 9, 3, 500, 1, 1]
    assert calls["cudnnSetStream"] == [5, 77]
    handle, algorithm, mode, _, _, source, _, _, result = calls["cudnnSoftmaxForward"]
    assert (handle, algorithm, mode, source, result) == (5, 1, 0, 1024, 2048)
