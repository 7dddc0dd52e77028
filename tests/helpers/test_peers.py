"""The peers' adapters, as far as no GPU and none of their packages are needed."""

import ctypes
import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers import foreign, peers
from helpers.check import WrongResult
from helpers.paths import ROOT
from helpers.references import make_input, reference
from helpers.shapes import RACE_SHAPES

REQUIRED = (ROOT / "requirements" / "peers.txt").read_text()


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(peers, "cudnn", lambda: ctypes.CDLL(None))
    monkeypatch.setattr(peers, "folders", lambda *_: [ROOT])
    monkeypatch.setattr(peers, "_nvcc", lambda: "nvcc")


@pytest.mark.skipif(installed("torch"), reason="PyTorch is installed here")
@pytest.mark.parametrize("name", sorted({*peers.PEERS} - {"cudnn", "flashinfer"}))
def test_peer_that_is_not_installed_says_so(name: str) -> None:
    assert peers.why_not(name, 1024, 1024, "float32") == "torch is not installed"


def test_eager_pytorch_is_made_as_in_the_race_and_a_step_as_ever(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(peers, "candidate", lambda *what: made.append(what))
    monkeypatch.setattr(peers.bench, "maker", lambda step: f"maker of {step}")
    peers.step_maker("00_torch")(64, 128, "bfloat16")
    assert made == [("torch", 64, 128, "bfloat16")]
    assert peers.step_maker("01_naive") == "maker of 01_naive"


def test_first_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"torch": 1, "triton": 1, "tvm_ffi": 1, "cutlass": 1}
    monkeypatch.setattr(importlib.util, "find_spec", found.get)
    assert peers.why_not("torch", 8, 8, "float32") == ""
    assert peers.why_not("liger", 8, 8, "float32") == "liger_kernel is not installed"
    assert peers.why_not("quack", 8, 8, "float32") == "quack is not installed"


def test_cudnn_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "cudnn", lambda: None)
    assert peers.why_not("cudnn", 8, 8, "float32") == "cuDNN is not installed"
    assert "cudnn" not in peers.versions()


def test_cudnn_is_looked_for_beside_the_packages_first(monkeypatch, tmp_path: Path) -> None:
    tried = []

    def refuse(name: str) -> None:
        tried.append(name)
        raise OSError

    beside = tmp_path / "cudnn" / "lib"
    beside.mkdir(parents=True)
    place = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: place)
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert foreign.cudnn.__wrapped__() is None
    assert tried == [str(beside / "libcudnn.so.9"), "libcudnn.so.9"]


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
    monkeypatch.setattr(peers, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(peers, "_nvcc", lambda: str(compiler))
    return tmp_path


def test_flashinfer_without_headers_or_nvcc_is_not_installed(flashinfer, monkeypatch) -> None:
    assert peers.why_not("flashinfer", 8, 1000, "float32") == ""
    assert peers.why_not("flashinfer", 8, 77, "bfloat16").startswith("FlashInfer's softmax takes")
    monkeypatch.setattr(peers, "_nvcc", lambda: None)
    reason = peers.why_not("flashinfer", 8, 1000, "float32")
    assert reason == "nvcc, with which flashinfer is built, is not installed"
    monkeypatch.setattr(peers, "folders", lambda *_: [])
    reason = peers.why_not("flashinfer", 8, 1000, "float32")
    assert reason == "flashinfer is not installed" and reason.endswith(peers.ABSENT)


def test_flashinfer_is_built_once_for_a_version(flashinfer, monkeypatch) -> None:
    loaded = []
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    build, log = peers._flashinfer_library.__wrapped__, flashinfer / "nvcc.log"
    build(), build()
    (asked,) = log.read_text().splitlines()
    include = flashinfer / "flashinfer" / "data" / "include"
    assert f"-I{include} " in asked and "-shared" in asked
    folder = flashinfer / "cache" / "flashinfer"
    assert (folder / "curand.h").is_file(), "comes with PyTorch, not with nvcc"
    assert loaded[0] == loaded[1] and Path(loaded[0]).read_text() == "built\n"
    (include / "flashinfer" / "sampling.cuh").write_text("// another version")
    build()
    assert len(log.read_text().splitlines()) == 2 and loaded[2] != loaded[0]


def test_error_of_nvcc_is_the_reason(flashinfer, monkeypatch) -> None:
    compiler = flashinfer / "bad"
    compiler.write_text('#!/bin/sh\necho "a warning" >&2\necho "x.h: error: no y" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(peers, "_nvcc", lambda: str(compiler))
    with pytest.raises(RuntimeError, match="^nvcc: x.h: error: no y$"):
        peers._flashinfer_library.__wrapped__()
    assert not [*(flashinfer / "cache" / "flashinfer").glob("*.so")]


def test_flashinfer_is_told_sizes_workspace_and_stream(monkeypatch) -> None:
    import cupy

    calls = []

    def softmax(*arguments) -> int:
        calls.append([argument.value for argument in arguments])
        return 0 if arguments[2].value == 3 else 1

    def array(ptr: int):
        return SimpleNamespace(data=SimpleNamespace(ptr=ptr))

    library = SimpleNamespace(softmax=softmax)
    monkeypatch.setattr(peers, "_flashinfer_library", lambda: library)
    monkeypatch.setattr(cupy, "empty", lambda size, dtype: array(4096))
    stream = SimpleNamespace(ptr=77)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: stream)
    peers.candidate("flashinfer", 3, 500, "float32").run(array(1024), array(2048))
    assert calls == [[1024, 2048, 3, 500, 4096, 2**20, 77]]
    with pytest.raises(RuntimeError, match="returned 1"):
        peers.candidate("flashinfer", 4, 500, "float32").run(array(1024), array(2048))
    with pytest.raises(TypeError, match="takes float32"):
        peers.candidate("flashinfer", 3, 500, "bfloat16")


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
def test_shapes_that_a_peer_refuses(all_installed, name, cols, dtype, reason) -> None:
    answer = peers.why_not(name, 64, cols, dtype)
    assert answer.startswith(reason) if reason else answer == ""


def test_every_shape_of_the_race_has_peers_that_can_run_it(all_installed) -> None:
    for rows, cols in RACE_SHAPES:
        able = [name for name in peers.PEERS if not peers.why_not(name, rows, cols, "bfloat16")]
        assert {"torch", "compile", "cudnn"} <= set(able)


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
    monkeypatch.setattr(foreign, "cudnn", lambda: Library())
    monkeypatch.setattr(foreign, "cudnn_handle", lambda: ctypes.c_void_p(5))
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: stream)
    x, y = (SimpleNamespace(data=SimpleNamespace(ptr=ptr)) for ptr in (1024, 2048))
    peers.candidate("cudnn", 3, 500, "bfloat16").run(x, y)
    calls = {name: arguments for name, *arguments in calls}
    assert calls["cudnnSetTensor4dDescriptor"][1:] == [0, 9, 3, 500, 1, 1]
    assert calls["cudnnSetStream"] == [5, 77]
    handle, algorithm, mode, _, _, source, _, _, result = calls["cudnnSoftmaxForward"]
    assert (handle, algorithm, mode, source, result) == (5, 1, 0, 1024, 2048)


def test_status_of_cudnn_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "cudnn", lambda: SimpleNamespace(cudnnCreate=lambda *a: 3))
    with pytest.raises(RuntimeError, match="cudnnCreate returned status 3"):
        foreign.cudnn_handle.__wrapped__()


def test_tensors_are_views_made_once_on_the_current_stream(monkeypatch) -> None:
    """With a stand-in for PyTorch: the address, the type, the stream, one tensor an array."""
    import contextlib

    import cupy

    made, used, seen = [], [], []

    def as_tensor(memory, device: str):
        made.append(memory.__cuda_array_interface__)
        return SimpleNamespace(view=lambda dtype: viewed(made[-1]["data"][0], dtype))

    def viewed(address: int, dtype: str):
        return SimpleNamespace(detach=lambda: (address, dtype))

    @contextlib.contextmanager
    def stream(which):
        used.append(which)
        yield
        used.append("left")

    cuda = SimpleNamespace(ExternalStream=lambda pointer: f"stream {pointer}", stream=stream)
    torch = SimpleNamespace(as_tensor=as_tensor, cuda=cuda, bfloat16="bf16", Tensor=object)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: SimpleNamespace(ptr=9))
    run = foreign.with_tensors(lambda x, y: seen.append((x, y)), *["bfloat16"] * 2)
    x, y = (SimpleNamespace(shape=(2, 8), data=SimpleNamespace(ptr=ptr)) for ptr in (512, 1024))
    run(x, y)
    run(x, y)
    assert seen == [((512, "bf16"), (1024, "bf16"))] * 2
    assert used == ["stream 9", "left"] * 2
    assert [(one["data"], one["shape"], one["typestr"]) for one in made] == [
        ((512, False), (2, 8), "<i2"),
        ((1024, False), (2, 8), "<i2"),
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_result_may_be_rounded_more_often_but_not_wrong(dtype: str) -> None:
    x = make_input(9, 300, dtype=dtype)
    y = reference(x)
    peers.check_result(x, (y * (1 + 3e-5)).astype(x.dtype))
    assert peers.check_result(x, y.astype(x.dtype)) == 0
    for wrong in (y * 1.01, np.zeros_like(y), np.where(y == y.min(), np.nan, y), y[::-1]):
        with pytest.raises(WrongResult, match=r"of 2700 elements (are|is) wrong, by up to .* ulp"):
            peers.check_result(x, wrong.astype(x.dtype))


def test_result_of_one_more_rounding_is_less_precise_and_of_several_is_wrong() -> None:
    """Planted: the sum in 8 bits less, two more roundings, a row scaled by 2%."""
    x = make_input(9, 300, dtype="bfloat16")
    exact = x.astype(np.float64)
    terms = np.exp(exact - exact.max(axis=-1, keepdims=True))
    total = terms.sum(axis=-1, keepdims=True)
    once = (terms / total.astype(x.dtype).astype(np.float64)).astype(x.dtype)
    keep = peers.Precision()
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
    assert np.isnan(y[:3].astype(float)).all() and peers.check_result(x, y) == 0
    y[1, 5] = 1
    with pytest.raises(WrongResult, match="1 of 1200 elements is wrong"):
        peers.check_result(x, y)


@pytest.mark.parametrize(("dtype", "ulps"), [("float32", 4096), ("bfloat16", 3)])
def test_error_is_given_in_ulp_of_the_dtype(dtype: str, ulps: int) -> None:
    x = make_input(9, 300, dtype=dtype)
    y = reference(x).astype(x.dtype)
    bits = y.view({4: np.uint32, 2: np.uint16}[x.itemsize])
    row, col = 4, int(reference(x)[4].argmax())
    bits[row, col] += ulps
    with pytest.raises(WrongResult, match="1 of 2700 elements is wrong") as caught:
        peers.check_result(x, y)
    told = float(re.search(r"([\d.]+) ulp", str(caught.value))[1])
    assert told == pytest.approx(ulps, abs=0.6)


def test_peers_are_called_what_people_call_them() -> None:
    assert peers.title("triton") == "Triton tutorial" and peers.title("08_cluster") == "08_cluster"
    assert len({peer.title for peer in peers.PEERS.values()}) == len(peers.PEERS)


def test_requirements_pin_every_package_of_the_peers() -> None:
    pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)$", REQUIRED, flags=re.MULTILINE))
    assert len(pinned) == REQUIRED.count("==")
    assert {*peers.PACKAGES} - {"cudnn"} <= set(pinned)
    quack = {"apache-tvm-ffi", "torch-c-dlpack-ext", "einops"}
    cutlass = {name for name in pinned if name.startswith("nvidia-cutlass-dsl")}
    assert {pinned[name] for name in cutlass} == {"4.8.1"}
    assert quack | cutlass | {*peers.PACKAGES} - {"cudnn"} == set(pinned)
