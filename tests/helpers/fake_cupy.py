"""NumPy in CuPy's place, as far as the timers ask for it: graphs, events and arrays."""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np

from helpers.measure.bench import Candidate, Maker
from helpers.measure.gpu_arrays import verify
from helpers.problem.problem import Problem
from helpers.run.check import check_softmax
from helpers.run.references import reference


class Machine:
    """A GPU's stream: every call costs what it is told to, and a graph runs its calls again."""

    def __init__(self) -> None:
        self.now_us = 0.0
        self.captured: list | None = None
        self.order: list[str] = []  # of what ran outside of captures

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None: ...
    def synchronize(self) -> None: ...
    def begin_capture(self) -> None:
        self.captured = []

    def end_capture(self) -> SimpleNamespace:
        calls, self.captured = self.captured, None
        return SimpleNamespace(
            upload=lambda stream: None, launch=lambda stream: [call() for call in calls]
        )

    def event(self) -> SimpleNamespace:
        made = SimpleNamespace(synchronize=lambda: None, us=0.0)
        made.record = lambda stream: setattr(made, "us", self.now_us)
        return made

    def enqueue(self, name: str, us: float, work: Callable[[], None]) -> None:
        def call() -> None:
            self.now_us += us
            self.order.append(name)
            work()

        if self.captured is None:
            call()
        else:
            self.captured.append(call)

    def maker(
        self, name: str, us: float, compute=reference, compare=check_softmax, early=None
    ) -> Maker:
        """What takes `us` to compute y from x, and with `early` = (us, compute) that by a
        programmatic launch; the check compares x with y."""

        def check(_, values, written, *__) -> None:
            compare(values["x"], written["y"])

        def make(problem: Problem) -> Candidate:
            def run_of(us: float, compute, name: str = name) -> Callable:
                def run(x, y) -> None:
                    def work() -> None:
                        values = x.view(problem.dtype).astype(np.float64)
                        y.view(problem.dtype)[...] = compute(values)

                    self.enqueue(name, us, work)

                return run

            judge, launch = partial(verify, problem, {}, check=check), {"grid": 1}
            run = run_of(us, compute)
            programmatic = run_of(*early, f"{name}, programmatic") if early else None
            return Candidate(run, launch, {"registers": 9}, judge, programmatic)

        return make


NAMES = "isnan where empty empty_like ones exp log concatenate hsplit float32 uint32 uint16".split()


def fake_cupy(machine: Machine | None = None, **more) -> SimpleNamespace:
    """A GPU with an L2 of 4000 bytes; `more` are further names of cupy."""
    stream = machine or Machine()
    device = SimpleNamespace(attributes={"L2CacheSize": 4000}, synchronize=lambda: None)
    cuda = SimpleNamespace(
        Stream=lambda non_blocking: stream,
        Event=stream.event,
        Device=lambda: device,
        get_elapsed_time=lambda start, stop: (stop.us - start.us) / 1e3,
        get_current_stream=lambda: stream,
    )
    found = {name: getattr(np, name) for name in NAMES}
    fake = SimpleNamespace(cuda=cuda, random=np.random, asnumpy=np.asarray, **found, **more)
    fake.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    return fake
