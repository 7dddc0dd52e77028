"""Softmax and related operations for PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional

from .launching import device
from .layouts import broadcasts, row_stride
from .planning import Refused

NAME = "softmax_worklog"
CONTENT = ""  # a hash of the file: files of one name do not share operators if they differ
OPERATORS = f"{NAME}_{CONTENT}"  # in torch.ops
DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
MAX_CALLS = 4096  # calls kept, one per shape and layout


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return torch.softmax(x, dim), computed by the kernels of this file if they support x.

    They support any dimension of a CUDA tensor of float32, float16 or bfloat16. Along the last
    dimension rows may be strided, unaligned and of any length. A tensor with other strides, or one
    that is not contiguous along another dimension, is copied first, as PyTorch does. PyTorch itself
    computes everything else: other dtypes and devices, tensors without dimensions, nested tensors,
    and tensors of classes derived from torch.Tensor.

    Runs on the current stream, in CUDA graphs, and under torch.compile(fullgraph=True), where it is
    a custom operator, `OPERATORS` in torch.ops; a program that is saved with it needs this very
    file. The gradient is computed by a kernel along the last dimension if rows consist of whole
    packs of 16 bytes, and by PyTorch otherwise; there is no second derivative. A kernel is compiled
    when it is first needed and then kept on disk. Raises what torch.softmax raises, and
    `CudaError`.
    """
    return _softmax(x, dim, False)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return torch.log_softmax(x, dim), computed by a kernel along the last dimension if a row has
    1 KB or more and consists of whole packs of 16 bytes, and by PyTorch otherwise. Everything else
    is as for `softmax`.
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
    """Return softmax of scale * x + bias along the last dimension, without masked elements, in one
    pass:

        z = (scale * x + bias).masked_fill(mask, -inf)
        y = dropout(softmax(z, -1, dtype), dropout_p)      log_softmax if `log`

    `mask` is bool and, as in `masked_fill`, True for elements to hide; `bias` has the dtype of x.
    Both broadcast to the shape of x; dimensions that repeat in the middle, such as one mask for all
    heads of a batch, are expanded first. `is_causal` hides elements above the diagonal of the last
    two dimensions. `dtype` may be torch.float32 for 16-bit x, and is under autocast. A fully masked
    row gives NaN, as in PyTorch. Its gradient is NaN too, where PyTorch's masked_fill gives 0; the
    gradient of the logarithm is 0 here as well.

    Computed by a kernel if a row has 1 KB or more and consists of whole packs of 16 bytes, on a GPU
    of compute capability 9.0 or newer, and otherwise by PyTorch's operations in turn. There are
    gradients with respect to x and bias, as for `softmax`. Dropout is fused too: the kernel rounds
    the probability down to a multiple of 1/65536, stores no mask, draws the same elements again in
    the backward pass, and takes its seed from PyTorch's CPU generator. In a CUDA graph dropout is
    an error, because each replay would drop the same elements. Dropout of a logarithm is PyTorch's.

    Raises `TypeError` for a mask that is not bool, `ValueError` for a mask or a bias that does not
    broadcast to x, `RuntimeError` for dropout in a graph, and what `softmax` raises.
    """
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be bool, True for elements to hide, got {mask.dtype}; numbers go into bias"
        )
    for name, given in (("mask", mask), ("bias", bias)):
        if given is not None and not broadcasts(given.shape, x.shape):
            shapes = f"{tuple(given.shape)} cannot be broadcast to {tuple(x.shape)}"
            raise ValueError(f"{name} of shape {shapes}")
    if not (
        _supported(x, mask, bias)
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
    """Return torch.nn.functional.cross_entropy(logits, target, ...) without storing softmax.

    `logits` has shape (rows, classes) or (classes,), `target` holds classes as int64. z_loss *
    lse**2 is added to the loss of each row, where lse = log(sum(exp(logits))). The loss reads the
    logits once, the gradient once more; two floats per row are kept in between. Computed in float32
    and rounded to the dtype of the logits, as in PyTorch; float32 under autocast, without a copy.

    A target that is neither a class nor `ignore_index` gives NaN; in PyTorch it is a device-side
    assertion. PyTorch itself computes other shapes, dtypes and devices, and targets that are
    probabilities. Raises `ValueError` for a reduction other than mean, sum and none, `Refused` for
    logits that no kernel accepts, for example on a GPU older than 7.5, `CudaError`, and what
    PyTorch raises.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be mean, sum or none, got {reduction!r}")
    if not (
        _supported(logits, target)
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
        return _as_operator(x, dim, log)
    return _eager(x, dim, log)


def _as_operator(x: Tensor, dim: int, log: bool) -> Tensor:
    """Return softmax through PyTorch's dispatcher, which informs modes, compilers and autograd."""
    if not (_supported(x) and -x.dim() <= dim < x.dim()):
        return _builtin(log)(x, dim)
    if _autocast("cuda"):
        x = x.float()  # as torch.softmax does there
    return _operator("log_softmax" if log else "softmax")(x, dim)


def _builtin(log: bool) -> Callable[[Tensor, int], Tensor]:
    return torch.log_softmax if log else torch.softmax


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


# ---- fallbacks to PyTorch's operations -----------------------------------------------------------


def _composed(
    x: Tensor, mask: Tensor | None, bias: Tensor | None, scale, causal, log, dtype
) -> Tensor:
    """Return `scaled_masked_softmax` without dropout, by PyTorch's operations."""
    z = x if scale == 1 else x * scale
    z = z if bias is None else z + bias
    z = z if mask is None else z.masked_fill(mask, -torch.inf)
    z = z.masked_fill(_causal_mask(x), -torch.inf) if causal else z
    return _builtin(log)(z, -1, dtype)


def _causal_mask(x: Tensor) -> Tensor:
    """Return the causal mask of the last two dimensions: True for columns after the row's number.
    x with one dimension is the first row."""
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
        raise ValueError("z_loss needs a target of classes, not of probabilities")
    more = torch.logsumexp(x.float(), 1 if x.dim() > 1 else 0) ** 2 * z_loss
    more = torch.where(target != ignore, more, 0)  # not a product: ignored rows may be inf
    if reduction == "none":
        return loss + more.to(loss.dtype)
    more = more.sum() / (target != ignore).sum() if reduction == "mean" else more.sum()
    return loss + more.to(loss.dtype)


# ---- eager calls ---------------------------------------------------------------------------------

Call = Callable[[Tensor, int], Tensor]  # takes a tensor and its address
_calls: dict[tuple, Call] = {}


def _eager(x: Tensor, dim: int, log: bool) -> Tensor:
    try:
        address = x.data_ptr()
        key = x.shape, x.is_contiguous() or x.stride(), x.dtype, x.device, address & 15, dim, log
    except RuntimeError:  # nested, sparse, or in another library's layout
        return _builtin(log)(x, dim)
    return (_calls.get(key) or _new_call(key, x, dim, log))(x, address)


def _new_call(key: tuple, x: Tensor, dim: int, log: bool) -> Call:
    """Return the function that computes softmax of tensors like x, and keep it."""
    call = _call_for(x, dim, log)
    if len(_calls) >= MAX_CALLS:  # the shapes keep changing
        _calls.clear()
    _calls[key] = call
    return call


def _call_for(x: Tensor, dim: int, log: bool) -> Call:
    builtin = _builtin(log)
    if not (x.is_cuda and x.dtype in DTYPES and -x.dim() <= dim < x.dim()):
        return lambda x, address: builtin(x, dim)
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
                launch = device(index).launch(*matrix, strides, starts, _graph_workspace)
        except Refused:  # too many rows, an old GPU, or a logarithm of short rows
            return lambda x, address: builtin(x, dim)
    if not _is_packed(x) if log or inner > 1 else stride is None:
        return lambda x, address: _eager(_packed(x), dim, log)
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
        launch(start, address, current_stream(index), *others)
        return y

    return call


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _is_packed(x: Tensor) -> bool:
    """Return whether a tensor is contiguous and aligned to 16 bytes."""
    return x.is_contiguous() and x.data_ptr() % 16 == 0


def _packed(x: Tensor) -> Tensor:
    """Return x, or a copy, contiguous and aligned to 16 bytes."""
    return x if _is_packed(x) else x.clone(memory_format=torch.contiguous_format)


def _graph_workspace(size: int) -> tuple[int, Tensor]:
    """Allocate bytes from the memory of the graph being captured, cleared at each replay."""
    zeros = torch.zeros(size, dtype=torch.uint8, device="cuda")
    return zeros.data_ptr(), zeros


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
