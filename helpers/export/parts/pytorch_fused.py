"""Fused and related operations for PyTorch tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .launching import bits_of, device
from .layouts import broadcasts, diagonal_of, rows_of
from .planning import Refused
from .pytorch import (
    DTYPES,
    NAME,
    Options,
    _autocast,
    _fake_softmax,
    _launch,
    _like,
    _operator,
    _packed,
    _register,
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
    o = Options(mask, bias, scale, diagonal_of(is_causal, diagonal), log, zero_masked_rows)
    if not (
        _supported(x, mask, bias)
        and (bias is None or bias.dtype == x.dtype)
        and dtype in (None, x.dtype, torch.float32)
        and 0 <= dropout_p < 1
    ):
        y = _composed(x, o, dtype)
        return functional.dropout(y, dropout_p) if dropout_p else y
    wide = x.dtype != torch.float32 and (dtype == torch.float32 or _autocast("cuda"))
    inside = dropout_p > 0 and not log
    seed = torch.randint(2**62, (), device="cpu") if inside else None
    p = dropout_p if inside else 0.0  # a new tuple: PyTorch up to 2.8 cannot compile _replace
    o = Options(mask, bias, float(scale), o.diagonal, log, zero_masked_rows, wide, p, seed)
    y = _operator("scaled_masked_softmax")(x, *o)
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


def _composed(x: Tensor, o: Options, dtype: torch.dtype | None = None) -> Tensor:
    """Return softmax with options other than dropout, by PyTorch's operations."""
    z = x if o.scale == 1 else x * o.scale
    z = z if o.bias is None else z + o.bias
    mask = _with_causal(o.mask, x, o.diagonal)
    z = z if mask is None else z.masked_fill(mask, -torch.inf)
    if o.zero:
        empty = (z == -torch.inf).all(-1, keepdim=True)
        return torch.softmax(z.masked_fill(empty, 0), -1, dtype).masked_fill(empty, 0)
    return (torch.log_softmax if o.log else torch.softmax)(z, -1, dtype)


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


# ---- operators: fused softmax, and the gradient of softmax --------------------------------------


def _run(
    operation: str, first: Tensor, second: Tensor, features: dict, given: dict, dim: int = -1
) -> None:
    """Launch an operation on the rows of `first`: the kernel takes the addresses of both tensors,
    and those and the numbers of `given` by name. Raises `Refused`."""
    launch = _launch(first, operation, dim, features, " ".join(given))
    with torch.cuda.device(first.device):
        stream = torch._C._cuda_getCurrentRawStream(first.device.index)
        values = (first, second, *given.values())
        launch(stream, *(v.data_ptr() if isinstance(v, Tensor) else bits_of(v) for v in values))


def _run_fused(x: Tensor, *options) -> Tensor:
    o = Options(*options)
    if o.p and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{NAME} does not support dropout in a CUDA graph, which would drop the same elements "
            "at each replay"
        )
    y = _like(x, torch.float32 if o.wide else None)
    if x.numel() == 0:
        return y
    drops = o.p > 0 and _drops(x, DTYPES[x.dtype], o.wide)
    features = {"BIAS": int(o.bias is not None), "LOG": int(o.log), "ZERO": int(o.zero)}
    features |= {"WIDE": int(o.wide), "DROPOUT": int(drops)}
    given = {"scale": o.scale} | _mask(o, x, features)
    given |= {} if o.bias is None else _rows("bias", o.bias, x)
    given |= {"p": o.p, "seed": int(o.seed)} if drops else {}
    try:
        _run("scaled_softmax", _packed(x), y, features, given)
    except Refused:  # rows that are short, too long or not whole packs, or an old GPU
        if drops:
            raise
        y = _composed(x, o, y.dtype).contiguous()
    return _dropped(y, o) if o.p and not drops else y


def _fake_fused(x: Tensor, *options) -> Tensor:
    return _like(_fake_softmax(x), torch.float32 if Options(*options).wide else None)


def _keep_fused(ctx, inputs: tuple, output: Tensor) -> None:
    x, *options = inputs
    o = Options(*options)
    ctx.dtype, ctx.bias_shape = x.dtype, None if o.bias is None else o.bias.shape
    ctx.options = o._replace(mask=None, bias=None, seed=None)
    ctx.save_for_backward(x if o.p else output, o.mask, o.bias if o.p else None, o.seed)


def _fused_gradient(ctx, dy: Tensor) -> tuple:
    y, mask, bias, seed = ctx.saved_tensors
    o, by_bias = ctx.options._replace(mask=mask, bias=bias, seed=seed), ctx.needs_input_grad[2]
    back = o._replace(mask=None, bias=None, scale=1.0 if by_bias else o.scale)
    if o.log:
        back = back._replace(diagonal=None)
    if o.p:  # y is x: the result was not kept, and softmax cannot be recovered from it
        # From x without a mask, the gradient of a row of -inf is NaN, like its softmax.
        zero_unmasked = o.zero and mask is None and o.diagonal is None
        if bias is None and not o.wide and o.scale == 1 and not zero_unmasked:
            back = back._replace(mask=mask, from_x=True)
        else:
            y = _operator("scaled_masked_softmax")(y, *o._replace(p=0.0, seed=None))
    dx = _operator("softmax_backward")(y, dy, -1, *back).to(ctx.dtype)
    hidden = _with_causal(mask, dx, o.diagonal) if o.log else None
    dx = dx if hidden is None else dx.masked_fill(hidden, 0)
    dbias = dx.sum_to_size(ctx.bias_shape) if by_bias else None
    if by_bias and o.scale != 1:
        dx = dx * o.scale
    return dx, None, dbias, *[None] * (len(Options._fields) - 2)


def _run_backward(y: Tensor, dy: Tensor, dim: int, *options) -> Tensor:
    """Return the gradient with respect to x, given y = softmax(scale * x), or its logarithm, and
    dy. Elements that are masked or above a diagonal have no gradient."""
    o, y, dy = Options(*options), _packed(y), _packed(dy)
    if y.numel() == 0:
        return _like(y)
    drops = o.p > 0 and _drops(y, "float16" if o.wide else DTYPES[y.dtype], o.wide)
    features = {"LOG": int(o.log), "FROM_X": int(o.from_x), "DROPOUT": int(drops)}
    if o.p and not drops:
        dy = _dropped(dy, o)
    dx = _like(y)
    given = {"dx": dx, "scale": o.scale} | ({"p": o.p, "seed": int(o.seed)} if drops else {})
    given |= _mask(o, y, features)
    try:
        _run("softmax_backward", y, dy, features, given, dim)
    except Refused:  # another dimension, or a feature for rows that are not whole packs or too long
        if drops:
            raise
        if o.from_x:
            y = _composed(y, Options(o.mask, diagonal=o.diagonal, zero=features["MASK"] > 0))
        own = torch._log_softmax_backward_data if o.log else torch._softmax_backward_data
        dx = own(dy, y, dim, y.dtype)
        return dx if o.scale == 1 else dx * o.scale
    return dx


def _mask(o: Options, x: Tensor, features: dict) -> dict:
    """Set the feature of a mask, a causal one or both, and return what the kernel takes for it."""
    features["MASK"] = 1 if o.mask is not None else 2 * (o.diagonal is not None)
    if o.mask is not None:
        return _rows("mask", _with_causal(o.mask, x, o.diagonal), x)
    if o.diagonal is not None:
        queries = x.shape[-2] if x.dim() > 1 else 1
        return {"mask_rows": queries, "mask_repeat": 1, "diagonal": o.diagonal}
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


def _dropped(y: Tensor, o: Options) -> Tensor:
    """Return y after dropout by PyTorch, the same for the same seed and shape."""
    generator = torch.Generator(y.device).manual_seed(int(o.seed))
    kept = torch.rand(y.shape, generator=generator, device=y.device, dtype=torch.float32) >= o.p
    return y * kept / (1 - o.p)


def _fake_like(x: Tensor, *_) -> Tensor:
    return _like(x)


def _no_second_derivative(ctx, *_) -> None:
    raise NotImplementedError(
        f"{NAME} has no second derivative, because its gradients are kernels; torch.softmax and "
        "torch.nn.functional.cross_entropy have one"
    )


# For operators that are gradients: nothing is kept, and a second derivative is an error.
_OF_GRADIENTS = (lambda ctx, inputs, output: None), _no_second_derivative
_OPTIONS = ", ".join(
    f"{kind.__forward_arg__.replace(' | None', '?')} {name}"
    for name, kind in Options.__annotations__.items()
)
_register(
    f"scaled_masked_softmax(Tensor x, {_OPTIONS}) -> Tensor",
    *(_run_fused, _fake_fused, _keep_fused, _fused_gradient),
)
_register(
    f"softmax_backward(Tensor y, Tensor dy, int dim, {_OPTIONS}) -> Tensor",
    *(_run_backward, _fake_like, *_OF_GRADIENTS),
)


# ---- operators: cross-entropy --------------------------------------------------------------------


def _run_of_loss(operation: str, x: Tensor, target: Tensor, numbers: tuple, **arrays) -> None:
    """Launch a loss or its gradient. Raises `Refused`."""
    given = arrays | dict(zip(("ignore_index", "smoothing", "z_loss"), numbers, strict=True))
    _run(operation, x.contiguous(), _packed(target), {}, given)


def _run_loss(x: Tensor, target: Tensor, *numbers) -> tuple[Tensor, Tensor]:
    """Return the loss of each row, and its statistics: the maximum m and log(sum(exp(x - m)))."""
    loss, statistics = _fake_loss(x, target)
    if x.numel() == 0:  # without columns no target is a class
        loss = loss.fill_(0).masked_fill(target != numbers[0], torch.nan)
        return loss, statistics.fill_(-torch.inf)
    _run_of_loss("cross_entropy", x, target, numbers, loss=loss, statistics=statistics)
    return loss, statistics


def _fake_loss(x: Tensor, *_) -> tuple[Tensor, Tensor]:
    rows = x.shape[:-1]
    return tuple(x.new_empty(shape, dtype=torch.float32) for shape in (rows, (*rows, 2)))


def _run_loss_backward(
    x: Tensor, target: Tensor, statistics: Tensor, dloss: Tensor, *numbers
) -> Tensor:
    if statistics.shape != (*target.shape, 2):
        raise ValueError(
            "the gradient of cross-entropy needs both statistics per row, of shape "
            f"{(*target.shape, 2)}, not {tuple(statistics.shape)}; their sum lse is not enough"
        )
    dx = _like(x)
    if x.numel():
        arrays = {"statistics": _packed(statistics), "dloss": _packed(dloss), "dx": dx}
        _run_of_loss("cross_entropy_backward", x, target, numbers, **arrays)
    return dx


def _run_loss_and_gradient(
    x: Tensor, target: Tensor, dloss: Tensor, *numbers
) -> tuple[Tensor, Tensor]:
    loss, dx = _fake_loss_and_gradient(x)
    try:
        if x.numel():
            arrays = {"dloss": _packed(dloss), "loss": loss, "dx": dx}
            _run_of_loss("cross_entropy_loss_and_gradient", x, target, numbers, **arrays)
            return loss, dx
    except Refused:  # rows that no cluster can hold
        pass
    loss, statistics = _run_loss(x, target, *numbers)
    return loss, _run_loss_backward(x, target, statistics, dloss, *numbers)


def _fake_loss_and_gradient(x: Tensor, *_) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[:-1], dtype=torch.float32), _like(x)


def _keep_loss(ctx, inputs: tuple, output: tuple) -> None:
    x, target, *ctx.numbers = inputs
    ctx.save_for_backward(x, target, output[1])
    ctx.mark_non_differentiable(output[1])


def _loss_gradient(ctx, dloss: Tensor, _) -> tuple:
    x, target, statistics = ctx.saved_tensors
    dx = _operator("cross_entropy_backward")(x, target, statistics, dloss, *ctx.numbers)
    return dx, None, None, None, None


_NUMBERS = "int ignore_index, float smoothing, float z_loss"
_register(
    f"cross_entropy(Tensor x, Tensor target, {_NUMBERS}) -> (Tensor loss, Tensor statistics)",
    *(_run_loss, _fake_loss, _keep_loss, _loss_gradient),
)
_register(
    "cross_entropy_backward(Tensor x, Tensor target, Tensor statistics, Tensor dloss, "
    f"{_NUMBERS}) -> Tensor",
    *(_run_loss_backward, _fake_like, *_OF_GRADIENTS),
)
_register(
    f"cross_entropy_with_gradient(Tensor x, Tensor target, Tensor dloss, {_NUMBERS}) -> "
    "(Tensor loss, Tensor dx)",
    *(_run_loss_and_gradient, _fake_loss_and_gradient, *_OF_GRADIENTS),
)
