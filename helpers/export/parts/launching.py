"""Compiling, keeping and launching the kernels, by NVRTC and the CUDA driver."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .planning import KERNELS, Gpu, Plan, Refused, plan

# As the kernels were measured.
COMPILER_OPTIONS = ("-ftz=true", "--device-as-default-execution-space", "--std=c++17")
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: a thread that has not used the GPU yet
MOST_LAUNCHES = 4096  # matrices whose launch is kept
NO_HEADERS = (
    "CUDA's cuda_fp16.h and cuda_bf16.h, which 16-bit kernels include, are not found: the package "
    "nvidia-cuda-runtime (for CUDA 12 nvidia-cuda-runtime-cu12) has them, or a toolkit in CUDA_HOME"
)
PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD: one handle, a stream for each thread

# Of the addresses of a kernel's first two arrays, of a stream, and of what else a call gives.
Launch = Callable[..., None]


class CudaError(RuntimeError):
    """What the driver or NVRTC refused."""


class _Attribute(ctypes.Structure):  # CUlaunchAttribute
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_mem", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


@functools.cache
def _driver():
    names = ["nvcuda.dll"] if sys.platform == "win32" else ["libcuda.so.1", "libcuda.so"]
    return _load(names, "the NVIDIA driver")


@functools.cache
def _nvrtc():
    names = [f"libnvrtc.so.{major}" for major in (13, 12)]
    if sys.platform == "win32":
        names = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    try:  # as PyTorch and CuPy find it, if they are new enough
        from cuda.pathfinder import load_nvidia_dynamic_lib

        names.insert(0, load_nvidia_dynamic_lib("nvrtc").abs_path)
    except (ImportError, RuntimeError):
        wheels = importlib.util.find_spec("nvidia")
        for folder in wheels.submodule_search_locations or () if wheels else ():
            names[:0] = map(str, Path(folder).glob("*/lib/libnvrtc.so.*"))
    return _load(names, "NVRTC (the package nvidia-cuda-nvrtc has it)")


def _load(names: list[str], what: str):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError(f"cannot load {what}: none of {', '.join(names)}")


def _ask(call: str, *arguments) -> None:
    """A call of the driver. Raises `CudaError`."""
    if status := getattr(_driver(), call)(*arguments):
        _refuse(call, status)


def _refuse(call: str, status: int) -> None:
    """Raise `CudaError` with the driver's name for a status."""
    text = ctypes.c_char_p()
    _driver().cuGetErrorName(status, ctypes.byref(text))
    raise CudaError(f"{call}: {(text.value or b'error').decode()} ({status})")


class Device:
    """A GPU, and what was compiled for it."""

    def __init__(self, index: int):
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        _ask("cuInit", 0)
        _ask("cuDeviceGet", ctypes.byref(device), index)
        _ask("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, _MULTIPROCESSOR_COUNT,
        # _L2_CACHE_SIZE
        major, minor, sms, l2 = (_attribute(device, number) for number in (75, 76, 16, 38))
        self.gpu = Gpu(10 * major + minor, sms, l2)
        self._launches: dict[tuple, Launch | Refused] = {}
        self._functions: dict[tuple, ctypes.c_void_p] = {}
        self._shared: dict[tuple, int] = {}  # bytes of dynamic shared memory that are allowed
        self._streams: dict[object, _Stream] = {}  # by the handle
        self._lock = threading.RLock()

    def launch(
        self,
        rows: int,
        cols: int,
        dtype: str,
        strides: tuple[int, int],
        addresses: tuple[int, int],
        workspace_of_graph: Callable[[int], tuple[int, object]],
    ) -> Launch:
        """What launches softmax of a matrix, whatever matrix it is of these sizes and strides whose
        x and y start as these addresses do between multiples of 16 bytes. It is kept.

        `workspace_of_graph` gives (address, owner) of so many bytes that are zero whenever the
        graph that the stream is captured into comes there, and are the graph's alone. Raises
        `Refused` for what no kernel takes, `CudaError`.
        """
        x, y = addresses
        key = rows, cols, dtype, strides, x & 15, y & 15
        if launch := self._launches.get(key):
            return launch
        launch = self._new_launch(*key, workspace_of_graph)
        self._keep(key, launch)
        return launch

    def launch_around(
        self,
        operation: str,
        rows: int,
        cols: int,
        dtype: str,
        inner: int = 1,
        features: tuple[tuple[str, int], ...] = (),
        given: tuple[str, ...] = (),
    ) -> Launch:
        """What launches another operation, of arrays that follow each other and start at multiples
        of 16 bytes (of an element, where the kernel's header says so). It is kept.

        Beside the first two arrays and the stream a call gives the parameters that `given` names,
        a fraction as `float`. What nobody gives is 0, a null pointer. Raises what `launch` raises.
        """
        key = operation, rows, cols, dtype, inner, features, given
        launch = self._launches.get(key)
        if launch is None:
            sizes = {"rows": rows, "cols": cols, "outer": rows // inner, "dim": cols}
            sizes["inner"] = inner
            asked = {"operation": operation, "features": dict(features), "inner": inner}
            try:
                found = plan(rows, cols, dtype, gpu=self.gpu, **asked)
                launch = self._launcher(found, sizes, given)
            except Refused as error:
                launch = error
            self._keep(key, launch)
        if isinstance(launch, Refused):
            raise Refused(str(launch))
        return launch

    def _keep(self, key: tuple, launch: Launch | Refused) -> None:
        if len(self._launches) >= MOST_LAUNCHES:  # shapes that keep changing
            self._launches.clear()
        self._launches[key] = launch

    def _launcher(self, found: Plan, known: dict[str, int], given: tuple[str, ...] = ()) -> Launch:
        """The launch of a plan, whose first two parameters are arrays."""
        others = KERNELS[found.kernel].parameters[2:]
        numbers = [known.get(name, 0) for name in others]
        places = [2 + others.index(name) for name in given if name in others]
        if len(places) < len(given):
            raise Refused(f"{found.kernel} takes {', '.join(others)}, not all of {given}")
        return _launcher(self._function(found), found, numbers, places, self.context)

    def _new_launch(self, rows, cols, dtype, strides, x, y, workspace_of_graph) -> Launch:
        found = plan(rows, cols, dtype, *strides, x == y == 0, x == y, self.gpu)
        known = {"rows": rows, "cols": cols, "x_stride": strides[0], "y_stride": strides[1]}
        if not found.workspace:
            return self._launcher(found, known)
        launch, size = self._launcher(found, known, ("workspace",)), found.workspace

        def with_workspace(x: int, y: int, stream: int) -> None:
            address, owner = self._workspace(stream, size), None
            if address is None:
                address, owner = workspace_of_graph(size)
            launch(x, y, stream, address)
            del owner  # only now: what a graph was given may be given on after this launch

        return with_workspace

    def _function(self, found: Plan) -> ctypes.c_void_p:
        """The compiled kernel, with what CUDA must be asked for set."""
        key = found.kernel, found.options
        with self._lock:
            if key not in self._functions:
                kernel = KERNELS[found.kernel]
                image = machine_code(kernel.text, found.options, self.gpu.capability)
                module, function = ctypes.c_void_p(), ctypes.c_void_p()
                with _Ready(self.context):
                    _ask("cuModuleLoadData", ctypes.byref(module), image)
                    name = kernel.function.encode()
                    _ask("cuModuleGetFunction", ctypes.byref(function), module, name)
                    if found.cluster > 8:  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                        _ask("cuFuncSetAttribute", function, 14, 1)
                self._functions[key] = function
            function = self._functions[key]
            if found.shared_mem > self._shared.get(key, 0):
                with _Ready(self.context):  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    _ask("cuFuncSetAttribute", function, 8, found.shared_mem)
                self._shared[key] = found.shared_mem
            return function

    def _workspace(self, handle: int, size: int) -> int | None:
        """The stream's own bytes, which were zero at first and which every launch leaves zero; None
        while it is captured.

        A later stream may have the handle of one that is gone and whose kernels still run: its
        number, which the driver may not be asked for during a capture, is another.
        """
        key = (handle, threading.get_ident()) if handle == PER_THREAD_STREAM else handle
        stream = self._streams.get(key) or self._streams.setdefault(key, _Stream(handle))
        if (refused := stream.is_capturing()) == INVALID_CONTEXT:
            _ask("cuCtxSetCurrent", self.context)
            refused = stream.is_capturing()
        if refused:
            _refuse("cuStreamIsCapturing", refused)
        if stream.captured.value:
            return None
        if refused := stream.get_number():
            _refuse("cuStreamGetId", refused)
        given = stream.given
        if given.number == stream.number.value and given.size >= size:
            return given.addresses[-1]
        return self._more(stream, size)

    def _more(self, stream: _Stream, size: int) -> int:
        """So many bytes for a stream that has fewer, or that is new under its handle."""
        with self._lock:
            given, number = stream.given, stream.number.value
            if given.number != number:
                for address in given.addresses:
                    self._free(address)
                given = _Workspaces(number, 0, ())
            if given.size < size:
                size = 1 << (size - 1).bit_length()
                zeros = self.zeros(size, stream.handle)
                given = stream.given = _Workspaces(number, size, (*given.addresses, zeros))
            return given.addresses[-1]

    def _free(self, address: int) -> None:
        """Give memory back, once everything that runs has ended: CUDA waits for that."""
        with _Ready(self.context):
            _ask("cuMemFree_v2", ctypes.c_uint64(address))

    def zeros(self, size: int, stream: int) -> int:
        """So many bytes, filled with zeros by the stream before what comes next on it."""
        address = ctypes.c_uint64()
        with _Ready(self.context):
            _ask("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            fill = ctypes.c_ubyte(0), ctypes.c_size_t(size), ctypes.c_void_p(stream)
            _ask("cuMemsetD8Async", address, *fill)
        return address.value


@functools.cache
def device(index: int) -> Device:
    """The GPU of a number."""
    return Device(index)


class _Stream:
    """A stream: its memory, and where the driver answers what it is asked. Threads that launch on
    it share this: they are told the same."""

    def __init__(self, handle: int):
        self.handle, self.given = handle, _Workspaces(0, 0, ())
        self.captured, self.number = ctypes.c_int(), ctypes.c_ulonglong()
        stream, captured = ctypes.c_void_p(handle), ctypes.byref(self.captured)
        self.is_capturing = functools.partial(_driver().cuStreamIsCapturing, stream, captured)
        number = ctypes.byref(self.number)
        self.get_number = functools.partial(_driver().cuStreamGetId, stream, number)


class _Workspaces(NamedTuple):
    """What a stream was given. Where it wanted more, the former bytes stay as long as it does:
    another thread may be about to launch with them. Sizes double, so that all of them together are
    less than twice the last."""

    number: int  # of the stream
    size: int  # of the last
    addresses: tuple[int, ...]


class _Ready:
    """The context of a GPU, and the leave to load and allocate while a stream is captured."""

    def __init__(self, context: ctypes.c_void_p):
        self.context, self.mode = context, ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED

    def __enter__(self) -> None:
        _ask("cuCtxPushCurrent_v2", self.context)
        _ask("cuThreadExchangeStreamCaptureMode", ctypes.byref(self.mode))

    def __exit__(self, *_) -> None:
        _ask("cuThreadExchangeStreamCaptureMode", ctypes.byref(self.mode))
        _ask("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def _attribute(device: ctypes.c_int, number: int) -> int:
    value = ctypes.c_int()
    _ask("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value


def _launcher(
    function: ctypes.c_void_p, found: Plan, numbers: list[int], places: list[int], context
) -> Launch:
    """A function of the first two arguments, the stream, and those of these places. All else of the
    launch is laid out here, once for each thread that is in it at the same time."""
    enqueue, unused = _driver().cuLaunchKernelEx, []

    def laid_out() -> tuple:
        values = (ctypes.c_uint64 * (2 + len(numbers)))(0, 0, *numbers)  # an int reads the low half
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * len(values))(*(first + 8 * i for i in range(len(values))))
        config = _Config((found.grid, 1, 1), (found.block, 1, 1), found.shared_mem)
        attributes = (_Attribute * 1)(_Attribute(2))  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
        attributes[0].value[0] = 1
        config.attributes, config.attribute_count = attributes, int(found.cooperative)
        return values, config, ctypes.byref(config), pointers

    def launch(x: int, y: int, stream: int, *others: int | float) -> None:
        try:
            layout = unused.pop()
        except IndexError:
            layout = laid_out()
        values, config, where, pointers = layout
        values[0] = x
        values[1] = y
        if places:
            for number, place in enumerate(places):  # a third of the time of a zip that is strict
                value = others[number]
                values[place] = _bits(value) if isinstance(value, float) else value
        config.stream = stream
        status = enqueue(where, function, pointers, None)
        if status == INVALID_CONTEXT:
            _ask("cuCtxSetCurrent", context)
            status = enqueue(where, function, pointers, None)
        unused.append(layout)  # the driver has copied it
        if status:
            _refuse("cuLaunchKernelEx", status)

    return launch


def _bits(value: float) -> int:
    """A number as a parameter that is a C float holds it."""
    return int.from_bytes(struct.pack("<f", value), "little")


# ---- compiling ----------------------------------------------------------------------------------


def machine_code(text: str, options: tuple[str, ...], capability: int) -> bytes:
    """A kernel compiled for sm_`capability`, from the cache if it was compiled before.

    The cache is the folder `$SOFTMAX_CACHE_DIR`, by default ~/.cache/softmax-worklog. Raises
    `CudaError` with the compiler's log.
    """
    nvrtc = _nvrtc()
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    flags = [f"-arch=sm_{capability}", *COMPILER_OPTIONS, *options]
    key = repr((major.value, minor.value, flags, text)).encode()
    entry = _cache_folder() / f"{hashlib.sha256(key).hexdigest()}.cubin"
    try:
        content = entry.read_bytes()
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            return content[32:]
    except OSError:  # not compiled yet
        pass
    image = _compile(nvrtc, text, flags + [f"-I{folder}" for folder in _include_folders(nvrtc)])
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, delete=False) as file:
            file.write(hashlib.sha256(image).digest() + image)
        os.replace(file.name, entry)
    except OSError:  # a folder that cannot be written to: only slower
        pass
    return image


def _compile(nvrtc, text: str, flags: list[str]) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"softmax.cu", 0, None, None)
    try:
        given = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        if status := nvrtc.nvrtcCompileProgram(program, len(flags), given):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(max(1, size.value))
            nvrtc.nvrtcGetProgramLog(program, log)
            said = f"NVRTC ({status}), {' '.join(flags)}:\n{log.value.decode()}"
            raise CudaError(said if _include_folders(nvrtc) else f"{NO_HEADERS}\n{said}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        image = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, image)
        return image.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _cache_folder() -> Path:
    if chosen := os.environ.get("SOFTMAX_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "softmax-worklog"


def _include_folders(nvrtc) -> list[Path]:
    """Where CUDA's headers of 16-bit types are: beside NVRTC, then in a toolkit."""
    library = Path(nvrtc._name)  # .../lib/libnvrtc.so.13, or a bare name
    beside = library.parent.parent
    roots = [beside, beside.parent / "cuda_runtime"] if library.is_absolute() else []
    roots += [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    roots += [Path(sys.prefix) / "targets" / "x86_64-linux", Path("/usr/local/cuda")]  # conda's
    folders = [root / "include" for root in roots]
    return [folder for folder in folders if (folder / "cuda_fp16.h").is_file()][:1]
