"""Launch a `cupy.RawKernel` that the reader compiled, with explicit grid, block and arguments.

The same notebook cell runs with and without a GPU: arguments are numpy arrays, and results are
written to them in place. If the source has a header, the launch is first checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral

import numpy as np

from .. import simt
from ..catalogue.header import header
from ..catalogue.plan import Header, Plan, integer
from .bound import kernel_of
from .execute import check_arguments, execute, execute_simulated


def launch(
    kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence,
    shared_mem: int = 0,
) -> simt.Trace | None:
    """Run a `cupy.RawKernel` once and wait for it to finish.

    `args` are numpy arrays and numbers in the order of the kernel's parameters; arrays passed as
    non-const pointers are written in place. `shared_mem` is the dynamic shared memory per block in
    bytes. A kernel with Strides in its header takes the row strides of x and y, in elements, after
    cols; the matrices must have these strides. A kernel with a Workspace in its header takes a
    zeroed array of that many bytes as its last argument.

    Returns the SIMT machine's trace in replay mode, None on a GPU.

    Raises `TypeError` or `ValueError` naming the argument that does not match the kernel's
    signature or header, `KernelBug` if a bug is found, and what `helpers.simt` or CuPy raise for
    source that does not compile.
    """
    plan = _checked(kernel, grid, block, args, shared_mem)
    return execute(kernel, plan, grid, block, args)


def simulate(
    kernel,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    args: Sequence,
    shared_mem: int = 0,
    **options,
) -> simt.Trace:
    """Run a kernel on the SIMT machine, even if there is a GPU, and return its trace.

    Arguments and exceptions are those of `launch`, except that bugs are in `trace.findings`.
    `watch=True` records every access and event of the kernel's own lines for `draw`, at most
    100,000 of them, so shapes must be small. Other `options` are also passed to `simt.simulate`:
    `instruction_limit`, beyond which a batch of blocks counts as hanging, and `watch=(30,)`,
    `follow` and `only_blocks` to record less.
    """
    if "instruction_limit" in options:
        options["instruction_limit"] = integer("instruction_limit", options["instruction_limit"])
    plan = _checked(kernel, grid, block, args, shared_mem)
    return execute_simulated(kernel, plan, grid, block, args, **options)


def _checked(kernel, grid, block, args: Sequence, shared_mem: int) -> Plan:
    """Check a launch; return the header's plan, or the launch as given if there is no header."""
    if not hasattr(kernel, "code"):
        raise TypeError(
            f"kernel must be a cupy.RawKernel, not {type(kernel).__name__}: pass, for example, "
            "cupy.RawKernel(source('01_naive.cu'), 'softmax_naive')"
        )
    check_arguments(kernel, args)
    shared_mem = integer("shared_mem", shared_mem)
    _check_sizes("grid", grid)
    _check_sizes("block", block)
    contract = header(kernel.code, tuple(kernel.options))
    if contract is None:
        return Plan(_product(grid), _product(block), shared_mem)
    unbound = kernel_of(kernel, _product(block))
    unbound.check_signature()
    names = [parameter.name for parameter in unbound.parameters]
    given = dict(zip(names, args, strict=True))
    try:
        bound = unbound.bind(**_sizes(contract, given), dtype=contract.dtype)
    except ValueError as error:
        compiled = f" (compiled with {', '.join(kernel.options)})" if contract.build else ""
        raise ValueError(f"{kernel.name}: {error}{compiled}") from None
    bound.check(args)
    plan = bound.plan
    if _product(grid) != plan.grid or shared_mem != plan.shared_mem:
        raise ValueError(
            f"{kernel.name} requires grid = {plan.grid} and {plan.shared_mem} bytes of shared "
            f"memory for rows = {bound.problem.rows}, cols = {bound.problem.cols}, block = "
            f"{plan.block}; got grid = {_product(grid)}, {shared_mem} bytes"
        )
    for name, sizes in (("grid", grid), ("block", block)):
        if simt.launch_shape(sizes, name)[1:] != (1, 1):
            raise ValueError(
                f"{kernel.name} has a header, which requires a one-dimensional {name}; got "
                f"{name} = {tuple(sizes)}"
            )
    return plan


def _sizes(contract: Header, given: Mapping[str, object]) -> dict[str, int]:
    """Return the sizes and strides among a kernel's arguments, by the names of `Kernel.bind`."""
    sizes = {name: int(given[name]) for name in contract.operation.sizes}
    if "inner" in sizes:
        rows = sizes["outer"] * sizes["inner"]
        return {"rows": rows, "cols": sizes["dim"], "inner": sizes["inner"]}
    if contract.strided:
        sizes |= {name: int(given[name]) for name in ("x_stride", "y_stride")}
    return sizes


def _product(sizes) -> int:
    return int(np.prod(sizes))


def _check_sizes(name: str, sizes) -> None:
    for size in sizes if isinstance(sizes, Sequence) else (sizes,):
        if not isinstance(size, Integral):
            raise TypeError(f"{name} must be one to three integers, not {sizes!r}; divide with //")
