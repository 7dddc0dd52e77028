"""Compile, cache and launch the kernels through NVRTC and the CUDA driver."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import struct  # [best]
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from .planning import KERNELS, SOURCES, Gpu, Plan, Refused, plan, source

COMPILER_OPTIONS = ("-ftz=true", "--device-as-default-execution-space", "--std=c++17")
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT: a thread that has not used the GPU yet
MAX_LAUNCHES = 4096  # launches kept per GPU
NO_HEADERS = (
    "CUDA's cuda_fp16.h and cuda_bf16.h, which 16-bit kernels include, were not found: install the "
    "package nvidia-cuda-runtime (for CUDA 12 nvidia-cuda-runtime-cu12), or set CUDA_HOME to a "
    "toolkit"
)
PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD: one handle for all threads  # [workspace]

# Takes a stream, the addresses of a kernel's first two arrays, and further arguments by position.
Launch = Callable[..., None]


class CudaError(RuntimeError):
    """An error of the CUDA driver or of NVRTC."""


class _Attribute(ctypes.Structure):  # CUlaunchAttribute  # [cooperative]
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):  # CUlaunchConfig
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_mem", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),  # [cooperative]
        ("attributes", ctypes.c_void_p),  # [not cooperative]
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
    try:  # as recent versions of PyTorch and CuPy find it
        from cuda.pathfinder import load_nvidia_dynamic_lib

        names.insert(0, load_nvidia_dynamic_lib("nvrtc").abs_path)
    except (ImportError, RuntimeError):
        wheels = importlib.util.find_spec("nvidia")
        for folder in wheels.submodule_search_locations or () if wheels else ():
            names[:0] = map(str, Path(folder).glob("*/lib/libnvrtc.so.*"))
    return _load(names, "NVRTC (install the package nvidia-cuda-nvrtc)")


def _load(names: list[str], what: str):
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CudaError(f"cannot load {what}: none of {', '.join(names)}")


def _call(function: str, *arguments) -> None:
    """Call a function of the driver. Raises `CudaError` if it fails."""
    if status := getattr(_driver(), function)(*arguments):
        _fail(function, status)


def _fail(function: str, status: int) -> None:
    """Raise `CudaError` with the driver's name for a status."""
    text = ctypes.c_char_p()
    _driver().cuGetErrorName(status, ctypes.byref(text))
    raise CudaError(f"{function}: {(text.value or b'error').decode()} ({status})")


class Device:
    """A GPU with the kernels that were compiled for it."""

    # Allocates zeroed bytes for the graph that is being captured, which must be zero  # [workspace]
    # at each replay, and returns their address and owner.  # [workspace]
    graph_workspace: Callable[[Device, int], tuple[int, object]]  # [workspace]

    def __init__(self, index: int):
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        _call("cuInit", 0)
        _call("cuDeviceGet", ctypes.byref(device), index)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, _MULTIPROCESSOR_COUNT,
        # _L2_CACHE_SIZE
        major, minor, sms, l2 = (_attribute(device, number) for number in (75, 76, 16, 38))
        self.gpu = Gpu(10 * major + minor, sms, l2)
        self._launches = functools.lru_cache(MAX_LAUNCHES)(self._new_launch)
        self._functions: dict[tuple, ctypes.c_void_p] = {}
        self._shared: dict[tuple, int] = {}  # allowed bytes of dynamic shared memory  # [shared]
        self._streams: dict[object, _Stream] = {}  # by handle  # [workspace]
        self._lock = threading.RLock()

    def launch(self, *matrix, **options) -> Launch:
        """Return what `_new_launch` returns; it is kept. Raises `Refused` if no kernel accepts the
        matrix, and `CudaError`."""
        found = self._launches(*matrix, **options)
        if isinstance(found, Refused):
            raise Refused(str(found))
        return found

    def _new_launch(
        self,
        rows: int,
        cols: int,
        dtype: str,
        strides: tuple[int, int] | None = None,
        starts: tuple[int, int] = (0, 0),
        inner: int = 1,  # [best]
        operation: str = "softmax",  # [best]
        features: tuple[tuple[str, int], ...] = (),  # [best]
        given: tuple[str, ...] = (),  # [best]
    ) -> Launch | Refused:
        """Return the launch for a matrix, as described for `plan`, or why there is none.

        `starts` are the addresses of x and y modulo 16 bytes. A launch takes a stream and the
        addresses of the kernel's first two arrays.
        It also takes the parameters named in `given`, floating-point ones as `bits_of`;  # [best]
        all other parameters are 0, null pointers if they are arrays.  # [best]
        """
        strides = strides or (cols, cols)
        problem = rows, cols, dtype, *strides, starts == (0, 0), starts[0] == starts[1], self.gpu
        try:
            found = plan(*problem)  # [not best]
            found = plan(*problem, operation, dict(features), inner)  # [best]
        except Refused as error:
            return error
        known = {"rows": rows, "cols": cols, "x_stride": strides[0], "y_stride": strides[1]}
        known |= {"outer": rows // inner, "dim": cols, "inner": inner}  # [best]
        parameters = KERNELS[found.kernel].parameters
        if unknown := [name for name in given if name not in parameters[2:]]:  # [best]
            return Refused(f"{found.kernel} has no parameter {unknown[0]}")
        given = parameters[:2]  # [not best]
        given = parameters[:2] + given  # [best]
        given = given + ("workspace",) if found.workspace else given  # [workspace]
        rest = {name: known.get(name, 0) for name in parameters if name not in given}
        values = dict.fromkeys(given, 0) | rest
        order = [*map([*values].index, parameters)]
        launch = _launcher(
            *(self._function(found), found, self.context, len(given), [*values.values()], order)
        )
        if found.workspace:  # [workspace]
            return self._with_workspace(launch, found.workspace)
        return launch

    def _with_workspace(self, launch: Launch, size: int) -> Launch:  # [workspace]
        kept = 1 << (size - 1).bit_length()  # all of a stream's are below twice the largest

        def with_workspace(stream: int, *given: int) -> None:
            address, owner = self._workspace(stream, kept), None
            if address is None:
                address, owner = self.graph_workspace(size)
            launch(stream, *given, address)
            del owner  # not earlier: the memory may be reused once its owner is gone

        return with_workspace

    def _function(self, found: Plan) -> ctypes.c_void_p:
        """Return the compiled kernel with the attributes that its launch requires."""
        key = found.kernel, found.options
        with self._lock:
            if key not in self._functions:
                text = SOURCES[found.kernel]  # [not best]
                text = source(found.kernel)  # [best]
                image = machine_code(text, found.options, self.gpu.capability)
                module, function = ctypes.c_void_p(), ctypes.c_void_p()
                with _Context(self.context):
                    _call("cuModuleLoadData", ctypes.byref(module), image)
                    name = KERNELS[found.kernel].function.encode()
                    _call("cuModuleGetFunction", ctypes.byref(function), module, name)
                    if found.cluster > 8:  # [clusters]
                        # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
                        _call("cuFuncSetAttribute", function, 14, 1)
                self._functions[key] = function
            function = self._functions[key]
            if found.shared_mem > self._shared.get(key, 0):  # [shared]
                with _Context(self.context):  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    _call("cuFuncSetAttribute", function, 8, found.shared_mem)
                self._shared[key] = found.shared_mem
            return function

    def _workspace(self, handle: int, size: int) -> int | None:  # [workspace]
        """Return the address of a stream's workspace, which is zero before and after each launch;
        None while the stream is captured.

        A new stream may have the handle of a destroyed stream whose kernels still run. The driver's
        stream id, which must not be queried during a capture, tells them apart.
        """
        key = (handle, threading.get_ident()) if handle == PER_THREAD_STREAM else handle
        stream = self._streams.get(key) or self._streams.setdefault(key, _Stream(handle))
        if (status := stream.is_capturing()) == INVALID_CONTEXT:
            _call("cuCtxSetCurrent", self.context)
            status = stream.is_capturing()
        if status:
            _fail("cuStreamIsCapturing", status)
        if stream.captured.value:
            return None
        if status := stream.get_id():
            _fail("cuStreamGetId", status)
        key = stream.id.value, size
        return stream.workspaces.get(key) or self._allocated(stream, *key)

    def _allocated(self, stream: _Stream, number: int, size: int) -> int:  # [workspace]
        """Return the address of a new workspace, and free those of a destroyed stream."""
        with self._lock:
            for key in [key for key in stream.workspaces if key[0] != number]:
                with _Context(self.context):  # CUDA waits for the kernels that use it
                    _call("cuMemFree_v2", ctypes.c_uint64(stream.workspaces.pop(key)))
            if (number, size) not in stream.workspaces:  # else by another thread, just now
                stream.workspaces[number, size] = self.zeros(size, stream.handle)
            return stream.workspaces[number, size]

    def zeros(self, size: int, stream: int) -> int:  # [workspace]
        """Allocate bytes that a stream sets to zero, and return their address."""
        address = ctypes.c_uint64()
        with _Context(self.context):
            _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
            fill = ctypes.c_ubyte(0), ctypes.c_size_t(size), ctypes.c_void_p(stream)
            _call("cuMemsetD8Async", address, *fill)
        return address.value


@functools.cache
def device(index: int) -> Device:
    """Return the GPU with an index."""
    return Device(index)


class _Stream:  # [workspace]
    """A stream with its workspaces, shared by the threads that launch on it. The driver's answers
    are written to `captured` and `id`."""

    def __init__(self, handle: int):
        self.handle = handle
        self.workspaces: dict[tuple[int, int], int] = {}  # by stream id and bytes
        self.captured, self.id = ctypes.c_int(), ctypes.c_ulonglong()
        stream, driver = ctypes.c_void_p(handle), _driver()
        captured, number = ctypes.byref(self.captured), ctypes.byref(self.id)
        self.is_capturing = functools.partial(driver.cuStreamIsCapturing, stream, captured)
        self.get_id = functools.partial(driver.cuStreamGetId, stream, number)


class _Context:
    """Make a GPU's context current and allow allocation while a stream is captured."""

    def __init__(self, context: ctypes.c_void_p):
        self.context, self.mode = context, ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED

    def __enter__(self) -> None:
        _call("cuCtxPushCurrent_v2", self.context)
        _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(self.mode))

    def __exit__(self, *_) -> None:
        _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(self.mode))
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def _attribute(device: ctypes.c_int, number: int) -> int:
    value = ctypes.c_int()
    _call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value


def _launcher(
    function: ctypes.c_void_p,
    found: Plan,
    context: ctypes.c_void_p,
    count: int,
    values: list[int],
    order: list[int],
) -> Launch:
    """Return the function that launches a kernel on a stream, given the first `count` of the values
    that it takes; `order` are their places by parameter. The rest of the launch is laid out once
    per thread that launches at the same time."""
    enqueue, unused = _driver().cuLaunchKernelEx, []

    def laid_out() -> tuple:
        slots = (ctypes.c_uint64 * len(values))(*values)  # little-endian
        first = ctypes.addressof(slots)
        pointers = (ctypes.c_void_p * len(order))(*(first + 8 * place for place in order))
        config = _Config((found.grid, 1, 1), (found.block, 1, 1), found.shared_mem)
        if found.cooperative:  # [cooperative]
            attribute = _Attribute(2)  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value[0] = 1
            config.attributes, config.attribute_count = ctypes.pointer(attribute), 1
        return slots, config, ctypes.byref(config), pointers

    def launch(stream: int, *given: int) -> None:
        try:
            layout = unused.pop()
        except IndexError:
            layout = laid_out()
        slots, config, where, pointers = layout
        slots[:count] = given
        config.stream = stream
        status = enqueue(where, function, pointers, None)
        if status == INVALID_CONTEXT:
            _call("cuCtxSetCurrent", context)
            status = enqueue(where, function, pointers, None)
        unused.append(layout)  # the driver has copied the parameters
        if status:
            _fail("cuLaunchKernelEx", status)

    return launch


def bits_of(value: int | float) -> int:  # [best]
    """Return the bits of a number, of a float those of a C float."""
    return struct.unpack("<I", struct.pack("<f", value))[0] if isinstance(value, float) else value


# ---- compiling ----------------------------------------------------------------------------------


def machine_code(text: str, options: tuple[str, ...], capability: int) -> bytes:
    """Return a kernel's machine code for sm_`capability`, from the cache if it is there.

    The cache is in the folder `$SOFTMAX_CACHE_DIR`, by default ~/.cache/softmax-worklog. Raises
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
    except OSError:  # not in the cache
        pass
    image = _compile(nvrtc, text, flags + [f"-I{folder}" for folder in _include_folders(nvrtc)])
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, delete=False) as file:
            file.write(hashlib.sha256(image).digest() + image)
        os.replace(file.name, entry)
    except OSError:  # the folder cannot be written: compile again next time
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
    """Return the folder of CUDA's 16-bit headers: next to NVRTC, or in a toolkit."""
    library = Path(nvrtc._name)  # .../lib/libnvrtc.so.13, or a bare name
    beside = library.parent.parent
    roots = [beside, beside.parent / "cuda_runtime"] if library.is_absolute() else []
    roots += [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    roots += [Path(sys.prefix) / "targets" / "x86_64-linux", Path("/usr/local/cuda")]  # conda's
    folders = [root / "include" for root in roots]
    return [folder for folder in folders if (folder / "cuda_fp16.h").is_file()][:1]
