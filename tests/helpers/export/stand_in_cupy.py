"""As much of CuPy as an exported file calls, over the memory of a simulated driver."""

from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np

from helpers.base.gpu import H200, Gpu
from tests.helpers.export import simulated_driver


class Here:
    """A fresh import of an exported file, with the CuPy and the driver that it uses."""

    def __init__(self, text: str, gpu: Gpu = H200):
        self.driver = simulated_driver.Driver(gpu)
        self.cupy = stand_in(self.driver)
        self.module = simulated_driver.loaded(text, {"cupy": self.cupy}, self.driver)
        self.softmax, self.put = self.module.softmax, self.cupy.put

    @staticmethod
    def host(array) -> np.ndarray:
        return array.host


def stand_in(driver) -> ModuleType:
    """The module `cupy`; `cupy.put` makes an array of a numpy array, `cupy.stream` is current."""
    cupy = ModuleType("cupy")

    class ndarray:
        def __init__(self, host: np.ndarray):
            self.host = host
            for name in ("shape", "strides", "dtype", "size", "ndim", "itemsize"):
                setattr(self, name, getattr(host, name))
            self.data = SimpleNamespace(ptr=host.ctypes.data)
            self.device = Device(0)
            self.flags = SimpleNamespace(c_contiguous=host.flags.c_contiguous)

        def __getitem__(self, key) -> "ndarray":
            return ndarray(self.host[key])

        def transpose(self, *axes) -> "ndarray":
            return ndarray(self.host.transpose(*axes))

        def reshape(self, shape) -> "ndarray":
            return ndarray(self.host.reshape(shape))

        def copy(self) -> "ndarray":
            return put(self.host)

        def sum(self, axis: int) -> "ndarray":
            return put(self.host.sum(axis=axis))

    class Device(nullcontext):
        def __init__(self, index: int = 0):
            super().__init__()
            self.id = index

        def __eq__(self, other) -> bool:
            return self.id == other.id

    def empty(shape, dtype) -> ndarray:
        dtype = np.dtype(dtype)
        memory = driver.allocate(int(np.prod(shape)) * dtype.itemsize)
        return ndarray(memory.view(dtype).reshape(shape))

    def put(host: np.ndarray) -> ndarray:
        array = empty(host.shape, host.dtype)
        array.host[...] = host
        return array

    cupy.ndarray, cupy.empty, cupy.put = ndarray, empty, put
    cupy.broadcast_to = lambda array, shape: ndarray(np.broadcast_to(array.host, shape))
    cupy.dtype, cupy.float32 = np.dtype, np.dtype(np.float32)
    cupy.stream = SimpleNamespace(ptr=0, is_capturing=lambda: cupy.stream.ptr in driver.capturing)
    current = SimpleNamespace(get_current_stream=lambda: cupy.stream, Device=Device)
    cupy.cuda = current
    return cupy
