"""Softmax for PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple  # [best]

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .launching import Device, Launch, bits_of, device
from .layouts import row_stride
from .planning import Refused

NAME = "softmax_worklog"
CONTENT = ""  # a hash of the file: files of one name do not share operators if they differ
OPERATORS = f"{NAME}_{CONTENT}"  # in torch.ops
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
MAX_CALLS = 4096  # calls kept, one per shape and layout


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return torch.softmax(x, dim), computed by the kernels of this file if they support x.

    They support any dimension of a CUDA tensor of float32, float16 or bfloat16. Along the  # [best]
    last dimension rows may be strided, unaligned and of any length. A tensor with other  # [best]
    strides, or not contiguous along another dimension, is copied first, as PyTorch does.  # [best]
    `plan` says which rows of the last dimension of a CUDA tensor the kernel supports.  # [not best]
    A tensor whose rows have no common stride is copied first.  # [not best]
    PyTorch itself computes everything else: other rows, dimensions, dtypes and devices, nested
    tensors, and tensors of classes derived from torch.Tensor.

    Runs on the current stream, in CUDA graphs, and under torch.compile(fullgraph=True), where it is
    a custom operator, `OPERATORS` in torch.ops; a program that is saved with it needs this very
    file.
    The gradient is computed by a kernel along the last dimension, and by PyTorch along  # [best]
    another; there is no second derivative.  # [best]
    The gradient is computed by PyTorch.  # [not best]
    A kernel is compiled when it is first needed and then kept on disk. Raises what torch.softmax
    raises, and `CudaError`.
    """
    return _softmax(x, dim, torch.softmax)


Softmax = Callable[[Tensor, int], Tensor]  # torch.softmax or torch.log_softmax


def _softmax(x: Tensor, dim: int, own: Softmax) -> Tensor:
    if (  # PyTorch must see the operation: something records or transforms what is done with x
        _compiling()
        or type(x) is not Tensor
        or _dispatch_modes()
        or _function_modes()
        or _transforms() is not None
        or _tracing()
        or forward_ad._current_level >= 0
        or _autocast()
        or (x.requires_grad and torch.is_grad_enabled())
        or x.is_neg()
    ):
        return _as_operator(x, dim, own)
    return _eager(x, dim, own)


def _as_operator(x: Tensor, dim: int, own: Softmax) -> Tensor:
    """Return softmax through PyTorch's dispatcher, which informs modes, compilers and autograd."""
    if not (_supported(x) and -x.dim() <= dim < x.dim()):
        return own(x, dim)
    if _autocast("cuda"):
        x = x.float()  # as torch.softmax does there
    return _operator("softmax")(x, dim, own is torch.log_softmax)


def _operator(name: str) -> Callable:
    return getattr(getattr(torch.ops, OPERATORS), name).default


def _supported(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether the operators support x and the tensors beside it: dtype and class of x, and
    all of them on the same GPU."""
    given = [x, *(other for other in others if other is not None)]
    if not all(isinstance(t, Tensor) and t.is_cuda and not t.is_nested for t in given):
        return False
    for other in given[1:]:
        if other.device != x.device:
            return False
    return x.dtype in DTYPES and x.dim() > 0 and (_compiling() or all(map(_is_plain, given)))


def _is_known(x: Tensor) -> bool:
    """Return whether the operators support the class of a tensor."""
    return type(x) in (Tensor, torch.nn.Parameter) or type(x).__name__ == "FakeTensor"


def _is_plain(x: Tensor) -> bool:
    """Return whether they do, and no transform or forward-mode derivative is active."""
    return _is_known(x) and _transforms() is None and forward_ad._current_level < 0


# ---- eager calls ---------------------------------------------------------------------------------

Call = Callable[[Tensor, int], Tensor]  # takes a tensor and its address
_calls: dict[tuple, Call] = {}


def _eager(x: Tensor, dim: int, own: Softmax) -> Tensor:
    try:
        address = x.data_ptr()
        key = x.shape, x.is_contiguous() or x.stride(), x.dtype, x.device, address & 15, dim, own
    except RuntimeError:  # nested, sparse, or in another library's layout
        return own(x, dim)
    call = _calls.get(key)
    if call is None:
        if len(_calls) >= MAX_CALLS:  # the shapes keep changing
            _calls.clear()
        call = _calls[key] = _call_for(x, dim, own)
    return call(x, address)


def _call_for(x: Tensor, dim: int, own: Softmax) -> Call:
    """Return the function that computes softmax of tensors like x."""
    if not (x.is_cuda and x.dtype in DTYPES and -x.dim() <= dim < x.dim()):
        return lambda x, address: own(x, dim)
    if x.numel() == 0:
        return lambda x, address: _like(x)
    index = x.device.index
    with torch.cuda.device(index):
        y = _like(x)
        try:
            launch, as_it_is, others = _launch_like(x, y, dim, own)
        except Refused:
            return lambda x, address: own(x, dim)
    if not as_it_is:
        return lambda x, address: _eager(_packed(x), dim, own)
    start_of_y, like = y.data_ptr() & 15, (tuple(y.shape), y.stride(), y.dtype)
    current_stream, empty = torch._C._cuda_getCurrentRawStream, _empty
    current_device, several = torch._C._cuda_getDevice, torch.cuda.device_count() > 1

    def call(x: Tensor, start: int) -> Tensor:
        if several and current_device() != index:
            with torch.cuda.device(index):
                return call(x, start)
        y = empty(*like)
        address = y.data_ptr()
        if address & 15 != start_of_y:
            raise RuntimeError(
                f"the allocator's memory at {address:#x} has another alignment than before"
            )
        launch(current_stream(index), start, address, *others)
        return y

    return call


def _launch_like(x: Tensor, y: Tensor, dim: int, own: Softmax) -> tuple[Launch, bool, tuple]:
    """Return the launch for tensors like x and y, whether it takes x without a copy, and the
    numbers that it takes. Raises `Refused`."""
    if own is torch.log_softmax:
        raise Refused("it does not compute the logarithm")  # [not best]
        launch = _launch(x, "softmax", dim, {"LOG": 1}, "scale")  # [best]
        return launch, _is_packed(x), (bits_of(1.0),)  # [best]
    cols = x.shape[dim]
    if prod(x.shape[dim:]) != cols:
        raise Refused("it takes rows of the last dimension")  # [not best]
        return _launch(x, "softmax", dim, {}, ""), _is_packed(x), ()  # [best]
    stride = row_stride(x.shape, x.stride()) if x.shape[-1] == cols else None
    stride = cols if x.is_contiguous() else stride
    launch = device(x.device.index).launch(
        *(x.numel() // cols, cols, DTYPES[x.dtype], (stride or cols, cols)),
        (x.data_ptr() & 15, y.data_ptr() & 15),
    )
    return launch, stride is not None, ()


def _launch(  # [best]
    x: Tensor, operation: str, dim: int, features: dict[str, int], given: str
) -> Launch:
    """Return the launch of an operation on rows like those of x. Raises `Refused`."""
    cols, inner = x.shape[dim], prod(x.shape[dim:][1:])
    matrix = x.numel() // cols, cols, DTYPES[x.dtype]
    options = {"features": tuple(features.items()), "given": tuple(given.split())}
    return device(x.device.index).launch(*matrix, operation=operation, inner=inner, **options)


def _like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def _is_packed(x: Tensor) -> bool:
    """Return whether a tensor is contiguous and aligned to 16 bytes."""
    return x.is_contiguous() and x.data_ptr() % 16 == 0


def _packed(x: Tensor) -> Tensor:
    """Return x, or a copy, contiguous and aligned to 16 bytes."""
    return x if _is_packed(x) else x.clone(memory_format=torch.contiguous_format)


def _graph_workspace(_: Device, size: int) -> tuple[int, Tensor]:  # [workspace]
    """Allocate bytes from the memory of the graph being captured, cleared at each replay."""
    zeros = torch.zeros(size, dtype=torch.uint8, device="cuda")
    return zeros.data_ptr(), zeros


Device.graph_workspace = _graph_workspace  # [workspace]


# Called every time: C functions, so cheap. They are not part of PyTorch's public interface; if one
# is missing, every call goes through the operator, which needs none of them.
_compiling = torch.compiler.is_dynamo_compiling
_autocast = torch.is_autocast_enabled  # for CUDA by default
try:
    _dispatch_modes = torch._C._len_torch_dispatch_stack
    _function_modes = torch._C._is_torch_function_mode_enabled
    _transforms = torch._C._functorch.peek_interpreter_stack
    _tracing = torch._C._is_tracing
    _ = forward_ad._current_level
except AttributeError:

    def _dispatch_modes() -> int:
        return 1

    _is_plain = _is_known


try:  # as code compiled by Inductor allocates, without the dispatcher
    _empty = torch._C._dynamo.guards._empty_strided_cuda
except AttributeError:

    def _empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")


# ---- operators -----------------------------------------------------------------------------------

_library = torch.library.Library(OPERATORS, "FRAGMENT")


def _register(
    schema: str, run: Callable, fake: Callable, keep: Callable, gradient: Callable
) -> None:
    """Register a custom operator, unless another copy of this file has: its implementations on CUDA
    and on fake tensors, the setup of its backward pass, and its gradient."""
    name = schema.partition("(")[0]
    if not hasattr(getattr(torch.ops, OPERATORS), name):
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(name, run, "CUDA")
        name = f"{OPERATORS}::{name}"
        torch.library.register_fake(name, fake, lib=_library)
        torch.library.register_autograd(name, gradient, setup_context=keep, lib=_library)


def _run_softmax(x: Tensor, dim: int, log: bool) -> Tensor:
    return _eager(x, dim, torch.log_softmax if log else torch.softmax)


def _fake_softmax(x: Tensor, *_) -> Tensor:
    if x.dtype not in DTYPES or x.dim() == 0:
        supported = ", ".join(DTYPES.values())
        raise TypeError(f"{NAME} needs rows of {supported}, got {x.dim()} dimensions of {x.dtype}")
    return _like(x)


def _keep_softmax(ctx, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(output)
    _, ctx.dim, ctx.log = inputs


def _softmax_gradient(ctx, dy: Tensor) -> tuple:
    (y,) = ctx.saved_tensors
    own = "_log_softmax" if ctx.log else "_softmax"  # [not best]
    dx = getattr(torch, f"{own}_backward_data")(dy, y, ctx.dim, y.dtype)  # [not best]
    dx = _operator("softmax_backward")(y, dy, ctx.dim, *Options(log=ctx.log))  # [best]
    return dx, None, None


_register(
    "softmax(Tensor x, int dim, bool log) -> Tensor",
    *(_run_softmax, _fake_softmax, _keep_softmax, _softmax_gradient),
)


class Options(NamedTuple):  # [best]
    """What is fused with softmax or its gradient: the arguments of both operators."""

    mask: Tensor | None = None  # True for elements to hide
    bias: Tensor | None = None
    scale: float = 1.0
    diagonal: int | None = None  # above which a causal mask hides elements
    log: bool = False
    zero: bool = False  # whether a fully masked row is 0, not NaN
    wide: bool = False  # whether y is float32 although x has 16 bits
    p: float = 0.0  # probability that an element is dropped
    seed: Tensor | None = None  # of dropout
    from_x: bool = False  # of a gradient: given the argument of softmax before the mask, not y
