"""Kernels that were edited since a GPU measured them.

The tests of records expect exactly these to be out of date, and fail when one is recorded again,
so that no name stays here too long. To be recorded on the GPU of the records (CONTRIBUTING.md,
"After editing a kernel").
"""

# In steps.jsonl, and in pipelines.jsonl.
EARLIER: frozenset[str] = frozenset()
LINKED_EARLIER: frozenset[str] = frozenset()
# Kernels that steps.jsonl has no record of yet, and those without recorded disassembly.
UNRECORDED: frozenset[str] = frozenset()
UNPROFILED: frozenset[str] = frozenset()
# Shapes of pipelines.jsonl whose plan was tuned since.
TUNED_SINCE = frozenset({(16, 131072, "bfloat16")})
# File of profiler data -> kernels whose data in it are of an earlier version or launch.
PROFILED_EARLIER: dict[str, frozenset[str]] = {}
# Notebooks that show such data.
SHOWN_EARLIER: frozenset[str] = frozenset()
# Files with cases in comparison.jsonl of an earlier version or launch.
COMPARED_EARLIER = frozenset(
    {
        *("08_cluster", "09_grid", "10_sixteen_bit", "11_any_row", "11_short_rows", "12_fused"),
        *("13_any_axis", "14_backward", "15_cross_entropy", "15_gradient"),
    }
)
