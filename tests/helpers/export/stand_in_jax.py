"""As much of JAX as an exported file calls, over the memory of a simulated driver. Its arrays are
numpy's. A call of the target lays out what XLA hands over, byte for byte as its C interface says
(xla/ffi/api/c_api.h), apart from how the exported file does."""

import ctypes
import struct
from types import ModuleType, SimpleNamespace

import numpy as np

HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
DTYPES = {"float32": 11, "float16": 10, "bfloat16": 16}
INSTANTIATE, EXECUTE = 0, 3


class XlaError(RuntimeError):
    """What the handler returned."""


def stand_in(driver) -> dict[str, ModuleType]:
    """The modules that are imported. `jax.put` makes an array on the GPU, `jax.own` are the axes
    that got JAX's own softmax, `jax.call` hands a frame to the target."""
    jax = ModuleType("jax")
    jax.own, jax.stream, jax.targets = [], 0, {}

    def empty(shape, dtype) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return driver.allocate(size).view(dtype).reshape(shape)

    def put(host: np.ndarray) -> np.ndarray:
        array = empty(host.shape, host.dtype)
        array[...] = host
        return array

    def own_softmax(x: np.ndarray, axis: int) -> np.ndarray:
        jax.own.append(axis)
        return x

    def stream_get(address: int) -> int:
        size, _, context, _ = struct.unpack("QQQQ", ctypes.string_at(address, 32))
        assert (size, context) == (32, 77)
        ctypes.c_uint64.from_address(address + 24).value = jax.stream
        return 0

    def error_create(address: int) -> int:
        size, _, message, code = struct.unpack("QQQi", ctypes.string_at(address, 28))
        jax.error = f"{code}: {ctypes.string_at(message).decode()}"
        return 4711

    jax.functions = functions = HANDLER(stream_get), HANDLER(error_create)  # kept
    pointers = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]

    def call(name: str, x: np.ndarray, y: np.ndarray, stage: int = EXECUTE, about=None) -> None:
        """Hand a frame over; with `about`, bytes to be filled, ask for the handler's metadata."""
        kept = []

        def laid_out(form: str, *values) -> int:
            kept.append(ctypes.create_string_buffer(struct.pack(form, *values)))
            return ctypes.addressof(kept[-1])

        def buffer(array: np.ndarray) -> int:
            dims = laid_out(f"{array.ndim}q", *array.shape)
            fields = DTYPES[array.dtype.name], array.ctypes.data, array.ndim, dims
            return laid_out("QQi4xQqQ", 48, 0, *fields)

        def buffers(*arrays: np.ndarray) -> tuple[int, ...]:
            listed = laid_out(f"{len(arrays)}Q", *map(buffer, arrays))
            types = laid_out(f"{len(arrays)}i", *[1] * len(arrays))
            return 40, 0, len(arrays), types, listed

        version = 24, 0, 0, 3
        get, create = pointers
        api = laid_out("QQ QQii Q 5Q", 200, 0, *version, 0, create, 0, 0, 0, get)
        extension = laid_out("Qi4xQQ", 32, 1, 0, ctypes.addressof(about)) if about else 0
        attributes = 48, 0, 0, 0, 0, 0
        frame = laid_out(
            "QQ QQ i4x 5Q 5Q 6Q Q",
            *(176, extension, api, 77, stage),
            *(*buffers(x), *buffers(y), *attributes, 0),
        )
        if error := jax.targets[name](frame):
            raise XlaError(f"{error}: {jax.error}")

    def ffi_call(name: str, kind, vmap_method: str):
        assert vmap_method == "broadcast_all"

        def run(x: np.ndarray) -> np.ndarray:
            y = empty(kind.shape, kind.dtype)
            call(name, x, y)
            return y

        return run

    def register(name: str, capsule, platform: str) -> None:
        assert platform == "CUDA"
        if jax.targets.setdefault(name, capsule) is not capsule:
            raise XlaError(f"Duplicate FFI handler registration for {name}")

    def custom_jvp(function):
        function.defjvp = lambda derivative: derivative
        return function

    def jit(function):
        """What is traced once for a shape and a dtype."""

        def run(x: np.ndarray) -> np.ndarray:
            jax.traced.add((x.shape, x.dtype))
            return function(x)

        return run

    jax.put, jax.call, jax.custom_jvp, jax.jit, jax.traced = put, call, custom_jvp, jit, set()
    jax.Array = np.ndarray
    jax.nn = SimpleNamespace(softmax=own_softmax)
    jax.numpy = ModuleType("jax.numpy")
    jax.numpy.asarray = np.asarray
    jax.lax = SimpleNamespace(platform_dependent=lambda x, cuda, default: cuda(x))
    jax.ShapeDtypeStruct = lambda shape, dtype: SimpleNamespace(shape=shape, dtype=dtype)
    jax.ffi = SimpleNamespace(
        ffi_call=ffi_call, register_ffi_target=register, pycapsule=lambda function: function
    )
    return {"jax": jax, "jax.numpy": jax.numpy}
