"""The exported JAX file, run as it stands over the SIMT machine."""

import ctypes
import struct
from types import ModuleType

import numpy as np
import pytest

from helpers.check import check_softmax
from helpers.export.asked import request
from helpers.export.python import write
from helpers.gpu import H200, Gpu
from tests.helpers.export import simulated_driver, stand_in_jax
from tests.helpers.export.exported_file import DTYPES, OLD, check_noticed, values


@pytest.fixture(scope="module")
def text() -> str:
    return write(request("best", [], "fast_softmax"), "jax")


class Here:
    """A fresh import of the file, with the JAX and the driver that it uses."""

    def __init__(self, text: str, gpu: Gpu = H200):
        self.driver = simulated_driver.Driver(gpu)
        self.packages = stand_in_jax.stand_in(self.driver)
        self.jax = self.packages["jax"]
        self.module = simulated_driver.loaded(text, self.packages, self.driver)
        self.softmax = self.module.softmax


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*zip([(33, 64), (7, 77), (2, 3, 1000), (3, 5001), (129,)], 2 * DTYPES, strict=False)],
)
def test_it_computes_softmax(shape: tuple, dtype, here: Here) -> None:
    x = values(*shape, dtype=dtype)
    check_softmax(x, here.softmax(here.jax.put(x)))
    assert not here.jax.own


def test_everything_else_gets_the_answer_of_jax(here: Here) -> None:
    for x, axis in (
        (values(4, 8), 0),
        (values(4, 8, dtype=np.float64), -1),
        (values(0, 8), -1),
        (np.array(1, np.float32), -1),
    ):
        here.softmax(x, axis)
        assert here.jax.own.pop() == axis
    assert not here.driver.launches


def test_xlas_stream_is_used(here: Here) -> None:
    x = here.jax.put(values(4, 64))
    for here.jax.stream in (0, 5):
        here.softmax(x)
    assert [launch.stream for launch in here.driver.launches] == [0, 5]


def test_a_launch_is_made_once(here: Here) -> None:
    x = here.jax.put(values(4, 64))
    here.softmax(x)
    here.driver.calls.clear()
    here.softmax(x)
    assert {*here.driver.calls} == {"cuPointerGetAttribute"}


def test_a_call_is_traced_once(here: Here) -> None:
    x = here.jax.put(values(4, 64))
    here.softmax(x)
    assert here.jax.traced == {((4, 64), np.dtype(np.float32))}


def test_structs_are_laid_out_as_in_c(here: Here) -> None:
    """Where c_api.h has them; a frame that is read otherwise would be read anywhere."""
    m = here.module
    assert ctypes.sizeof(m._Version) == 24 and ctypes.sizeof(m._Buffer) == 48
    frame = {"api": 16, "context": 24, "stage": 32, "arguments": 40, "results": 80}
    api = {"version": 16, "internal": 40, "error_create": 48, "stream_get": 80}
    buffer = {"dtype": 16, "data": 24, "rank": 32, "dims": 40}
    buffers = {"size": 16, "types": 24, "buffers": 32}
    about = {"struct_size": 0, "version": 8, "traits": 32}
    for struct_, fields in (
        *((m._Frame, frame), (m._Api, api), (m._Buffer, buffer), (m._Buffers, buffers)),
        *((m._Metadata, about), (m._StreamGet, {"context": 16, "stream": 24})),
        *((m._ErrorCreate, {"message": 16, "code": 24}), (m._MetadataExtension, {"metadata": 24})),
    ):
        assert {name: getattr(struct_, name).offset for name in fields} == fields
    assert m._Buffer.rank.size == 8


def test_xla_is_told_what_the_handler_is(here: Here) -> None:
    """The version of the interface that it has itself, and that no call may be captured."""
    about = ctypes.create_string_buffer(struct.pack("Q QQii I4x", 48, 0, 0, 9, 9, 9), 40)
    x = here.jax.put(values(4, 64))
    here.jax.call("exported.fast_softmax", x, x, about=about)
    size, version_size, _, major, minor, traits = struct.unpack("Q QQii I4x", about.raw)
    assert (size, version_size, major, minor, traits) == (48, 24, 0, 3, 0)
    assert not here.driver.launches


def test_copies_live_beside_each_other_and_are_loaded_anew(text: str) -> None:
    """XLA takes a name once, and keeps the address of what it calls."""
    here, x = Here(text), values(4, 64)
    handler = here.module._handler
    for module in (ModuleType("another"), here.module):
        simulated_driver.loaded(text, here.packages, here.driver, module=module)
        check_softmax(x, module.softmax(here.jax.put(x)))
    assert here.module._handler is handler and len(here.jax.targets) == 2


def test_other_stages_launch_nothing(here: Here) -> None:
    x = here.jax.put(values(4, 64))
    here.jax.call("exported.fast_softmax", x, x, stage=stand_in_jax.INSTANTIATE)
    assert not here.driver.launches


def test_an_error_reaches_xla(text: str) -> None:
    here = Here(text, Gpu(70, 80, 6 * 2**20))
    with pytest.raises(stand_in_jax.XlaError, match="4711: 13: Refused: .* needs sm_75"):
        here.softmax(here.jax.put(values(4, 64)))


def test_a_workspace_serves_a_stream(text: str) -> None:
    here = Here(text, OLD)
    x = values(1, 40001)
    for _ in range(2):
        check_softmax(x, here.softmax(here.jax.put(x)))
    here.driver.capturing.add(0)
    with pytest.raises(stand_in_jax.XlaError, match="captures this call"):
        here.softmax(here.jax.put(x))


def test_the_derivative_is_that_of_softmax(here: Here) -> None:
    x, tangent = values(3, 50), values(3, 50, dtype=np.float64)
    y, derivative = here.module._derivative((here.jax.put(x),), (tangent,))

    def softmax(x: np.ndarray) -> np.ndarray:
        power = np.exp(x.astype(np.float64))
        return power / power.sum(-1, keepdims=True)

    step = 1e-6
    expected = (softmax(x + step * tangent) - softmax(x - step * tangent)) / (2 * step)
    np.testing.assert_allclose(derivative, expected, atol=1e-5)
    check_softmax(x, y)


# ---- these tests can fail ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "changed", "noticed"),
    [
        ("about.traits = 0", "about.traits = 1", test_xla_is_told_what_the_handler_is),
        ("about.version.minor = ", "about.version.major = ", test_xla_is_told_what_the_handler_is),
        ("if frame.stage != _EXECUTE:", "if False:", test_other_stages_launch_nothing),
        ("asked.stream or 0", "0", test_xlas_stream_is_used),
        (
            '("stage", ctypes.c_int)',
            '("stage", ctypes.c_int * 3)',
            test_structs_are_laid_out_as_in_c,
        ),
        ('    ("error_destroy", ctypes.c_void_p),\n', "", test_structs_are_laid_out_as_in_c),
        ('("rank", ctypes.c_int64)', '("rank", ctypes.c_int)', test_structs_are_laid_out_as_in_c),
        ("{__name__}", "", test_copies_live_beside_each_other_and_are_loaded_anew),
        (
            'if "_handler" not in globals():',
            "if True:",
            test_copies_live_beside_each_other_and_are_loaded_anew,
        ),
        ("self._launches[key] = launch", "pass", test_a_launch_is_made_once),
        (
            "weighted - y * weighted.sum",
            "weighted * weighted.sum",
            test_the_derivative_is_that_of_softmax,
        ),
        ("return _compiled(x)", "return _softmax(x)", test_a_call_is_traced_once),
        ("x.dtype.name in SIZES and", "", test_everything_else_gets_the_answer_of_jax),
    ],
)
def test_a_changed_line_is_noticed(line: str, changed: str, noticed, text: str) -> None:
    check_noticed(noticed, text, Here, line, changed)
