"""Timings for a notebook: measured now on a GPU, replayed from the records without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from . import bench
from .bound import bind, kernel_of
from .catalogue import UNFUSED
from .gpu import describe_device, describe_versions
from .mode import replaying
from .records import (
    REFERENCE_GPU,
    Record,
    load_record,
    record_path,
    recorded_gpus,
    utc_now,
)
from .simt.cuda_text import code_hash


class LiveRecord(Record):
    """Timings of a kernel as the notebook holds it, measured in this session."""

    @property
    def label(self) -> str:
        return f"{self.device['name']}, now"

    def origin(self) -> str:
        return (
            f"measured now on {self.device['name']} (driver {self.versions['driver']}, "
            f"NVRTC {self.versions['nvrtc']}, CuPy {self.versions['cupy']})"
        )


def timings(
    kernels: Mapping[str, object], dtype: str = "float32", shapes: str = "grid"
) -> list[Record]:
    """Timings of several steps beside a same-size copy kernel, in the order given.

    `kernels` maps the name of a step to its `cupy.RawKernel`, to the text of its file if it is
    compiled for each shape, or to None for the array version "00_unfused". In replay mode the
    records of the reference GPU are returned. Live, the kernels given are timed in turn at five or
    six shapes in `dtype`, which takes some seconds: of "grid", "long" or "few" (see
    `bench.live_shapes`). A kernel that does not take a shape is left out there.

    Raises `FileNotFoundError` if a step has no record, `Failure` that names a kernel which is wrong
    or cannot be launched, `TypeError` or `ValueError` for other arguments.
    """
    if not isinstance(kernels, Mapping):
        kind = type(kernels).__name__
        raise TypeError(
            f"timings takes a dict of name -> kernel, as {{'01_naive': kernel}}; not a {kind}"
        )
    if shapes not in bench.LIVE_FAMILIES:
        raise ValueError(f"shapes are one of {', '.join(bench.LIVE_FAMILIES)}, not {shapes!r}")
    if replaying():
        records = []
        for name, kernel in kernels.items():
            record = load_record(name)
            if kernel is not None and code_hash(text_of(kernel)) != record.kernel_hash:
                record = replace(record, kernel_hash="edited")
            records.append(record)
        return records
    return _measure_now(kernels, dtype, shapes)


def text_of(kernel) -> str:
    return kernel if isinstance(kernel, str) else kernel.code


def _measure_now(kernels: Mapping[str, object], dtype: str, shapes: str) -> list[Record]:
    def maker(name: str) -> bench.Maker:
        if name == UNFUSED:
            return bench.unfused_candidate
        return lambda *shape: bench.kernel_candidate(bind(kernels[name], *shape))

    now, device, versions = utc_now(), describe_device(), describe_versions()
    records = {
        name: LiveRecord(
            name,
            code_hash(text_of(kernel)) if kernel is not None else UNFUSED,
            device,
            versions,
            now,
            [bench.PROTOCOL],
        )
        for name, kernel in kernels.items()
    }
    for rows, cols in bench.live_shapes(shapes):
        taking = [
            name
            for name, kernel in kernels.items()
            if kernel is None or kernel_of(kernel).accepts(rows, cols, dtype)
        ]
        if not taking:
            continue
        measured = bench.measure({name: maker(name) for name in taking}, rows, cols, dtype)
        for name in taking:
            records[name].add(measured[name])
    return list(records.values())


def recorded_beside(record: Record) -> list[Record]:
    """Records of the same step to draw beside it: of GPUs that readers recorded, and beside a
    live measurement the reference GPU's."""
    return [
        load_record(record.step, gpu)
        for gpu in recorded_gpus()
        if record_path(record.step, gpu).is_file()
        and (gpu != REFERENCE_GPU or isinstance(record, LiveRecord))
    ]
