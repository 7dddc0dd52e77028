"""NumPy in CuPy's place, as far as the benchmark asks for it: graphs, events and arrays."""

from types import SimpleNamespace

import numpy as np


class FakeStream:
    """Runs at once what is enqueued; a capture runs it too, and its graph runs nothing again."""

    def __init__(self, replayed: list):
        self.replayed = replayed

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None: ...
    def synchronize(self) -> None: ...
    def begin_capture(self) -> None:
        self.replayed.clear()

    def end_capture(self) -> SimpleNamespace:
        calls = list(self.replayed)
        return SimpleNamespace(
            upload=lambda stream: None, launch=lambda stream: [call() for call in calls]
        )


NAMES = "isnan where empty empty_like ones exp log concatenate hsplit float32 uint32 uint16".split()


def fake_cupy(calls: list, **more) -> SimpleNamespace:
    """`calls` are those of the capture that goes on; what runs appends its own. `more` replaces
    functions of cupy or cupy.cuda."""
    stream = FakeStream(calls)
    event = SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)
    device = SimpleNamespace(attributes={"L2CacheSize": 4000}, synchronize=lambda: None)
    cuda = SimpleNamespace(
        Stream=lambda non_blocking: stream,
        Event=lambda: event,
        Device=lambda: device,
        get_elapsed_time=lambda start, stop: 2.0,
        get_current_stream=lambda: stream,
    )
    for name in vars(cuda).keys() & more.keys():
        setattr(cuda, name, more.pop(name))
    found = {name: getattr(np, name) for name in NAMES}
    fake = SimpleNamespace(cuda=cuda, random=np.random, asnumpy=np.asarray, **found, **more)
    fake.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    return fake
