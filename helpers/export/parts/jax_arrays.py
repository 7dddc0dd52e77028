"""Softmax of JAX's arrays, through its foreign function interface."""

from __future__ import annotations

import ctypes
import math

import jax
import jax.numpy as jnp

from .launching import device, device_of
from .planning import SIZES

NAME = "softmax_worklog"
TARGET = f"{__name__}.{NAME}"  # what XLA calls: another package may have a copy of this file


def softmax(x: jax.Array, axis: int = -1) -> jax.Array:
    """jax.nn.softmax(x, axis), by the kernels here wherever they take it.

    They take the last axis of float32, float16 or bfloat16 on a CUDA GPU, under jit, vmap and
    grad too, whose derivative is JAX's arithmetic. Other axes, dtypes and platforms get JAX's own
    answer. A kernel is compiled when it is first needed and kept on disk; XLA's command buffers
    leave it out. A call goes through Python on the host whenever XLA runs it.
    """
    x = x if isinstance(x, jax.Array) else jnp.asarray(x)
    ours = x.ndim > 0 and axis in (-1, x.ndim - 1) and x.dtype.name in SIZES and x.size > 0
    return _compiled(x) if ours else jax.nn.softmax(x, axis)


@jax.custom_jvp
def _softmax(x: jax.Array) -> jax.Array:
    return jax.lax.platform_dependent(x, cuda=_call, default=lambda x: jax.nn.softmax(x, -1))


@_softmax.defjvp
def _derivative(primals: tuple, tangents: tuple) -> tuple:
    y = _softmax(*primals)
    weighted = y * tangents[0]
    return y, weighted - y * weighted.sum(-1, keepdims=True)


_compiled = jax.jit(_softmax)  # else each call outside of jit would be traced anew


def _call(x: jax.Array) -> jax.Array:
    kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.ffi.ffi_call(TARGET, kind, vmap_method="broadcast_all")(x)


# ---- what XLA calls: its C interface, xla/ffi/api/c_api.h ----------------------------------------


def _struct(name: str, *fields: tuple) -> type[ctypes.Structure]:
    """A struct that begins as XLA's do, with its size and its extensions."""
    begin = ("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p)
    return type(name, (ctypes.Structure,), {"_fields_": [*begin, *fields]})


_Version = _struct("Version", ("major", ctypes.c_int), ("minor", ctypes.c_int))
_Api = _struct(
    "Api",
    ("version", _Version),
    ("internal", ctypes.c_void_p),
    ("error_create", ctypes.c_void_p),
    ("error_get_message", ctypes.c_void_p),
    ("error_destroy", ctypes.c_void_p),
    ("handler_register", ctypes.c_void_p),
    ("stream_get", ctypes.c_void_p),
)
_Buffer = _struct(
    "Buffer",
    ("dtype", ctypes.c_int),
    ("data", ctypes.c_void_p),
    ("rank", ctypes.c_int64),
    ("dims", ctypes.POINTER(ctypes.c_int64)),
)
_Buffers = _struct(
    "Buffers",
    ("size", ctypes.c_int64),
    ("types", ctypes.c_void_p),
    ("buffers", ctypes.POINTER(ctypes.POINTER(_Buffer))),
)
_Frame = _struct(
    "Frame",
    ("api", ctypes.POINTER(_Api)),
    ("context", ctypes.c_void_p),
    ("stage", ctypes.c_int),
    ("arguments", _Buffers),
    ("results", _Buffers),
)
_StreamGet = _struct("StreamGet", ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p))
_ErrorCreate = _struct("ErrorCreate", ("message", ctypes.c_char_p), ("code", ctypes.c_int))


class _Metadata(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("version", _Version),
        ("traits", ctypes.c_uint32),
    ]


# What asks a handler about itself: an extension of type 1 of the frame.
_MetadataExtension = _struct(
    "MetadataExtension",  # here the second field is its type
    ("next", ctypes.c_void_p),
    ("metadata", ctypes.POINTER(_Metadata)),
)
_DTYPES = {11: "float32", 10: "float16", 16: "bfloat16"}  # XLA_FFI_DataType
_EXECUTE, _INTERNAL = 3, 13  # XLA_FFI_ExecutionStage, XLA_FFI_Error_Code
_of_pointers = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def _handle(address: int) -> int | None:
    """What XLA calls with a frame; returns an error of XLA, or None."""
    frame = _Frame.from_address(address)
    api = frame.api.contents
    if frame.extension:
        extension = _MetadataExtension.from_address(frame.extension)
        if extension.extension & 0xFFFFFFFF == 1:
            about = extension.metadata.contents
            about.version.struct_size = ctypes.sizeof(_Version)
            about.version.major, about.version.minor = api.version.major, api.version.minor
            about.traits = 0
            return None
    if frame.stage != _EXECUTE:
        return None
    try:
        x, y = (part.buffers[0].contents for part in (frame.arguments, frame.results))
        asked = _StreamGet(ctypes.sizeof(_StreamGet), None, frame.context)
        if error := _of_pointers(api.stream_get)(ctypes.addressof(asked)):
            return error
        _launch(x, y, asked.stream or 0)
    except Exception as error:  # XLA has no other way to hear of it
        message = f"{type(error).__name__}: {error}".encode()
        failure = _ErrorCreate(ctypes.sizeof(_ErrorCreate), None, message, _INTERNAL)
        return _of_pointers(api.error_create)(ctypes.addressof(failure))
    return None


if "_handler" not in globals():  # else this module is loaded anew, and XLA holds the address
    _handler = _of_pointers(_handle)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_handler), platform="CUDA")


def _launch(x: _Buffer, y: _Buffer, stream: int) -> None:
    dims = x.dims[: x.rank]
    rows, cols, addresses = math.prod(dims[:-1]), dims[-1], (x.data, y.data)
    matrix = rows, cols, _DTYPES[x.dtype], (cols, cols)
    device(device_of(x.data)).launch(*matrix, addresses, _workspace_of_graph)(*addresses, stream)


def _workspace_of_graph(size: int) -> tuple[int, object]:
    raise RuntimeError("XLA captures this call, though it was not told that it may")
