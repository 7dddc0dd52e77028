"""Kernels that were edited since a GPU measured them.

The tests of records expect exactly these to be out of date, and fail when one is recorded again,
so that no name stays here too long. To be recorded on the GPU of the records (CONTRIBUTING.md,
"After editing a kernel").
"""

# In steps.jsonl, and in pipelines.jsonl.
EARLIER: frozenset[str] = frozenset()
PIPELINES_EARLIER = frozenset({"12_fused-MASK1", "12_fused-MASK2"})
# Kernels that steps.jsonl has no record of yet, and those without profiler data.
UNRECORDED = frozenset({"14_any_row", "15_short_rows"})
UNPROFILED = frozenset({"14_any_row", "15_loss_and_gradient", "15_short_rows"})
# Shapes of pipelines.jsonl whose plan was tuned since.
TUNED_SINCE = frozenset({(16, 131072, "bfloat16")})
# File of profiler data -> kernels whose data in it are of an earlier version or launch.
PROFILED_EARLIER = {
    "counters": frozenset(
        {
            "12_fused",  # with a mask
            "14_backward",  # from x, at 1024 x 262144
            *("15_cross_entropy", "15_gradient"),  # at short rows, and in 16 bits up to 62 KB
        }
    ),
    "sass": frozenset({"11_any_length", "11_short_rows", "15_cross_entropy", "15_gradient"}),
    "sanitizer": frozenset(
        {
            *("07_warp", "08_cluster", "09_grid", "10_sixteen_bit", "11_any_row", "11_any_length"),
            *("11_short_rows", "12_fused", "14_backward", "15_cross_entropy", "15_gradient"),
            "variants/08_shared",
        }
    ),
}
# Notebooks that show such data.
SHOWN_EARLIER: frozenset[str] = frozenset()
# Files with cases in comparison.jsonl or calls.jsonl of an earlier version or launch.
COMPARED_EARLIER = frozenset(
    {
        *("08_cluster", "09_grid", "10_sixteen_bit", "11_any_row", "11_short_rows", "12_fused"),
        "14_backward",
    }
)
