"""The custom operators: their implementations on CUDA and on fake tensors, and their gradients."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from .launching import Launch, device
from .layouts import rows_of
from .planning import Refused
from .pytorch import (
    DTYPES,
    NAME,
    OPERATORS,
    _causal_mask,
    _composed,
    _eager,
    _like,
    _operator,
    _packed,
)


def _launch(x: Tensor, operation: str, dim: int, features: dict[str, int], given: str) -> Launch:
    """Return the launch of an operation on rows like those of x. Raises `Refused`."""
    cols, inner = x.shape[dim], prod(x.shape[dim:][1:])
    matrix = x.numel() // cols, cols, DTYPES[x.dtype]
    options = {"features": tuple(features.items()), "given": tuple(given.split())}
    return device(x.device.index).launch(*matrix, operation=operation, inner=inner, **options)


def _stream(x: Tensor) -> int:
    return torch._C._cuda_getCurrentRawStream(x.device.index)


# ---- softmax -------------------------------------------------------------------------------------


def _run_softmax(x: Tensor, dim: int) -> Tensor:
    return _eager(x, dim, False)


def _run_log_softmax(x: Tensor, dim: int) -> Tensor:
    return _eager(x, dim, True)


def _fake_softmax(x: Tensor, dim: int) -> Tensor:
    if x.dtype not in DTYPES or x.dim() == 0:
        supported = ", ".join(DTYPES.values())
        raise TypeError(f"{NAME} needs rows of {supported}, got {x.dim()} dimensions of {x.dtype}")
    return _like(x)


def _keep_softmax(ctx, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.dim = inputs[1]


def _softmax_gradient(ctx, dy: Tensor) -> tuple:
    (y,) = ctx.saved_tensors
    return _operator("softmax_backward")(y, dy, ctx.dim, 1.0, *[False] * 3, 0.0, None), None


def _log_softmax_gradient(ctx, dy: Tensor) -> tuple:
    (y,) = ctx.saved_tensors
    return _operator("softmax_backward")(y, dy, ctx.dim, 1.0, True, False, False, 0.0, None), None


# ---- gradient of softmax -------------------------------------------------------------------------


def _run_backward(
    y: Tensor, dy: Tensor, dim: int, scale: float, log: bool, from_x: bool, wide: bool, p, seed
) -> Tensor:
    """Return the gradient with respect to x, given y = softmax(scale * x), or its logarithm, and
    dy. With `from_x`, y is the argument of softmax; with `wide`, x has 16 bits although y has not;
    elements were dropped with probability p."""
    y, dy = _packed(y), _packed(dy)
    if y.numel() == 0:
        return _like(y)
    drops = p > 0 and _drops(y, "float16" if wide else DTYPES[y.dtype], wide)
    features = {"LOG": int(log), "FROM_X": int(from_x), "DROPOUT": int(drops)}
    if p and not drops:
        dy = _dropped(dy, p, seed)
    given = "dx scale p seed" if drops else "dx scale"
    try:
        launch = _launch(y, "softmax_backward", dim, features, given)
    except Refused:  # another dimension, or rows that are not whole packs or too long
        if drops:
            raise
        y = torch.softmax(y, dim) if from_x else y
        builtin = torch._log_softmax_backward_data if log else torch._softmax_backward_data
        dx = builtin(dy, y, dim, y.dtype)
        return dx if scale == 1 else dx * scale
    with torch.cuda.device(y.device):
        dx = _like(y)
        addresses = y.data_ptr(), dy.data_ptr(), _stream(y), dx.data_ptr()
        launch(*addresses, scale, *((p, int(seed)) if drops else ()))
    return dx


def _fake_backward(y: Tensor, dy: Tensor, *_) -> Tensor:
    return _like(y)


# ---- fused softmax -------------------------------------------------------------------------------


def _run_fused(
    x: Tensor, mask, bias, scale: float, causal: bool, log: bool, wide: bool, p: float, seed
) -> Tensor:
    if p and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{NAME} does not support dropout in a CUDA graph, which would drop the same elements "
            "at each replay"
        )
    y = torch.empty(x.shape, dtype=torch.float32 if wide else x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    if causal and mask is not None:
        mask, causal = mask | _causal_mask(x), False
    drops = p > 0 and _drops(x, DTYPES[x.dtype], wide)
    features = {"MASK": 1 if mask is not None else 2 * causal, "BIAS": int(bias is not None)}
    features |= {"LOG": int(log), "WIDE": int(wide), "DROPOUT": int(drops)}
    numbers, arrays = {"scale": scale}, []
    if mask is not None:
        kept, numbers["mask_rows"], numbers["mask_repeat"] = rows_of(mask.shape, x.shape, True)
        hidden = _packed(mask.expand(*kept))
        numbers["mask"] = hidden.data_ptr()
        arrays.append(hidden)  # keeps it alive until the launch
    if causal:
        numbers |= {"mask_rows": x.shape[-2] if x.dim() > 1 else 1, "mask_repeat": 1}
    if bias is not None:
        kept, numbers["bias_rows"], _ = rows_of(bias.shape, x.shape, False)
        added = _packed(bias.expand(*kept))
        numbers["bias"] = added.data_ptr()
        arrays.append(added)
    if drops:
        numbers |= {"p": p, "seed": int(seed)}
    try:
        launch = _launch(x, "scaled_softmax", -1, features, " ".join(numbers))
    except Refused:  # rows that are short, too long or not whole packs, or an old GPU
        if drops:
            raise
        y = _composed(x, mask, bias, scale, causal, log, y.dtype).contiguous()
    else:
        x = _packed(x)
        with torch.cuda.device(x.device):
            launch(x.data_ptr(), y.data_ptr(), _stream(x), *numbers.values())
    return _dropped(y, p, seed) if p and not drops else y


def _drops(x: Tensor, dtype: str, wide: bool) -> bool:
    """Return whether kernels support dropout for rows like those of x in both the forward and the
    backward pass; `dtype` is that of the argument of softmax."""
    cols, on = x.shape[-1], device(x.device.index)
    matrix, back = (x.numel() // cols, cols), "float32" if wide else dtype
    try:
        on.launch(*matrix, dtype, features=(("DROPOUT", 1), ("WIDE", int(wide))))
        on.launch(*matrix, back, operation="softmax_backward", features=(("DROPOUT", 1),))
    except Refused:
        return False
    return True


def _dropped(y: Tensor, p: float, seed: Tensor) -> Tensor:
    """Return y after dropout by PyTorch, the same for the same seed and shape."""
    generator = torch.Generator(y.device).manual_seed(int(seed))
    kept = torch.rand(y.shape, generator=generator, device=y.device, dtype=torch.float32) >= p
    return y * kept / (1 - p)


def _fake_fused(x, mask, bias, scale, causal, log, wide, p, seed) -> Tensor:
    _fake_softmax(x, -1)
    return x.new_empty(x.shape, dtype=torch.float32 if wide else x.dtype)


def _keep_fused(ctx, inputs: tuple, output: Tensor) -> None:
    x, mask, bias, ctx.scale, ctx.causal, ctx.log, ctx.wide, ctx.p, seed = inputs
    ctx.dtype, ctx.bias_shape = x.dtype, None if bias is None else bias.shape
    ctx.save_for_backward(x if ctx.p else output, mask, seed, bias if ctx.p else None)


def _fused_gradient(ctx, dy: Tensor) -> tuple:
    y, mask, seed, bias = ctx.saved_tensors
    by_bias, scale, from_x = ctx.needs_input_grad[2], ctx.scale, False
    if ctx.p:  # y is x: the result was not kept, and softmax cannot be recovered from it
        from_x = mask is bias is None and not ctx.causal and not ctx.wide and scale == 1
        if not from_x:
            options = scale, ctx.causal, False, ctx.wide, 0.0, None
            y = _operator("scaled_masked_softmax")(y, mask, bias, *options)
    back = _operator("softmax_backward")
    options = ctx.log, from_x, ctx.wide, ctx.p, seed
    dx = back(y, dy, -1, 1.0 if by_bias else scale, *options).to(ctx.dtype)
    if ctx.log and mask is not None:
        dx = dx.masked_fill(mask, 0)
    if ctx.log and ctx.causal:
        dx = dx.masked_fill(_causal_mask(dx), 0)
    dbias = dx.sum_to_size(ctx.bias_shape) if by_bias else None
    if by_bias and scale != 1:
        dx = dx * scale
    return dx, None, dbias, *[None] * 6


# ---- cross-entropy -------------------------------------------------------------------------------


def _run_loss(
    x: Tensor, target: Tensor, ignore_index: int, smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and its statistics: the maximum m and log(sum(exp(x - m)))."""
    loss, statistics = _fake_loss(x, target)
    if x.numel() == 0:  # without columns no target is a class
        loss = loss.fill_(0).masked_fill(target != ignore_index, torch.nan)
        return loss, statistics.fill_(-torch.inf)
    given = "loss statistics ignore_index smoothing z_loss"
    launch = _launch(x, "cross_entropy", -1, {}, given)
    x, target = x.contiguous(), _packed(target)
    with torch.cuda.device(x.device):
        arrays = x.data_ptr(), target.data_ptr(), _stream(x), loss.data_ptr()
        launch(*arrays, statistics.data_ptr(), ignore_index, smoothing, z_loss)
    return loss, statistics


def _fake_loss(x: Tensor, target: Tensor, *_) -> tuple[Tensor, Tensor]:
    rows = x.shape[:-1]
    return tuple(x.new_empty(shape, dtype=torch.float32) for shape in (rows, (*rows, 2)))


def _run_loss_backward(
    x: Tensor, target: Tensor, statistics: Tensor, dloss: Tensor, ignore_index, smoothing, z_loss
) -> Tensor:
    if statistics.shape != (*target.shape, 2):
        raise ValueError(
            "the gradient of cross-entropy needs both statistics per row, of shape "
            f"{(*target.shape, 2)}, not {tuple(statistics.shape)}; their sum lse is not enough"
        )
    dx = _like(x)
    if x.numel():
        given = "statistics dloss dx ignore_index smoothing z_loss"
        launch = _launch(x, "cross_entropy_backward", -1, {}, given)
        x = x.contiguous()
        target, statistics, dloss = map(_packed, (target, statistics, dloss))
        with torch.cuda.device(x.device):
            arrays = x.data_ptr(), target.data_ptr(), _stream(x), statistics.data_ptr()
            launch(*arrays, dloss.data_ptr(), dx.data_ptr(), ignore_index, smoothing, z_loss)
    return dx


def _fake_loss_backward(x: Tensor, *_) -> Tensor:
    return _like(x)


def _keep_loss(ctx, inputs: tuple, output: tuple) -> None:
    x, target, *ctx.options = inputs
    ctx.save_for_backward(x, target, output[1])
    ctx.mark_non_differentiable(output[1])


def _loss_gradient(ctx, dloss: Tensor, _) -> tuple:
    x, target, statistics = ctx.saved_tensors
    dx = _operator("cross_entropy_backward")(x, target, statistics, dloss, *ctx.options)
    return dx, None, None, None, None


# ---- registration --------------------------------------------------------------------------------


def _keep_nothing(ctx, inputs: tuple, output: Tensor) -> None:
    pass


def _no_second_derivative(ctx, *_) -> None:
    raise NotImplementedError(
        f"{NAME} has no second derivative, because its gradients are kernels; torch.softmax and "
        "torch.nn.functional.cross_entropy have one"
    )


LOSS = "int ignore_index, float smoothing, float z_loss"
# schema, implementation on CUDA, on fake tensors, setup of the backward pass, gradient
_OPERATORS = (
    (
        "softmax(Tensor x, int dim) -> Tensor",
        *(_run_softmax, _fake_softmax, _keep_softmax, _softmax_gradient),
    ),
    (
        "log_softmax(Tensor x, int dim) -> Tensor",
        *(_run_log_softmax, _fake_softmax, _keep_softmax, _log_softmax_gradient),
    ),
    (
        "softmax_backward(Tensor y, Tensor dy, int dim, float scale, bool log, bool from_x, "
        "bool wide, float p, Tensor? seed) -> Tensor",
        *(_run_backward, _fake_backward, _keep_nothing, _no_second_derivative),
    ),
    (
        "scaled_masked_softmax(Tensor x, Tensor? mask, Tensor? bias, float scale, bool causal, "
        "bool log, bool wide, float p, Tensor? seed) -> Tensor",
        *(_run_fused, _fake_fused, _keep_fused, _fused_gradient),
    ),
    (
        f"cross_entropy(Tensor x, Tensor target, {LOSS}) -> (Tensor loss, Tensor statistics)",
        *(_run_loss, _fake_loss, _keep_loss, _loss_gradient),
    ),
    (
        "cross_entropy_backward(Tensor x, Tensor target, Tensor statistics, Tensor dloss, "
        f"{LOSS}) -> Tensor",
        *(_run_loss_backward, _fake_loss_backward, _keep_nothing, _no_second_derivative),
    ),
)

if not hasattr(
    getattr(torch.ops, OPERATORS), "softmax"
):  # else another copy of this file registered them
    _library = torch.library.Library(OPERATORS, "FRAGMENT")
    for _schema, _run, _fake, _keep, _gradient in _OPERATORS:
        _name = f"{OPERATORS}::{_schema.partition('(')[0]}"
        _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(_name, _run, "CUDA")
        torch.library.register_fake(_name, _fake, lib=_library)
        torch.library.register_autograd(_name, _gradient, setup_context=_keep, lib=_library)
