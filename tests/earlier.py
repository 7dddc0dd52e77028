"""Kernels that were edited since a GPU measured them.

The tests of records expect exactly these to be out of date, and fail when one is recorded again,
so that no name stays here too long. To be recorded on the GPU of the records (CONTRIBUTING.md,
"After editing a kernel").
"""

EARLIER: frozenset[str] = frozenset()
