"""Kernels that were corrected after they had been recorded: rows with columns past 1e9, such as
masked ones, gave NaN. Their figures are of the version before and are shown as such. Record,
evidence and race on the reference GPU empty this."""

AWAITING = {
    "08_cluster",
    "09_grid",
    "10_sixteen_bit",
    "variants/08_shared",
    "variants/09_ahead",
}
