"""The CUDA driver as an exported Python file calls it, over the SIMT machine: memory is numpy's, a
launch is a run of the kernel. It refuses what a driver would refuse."""

import ctypes
import pickle
import sys
import threading
from collections import Counter
from types import ModuleType, SimpleNamespace
from unittest import mock

import ml_dtypes
import numpy as np

from helpers import simt
from helpers.base.gpu import H200, Gpu
from helpers.simt.cuda_text import signature

PARAMETERS = {"int": ctypes.c_int, "long long": ctypes.c_longlong, "float": ctypes.c_float}
ELEMENTS = {"float": np.float32, "long long": np.int64, "unsigned char": np.uint8}
DTYPES = {"-DFLOAT16": np.dtype(np.float16), "-DBFLOAT16": np.dtype(ml_dtypes.bfloat16)}
INVALID_VALUE, INVALID_CONTEXT, TOO_LARGE = 1, 201, 720
GUARD = 0xA5  # what fresh memory holds


class Driver:
    """What `_driver()` returns in an exported file. `loaded` puts it there."""

    def __init__(self, gpu: Gpu = H200):
        self.gpu = gpu
        self.memory: dict[int, np.ndarray] = {}  # address -> bytes
        self.objects: list = []  # modules and functions; a handle is an index from 1 on
        self.calls: Counter = Counter()
        self.launches: list[SimpleNamespace] = []
        self.capturing: set[int] = set()
        self.destroyed: Counter = Counter()  # handle -> streams that had it before
        self.contexts = threading.local()

    # ---- memory ---------------------------------------------------------------------------------

    def allocate(self, size: int) -> np.ndarray:
        """Bytes from a multiple of 256 on."""
        raw = (ctypes.c_ubyte * (size + 256))()
        memory = np.frombuffer(raw, np.uint8, size, -ctypes.addressof(raw) % 256)
        memory[:] = GUARD
        self.memory[memory.ctypes.data] = memory
        return memory

    def matrix(self, address: int, rows: int, cols: int, stride: int, dtype) -> np.ndarray:
        """The rows from an address on."""
        (memory,) = (m for start, m in self.memory.items() if start <= address < start + m.size)
        strides = stride * dtype.itemsize, dtype.itemsize
        # Of `memory` itself, so that the SIMT machine sees where in it the matrix starts.
        return np.ndarray((rows, cols), dtype, memory, address - memory.ctypes.data, strides)

    def elements(self, address: int, dtype) -> np.ndarray | None:
        """All from an address to the end of what was allocated there; None of a null pointer."""
        if not address:
            return None
        (memory,) = (m for start, m in self.memory.items() if start <= address < start + m.size)
        first = address - memory.ctypes.data
        return np.ndarray((memory.size - first) // dtype.itemsize, dtype, memory, first)

    # ---- what the driver is asked ---------------------------------------------------------------

    def __getattribute__(self, name: str):
        if name.startswith("cu"):
            self.calls[name] += 1
        return super().__getattribute__(name)

    def cuInit(self, flags) -> int:
        return 0

    def cuDeviceGet(self, device, index) -> int:
        device._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device) -> int:
        context._obj.value = 4711 + device.value
        return 0

    def cuDeviceGetAttribute(self, value, number, device) -> int:
        gpu = self.gpu
        known = {75: gpu.capability // 10, 76: gpu.capability % 10, 16: gpu.sms, 38: gpu.l2}
        value._obj.value = known[number]
        return 0

    @property
    def stack(self) -> list:
        if not hasattr(self.contexts, "stack"):
            self.contexts.stack = []
        return self.contexts.stack

    def cuCtxPushCurrent_v2(self, context) -> int:
        self.stack.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context) -> int:
        context._obj.value = self.stack.pop()
        return 0

    def cuCtxSetCurrent(self, context) -> int:
        self.stack[:] = [context.value]
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode) -> int:
        before = getattr(self.contexts, "mode", 0)
        self.contexts.mode, mode._obj.value = mode._obj.value, before
        return 0

    def cuModuleLoadData(self, module, image) -> int:
        return self._unsafe() or self._hand_out(module, pickle.loads(image))

    def cuModuleGetFunction(self, function, module, name) -> int:
        text, options, _ = self.objects[module.value - 1]
        made = SimpleNamespace(text=text, options=options, name=name.decode(), attributes={})
        return self._hand_out(function, made)

    def cuFuncSetAttribute(self, function, attribute, value) -> int:
        if attribute == 14 and value not in (0, 1):  # clusters of more than 8 blocks: no or yes
            return INVALID_VALUE
        self.objects[function.value - 1].attributes[attribute] = value
        return 0

    def cuMemAlloc_v2(self, address, size) -> int:
        if error := self._unsafe():
            return error
        address._obj.value = self.allocate(size.value).ctypes.data
        return 0

    def cuMemFree_v2(self, address) -> int:
        del self.memory[address.value]
        return self._unsafe()

    def cuMemsetD8Async(self, address, value, size, stream) -> int:
        self.memory[address.value][: size.value] = value.value
        return 0

    def cuStreamIsCapturing(self, stream, status) -> int:
        if not (self.stack or stream.value):
            return INVALID_CONTEXT  # the default stream is that of a context
        status._obj.value = int((stream.value or 0) in self.capturing)
        return 0

    def cuStreamGetId(self, stream, number) -> int:
        if not (self.stack or stream.value):
            return INVALID_CONTEXT
        handle = stream.value or 0
        assert handle not in self.capturing, "the driver may refuse that"
        thread = threading.get_ident() if handle == 2 else 0
        number._obj.value = hash((handle, thread, self.destroyed[handle])) & 2**63 - 1
        return 0

    def cuGetErrorName(self, status, text) -> int:
        text._obj.value = f"STATUS_{status}".encode()
        return 0

    def cuLaunchKernelEx(self, config, function, pointers, extra) -> int:
        if not self.stack:
            return INVALID_CONTEXT
        config, function = config._obj, self.objects[function.value - 1]
        parameters = signature(function.text, function.name)
        assert len(pointers) == len(parameters) and extra is None
        read = [PARAMETERS.get(p.type, ctypes.c_uint64) for p in parameters]
        read = [ctypes.c_uint64 if p.pointer else t for p, t in zip(parameters, read, strict=True)]
        values = [t.from_address(p).value for t, p in zip(read, pointers, strict=True)]
        named = dict(zip((p.name for p in parameters), values, strict=True))
        arrays = {p.name: p.type for p in parameters if p.pointer}
        attributes = {
            config.attributes[i].id: config.attributes[i].value[0]
            for i in range(config.attribute_count)
        }
        cooperative = bool(attributes.pop(2, 0))
        assert not attributes and (*config.grid, *config.block)[1::3] == (1, 1)
        cluster = next((int(o[10:]) for o in function.options if o.startswith("-DCLUSTER=")), 1)
        if cluster > 8 and not function.attributes.get(14):
            return INVALID_VALUE
        if config.shared_mem > max(48 << 10, function.attributes.get(8, 0)):
            return INVALID_VALUE
        if cooperative and config.grid[0] > self.gpu.sms:
            return TOO_LARGE
        launch = SimpleNamespace(stream=config.stream or 0, cooperative=cooperative, **named)
        launch.function = function.name
        self.launches.append(launch)
        self._run(function, config, named, arrays, cooperative)
        return 0

    def _run(self, function, config, named: dict, arrays: dict, cooperative: bool) -> None:
        dtype = next((DTYPES[o] for o in function.options if o in DTYPES), np.dtype(np.float32))
        if "sixteen_bit" in function.name and "-DBFLOAT16" not in function.options:
            dtype = np.dtype(np.float16)
        kinds = {**ELEMENTS, "Y": np.float32 if "-DWIDE=1" in function.options else dtype}
        for name, kind in arrays.items():
            if f"{name}_stride" in named:
                sizes = (named[n] for n in ("rows", "cols", f"{name}_stride"))
                named[name] = self.matrix(named[name], *sizes, dtype)
            else:
                own = np.uint8 if name == "workspace" else kinds.get(kind, dtype)
                named[name] = self.elements(named[name], np.dtype(own))
        if "workspace" in named:
            assert not named["workspace"].any(), "a dirty workspace"
        text = simt.KernelText(function.text, function.name, function.options, cooperative)
        sizes = config.grid[0], config.block[0], tuple(named.values()), config.shared_mem
        trace = simt.simulate(text, *sizes)
        assert not trace.findings, str(trace.findings)

    def _unsafe(self) -> int:
        """What is forbidden while a stream is captured, unless it was given leave."""
        return 900 if self.capturing and getattr(self.contexts, "mode", 0) != 2 else 0

    def _hand_out(self, handle, made) -> int:
        self.objects.append(made)
        handle._obj.value = len(self.objects)
        return 0


def without_gpu(module: ModuleType, driver: Driver) -> ModuleType:
    """An exported file over a driver; it leaves compiling to the SIMT machine."""
    module._driver = lambda: driver
    module.machine_code = lambda *what: pickle.dumps(what)
    return module


def loaded(text: str, packages: dict, driver: Driver, nvrtc: bool = False) -> ModuleType:
    """An exported file as it is imported where `packages` are installed, over a driver; it compiles
    with NVRTC, or leaves that to the SIMT machine."""
    module = ModuleType("exported")
    with mock.patch.dict(sys.modules, {**packages, module.__name__: module}):
        exec(compile(text, "exported.py", "exec"), vars(module))
    if nvrtc:
        module._driver = lambda: driver
        return module
    return without_gpu(module, driver)
