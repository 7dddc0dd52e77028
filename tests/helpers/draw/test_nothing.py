"""Where nothing happens of what a figure is about, it says so and can be read."""

import numpy as np
import pytest

from helpers import bind, source
from helpers.page import draw
from helpers.simt import KernelText, simulate
from tests.helpers.draw.looks import Shown, complaints

SAID = {
    "owners": "No thread loads an element of x.",
    "reduction": "In block 0 no thread takes a value from another: nothing is reduced.",
    "life": "2 warps meet at no barrier: no warp waits for another.",
    "messages": "No block reads what another one wrote: each works alone.",
}


@pytest.mark.parametrize("name", SAID)
def test_a_figure_says_that_there_is_nothing(name: str, shown: Shown) -> None:
    code = 'extern "C" __global__ void fill(const float* x, float* y) { y[threadIdx.x] = 1; }'
    x, names = np.ones((2, 32), np.float32), ("x", "y")
    trace = simulate(KernelText(code, "fill"), 1, 64, (x, x * 0), names=names, watch=True)
    getattr(draw, name)(trace)
    figure, _, sentence = shown.take()
    assert " ".join(sentence.split()) == SAID[name] and complaints(figure) == []


@pytest.mark.parametrize("name", [*SAID, "sectors", "moves"])
def test_a_trace_without_what_is_drawn_is_refused(name: str) -> None:
    idle = simulate(KernelText('extern "C" __global__ void idle() {}', "idle"), 1, 32, ())
    x = np.ones((1, 100), np.float32)
    bare = bind(source("03_shared.cu"), 1, 100).simulate(x, x * 0)
    with pytest.raises(ValueError, match="watch=True|no line of its own"):
        getattr(draw, name)(
            *((idle,) if name == "moves" else (bare, 30)[: 1 + (name == "sectors")])
        )
