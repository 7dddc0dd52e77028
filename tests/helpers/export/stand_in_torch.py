"""As much of PyTorch as an exported file calls, over the memory of a simulated driver."""

from contextlib import contextmanager
from math import prod
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
    "uint8": np.dtype(np.uint8),
}


def stand_in(driver) -> dict[str, ModuleType]:
    """The modules that are imported. `torch.put` makes a tensor on the GPU of a numpy array;
    `torch.own` are the calls that got PyTorch's own softmax, `torch.state` is what users switch."""
    torch, autograd = ModuleType("torch"), ModuleType("torch.autograd")
    state = SimpleNamespace(
        **{"dynamo": False, "grad": True, "autocast": False, "modes": 0, "function_modes": False},
        **{"transforms": None, "tracing": False, "stream": 0, "device": 0, "devices": 1},
    )

    class Tensor:
        def __init__(self, host: np.ndarray, device: str = "cuda", requires_grad: bool = False):
            self.host, self.requires_grad = host, requires_grad
            self.shape = host.shape
            (self.dtype,) = (name for name, dtype in DTYPES.items() if dtype == host.dtype)
            self.device = SimpleDevice(device, 0)
            self.is_cuda = device == "cuda"
            self.negative = self.is_nested = False

        def stride(self, axis: int | None = None):
            strides = tuple(stride // self.host.itemsize for stride in self.host.strides)
            return strides if axis is None else strides[axis]

        def data_ptr(self) -> int:
            if self.is_nested:
                raise RuntimeError("no storage of its own")
            return self.host.ctypes.data

        def dim(self) -> int:
            return self.host.ndim

        def numel(self) -> int:
            return self.host.size

        def is_neg(self) -> bool:
            return self.negative

        def is_contiguous(self) -> bool:
            return self.host.flags.c_contiguous

        def contiguous(self) -> "Tensor":
            return put(np.ascontiguousarray(self.host))

        def float(self) -> "Tensor":
            return put(self.host.astype(np.float32))

        def transpose(self, *axes) -> "Tensor":
            return type(self)(self.host.transpose(*axes))

        def __getitem__(self, key) -> "Tensor":
            return type(self)(self.host[key])

    class Parameter(Tensor):
        pass

    class FakeTensor(Tensor):
        pass

    def empty(shape, dtype: np.dtype) -> np.ndarray:
        return driver.allocate(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def put(host: np.ndarray, kind=Tensor, **options) -> Tensor:
        memory = empty(host.shape, host.dtype)
        memory[...] = host
        return kind(memory, **options)

    def empty_like(x: Tensor, memory_format=None) -> Tensor:
        assert memory_format == "contiguous" or x.is_contiguous()
        return Tensor(empty(x.shape, x.host.dtype))

    def empty_strided(shape, stride, dtype: str) -> Tensor:
        assert type(shape) is type(stride) is tuple
        torch.allocated.append(shape)
        found = Tensor(empty(shape, DTYPES[dtype]))
        assert found.stride() == stride
        return found

    def zeros(size: int, dtype: str, device: str) -> Tensor:
        return put(np.zeros(size, DTYPES[dtype]))

    def own_softmax(x: Tensor, dim: int) -> Tensor:
        torch.own.append(dim)
        power = np.exp(x.host.astype(np.float64) - x.host.max(dim, keepdims=True))
        return Tensor((power / power.sum(dim, keepdims=True)).astype(x.host.dtype))

    @contextmanager
    def device(index: int):
        before, state.device = state.device, index
        yield
        state.device = before

    operators: dict[tuple[str, str], dict] = {}

    class Library:
        def __init__(self, name: str, kind: str):
            self.name = name

        def define(self, schema: str, tags=()) -> None:
            assert (self.name, schema.partition("(")[0]) not in operators
            operators[self.name, schema.partition("(")[0]] = {"schema": schema}

        def impl(self, name: str, function, key: str) -> None:
            operators[self.name, name][key] = function

    def register_fake(name: str, function, lib) -> None:
        operators[tuple(name.split("::"))]["fake"] = function

    class Operators:
        def __getattr__(self, namespace: str):
            if (namespace, "softmax") not in operators:
                return SimpleNamespace()
            found = operators[namespace, "softmax"]

            def call(x):
                torch.dispatched.append(namespace)
                return found["fake" if isinstance(x, FakeTensor) else "CUDA"](x)

            return SimpleNamespace(softmax=SimpleNamespace(default=call))

    torch.state, torch.own, torch.dispatched, torch.put = state, [], [], put
    torch.allocated = []  # past the dispatcher
    torch.Tensor, torch.softmax, torch.zeros, torch.empty_like = (
        Tensor,
        own_softmax,
        zeros,
        empty_like,
    )
    torch.contiguous_format, torch.FakeTensor = "contiguous", FakeTensor
    for name in DTYPES:
        setattr(torch, name, name)
    torch.nn = SimpleNamespace(Parameter=Parameter)
    torch.is_grad_enabled = lambda: state.grad
    torch.is_autocast_enabled = lambda kind="cuda": state.autocast
    torch.empty_strided = lambda *a, dtype, device: empty_strided(*a, dtype)
    torch.compiler = SimpleNamespace(is_dynamo_compiling=lambda: state.dynamo)
    torch.cuda = SimpleNamespace(device=device, device_count=lambda: state.devices)
    torch.library = SimpleNamespace(Library=Library, register_fake=register_fake)
    torch.Tag = SimpleNamespace(pt2_compliant_tag="compliant")
    torch.ops = Operators()
    torch._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda index: state.stream,
        _cuda_getDevice=lambda: state.device,
        _len_torch_dispatch_stack=lambda: state.modes,
        _is_torch_function_mode_enabled=lambda: state.function_modes,
        _functorch=SimpleNamespace(peek_interpreter_stack=lambda: state.transforms),
        _is_tracing=lambda: state.tracing,
        _dynamo=SimpleNamespace(guards=SimpleNamespace(_empty_strided_cuda=empty_strided)),
    )
    torch.autograd = autograd
    autograd.forward_ad = SimpleNamespace(_current_level=-1)
    return {"torch": torch, "torch.autograd": autograd}


class SimpleDevice(SimpleNamespace):
    """A device that can be a key."""

    def __init__(self, kind: str, index: int):
        super().__init__(type=kind, index=index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))
