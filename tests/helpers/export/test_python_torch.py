"""The exported PyTorch file, run as it stands over the SIMT machine. What PyTorch itself makes of
it is tested on a GPU, in test_python_on_gpu.py."""

import re
import threading
from functools import partial

import numpy as np
import pytest

from helpers.check import check_softmax
from helpers.export.asked import request
from helpers.export.python import write
from helpers.gpu import Gpu
from tests.helpers.export import simulated_driver, stand_in_torch
from tests.helpers.export.exported_file import DTYPES, OLD, check_noticed, values
from tests.helpers.export.stand_in_torch import Here


@pytest.fixture(scope="module")
def text() -> str:
    return write(request("best", [], "fast_softmax"), "torch")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*zip([(33, 64), (7, 77), (2, 3, 1000), (3, 5001), (129,)], 2 * DTYPES, strict=False)],
)
def test_it_computes_softmax(shape: tuple, dtype, here: Here) -> None:
    x = values(*shape, dtype=dtype)
    for dim in (-1, len(shape) - 1):
        check_softmax(x, here.softmax(here.put(x), dim).host)
    assert not here.torch.own and not here.torch.dispatched
    assert len(here.driver.launches) == 2


def test_rows_may_be_apart_and_start_anywhere(here: Here) -> None:
    x = here.put(values(9, 600))[:, 3:504]
    check_softmax(x.host, here.softmax(x).host)
    assert here.driver.launches[-1].x_stride == 600
    x = here.put(values(9, 3, 40))[:, 1]  # one row of three
    check_softmax(x.host, here.softmax(x).host)
    assert here.driver.launches[-1].x_stride == 120


def test_where_a_tensor_starts_is_part_of_what_is_kept(here: Here) -> None:
    whole = here.put(values(4 * 64)).host
    for first in (0, 1, 2, 4):
        x = here.torch.Tensor(whole[first : first + 192].reshape(3, 64))
        check_softmax(x.host, here.softmax(x).host)


def test_other_strides_are_copied_first(here: Here) -> None:
    for x in (
        here.put(values(40, 9)).transpose(1, 0),
        here.put(values(4, 6, 40))[:, :3],
        here.put(values(4, 6, 40)).transpose(1, 0, 2),
        here.put(values(4, 80))[:, ::2],
    ):
        y = here.softmax(x)
        check_softmax(np.ascontiguousarray(x.host), y.host)
        assert y.host.flags.c_contiguous
    assert not here.torch.own


def test_the_strides_of_a_tensor_are_part_of_what_is_kept(here: Here) -> None:
    whole = here.put(values(8, 96)).host
    for x in (whole[:3, :48], whole[::2, :48][:3], here.put(whole[:3, :48]).host):
        check_softmax(np.ascontiguousarray(x), here.softmax(here.torch.Tensor(x)).host)
    assert [launch.x_stride for launch in here.driver.launches[:2]] == [96, 192]


def test_results_are_allocated_past_the_dispatcher_where_that_can_be(text: str) -> None:
    here = Here(text)
    x = values(4, 64)
    check_softmax(x, here.softmax(here.put(x)).host)
    assert here.torch.allocated == [(4, 64)]
    text = text.replace("guards._empty_strided_cuda", "guards._none")
    here = Here(text)
    check_softmax(x, here.softmax(here.put(x)).host)
    assert here.torch.allocated == [(4, 64)]


def test_a_call_is_made_once(here: Here) -> None:
    x = here.put(values(4, 64))
    here.softmax(x)
    here.driver.calls.clear()
    here.module._call_for = None
    here.softmax(x)
    assert here.driver.calls == {} and len(here.driver.launches) == 2


def test_shapes_that_keep_changing_fill_no_memory(here: Here) -> None:
    here.module.MOST_CALLS = 4
    for rows in range(1, 9):
        here.softmax(here.put(values(rows, 64)))
    assert len(here.module._calls) <= 4


def test_everything_else_gets_the_answer_of_pytorch(here: Here) -> None:
    x, put, own = values(6, 8), here.put, here.torch.own
    for tensor, dim in (
        (put(x.astype(np.float64)), -1),
        (put(x.astype(np.float64)), 0),
        (put(x, device="cpu"), -1),
        (put(np.float32(3).reshape(())), -1),
    ):
        here.softmax(tensor, dim)
        assert own.pop() == dim and not own
    for dim in (2, -3):
        with pytest.raises(IndexError):
            here.softmax(put(x), dim)
    assert not here.driver.launches


def test_what_needs_a_gradient_is_the_operator(here: Here) -> None:
    x = here.put(values(6, 8), requires_grad=True)
    check_softmax(x.host, here.softmax(x).host)
    assert here.torch.dispatched == ["softmax"]
    here.torch.state.grad = False
    check_softmax(x.host, here.softmax(x).host)
    assert here.torch.dispatched == ["softmax"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_dimension_has_a_kernel(dtype, here: Here) -> None:
    for shape, dim in (((3, 40, 8), 1), ((40, 24), 0), ((3, 40, 8), -3), ((2, 16, 1, 3), 1)):
        x = values(*shape, dtype=dtype)
        y = here.softmax(here.put(x), dim).host
        check_softmax(np.moveaxis(x, dim, -1), np.moveaxis(y, dim, -1))
        assert here.driver.launches[-1].function == "softmax_any_axis"
        assert here.driver.launches[-1].dim == shape[dim]
    assert not here.torch.own


def test_dimensions_of_one_behind_it_make_rows(here: Here) -> None:
    x = values(5, 96, 1, 1)
    y = here.softmax(here.put(x), 1).host
    check_softmax(x[..., 0, 0], y[..., 0, 0])
    assert here.driver.launches[-1].function == "softmax_warp"
    x = here.put(values(5, 192, 1, 1))[:, ::2]  # elements apart, as rows of one would be
    check_softmax(x.host[..., 0, 0], here.softmax(x, 1).host[..., 0, 0])
    assert not here.torch.own


def test_another_dimension_of_other_strides_is_copied_first(here: Here) -> None:
    x = here.put(values(40, 3, 8)).transpose(1, 0, 2)
    y = here.softmax(x, 1).host
    check_softmax(np.moveaxis(x.host, 1, -1), np.moveaxis(y, 1, -1))
    x = here.torch.Tensor(here.put(values(4 * 40 * 8 + 1)).host[1:].reshape(4, 40, 8))
    y = here.softmax(x, 1).host  # starts between two packs
    check_softmax(np.moveaxis(x.host, 1, -1), np.moveaxis(y, 1, -1))
    assert not here.torch.own


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (2, 0, 3)])
def test_an_empty_tensor_gives_an_empty_one(shape: tuple, here: Here) -> None:
    assert here.softmax(here.put(values(*shape))).shape == shape
    assert not here.driver.launches and not here.torch.own


def test_what_no_kernel_takes_gets_the_answer_of_pytorch(text: str) -> None:
    here = Here(text, Gpu(70, 80, 6 * 2**20))
    here.softmax(here.put(values(4, 64)))
    assert here.torch.own == [-1] and not here.driver.launches


# ---- who must know of a call -------------------------------------------------------------------


@pytest.mark.parametrize(
    "switch", [{"dynamo": True}, {"modes": 1}, {"function_modes": True}, {"tracing": True}]
)
def test_a_compiler_and_modes_see_the_operator(switch: dict, here: Here) -> None:
    vars(here.torch.state).update(switch)
    x = values(4, 64)
    check_softmax(x, here.softmax(here.put(x)).host)
    assert here.torch.dispatched == ["softmax"] and not here.torch.own
    here.softmax(here.put(x), 0)
    assert here.torch.dispatched == ["softmax"] * 2
    with pytest.raises(IndexError):
        here.softmax(here.put(x), 2)
    assert here.torch.dispatched == ["softmax"] * 2 and here.torch.own == [2]


@pytest.mark.parametrize("name", ["_len_torch_dispatch_stack", "_is_tracing"])
def test_another_pytorch_has_the_operator_alone(name: str, text: str) -> None:
    """Without what tells who follows a call, every call goes by the dispatcher."""
    here = Here(text, without=name)
    x = values(4, 64)
    for kind in (here.torch.Tensor, here.torch.nn.Parameter):
        check_softmax(x, here.softmax(here.put(x, kind)).host)
    assert here.torch.dispatched == ["softmax"] * 2 and not here.torch.own


def test_what_is_no_tensor_gets_the_error_of_pytorch(here: Here) -> None:
    with pytest.raises(AttributeError, match="host"):  # that of the stand-in's own softmax
        here.softmax([1.0, 2.0])


def test_a_parameter_and_a_fake_tensor_are_the_operator(here: Here) -> None:
    x = values(4, 64)
    here.torch.state.grad = False
    check_softmax(x, here.softmax(here.put(x, here.torch.nn.Parameter)).host)
    fake = here.softmax(here.put(x, here.torch.FakeTensor))
    assert here.torch.dispatched == ["softmax"] * 2
    assert fake.shape == (4, 64) and len(here.driver.launches) == 1


def test_transforms_derivatives_and_other_classes_are_pytorchs(here: Here) -> None:
    x = here.put(values(4, 64))
    here.torch.state.transforms = "vmap"
    here.softmax(x)
    here.torch.state.transforms = None
    here.torch.autograd.forward_ad._current_level = 0
    here.softmax(x)
    here.torch.autograd.forward_ad._current_level = -1

    class Sharded(here.torch.Tensor):
        pass

    here.softmax(Sharded(x.host))
    assert here.torch.own == [-1] * 3 and not here.driver.launches


def test_a_negated_view_is_not_read_as_it_lies(here: Here) -> None:
    x = here.put(values(4, 64))
    x.negative = True
    here.softmax(x)
    assert here.torch.dispatched == ["softmax"], "PyTorch resolves it on the way"


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_nested_tensor_gets_the_answer_of_pytorch(dynamo: bool, here: Here) -> None:
    here.torch.state.dynamo = dynamo
    x = here.put(values(4, 64))
    x.is_nested = True
    here.softmax(x)
    assert here.torch.own == [-1] and not here.torch.dispatched


def test_autocast_computes_in_float32(here: Here) -> None:
    here.torch.state.autocast = True
    x = values(4, 64, dtype=np.float16)
    y = here.softmax(here.put(x))
    assert y.dtype == "float32"
    check_softmax(x.astype(np.float32), y.host)


# ---- devices, streams, graphs ------------------------------------------------------------------


def test_the_current_stream_is_used(here: Here) -> None:
    x = here.put(values(4, 64))
    for stream in (0, 5):
        here.torch.state.stream = stream
        here.softmax(x)
    assert [launch.stream for launch in here.driver.launches] == [0, 5]


def test_another_current_device_is_left_as_it_is(text: str) -> None:
    here = Here(text)
    here.torch.state.devices, here.torch.state.device = 2, 1
    seen = []
    here.torch._C._cuda_getCurrentRawStream = lambda i: seen.append(here.torch.state.device) or 0
    x = here.put(values(4, 64))
    here.softmax(x)
    assert seen == [0] and here.torch.state.device == 1


def test_a_captured_call_clears_a_workspace_of_the_graph(text: str) -> None:
    here = Here(text, OLD)
    x = here.put(values(1, 40001))
    cleared = []
    zeros = here.torch.zeros
    here.torch.zeros = lambda *a, **k: cleared.append(zeros(*a, **k)) or cleared[-1]
    here.softmax(x)
    here.driver.capturing.add(0)
    check_softmax(x.host, here.softmax(x).host)
    here.softmax(x)
    used = [launch.workspace for launch in here.driver.launches]
    assert used[1:] == [tensor.data_ptr() for tensor in cleared] and used[0] not in used[1:]


def test_threads_do_not_mix_their_arguments(here: Here) -> None:
    x = [here.put(values(4, 64) + n) for n in range(4)]
    y = [here.softmax(tensor) for tensor in x]
    found = {}
    work = [
        threading.Thread(target=lambda n=n: found.update({n: here.softmax(x[n])}))
        for n in range(len(x))
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    for n, tensor in enumerate(y):
        assert (found[n].host == tensor.host).all()


def beside_each_other(*texts: str) -> None:
    """A file, another of the same name and the first again, as three packages may have brought
    them: each runs its own kernels, and of what is the same one is registered."""
    driver = simulated_driver.Driver()
    packages = stand_in_torch.stand_in(driver)
    torch = packages["torch"]
    x = torch.put(values(4, 64), requires_grad=True)
    for module in [simulated_driver.loaded(text, packages, driver) for text in texts]:
        assert module.OPERATORS in torch.operators and module.NAME == "fast_softmax"
        check_softmax(x.host, module.softmax(x).host)
    assert torch.dispatched == ["softmax"] * 3
    functions = [launch.function for launch in driver.launches]
    assert functions == ["softmax_warp", "softmax_shared", "softmax_warp"]
    assert len(torch.operators) == 2


def test_two_exports_of_one_name_live_beside_each_other(text: str) -> None:
    other = write(request("03_shared", [], "fast_softmax"), "torch")
    beside_each_other(text, other, text)
    by_name_alone = [
        re.sub('^CONTENT = "\\w+"', 'CONTENT = ""', t, flags=re.M) for t in (text, other)
    ]
    with pytest.raises(AssertionError):
        beside_each_other(*by_name_alone, by_name_alone[0])


def test_a_name_is_that_of_the_file_and_of_its_content(text: str) -> None:
    again, other = (write(request("best", [], name), "torch") for name in ("fast_softmax", None))
    assert text == again and 'NAME = "softmax_worklog"' in other
    (digest,) = re.findall(r'^CONTENT = "(\w{8})"  #', text, flags=re.MULTILINE)
    assert digest not in other


# ---- these tests can fail ----------------------------------------------------------------------

views = test_the_strides_of_a_tensor_are_part_of_what_is_kept
apart = test_rows_may_be_apart_and_start_anywhere
start = test_where_a_tensor_starts_is_part_of_what_is_kept
copied = test_other_strides_are_copied_first
needs = test_what_needs_a_gradient_is_the_operator
last = partial(test_it_computes_softmax, (3, 5001), np.float32)
axes = partial(test_any_dimension_has_a_kernel, np.float32)
ones = test_dimensions_of_one_behind_it_make_rows
across = test_another_dimension_of_other_strides_is_copied_first
other = test_everything_else_gets_the_answer_of_pytorch
classes = test_transforms_derivatives_and_other_classes_are_pytorchs
nested = test_a_nested_tensor_gets_the_answer_of_pytorch
seen = test_a_compiler_and_modes_see_the_operator


@pytest.mark.parametrize(
    ("line", "changed", "noticed"),
    [
        (" & 15, dim, log\n", " & 3, dim, log\n", start),
        ("x.is_contiguous() or x.stride(), x.dtype", "x.dtype", views),
        ("_compiling()\n        or", "", partial(seen, {"dynamo": True})),
        ("or type(x) is not Tensor\n", "\n", test_a_parameter_and_a_fake_tensor_are_the_operator),
        ("or _dispatch_modes()", "", partial(seen, {"modes": 1})),
        ("or _function_modes()", "", partial(seen, {"function_modes": True})),
        ("or _tracing()", "", partial(seen, {"tracing": True})),
        ("or _transforms() is not None", "", classes),
        ("or forward_ad._current_level >= 0", "", classes),
        ("_transforms() is None and forward_ad._current_level < 0", "True", classes),
        ("return type(x) in (Tensor, torch.nn.Parameter)", "return True", classes),
        (
            "_is_plain = _is_known",
            "_is_plain = lambda x: type(x) is Tensor",
            partial(test_another_pytorch_has_the_operator_alone, "_is_tracing"),
        ),
        ("or _autocast()", "", test_autocast_computes_in_float32),
        ("memory_format=torch.contiguous_format", "memory_format=None", apart),
        ("x = x.float()", "pass", test_autocast_computes_in_float32),
        ("or (x.requires_grad and torch.is_grad_enabled())", "", needs),
        (
            "and -x.dim() <= dim < x.dim()):\n        return lambda",
            "):\n        return lambda",
            other,
        ),
        ("(x) and -x.dim() <= dim < x.dim()", "(x)", partial(seen, {"dynamo": True})),
        ("address & 15, dim, log\n", "address & 15, log\n", axes),
        ("elif inner > 1:", "elif False:", axes),
        ("prod(x.shape[dim:][1:])", "prod(x.shape[dim + 1 :])", last),
        ("if x.shape[-1] == cols else None", "", ones),
        ("stride = cols if x.is_contiguous() else stride", "", ones),
        ("if not _is_whole(x) if log or inner > 1 else stride is None", "if False", across),
        ("x.is_contiguous() and x.data_ptr() % 16 == 0", "x.is_contiguous()", across),
        ("or x.is_neg()", "", test_a_negated_view_is_not_read_as_it_lies),
        ("except RuntimeError:  # nested", "except KeyError:  #", partial(nested, False)),
        ("and not t.is_nested", "", partial(nested, True)),
        ('"FakeTensor"', '""', test_a_parameter_and_a_fake_tensor_are_the_operator),
        ("current_stream(index)", "0", test_the_current_stream_is_used),
        (
            "if x.numel() == 0:",
            "if False:",
            partial(test_an_empty_tensor_gives_an_empty_one, (5, 0)),
        ),
        ("_called(_whole(x), dim, log)", "_called(x, dim, log)", copied),
        ("stride = row_stride(x.shape, x.stride())", "stride = x.shape[-1]", apart),
        ("elif stride != end:", "elif False:", copied),
        ("if cols > 1 and strides[-1] != 1:", "if False:", copied),
        ("_calls[key] = call", "pass", test_a_call_is_made_once),
        ("if len(_calls) >= MOST_CALLS:", "if 0:", test_shapes_that_keep_changing_fill_no_memory),
        # These take the text, to import it for another GPU.
        ("if several and", "if not several and", test_another_current_device_is_left_as_it_is),
        (
            "except Refused:",
            "except KeyError:",
            test_what_no_kernel_takes_gets_the_answer_of_pytorch,
        ),
    ],
)
def test_a_changed_line_is_noticed(line: str, changed: str, noticed, text: str) -> None:
    check_noticed(noticed, text, Here, line, changed)
