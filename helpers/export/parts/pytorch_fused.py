"""Fused and related operations for PyTorch tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .launching import device
from .layouts import broadcasts, diagonal_of, rows_of
from .planning import Refused
from .pytorch import (
    DTYPES,
    NAME,
    _autocast,
    _eager,
    _fake_softmax,
    _keep_softmax,
    _launch,
    _like,
    _operator,
    _packed,
    _register,
    _run_softmax,
    _softmax,
    _supported,
)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return torch.log_softmax(x, dim), computed by a kernel along the last dimension if a row has
    1 KB or more and consists of whole packs of 16 bytes, and by PyTorch otherwise. Everything else
    is as for `softmax`.
    """
    return _softmax(x, dim, torch.log_softmax)


def scaled_masked_softmax(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    bias: Tensor | None = None,
    is_causal: bool = False,
    diagonal: int = 0,
    log: bool = False,
    zero_masked_rows: bool = False,
    dropout_p: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return softmax of scale * x + bias along the last dimension, without masked elements, in one
    pass:

        z = (scale * x + bias).masked_fill(mask, -inf)
        y = dropout(softmax(z, -1, dtype), dropout_p)      log_softmax if `log`

    `mask` is bool and, as in `masked_fill`, True for elements to hide; `bias` has the dtype of x.
    Both broadcast to the shape of x, without a copy for up to four dimensions whose last is that of
    x: one mask of shape (batch, 1, queries, keys) serves all heads. `is_causal` hides elements
    above a diagonal of the last two dimensions, as torch.tril(x, diagonal) does: with 0, query 0
    sees key 0, and with keys - queries, the last query sees the last key. `dtype` may be
    torch.float32 for 16-bit x, and is under autocast.

    A fully masked row gives NaN, as in PyTorch, or 0 with `zero_masked_rows`. Then its gradient is
    0. That of NaN may be NaN, where PyTorch's masked_fill gives 0; the gradient of the logarithm is
    0 here as well.

    Computed by a kernel if a row has 1 KB or more and consists of whole packs of 16 bytes, on a GPU
    of compute capability 9.0 or newer, and otherwise by PyTorch's operations in turn. There are
    gradients with respect to x and bias, as for `softmax`. Dropout is fused too: the kernel rounds
    the probability down to a multiple of 1/65536, stores no mask, and takes its seed from PyTorch's
    CPU generator. In a CUDA graph dropout is an error, because each replay would drop the same
    elements. Dropout of a logarithm is PyTorch's.

    Raises `TypeError` for a mask that is not bool, `ValueError` for a mask or a bias that does not
    broadcast to x, for a diagonal other than 0 without `is_causal` and for rows of zeros of a
    logarithm, `RuntimeError` for dropout in a graph, and what `softmax` raises.
    """
    if log and zero_masked_rows:
        raise ValueError("log and zero_masked_rows exclude each other: the logarithm of 0 is -inf")
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be bool, True for elements to hide, got {mask.dtype}; numbers go into bias"
        )
    for name, given in (("mask", mask), ("bias", bias)):
        if given is not None and not broadcasts(given.shape, x.shape):
            shapes = f"{tuple(given.shape)} cannot be broadcast to {tuple(x.shape)}"
            raise ValueError(f"{name} of shape {shapes}")
    below = diagonal_of(is_causal, diagonal)
    if not (
        _supported(x, mask, bias)
        and (bias is None or bias.dtype == x.dtype)
        and dtype in (None, x.dtype, torch.float32)
        and 0 <= dropout_p < 1
    ):
        y = _composed(x, mask, bias, scale, below, log, zero_masked_rows, dtype)
        return functional.dropout(y, dropout_p) if dropout_p else y
    wide = x.dtype != torch.float32 and (dtype == torch.float32 or _autocast("cuda"))
    inside = dropout_p > 0 and not log
    seed = torch.randint(2**62, (), device="cpu") if inside else None
    options = float(scale), below, log, zero_masked_rows, wide, dropout_p if inside else 0.0
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


def cross_entropy_with_gradient(
    logits: Tensor,
    target: Tensor,
    dloss: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, in float32, and the gradient of (dloss * loss).sum() with
    respect to the logits. Both come from one read of the logits, but dloss must be known first:

        share = (target != -100) / (target != -100).sum()
        losses, dlogits = cross_entropy_with_gradient(logits, target, share)
        logits.backward(dlogits)  # as (share * losses).sum().backward() does

    `dloss` has the shape of target, in float32; the rest is as for `cross_entropy`. Neither result
    has a gradient. Rows that no cluster of blocks can hold are read twice. Raises `ValueError` for
    other shapes and dtypes and for tensors that are not on one GPU, and what `cross_entropy`
    raises.
    """
    if not _supported(logits, target, dloss):
        raise ValueError(
            f"logits must be {', '.join(DTYPES.values())}, with one dimension or more, and on the "
            f"GPU of target and dloss, got {logits.dtype}, {logits.dim()} dimensions, and "
            f"{logits.device}, {target.device} and {dloss.device}"
        )
    wanted = (target.shape == dloss.shape == logits.shape[:-1], 0 <= label_smoothing <= 1)
    if not all(wanted) or (target.dtype, dloss.dtype) != (torch.int64, torch.float32):
        raise ValueError(
            "target must be int64 and dloss float32, both in the shape of the rows of logits, and "
            f"label_smoothing 0 to 1, got {target.dtype}, {dloss.dtype}, {tuple(target.shape)}, "
            f"{tuple(dloss.shape)}, {tuple(logits.shape)} and {label_smoothing}"
        )
    options = ignore_index, float(label_smoothing), float(z_loss)
    given = logits.detach(), target, dloss.detach()
    return _operator("cross_entropy_with_gradient")(*given, *options)


# ---- fallbacks to PyTorch's operations -----------------------------------------------------------


def _composed(
    x: Tensor, mask: Tensor | None, bias: Tensor | None, scale, diagonal, log, zero, dtype
) -> Tensor:
    """Return `scaled_masked_softmax` without dropout, by PyTorch's operations; `diagonal` is None
    without a causal mask."""
    z = x if scale == 1 else x * scale
    z = z if bias is None else z + bias
    mask = _with_causal(mask, x, diagonal)
    z = z if mask is None else z.masked_fill(mask, -torch.inf)
    if zero:
        empty = (z == -torch.inf).all(-1, keepdim=True)
        return torch.softmax(z.masked_fill(empty, 0), -1, dtype).masked_fill(empty, 0)
    return (torch.log_softmax if log else torch.softmax)(z, -1, dtype)


def _with_causal(mask: Tensor | None, x: Tensor, diagonal: int | None) -> Tensor | None:
    """Return a mask that hides elements above a diagonal of the last two dimensions too. x with one
    dimension is the first row."""
    if diagonal is None:
        return mask
    queries = x.shape[-2] if x.dim() > 1 else 1
    above = torch.ones(queries, x.shape[-1], dtype=torch.bool, device=x.device).triu(diagonal + 1)
    above = above if x.dim() > 1 else above[0]
    return above if mask is None else mask | above


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


# ---- operators: softmax, its logarithm, and their gradient ---------------------------------------


def _run(
    operation: str, first: Tensor, second: Tensor, features: dict, given: dict, dim: int = -1
) -> None:
    """Launch an operation on the rows of `first`: the kernel takes the addresses of both tensors,
    and those and the numbers of `given` by name. Raises `Refused`."""
    launch = _launch(first, operation, dim, features, " ".join(given))
    with torch.cuda.device(first.device):
        stream = torch._C._cuda_getCurrentRawStream(first.device.index)
        values = (v.data_ptr() if isinstance(v, Tensor) else v for v in given.values())
        launch(first.data_ptr(), second.data_ptr(), stream, *values)


def _softmax_gradient(ctx, dy: Tensor) -> tuple:
    (y,) = ctx.saved_tensors
    return _backward(y, dy, ctx.dim), None


def _backward(y: Tensor, dy: Tensor, dim: int = -1, **options) -> Tensor:
    """Return what `_run_backward` does by its operator; options that are not given are neutral."""
    neutral = {"mask": None, "diagonal": None, "scale": 1.0, "log": False, "from_x": False}
    neutral |= {"wide": False, "p": 0.0, "seed": None}
    return _operator("softmax_backward")(y, dy, dim, *(neutral | options).values())


def _run_backward(
    y: Tensor, dy: Tensor, dim: int, mask, diagonal, scale, log, from_x, wide, p, seed
) -> Tensor:
    """Return the gradient with respect to x, given y = softmax(scale * x), or its logarithm, and
    dy. With `from_x`, y is the argument of softmax before the mask; with `wide`, x has 16 bits
    although y has not; elements were dropped with probability p. Elements that `mask` hides, or
    that are above a diagonal, have no gradient."""
    y, dy = _packed(y), _packed(dy)
    if y.numel() == 0:
        return _like(y)
    drops = p > 0 and _drops(y, "float16" if wide else DTYPES[y.dtype], wide)
    features = {"LOG": int(log), "FROM_X": int(from_x), "DROPOUT": int(drops)}
    if p and not drops:
        dy = _dropped(dy, p, seed)
    dx = _like(y)
    given = {"dx": dx, "scale": scale} | ({"p": p, "seed": int(seed)} if drops else {})
    given |= _mask(mask, diagonal, y, features)
    try:
        _run("softmax_backward", y, dy, features, given, dim)
    except Refused:  # another dimension, or a feature for rows that are not whole packs or too long
        if drops:
            raise
        if from_x:
            zero = features["MASK"] > 0
            y = _composed(y, mask, None, 1, diagonal, False, zero, None)
        own = torch._log_softmax_backward_data if log else torch._softmax_backward_data
        dx = own(dy, y, dim, y.dtype)
        return dx if scale == 1 else dx * scale
    return dx


def _mask(mask: Tensor | None, diagonal: int | None, x: Tensor, features: dict) -> dict:
    """Set the feature of a mask, a causal one or both, and return what the kernel takes for it."""
    features["MASK"] = 1 if mask is not None else 2 * (diagonal is not None)
    if mask is not None:
        return _rows("mask", _with_causal(mask, x, diagonal), x)
    if diagonal is not None:
        queries = x.shape[-2] if x.dim() > 1 else 1
        return {"mask_rows": queries, "mask_repeat": 1, "diagonal": diagonal}
    return {}


def _rows(name: str, given: Tensor, x: Tensor) -> dict:
    """Return the rows of a mask or a bias, and the numbers that place them."""
    kept, numbers = rows_of(name, given.shape, x.shape)
    return {name: _packed(given.expand(kept))} | numbers


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


def _fake_like(x: Tensor, *_) -> Tensor:
    return _like(x)


def _no_second_derivative(ctx, *_) -> None:
    raise NotImplementedError(
        f"{NAME} has no second derivative, because its gradients are kernels; torch.softmax and "
        "torch.nn.functional.cross_entropy have one"
    )


def _run_log_softmax(x: Tensor, dim: int) -> Tensor:
    return _eager(x, dim, torch.log_softmax)


def _log_softmax_gradient(ctx, dy: Tensor) -> tuple:
    (y,) = ctx.saved_tensors
    return _backward(y, dy, ctx.dim, log=True), None


# ---- operators: fused softmax --------------------------------------------------------------------


def _run_fused(
    x: Tensor, mask, bias, scale: float, diagonal, log: bool, zero: bool, wide: bool, p: float, seed
) -> Tensor:
    if p and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{NAME} does not support dropout in a CUDA graph, which would drop the same elements "
            "at each replay"
        )
    y = torch.empty(x.shape, dtype=torch.float32 if wide else x.dtype, device=x.device)
    if x.numel() == 0:
        return y
    drops = p > 0 and _drops(x, DTYPES[x.dtype], wide)
    features = {"BIAS": int(bias is not None), "LOG": int(log), "ZERO": int(zero)}
    features |= {"WIDE": int(wide), "DROPOUT": int(drops)}
    given = {"scale": scale} | _mask(mask, diagonal, x, features)
    given |= {} if bias is None else _rows("bias", bias, x)
    given |= {"p": p, "seed": int(seed)} if drops else {}
    try:
        _run("scaled_softmax", _packed(x), y, features, given)
    except Refused:  # rows that are short, too long or not whole packs, or an old GPU
        if drops:
            raise
        y = _composed(x, mask, bias, scale, diagonal, log, zero, y.dtype).contiguous()
    return _dropped(y, p, seed) if p and not drops else y


def _fake_fused(x, mask, bias, scale, diagonal, log, zero, wide, p, seed) -> Tensor:
    _fake_softmax(x, -1)
    return x.new_empty(x.shape, dtype=torch.float32 if wide else x.dtype)


def _keep_fused(ctx, inputs: tuple, output: Tensor) -> None:
    x, mask, bias, ctx.scale, ctx.diagonal, ctx.log, ctx.zero, ctx.wide, ctx.p, seed = inputs
    ctx.dtype, ctx.bias_shape = x.dtype, None if bias is None else bias.shape
    ctx.save_for_backward(x if ctx.p else output, mask, seed, bias if ctx.p else None)


def _fused_gradient(ctx, dy: Tensor) -> tuple:
    y, mask, seed, bias = ctx.saved_tensors
    by_bias, scale = ctx.needs_input_grad[2], ctx.scale
    options = {"scale": 1.0 if by_bias else scale, "log": ctx.log, "wide": ctx.wide}
    if not ctx.log:
        options["diagonal"] = ctx.diagonal
    if ctx.p:  # y is x: the result was not kept, and softmax cannot be recovered from it
        # From x without a mask, the gradient of a row of -inf is NaN, like its softmax.
        zero_unmasked = ctx.zero and mask is None and ctx.diagonal is None
        from_x = bias is None and not ctx.wide and scale == 1 and not zero_unmasked
        options |= {"p": ctx.p, "seed": seed, "from_x": from_x}
        if from_x:
            options["mask"] = mask
        else:
            given = scale, ctx.diagonal, False, ctx.zero, ctx.wide, 0.0, None
            y = _operator("scaled_masked_softmax")(y, mask, bias, *given)
    dx = _backward(y, dy, **options).to(ctx.dtype)
    hidden = _with_causal(mask, dx, ctx.diagonal) if ctx.log else None
    dx = dx if hidden is None else dx.masked_fill(hidden, 0)
    dbias = dx.sum_to_size(ctx.bias_shape) if by_bias else None
    if by_bias and scale != 1:
        dx = dx * scale
    return dx, None, dbias, *[None] * 7


# ---- operators: cross-entropy --------------------------------------------------------------------


def _run_loss(
    x: Tensor, target: Tensor, ignore_index: int, smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and its statistics: the maximum m and log(sum(exp(x - m)))."""
    loss, statistics = _fake_loss(x, target)
    if x.numel() == 0:  # without columns no target is a class
        loss = loss.fill_(0).masked_fill(target != ignore_index, torch.nan)
        return loss, statistics.fill_(-torch.inf)
    given = {"loss": loss, "statistics": statistics, "ignore_index": ignore_index}
    given |= {"smoothing": smoothing, "z_loss": z_loss}
    _run("cross_entropy", x.contiguous(), _packed(target), {}, given)
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
        given = {"statistics": _packed(statistics), "dloss": _packed(dloss), "dx": dx}
        given |= {"ignore_index": ignore_index, "smoothing": smoothing, "z_loss": z_loss}
        _run("cross_entropy_backward", x.contiguous(), _packed(target), {}, given)
    return dx


def _run_loss_and_gradient(
    x: Tensor, target: Tensor, dloss: Tensor, ignore_index: int, smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    loss, dx = _fake_loss_and_gradient(x)
    given = {"dloss": _packed(dloss), "loss": loss, "dx": dx, "ignore_index": ignore_index}
    given |= {"smoothing": smoothing, "z_loss": z_loss}
    try:
        if x.numel():
            first = x.contiguous()
            _run("cross_entropy_loss_and_gradient", first, _packed(target), {}, given)
            return loss, dx
    except Refused:  # rows that no cluster can hold
        pass
    options = ignore_index, smoothing, z_loss
    loss, statistics = _run_loss(x, target, *options)
    return loss, _run_loss_backward(x, target, statistics, dloss, *options)


def _fake_loss_and_gradient(x: Tensor, *_) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[:-1], dtype=torch.float32), _like(x)


def _keep_loss(ctx, inputs: tuple, output: tuple) -> None:
    x, target, *ctx.options = inputs
    ctx.save_for_backward(x, target, output[1])
    ctx.mark_non_differentiable(output[1])


def _loss_gradient(ctx, dloss: Tensor, _) -> tuple:
    x, target, statistics = ctx.saved_tensors
    dx = _operator("cross_entropy_backward")(x, target, statistics, dloss, *ctx.options)
    return dx, None, None, None, None


# For operators that are gradients: nothing is kept, and a second derivative is an error.
_OF_GRADIENTS = (lambda ctx, inputs, output: None), _no_second_derivative
_register(
    "softmax(Tensor x, int dim) -> Tensor",
    *(_run_softmax, _fake_softmax, _keep_softmax, _softmax_gradient),
)
_register(
    "softmax_backward(Tensor y, Tensor dy, int dim, Tensor? mask, int? diagonal, float scale, "
    "bool log, bool from_x, bool wide, float p, Tensor? seed) -> Tensor",
    *(_run_backward, _fake_like, *_OF_GRADIENTS),
)
_LOSS = "int ignore_index, float smoothing, float z_loss"
_register(
    "log_softmax(Tensor x, int dim) -> Tensor",
    *(_run_log_softmax, _fake_softmax, _keep_softmax, _log_softmax_gradient),
)
_register(
    "scaled_masked_softmax(Tensor x, Tensor? mask, Tensor? bias, float scale, int? diagonal, "
    "bool log, bool zero, bool wide, float p, Tensor? seed) -> Tensor",
    *(_run_fused, _fake_fused, _keep_fused, _fused_gradient),
)
_register(
    f"cross_entropy(Tensor x, Tensor target, {_LOSS}) -> (Tensor loss, Tensor statistics)",
    *(_run_loss, _fake_loss, _keep_loss, _loss_gradient),
)
_register(
    "cross_entropy_backward(Tensor x, Tensor target, Tensor statistics, Tensor dloss, "
    f"{_LOSS}) -> Tensor",
    *(_run_loss_backward, _fake_like, *_OF_GRADIENTS),
)
_register(
    f"cross_entropy_with_gradient(Tensor x, Tensor target, Tensor dloss, {_LOSS}) -> "
    "(Tensor loss, Tensor dx)",
    *(_run_loss_and_gradient, _fake_loss_and_gradient, *_OF_GRADIENTS),
)
