"""As much of PyTorch as an exported file calls, over the memory of a simulated driver."""

from contextlib import contextmanager
from math import prod
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np

from helpers.gpu import H200, Gpu
from tests.helpers.export import simulated_driver

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float64": np.dtype(np.float64),
    "uint8": np.dtype(np.uint8),
    "bool": np.dtype(bool),
    "int64": np.dtype(np.int64),
}


def stand_in(driver) -> dict[str, ModuleType]:
    """The modules that are imported. `torch.put` makes a tensor on the GPU of a numpy array;
    `torch.own` are the calls that got PyTorch's own operations, `torch.state` is what users switch,
    `torch.operators` what was registered."""
    torch, autograd = ModuleType("torch"), ModuleType("torch.autograd")
    state = SimpleNamespace(
        **{"dynamo": False, "grad": True, "autocast": False, "modes": 0, "function_modes": False},
        **{"transforms": None, "tracing": False, "stream": 0, "device": 0, "devices": 1},
        **{"capturing": False, "seed": 7, "dtype": "float32", "made_on": "cpu"},
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

        def is_floating_point(self) -> bool:
            return self.host.dtype.kind != "i"

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

        def clone(self, memory_format: str) -> "Tensor":
            assert memory_format == "contiguous"
            return self.contiguous()

        def to(self, dtype: str) -> "Tensor":
            return self if dtype == self.dtype else put(self.host.astype(DTYPES[dtype]))

        def new_empty(self, shape, dtype: str) -> "Tensor":
            return Tensor(empty(shape, DTYPES[dtype]))

        def reshape(self, shape) -> "Tensor":
            return Tensor(self.host.reshape(shape))

        def expand(self, *shape) -> "Tensor":
            return Tensor(np.broadcast_to(self.host, shape))

        def masked_fill(self, mask: "Tensor", value: float) -> "Tensor":
            return put(np.where(mask.host, np.asarray(value, self.host.dtype), self.host))

        def fill_(self, value: float) -> "Tensor":
            self.host[...] = value
            return self

        def triu(self, diagonal: int) -> "Tensor":
            return put(np.triu(self.host, diagonal))

        def sum(self) -> "Tensor":
            kind = np.int64 if self.host.dtype == bool else self.host.dtype
            return put(np.asarray(self.host.sum(dtype=kind)))

        def sum_to_size(self, shape) -> "Tensor":
            lead = self.host.ndim - len(shape)
            axes = [n for n in range(lead, self.host.ndim) if shape[n - lead] == 1]
            found = self.host.astype(np.float64).sum((*range(lead), *axes), keepdims=True)
            return put(found.reshape(shape).astype(self.host.dtype))

        def __or__(self, other) -> "Tensor":
            return put(self.host | other.host)

        def __ne__(self, other) -> "Tensor":
            return put(np.asarray(self.host != other))

        def __add__(self, other) -> "Tensor":
            return put(self.host + other.host)

        def __mul__(self, other) -> "Tensor":
            other = getattr(other, "host", other)
            with np.errstate(invalid="ignore"):  # infinity * 0
                return put(np.asarray(self.host * other, self.host.dtype))

        def __pow__(self, power: int) -> "Tensor":
            return put(self.host**power)

        def __ge__(self, other) -> "Tensor":
            return put(self.host >= other)

        def __truediv__(self, other) -> "Tensor":
            return put(np.asarray(self.host / getattr(other, "host", other), self.host.dtype))

        def __int__(self) -> int:
            return int(self.host)

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

    def exact(x: Tensor, dim: int) -> np.ndarray:
        power = np.exp(x.host.astype(np.float64) - x.host.max(dim, keepdims=True))
        return power / power.sum(dim, keepdims=True)

    def own_softmax(x: Tensor, dim: int, dtype: str | None = None) -> Tensor:
        torch.own.append(dim)
        return put(exact(x, dim).astype(DTYPES[dtype or x.dtype]))

    def own_log_softmax(x: Tensor, dim: int, dtype: str | None = None) -> Tensor:
        torch.own.append(("log", dim))
        with np.errstate(divide="ignore"):
            return put(np.log(exact(x, dim)).astype(DTYPES[dtype or x.dtype]))

    def own_backward(dy: Tensor, y: Tensor, dim: int, dtype: str) -> Tensor:
        torch.own.append(("backward", dim))
        y, dy = y.host.astype(np.float64), dy.host.astype(np.float64)
        return put((y * (dy - (y * dy).sum(dim, keepdims=True))).astype(DTYPES[dtype]))

    def own_log_backward(dy: Tensor, y: Tensor, dim: int, dtype: str) -> Tensor:
        torch.own.append(("log backward", dim))
        y, dy = y.host.astype(np.float64), dy.host.astype(np.float64)
        return put((dy - np.exp(y) * dy.sum(dim, keepdims=True)).astype(DTYPES[dtype]))

    def own_loss(x: Tensor, target: Tensor, **options) -> Tensor:
        torch.own.append(("cross_entropy", options["reduction"]))
        return x

    def own_dropout(y: Tensor, p: float) -> Tensor:
        torch.own.append(("dropout", p))
        return y

    class Generator:
        def __init__(self, device):
            self.seed = None

        def manual_seed(self, seed: int) -> "Generator":
            self.seed = seed
            return self

    def rand(shape, generator: Generator, device, dtype: str | None = None) -> Tensor:
        steps = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8}[dtype or state.dtype]
        drawn = np.random.default_rng(generator.seed).random(shape)
        return put((np.floor(drawn * steps) / steps).astype(np.float32))

    def randint(most: int, shape, device: str | None = None) -> Tensor:
        """The seed, of the CPU's generator."""
        seed = state.seed if (device or state.made_on) == "cpu" else 0
        return put(np.int64(seed).reshape(shape))

    def where(of: Tensor, one: Tensor, other: float) -> Tensor:
        return put(np.where(of.host, one.host, np.asarray(other, one.host.dtype)))

    def logsumexp(x: Tensor, dim: int) -> Tensor:
        return put(np.logaddexp.reduce(x.host, dim))

    @contextmanager
    def device(index):
        before, state.device = state.device, getattr(index, "index", index)
        yield
        state.device = before

    operators: dict[str, dict[str, SimpleNamespace]] = {}  # of a library

    class Library:
        def __init__(self, name: str, kind: str):
            self.name = name
            operators.setdefault(name, {})

        def define(self, schema: str, tags=()) -> None:
            name = schema.partition("(")[0]
            assert name not in operators[self.name]
            operators[self.name][name] = SimpleNamespace(schema=schema, name=name)

        def impl(self, name: str, function, key: str) -> None:
            assert key == "CUDA"
            found(name).run = function

    def found(name: str) -> SimpleNamespace:
        library, name = name.split("::")
        return operators[library][name]

    def register_fake(name: str, function, lib) -> None:
        found(name).fake = function

    def register_autograd(name: str, function, *, setup_context, lib) -> None:
        found(name).gradient, found(name).keep = function, setup_context

    class Operators:
        def __getattr__(self, library: str):
            def callable_(operator: SimpleNamespace) -> SimpleNamespace:
                def call(*given):
                    assert len(given) == operator.schema.partition(") ->")[0].count(",") + 1
                    torch.dispatched.append(operator.name)
                    fake = isinstance(given[0], FakeTensor)
                    return (operator.fake if fake else operator.run)(*given)

                return SimpleNamespace(default=call)

            known = operators.get(library, {})
            return SimpleNamespace(**{name: callable_(known[name]) for name in known})

    torch.state, torch.own, torch.dispatched, torch.put = state, [], [], put
    torch.allocated = []  # past the dispatcher
    torch.operators, torch.Tensor = operators, Tensor
    torch.softmax, torch.log_softmax = own_softmax, own_log_softmax
    torch._softmax_backward_data, torch._log_softmax_backward_data = own_backward, own_log_backward
    torch.zeros, torch.empty_like, torch.rand, torch.Generator = zeros, empty_like, rand, Generator
    torch.empty = lambda shape, dtype, device: Tensor(empty(shape, DTYPES[dtype]))
    torch.ones = lambda *shape, dtype, device: put(np.ones(shape, DTYPES[dtype]))
    torch.randint, torch.where, torch.logsumexp = randint, where, logsumexp
    torch.inf, torch.nan = np.inf, np.nan
    torch.contiguous_format, torch.FakeTensor = "contiguous", FakeTensor
    for name in DTYPES:
        setattr(torch, name, name)
    torch.nn = ModuleType("torch.nn")
    torch.nn.Parameter = Parameter
    torch.nn.functional = SimpleNamespace(dropout=own_dropout, cross_entropy=own_loss)
    torch.is_grad_enabled = lambda: state.grad
    torch.is_autocast_enabled = lambda kind="cuda": state.autocast
    torch.empty_strided = lambda *a, dtype, device: empty_strided(*a, dtype)
    torch.compiler = SimpleNamespace(is_dynamo_compiling=lambda: state.dynamo)
    torch.cuda = SimpleNamespace(device=device, device_count=lambda: state.devices)
    torch.cuda.is_current_stream_capturing = lambda: state.capturing
    torch.library = SimpleNamespace(
        Library=Library, register_fake=register_fake, register_autograd=register_autograd
    )
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
    return {"torch": torch, "torch.autograd": autograd, "torch.nn": torch.nn}


class Here:
    """A fresh import of an exported file, with the PyTorch and the driver that it uses."""

    def __init__(self, text: str, gpu: Gpu = H200, without: str = ""):
        self.driver = simulated_driver.Driver(gpu)
        packages = stand_in(self.driver)
        self.torch = packages["torch"]
        if without:
            delattr(self.torch._C, without)
        self.module = simulated_driver.loaded(text, packages, self.driver)
        self.softmax, self.put = self.module.softmax, self.torch.put


class SimpleDevice(SimpleNamespace):
    """A device that can be a key."""

    def __init__(self, kind: str, index: int):
        super().__init__(type=kind, index=index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))
