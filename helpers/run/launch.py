"""Launch a `cupy.RawKernel` with an explicit grid, block and arguments.

The same cell runs with and without a GPU: it takes NumPy arrays and writes results in place. If the
source has a header, the launch is first checked against it.
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
    """Run a `cupy.RawKernel` once and wait for it.

    `args` are NumPy arrays and numbers in the order of the kernel's parameters; arrays passed as
    non-const pointers are written in place. `shared_mem` is the dynamic shared memory in bytes. A
    kernel whose header has Strides takes the row strides of x and y in elements after cols; one
    whose header has a Workspace takes an array of that many zero bytes last.

    Returns the SIMT machine's trace in replay mode, None on a GPU.

    Raises `TypeError` or `ValueError` naming the argument that does not match the kernel's
    signature or header, `KernelBug` if the SIMT machine found a bug, and what `helpers.simt` or
    CuPy raise for source that does not compile.
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

    Takes and raises what `launch` does, except that bugs are returned in `trace.findings`.
    `watch=True` records every access and event of the kernel's own lines for `draw`, at most
    100,000, so shapes must be small. Other `options` go to `simt.simulate` too:
    `instruction_limit`, after which a batch of blocks counts as hanging, and `watch=(30,)`,
    `follow` and `only_blocks` to record less.
    """
    if "instruction_limit" in options:
        options["instruction_limit"] = integer("instruction_limit", options["instruction_limit"])
    plan = _checked(kernel, grid, block, args, shared_mem)
    return execute_simulated(kernel, plan, grid, block, args, **options)


def _checked(kernel, grid, block, args: Sequence, shared_mem: int) -> Plan:
    """The launch planned by the header, or as given if there is no header."""
    if not hasattr(kernel, "code"):
        raise TypeError(
            "launch a cupy.RawKernel: cupy.RawKernel(source('01_naive.cu'), 'softmax_naive'), say; "
            f"not {type(kernel).__name__}"
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
            f"{kernel.name} wants grid = {plan.grid} and {plan.shared_mem} bytes of shared memory "
            f"for rows = {bound.problem.rows}, cols = {bound.problem.cols}, block = {plan.block}; "
            f"got grid = {_product(grid)}, {shared_mem} bytes"
        )
    for what, sizes in (("grid", grid), ("block", block)):
        if simt.launch_shape(sizes, what)[1:] != (1, 1):
            raise ValueError(
                f"{kernel.name} has a header, which plans a {what} of one dimension; got {what} = "
                f"{tuple(sizes)}"
            )
    return plan


def _sizes(contract: Header, given: Mapping[str, object]) -> dict[str, int]:
    """Rows, columns and strides among the arguments of a kernel."""
    sizes = {name: int(given[name]) for name in contract.operation.sizes}
    if "inner" in sizes:
        rows = sizes["outer"] * sizes["inner"]
        return {"rows": rows, "cols": sizes["dim"], "inner": sizes["inner"]}
    if contract.strided:
        sizes |= {name: int(given[name]) for name in ("x_stride", "y_stride")}
    return sizes


def _product(sizes) -> int:
    return int(np.prod(sizes))


def _check_sizes(what: str, sizes) -> None:
    for size in sizes if isinstance(sizes, Sequence) else (sizes,):
        if not isinstance(size, Integral):
            raise TypeError(f"{what} must be one to three integers, not {sizes!r}; divide with //")
