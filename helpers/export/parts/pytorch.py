"""Softmax of PyTorch's tensors, and what is around it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from .broadcasting import broadcasts
from .launching import device
from .planning import Refused, row_stride

NAME = "softmax_worklog"
CONTENT = ""  # of this file: another of the same name that differs has operators of its own
OPERATORS = f"{NAME}_{CONTENT}"  # in torch.ops
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
MOST_CALLS = 4096  # matrices whose launch is kept


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """torch.softmax(x, dim), of any tensor, by the kernels here wherever they take it.

    They take any dimension of a CUDA tensor of float32, float16 or bfloat16. Along the last, rows
    may be apart, start at any element and have any length; of other strides, and along another
    dimension of a tensor that is not contiguous, a contiguous copy is made first, as PyTorch does.
    Everything else gets PyTorch's own answer: other dtypes and devices, tensors without dimensions,
    nested tensors, and tensors of classes derived from torch.Tensor.

    Runs on the current stream, in CUDA graphs, and under torch.compile(fullgraph=True), where it is
    an operator of torch.ops, under `OPERATORS`; a program that was saved with it needs this very
    file. It has a gradient, by a kernel where rows are whole packs of 16 bytes along the last
    dimension and by PyTorch's own elsewhere; a second derivative is refused. A kernel is compiled
    when it is first needed and kept on disk. Raises what torch.softmax raises, and `CudaError` if
    CUDA or NVRTC refuses.
    """
    return _softmax(x, dim, False)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """torch.log_softmax(x, dim), by a kernel along the last dimension of rows of 1 KB and more that
    are whole packs of 16 bytes; by PyTorch's own elsewhere. All else is as of `softmax`.
    """
    return _softmax(x, dim, True)


def scaled_masked_softmax(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    bias: Tensor | None = None,
    is_causal: bool = False,
    log: bool = False,
    dropout_p: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Softmax along the last dimension of scale * x + bias where no mask hides it, in one pass:

        z = (scale * x + bias).masked_fill(mask, -inf)
        y = dropout(softmax(z, -1, dtype), dropout_p)      log_softmax where `log` is true

    `mask` is of bool and, as of `masked_fill`, True where x is hidden; mask and bias, of x's dtype,
    are as large as x or broadcast to it. Rows that repeat in the middle, such as one mask for all
    heads of a batch, are written out first. `is_causal` hides what is above the diagonal of the
    last two dimensions. `dtype` may be torch.float32, of x of 16 bits, and is so under autocast. A
    row that is wholly hidden is NaN, as PyTorch's. So is its gradient, which PyTorch's masked_fill
    makes 0, as is that of the logarithm here.

    By a kernel where rows are of 1 KB and more and of whole packs of 16 bytes, on a GPU of compute
    capability 9.0 or newer; else by PyTorch's own operations, one after the other. It has gradients
    by x and by bias, as `softmax` has. Dropout is in the kernel too, of a probability that is
    rounded down to a multiple of 1/65536: it keeps no mask, draws the columns again on the way
    back, and takes its seed from PyTorch's generator of the CPU. In a CUDA graph it is refused:
    each replay would drop the same columns. Dropout of a logarithm is PyTorch's.

    Raises `TypeError` for a mask that is not bool, `ValueError` for a mask or a bias that does not
    broadcast to x, `RuntimeError` for dropout in a graph, and what `softmax` raises.
    """
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"mask is of bool, True where x is hidden, not {mask.dtype}; add a bias")
    for name, given in (("mask", mask), ("bias", bias)):
        if given is not None and not broadcasts(given.shape, x.shape):
            raise ValueError(f"{name} of {tuple(given.shape)} is not broadcast to {tuple(x.shape)}")
    if not (
        _ours(x, mask, bias)
        and (bias is None or bias.dtype == x.dtype)
        and dtype in (None, x.dtype, torch.float32)
        and 0 <= dropout_p < 1
    ):
        y = _composed(x, mask, bias, scale, is_causal, log, dtype)
        return functional.dropout(y, dropout_p) if dropout_p else y
    wide = x.dtype != torch.float32 and (dtype == torch.float32 or _autocast("cuda"))
    inside = dropout_p > 0 and not log
    seed = torch.randint(2**62, (), device="cpu") if inside else None
    options = float(scale), is_causal, log, wide, dropout_p if inside else 0.0
    y = _operator("scaled_masked_softmax")(x, mask, bias, *options, seed)
    return y if inside or not dropout_p else functional.dropout(y, dropout_p)


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """torch.nn.functional.cross_entropy(logits, target, ...), whose softmax is never written.

    `logits` is of (rows, classes) or (classes,), `target` the classes as int64; z_loss * lse^2 is
    added to the loss of each row, lse = log(sum(exp(logits))). The loss is one read of the logits
    and its gradient another; between them two floats per row are kept. Computed in float32, and
    rounded to the dtype of the logits, as PyTorch's; float32 under autocast, with no copy made.

    A target that is neither a class nor `ignore_index` gives NaN, where PyTorch stops the GPU.
    Other shapes, dtypes and devices, and probabilities as target, get PyTorch's own answer. Raises
    `ValueError` for another reduction than mean, sum and none, `Refused` for logits that no kernel
    takes, on a GPU older than 7.5 say, `CudaError`, and what PyTorch raises.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is mean, sum or none, not {reduction!r}")
    if not (
        _ours(logits, target)
        and logits.dim() <= 2
        and target.dtype == torch.int64
        and target.shape == logits.shape[:-1]
        and 0 <= label_smoothing <= 1
    ):
        return _composed_loss(logits, target, ignore_index, label_smoothing, z_loss, reduction)
    options = ignore_index, float(label_smoothing), float(z_loss)
    loss, _ = _operator("cross_entropy")(logits, target, *options)
    dtype = torch.float32 if _autocast("cuda") else logits.dtype
    if reduction == "none":
        return loss.to(dtype)
    loss = loss.sum()
    return (loss / (target != ignore_index).sum() if reduction == "mean" else loss).to(dtype)


def _softmax(x: Tensor, dim: int, log: bool) -> Tensor:
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
        return _as_operator(x, dim, log)
    return _called(x, dim, log)


def _as_operator(x: Tensor, dim: int, log: bool) -> Tensor:
    """Softmax by PyTorch's dispatcher, which tells modes, compilers and autograd of it."""
    if not (_ours(x) and -x.dim() <= dim < x.dim()):
        return _own(log)(x, dim)
    if _autocast("cuda"):
        x = x.float()  # as torch.softmax does there
    return _operator("log_softmax" if log else "softmax")(x, dim)


def _own(log: bool) -> Callable[[Tensor, int], Tensor]:
    return torch.log_softmax if log else torch.softmax


def _operator(name: str) -> Callable:
    return getattr(getattr(torch.ops, OPERATORS), name).default


def _ours(x: Tensor, *others: Tensor | None) -> bool:
    """Whether x is what the operators know: of a dtype and a class of theirs, on a GPU, and what
    comes with it on the same."""
    given = [x, *(other for other in others if other is not None)]
    if not all(isinstance(t, Tensor) and t.is_cuda and not t.is_nested for t in given):
        return False
    for other in given[1:]:
        if other.device != x.device:
            return False
    return x.dtype in DTYPES and x.dim() > 0 and (_compiling() or all(map(_is_plain, given)))


def _is_known(x: Tensor) -> bool:
    """Whether the operators know what to do with a tensor of this class."""
    return type(x) in (Tensor, torch.nn.Parameter) or type(x).__name__ == "FakeTensor"


def _is_plain(x: Tensor) -> bool:
    """Whether they do, and nothing transforms the tensor or carries a derivative along."""
    return _is_known(x) and _transforms() is None and forward_ad._current_level < 0


# ---- PyTorch's own operations, where there is no kernel ------------------------------------------


def _composed(
    x: Tensor, mask: Tensor | None, bias: Tensor | None, scale, causal, log, dtype
) -> Tensor:
    """`scaled_masked_softmax` without dropout."""
    z = x if scale == 1 else x * scale
    z = z if bias is None else z + bias
    z = z if mask is None else z.masked_fill(mask, -torch.inf)
    z = z.masked_fill(_later(x), -torch.inf) if causal else z
    return _own(log)(z, -1, dtype)


def _later(x: Tensor) -> Tensor:
    """What a causal mask hides of the last two dimensions: columns past the row's number. x of one
    dimension is the first row."""
    queries = x.shape[-2] if x.dim() > 1 else 1
    hidden = torch.ones(queries, x.shape[-1], dtype=torch.bool, device=x.device).triu(1)
    return hidden if x.dim() > 1 else hidden[0]


def _composed_loss(x: Tensor, target: Tensor, ignore, smoothing, z_loss, reduction) -> Tensor:
    loss = functional.cross_entropy(
        *(x, target), ignore_index=ignore, label_smoothing=smoothing, reduction=reduction
    )
    if not z_loss:
        return loss
    if target.is_floating_point():
        raise ValueError("z_loss is for a target of classes")
    more = torch.logsumexp(x.float(), 1 if x.dim() > 1 else 0) ** 2 * z_loss
    more = torch.where(target != ignore, more, 0)  # not a product: what is ignored may be inf
    if reduction == "none":
        return loss + more.to(loss.dtype)
    more = more.sum() / (target != ignore).sum() if reduction == "mean" else more.sum()
    return loss + more.to(loss.dtype)


# ---- softmax of one matrix after the other -------------------------------------------------------

Call = Callable[[Tensor, int], Tensor]  # of a tensor and its address
_calls: dict[tuple, Call] = {}


def _called(x: Tensor, dim: int, log: bool) -> Tensor:
    try:
        address = x.data_ptr()
        key = x.shape, x.is_contiguous() or x.stride(), x.dtype, x.device, address & 15, dim, log
    except RuntimeError:  # nested, or sparse, or in another library's layout
        return _own(log)(x, dim)
    return (_calls.get(key) or _new_call(key, x, dim, log))(x, address)


def _new_call(key: tuple, x: Tensor, dim: int, log: bool) -> Call:
    """What computes softmax of tensors like x, kept under its key."""
    call = _call_for(x, dim, log)
    if len(_calls) >= MOST_CALLS:  # shapes that keep changing
        _calls.clear()
    _calls[key] = call
    return call


def _call_for(x: Tensor, dim: int, log: bool) -> Call:
    own = _own(log)
    if not (x.is_cuda and x.dtype in DTYPES and -x.dim() <= dim < x.dim()):
        return lambda x, address: own(x, dim)
    if x.numel() == 0:
        return lambda x, address: _like(x)
    index, cols, inner = x.device.index, x.shape[dim], prod(x.shape[dim:][1:])
    matrix = x.numel() // cols, cols, DTYPES[x.dtype]
    with torch.cuda.device(index):
        y, others = _like(x), ()
        try:
            if log:
                others = (1.0,)
                options = {"features": (("LOG", 1),), "given": ("scale",)}
                launch = device(index).launch(*matrix, inner=inner, **options)
            elif inner > 1:
                launch = device(index).launch(*matrix, inner=inner)
            else:
                stride = row_stride(x.shape, x.stride()) if x.shape[-1] == cols else None
                stride = cols if x.is_contiguous() else stride
                strides = stride or cols, cols
                starts = x.data_ptr() & 15, y.data_ptr() & 15
                launch = device(index).launch(*matrix, strides, starts, _workspace_of_graph)
        except Refused:  # more than 2^31 rows, an old GPU, a logarithm of short rows
            return lambda x, address: own(x, dim)
    if not _is_whole(x) if log or inner > 1 else stride is None:
        return lambda x, address: _called(_whole(x), dim, log)
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
        launch(start, address, current_stream(index), *others)
        return y

    return call


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _is_whole(x: Tensor) -> bool:
    """Whether its elements follow each other from a multiple of 16 bytes on."""
    return x.is_contiguous() and x.data_ptr() % 16 == 0


def _whole(x: Tensor) -> Tensor:
    """The same, or a copy that is."""
    return x if _is_whole(x) else x.clone(memory_format=torch.contiguous_format)


def _workspace_of_graph(size: int) -> tuple[int, Tensor]:
    """From the memory of the graph that is captured, cleared by each replay."""
    zeros = torch.zeros(size, dtype=torch.uint8, device="cuda")
    return zeros.data_ptr(), zeros


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

    _is_plain = _is_known


try:  # as what Inductor compiles allocates, past the dispatcher
    _empty = torch._C._dynamo.guards._empty_strided_cuda
except AttributeError:

    def _empty(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, stride, dtype=dtype, device="cuda")
