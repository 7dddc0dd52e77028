"""The exported PyTorch file with PyTorch on the CPU. Its operators are registered for CPU tensors,
and its kernels run on the SIMT machine, in the memory of those tensors."""

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from helpers.base.gpu import H200, Gpu
from tests.helpers.export.exported_file import imported
from tests.helpers.export.simulated_driver import Driver, without_gpu

# What the file says of CUDA, as regular expressions, and what it then says of the CPU.
REPLACED = (
    (r"\.is_cuda\b", ".is_cpu"),
    (r'run, "CUDA"\)', 'run, "CPU")'),
    (r'device="cuda"', 'device="cpu"'),
    (r"^_autocast = .*", '_autocast = functools.partial(torch.is_autocast_enabled, "cpu")'),
    (r'_autocast\("cuda"\)', "_autocast()"),
    (r"_empty_strided_cuda", "_empty_strided_cpu"),
    (r"torch\._C\._cuda_get(\w+)", r"runtime.\1"),
    (r"torch\.cuda\.(device|device_count|is_current_stream_capturing)\(", r"runtime.\1("),
    (r"(\w+)\.data_ptr\(\)", r"runtime.address(\1)"),
)


class Runtime(Driver):
    """The simulated driver, with what the file asks PyTorch about CUDA. It knows the memory of each
    tensor whose address the file took."""

    def __init__(self, gpu: Gpu = H200):
        super().__init__(gpu)
        self.stream, self.current, self.count = 0, None, 1
        self.storages: list[torch.UntypedStorage] = []  # kept, so that no address is used twice

    def address(self, tensor: torch.Tensor) -> int:
        address, storage = tensor.data_ptr(), tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in self.memory:
            raw = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
            self.memory[storage.data_ptr()] = np.frombuffer(raw, np.uint8)
            self.storages.append(storage)
        return address

    def cuDeviceGet(self, device, index: int | None) -> int:
        return super().cuDeviceGet(device, index or 0)  # the CPU has no number

    def CurrentRawStream(self, index: int | None) -> int:
        return self.stream

    def Device(self) -> int | None:
        return self.current

    @contextmanager
    def device(self, index: object) -> Iterator[None]:
        before, self.current = self.current, getattr(index, "index", index)
        yield
        self.current = before

    def device_count(self) -> int:
        return self.count

    def is_current_stream_capturing(self) -> bool:
        return self.stream in self.capturing


def on_cpu(folder: Path, name: str, gpu: Gpu = H200, step: str = "best", changed: tuple = ()):
    """The module of the exported file of a kernel; `module.runtime` is its driver. `changed` are
    more expressions to be replaced."""

    def edited(text: str) -> str:
        for pattern, replacement in (*REPLACED, *changed):
            text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
            assert count, pattern
        return text

    module = imported("torch", name, folder, step, edited)
    module.runtime = Runtime(gpu)
    return without_gpu(module, module.runtime)
