"""The exported CuPy file, run as it stands over the SIMT machine."""

import threading
from functools import partial

import numpy as np
import pytest

from helpers.check import check_softmax
from helpers.export.asked import request
from helpers.export.python import write
from helpers.gpu import H200, Gpu
from tests.helpers.export.exported_file import DTYPES, OLD, check_noticed, values
from tests.helpers.export.stand_in_cupy import Here


@pytest.fixture(scope="module")
def text() -> str:
    return write(request("best", []), "cupy")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(33, 64), (7, 77), (2, 3, 1000), (5, 4096), (3, 5001), (129,)])
def test_it_computes_softmax(shape: tuple, dtype, here: Here) -> None:
    x = values(*shape, dtype=dtype)
    check_softmax(x, here.softmax(here.cupy.put(x)).host)


def test_a_cluster_of_16_and_much_shared_memory_are_asked_for(here: Here) -> None:
    x = values(1, 65536)
    check_softmax(x, here.softmax(here.cupy.put(x)).host)
    assert here.module.plan(1, 65536).cluster == 16


def test_rows_may_be_apart_and_start_anywhere(here: Here) -> None:
    whole = here.cupy.put(values(9, 600))
    x = whole[:, 3:504]
    check_softmax(x.host, here.softmax(x).host)
    assert here.driver.launches[-1].x_stride == 600
    out = here.cupy.put(values(9, 700))
    around = out.host.copy()
    assert here.softmax(x, out=out[:, 1:502]).host.base is not None
    check_softmax(x.host, out.host[:, 1:502])
    around[:, 1:502] = out.host[:, 1:502]
    assert (out.host == around).all(), "what is between the rows is left alone"


def test_other_strides_are_copied_first(here: Here) -> None:
    x, deep = here.cupy.put(values(40, 9)), here.cupy.put(values(4, 6, 40))
    same = here.cupy.ndarray(np.broadcast_to(x.host[:1], (4, 9)))
    for view in (x.transpose(1, 0), x[:, ::2], deep[:, :3], deep.transpose(1, 0, 2), same):
        check_softmax(np.ascontiguousarray(view.host), here.softmax(view).host)
    check_softmax(np.ascontiguousarray(deep.host[:, :1]), here.softmax(deep[:, :1]).host)
    assert here.driver.launches[-1].x_stride == 240, "this has one stride"


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((4, 33, 40), 1), ((4, 33, 40), -3), ((70, 9), 0), ((6, 1), 0), ((5, 1, 3), 1)],
)
def test_another_axis_is_taken(shape: tuple, axis: int, here: Here) -> None:
    x, out = values(*shape), here.cupy.put(values(*shape))
    assert here.softmax(here.cupy.put(x), axis, out) is out
    check_softmax(*(np.ascontiguousarray(np.moveaxis(a, axis, -1)) for a in (x, out.host)))
    inner = int(np.prod(shape[axis:][1:]))
    assert hasattr(here.driver.launches[-1], "inner") == (inner > 1)


def test_of_another_axis_what_does_not_follow_is_copied(here: Here) -> None:
    whole = here.cupy.put(values(8, 20, 24))
    for x in (whole[:, :16], whole.transpose(1, 0, 2)[1:], whole[1:, 0, 2:3][:, :, None]):
        y = here.softmax(x, 1).host
        check_softmax(*(np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x.host, y)))
    flat = here.cupy.ndarray(here.cupy.put(values(200)).host[1:181].reshape(5, 12, 3))
    check_softmax(
        *(
            np.ascontiguousarray(np.moveaxis(a, 1, -1))
            for a in (flat.host, here.softmax(flat, 1).host)
        )
    )
    with pytest.raises(ValueError, match="out has strides"):
        here.softmax(here.cupy.put(values(5, 12, 3)), 1, flat)


def test_the_current_stream_is_used(here: Here) -> None:
    x = here.cupy.put(values(4, 64))
    for here.cupy.stream.ptr in (0, 5):
        here.softmax(x)
    assert [launch.stream for launch in here.driver.launches] == [0, 5]


def test_where_x_and_out_start_is_part_of_what_is_kept(here: Here) -> None:
    whole, room = here.cupy.put(values(256)).host, here.cupy.put(values(256)).host
    for first, place in ((0, 0), (1, 0), (0, 1), (1, 2), (2, 2)):
        x, out = (a[i : i + 192].reshape(3, 64) for a, i in ((whole, first), (room, place)))
        here.softmax(here.cupy.ndarray(x), out=here.cupy.ndarray(out))
        check_softmax(x, out)


def test_shapes_that_keep_changing_fill_no_memory(here: Here) -> None:
    here.module.MOST_LAUNCHES = 4
    for rows in range(1, 9):
        here.softmax(here.cupy.put(values(rows, 64)))
    assert len(here.module.device(0)._launches) <= 4


def test_a_launch_is_made_once(here: Here) -> None:
    x = here.cupy.put(values(4, 64))
    here.softmax(x)
    here.driver.calls.clear()
    here.softmax(x)
    assert here.driver.calls == {}, "the launch itself is bound already"
    assert len(here.driver.launches) == 2
    here.softmax(here.cupy.put(values(5, 64)))
    assert here.driver.calls["cuModuleLoadData"] == 0, "the same macros, so the same kernel"


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2, 0, 3)])
def test_an_empty_array_gives_an_empty_one(shape: tuple, here: Here) -> None:
    y = here.softmax(here.cupy.put(values(*shape)))
    assert y.shape == shape and not here.driver.launches


def test_wrong_use_is_refused(here: Here) -> None:
    x = here.cupy.put(values(4, 64))
    whole = here.cupy.put(values(8, 64))
    for arguments, error, words in (
        ((values(4, 64),), TypeError, "no CuPy array but ndarray"),
        ((here.cupy.put(values(4, 4, dtype=np.float64)),), TypeError, "not float64"),
        ((x, 2), ValueError, "axis = 2 is none of 2"),
        ((x, -3), ValueError, "axis = -3 is none of 2"),
        ((here.cupy.put(np.array(1, np.float32)),), ValueError, "x has no axes"),
        ((x, -1, x), ValueError, "out overlaps x"),
        ((whole[:4], -1, whole[3:7]), ValueError, "out overlaps x"),
        ((x, -1, whole), ValueError, r"out is no CuPy array of shape \(4, 64\)"),
        ((x, -1, here.cupy.put(values(64, 4)).transpose(1, 0)), ValueError, "out has strides"),
    ):
        with pytest.raises(error, match=words):
            here.softmax(*arguments)
    assert not here.driver.launches


# ---- workspaces: rows that blocks anywhere on the GPU share ------------------------------------


def workspaces(here: Here) -> list[int]:
    """The address of each launch's workspace."""
    return [launch.workspace for launch in here.driver.launches]


def test_each_stream_has_a_workspace_of_its_own(text: str) -> None:
    here = Here(text, OLD)
    x = values(1, 40001)
    array = here.cupy.put(x)
    for stream in (0, 0, 7, 0, 7):
        here.cupy.stream.ptr = stream
        check_softmax(x, here.softmax(array).host)
    first, again, other, third, fourth = workspaces(here)
    assert first == again == third != other == fourth
    assert all(launch.cooperative for launch in here.driver.launches)


def test_what_a_stream_is_asked_is_laid_out_once(text: str) -> None:
    here = Here(text, OLD)
    array = here.cupy.put(values(1, 40001))
    here.softmax(array)
    here.driver.calls.clear()
    here.softmax(array)
    assert here.driver.calls == {}, "questions and launch are bound already"
    assert len(here.driver.launches) == 2


def test_a_workspace_grows(text: str) -> None:
    here = Here(text, OLD)
    for rows in (1, 2, 9, 1):
        x = values(rows, 40001)
        check_softmax(x, here.softmax(here.cupy.put(x)).host)
    first, _, third, last = workspaces(here)
    assert first != third == last
    assert first in here.driver.memory, "another thread may be about to launch with it"


def test_a_captured_call_gets_a_workspace_that_nobody_else_gets(text: str) -> None:
    here = Here(text, OLD)
    x = values(1, 40001)
    array, out = here.cupy.put(x), here.cupy.put(x)
    here.driver.capturing.add(0)  # the first call of all: it compiles and loads too
    here.softmax(array, out=out)
    here.softmax(array, out=out)
    here.driver.capturing.clear()
    here.softmax(array, out=out)
    check_softmax(x, out.host)
    assert len({*workspaces(here)}) == 3


def test_a_new_array_that_no_graph_would_keep_is_refused(here: Here) -> None:
    x, out = here.cupy.put(values(4, 80)), here.cupy.put(values(4, 40))
    here.driver.capturing.add(0)
    with pytest.raises(ValueError, match=r"no new array alive; x has strides \(320, 8\)"):
        here.softmax(x[:, ::2], out=out)
    for array in (x, x[:, ::2]):
        with pytest.raises(ValueError, match="keeps no new array alive; give out"):
            here.softmax(array)
    assert not here.driver.launches
    here.softmax(x[:, :40], out=out)
    check_softmax(x.host[:, :40], out.host)


@pytest.mark.parametrize(("shape", "gpu"), [((4, 64), H200), ((1, 40001), OLD)])
def test_a_thread_that_never_used_the_gpu_may_call(shape: tuple, gpu: Gpu, text: str) -> None:
    here, x = Here(text, gpu), values(*shape)
    array, found = here.cupy.put(x), []
    here.softmax(array)
    thread = threading.Thread(target=lambda: found.append(here.softmax(array)))
    thread.start()
    thread.join()
    check_softmax(x, found[0].host)
    assert here.driver.calls["cuCtxSetCurrent"] == 2, "one for each thread"


def test_per_thread_streams_share_a_handle_but_no_workspace(text: str) -> None:
    here = Here(text, OLD)
    here.cupy.stream.ptr = 2
    array = here.cupy.put(values(1, 40001))
    here.softmax(array)
    thread = threading.Thread(target=here.softmax, args=(array,))
    thread.start()
    thread.join()
    here.softmax(array)
    first, other, again = workspaces(here)
    assert first == again != other
    assert {first, other} < {*here.driver.memory}


def test_a_later_stream_of_the_same_handle_gets_a_workspace_of_its_own(text: str) -> None:
    """Kernels of the former may still run, or have left something when they were aborted."""
    here = Here(text, OLD)
    here.cupy.stream.ptr = 7
    arrays = [here.cupy.put(values(rows, 40001)) for rows in (1, 9)]
    for array in arrays:
        here.softmax(array)
    here.driver.destroyed[7] += 1
    for array in arrays:
        check_softmax(array.host, here.softmax(array).host)
    assert here.driver.calls["cuMemAlloc_v2"] == 4, "nothing is handed on"
    assert here.driver.calls["cuMemFree_v2"] == 2, "nothing is kept for a stream that is gone"


# ---- these tests can fail ----------------------------------------------------------------------

cluster = test_a_cluster_of_16_and_much_shared_memory_are_asked_for
start = test_where_x_and_out_start_is_part_of_what_is_kept
copied = test_other_strides_are_copied_first
axis = partial(test_another_axis_is_taken, (6, 1), 0)
apart = test_of_another_axis_what_does_not_follow_is_copied
once = test_a_launch_is_made_once
streams = test_each_stream_has_a_workspace_of_its_own
bound = test_what_a_stream_is_asked_is_laid_out_once
grows = test_a_workspace_grows
captured = test_a_captured_call_gets_a_workspace_that_nobody_else_gets
thread_streams = test_per_thread_streams_share_a_handle_but_no_workspace
kept = test_a_new_array_that_no_graph_would_keep_is_refused
later = test_a_later_stream_of_the_same_handle_gets_a_workspace_of_its_own
cold = partial(test_a_thread_that_never_used_the_gpu_may_call, (1, 40001), OLD)


@pytest.mark.parametrize(
    ("line", "changed", "noticed"),
    [
        ("x == y == 0, x == y,", "True, True,", start),
        ("config.stream = stream", "config.stream = 0", test_the_current_stream_is_used),
        ("int(found.cooperative)", "0", streams),
        ("_Attribute(2)", "_Attribute(6)", streams),
        ("attributes[0].value[0] = 1", "pass", streams),
        ('_ask("cuFuncSetAttribute", function, 14, 1)', "pass", cluster),
        ("values[1] = y", "values[1] = x", cluster),
        ("(0, 0, *numbers)", "(0, 0, *reversed(numbers))", cluster),
        ("if status == INVALID_CONTEXT:", "if False:", cluster),
        ("is_capturing()) == INVALID_CONTEXT:", "is_capturing()) == 0:", cold),
        ("size = 1 << (", "[*map(self._free, given.addresses)]; size = 1 << (", grows),
        (" and given.size >= size:", ":", grows),
        ("if given.size < size:", "if not given.size:", grows),
        ("setdefault(key, _Stream(handle))", "setdefault(0, _Stream(handle))", streams),
        ("self._streams.get(key) or", "", bound),
        ("given = stream.given = _Workspaces", "given = _Workspaces", streams),
        ("if given.number == stream.number.value and", "if", later),
        ("if given.number != number:", "if False:", later),
        ("in given.addresses:", "in ():", later),
        ("(handle, threading.get_ident()) if", "handle if", thread_streams),
        ("ctypes.c_ubyte(0), ctypes", "ctypes.c_ubyte(1), ctypes", streams),
        ("if stream.captured.value:", "if False:", captured),
        ('_ask("cuThreadExchangeStreamCaptureMode", ctypes.byref(self.mode))', "pass", captured),
        ('"give out" if out is None else copy_it', '"give out" if out is None else ""', kept),
        ('"give out" if out is None else copy_it', "copy_it", kept),
        ("elif stride != end:", "elif False:", copied),
        ("return apart if apart >= cols else None", "return apart", copied),
        ("if cols > 1 and strides[-1] != 1:", "if False:", copied),
        ("first[0] < second[1] and second[0] < first[1]", "False", test_wrong_use_is_refused),
        ("if not -x.ndim <= axis < x.ndim:", "if False:", test_wrong_use_is_refused),
        ("if last else (cols, cols)", "", axis),
        ("stride = _row_stride if last else _whole_stride", "stride = _row_stride", apart),
        ("and x.data.ptr % 16 == 0 else None", "else None", apart),
        ("self._launches[key] = launch", "pass", once),
        ("self._functions[key] = function", "pass", once),
        (
            "if len(self._launches) >= MOST_LAUNCHES:",
            "if False:",
            test_shapes_that_keep_changing_fill_no_memory,
        ),
        ("strides, x & 15, y & 15", "strides, 0, 0", start),
    ],
)
def test_a_changed_line_is_noticed(line: str, changed: str, noticed, text: str) -> None:
    check_noticed(noticed, text, Here, line, changed)
