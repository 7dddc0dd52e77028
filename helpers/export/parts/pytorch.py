"""Softmax of PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .launching import device
from .planning import Refused, row_stride

NAME = "softmax_worklog"  # of the operator, torch.ops.NAME.softmax
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
MOST_CALLS = 4096  # matrices whose launch is kept


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """torch.softmax(x, dim), of any tensor, by the kernels here wherever they take it.

    They take the last dimension of a CUDA tensor of float32, float16 or bfloat16 that needs no
    gradient. Its rows may be apart, start at any element and have any length; of other strides a
    contiguous copy is made first, as PyTorch does. Everything else gets PyTorch's own answer: other
    dimensions, dtypes and devices, tensors without dimensions, nested tensors, tensors that need a
    gradient, and tensors of classes derived from torch.Tensor.

    Runs on the current stream, in CUDA graphs, and under torch.compile(fullgraph=True), where it is
    the operator torch.ops.NAME.softmax. A kernel is compiled when it is first needed and kept on
    disk. Raises what torch.softmax raises, and `CudaError` if CUDA or NVRTC refuses.
    """
    if (  # something follows what is done with x, so that PyTorch must know
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
        return _as_operator(x, dim)
    try:
        address = x.data_ptr()
        key = x.shape, x.is_contiguous() or x.stride(), x.dtype, x.device, address & 15, dim
    except RuntimeError:  # nested, or sparse, or in another library's layout
        return torch.softmax(x, dim)
    return (_calls.get(key) or _new_call(key, x, dim))(x, address)


def _as_operator(x: Tensor, dim: int) -> Tensor:
    """Softmax by PyTorch's dispatcher, which tells modes, compilers and transforms of it."""
    ours = (
        isinstance(x, Tensor)
        and x.is_cuda
        and not x.is_nested
        and x.dtype in DTYPES
        and x.dim() > 0
        and dim in (-1, x.dim() - 1)
        and not (x.requires_grad and torch.is_grad_enabled())
        and (_compiling() or _is_plain(x))
    )
    if not ours:
        return torch.softmax(x, dim)
    if torch.is_autocast_enabled("cuda"):
        x = x.float()  # as torch.softmax does there
    return _operator(x)


def _is_plain(x: Tensor) -> bool:
    """Whether the operator knows what to do with a tensor of this class, and nothing transforms
    it or carries a derivative along."""
    known = type(x) in (Tensor, torch.nn.Parameter) or type(x).__name__ == "FakeTensor"
    return known and _transforms() is None and forward_ad._current_level < 0


# ---- one matrix after the other ------------------------------------------------------------------

Call = Callable[[Tensor, int], Tensor]  # of a tensor and its address
_calls: dict[tuple, Call] = {}


def _new_call(key: tuple, x: Tensor, dim: int) -> Call:
    """What computes softmax of tensors like x, kept under its key."""
    call = _call_for(x, dim)
    if len(_calls) >= MOST_CALLS:  # shapes that keep changing
        _calls.clear()
    _calls[key] = call
    return call


def _call_for(x: Tensor, dim: int) -> Call:
    mine = x.is_cuda and x.dtype in DTYPES and x.dim() > 0 and dim in (-1, x.dim() - 1)
    if not mine:
        return lambda x, address: torch.softmax(x, dim)
    if x.numel() == 0:
        return lambda x, address: _like(x)
    stride = row_stride(x.shape, x.stride())
    if stride is None:
        return lambda x, address: softmax(x.contiguous())
    cols, index = x.shape[-1], x.device.index
    with torch.cuda.device(index):
        y = _like(x)
        matrix = x.numel() // cols, cols, DTYPES[x.dtype], (stride, cols)
        addresses = x.data_ptr(), y.data_ptr()
        try:
            launch = device(index).launch(*matrix, addresses, _workspace_of_graph)
        except Refused:  # more than 2^31 rows, an old GPU
            return lambda x, address: torch.softmax(x, dim)
    place, like = y.data_ptr() & 15, (tuple(y.shape), y.stride(), y.dtype)
    current_stream, empty = torch._C._cuda_getCurrentRawStream, _empty
    current_device, several = torch._C._cuda_getDevice, torch.cuda.device_count() > 1

    def call(x: Tensor, start: int) -> Tensor:
        if several and current_device() != index:
            with torch.cuda.device(index):
                return call(x, start)
        y = empty(*like)
        address = y.data_ptr()
        if address & 15 != place:
            raise RuntimeError(f"the allocator's memory at {address:#x} is not aligned as before")
        launch(start, address, current_stream(index))
        return y

    return call


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _workspace_of_graph(size: int) -> tuple[int, Tensor]:
    """From the memory of the graph that is captured, cleared by each replay."""
    zeros = torch.zeros(size, dtype=torch.uint8, device="cuda")
    return zeros.data_ptr(), zeros


# ---- what PyTorch is told ------------------------------------------------------------------------


def _run(x: Tensor) -> Tensor:
    """The operator on CUDA."""
    address = x.data_ptr()
    key = x.shape, x.is_contiguous() or x.stride(), x.dtype, x.device, address & 15, -1
    return (_calls.get(key) or _new_call(key, x, -1))(x, address)


def _fake(x: Tensor) -> Tensor:
    """The operator without memory: what comes out of it."""
    if x.dtype not in DTYPES or x.dim() == 0:
        raise TypeError(f"{NAME} takes rows of {', '.join(DTYPES.values())}, not {x.dtype}")
    return _like(x)


if not hasattr(getattr(torch.ops, NAME), "softmax"):  # else another copy of this file has it
    _library = torch.library.Library(NAME, "FRAGMENT")
    _library.define("softmax(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl("softmax", _run, "CUDA")
    torch.library.register_fake(f"{NAME}::softmax", _fake, lib=_library)
_operator = getattr(torch.ops, NAME).softmax.default

# Called every time: functions of C, so cheap. PyTorch does not promise them; where one that tells
# who follows a call is missing, every call is the operator, which needs none of them.
_compiling = torch.compiler.is_dynamo_compiling
_autocast = torch.is_autocast_enabled  # of CUDA, if it is not told otherwise
try:
    _dispatch_modes = torch._C._len_torch_dispatch_stack
    _function_modes = torch._C._is_torch_function_mode_enabled
    _transforms = torch._C._functorch.peek_interpreter_stack
    _tracing = torch._C._is_tracing
    _ = forward_ad._current_level
except AttributeError:

    def _dispatch_modes() -> int:
        return 1

    def _is_plain(x: Tensor) -> bool:
        return type(x) is Tensor


try:  # as what Inductor compiles allocates, past the dispatcher
    _empty = torch._C._dynamo.guards._empty_strided_cuda
except AttributeError:

    def _empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")
