"""A step looks alike everywhere, and lines that share a figure are told apart by anybody.

The rule: colours of lines in one figure are at least `APART` from each other in CIELAB as seen by
everybody, and without green or red cones, and colours of any two steps `FAR`; in grey, lines are
told apart by marker or line style, which no two of them share, and a step from its neighbours by
lightness too.
"""

import io
import itertools

import numpy as np
import pytest

from helpers.catalogue import registry
from helpers.measure import baselines
from helpers.page.draw import style

plt = pytest.importorskip("matplotlib.pyplot")

APART, FAR = 13.0, 11.0  # in CIELAB; 2.3 is just noticeable side by side
STRONGER = 16.0  # of steps that share a figure
GREY_APART = 8.0  # of lightness, between a step and its neighbours
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SEEN = {
    "everybody": np.eye(3),
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
STEPS = [f"{number:02}_x" for number in range(1, 21)]  # there are fewer: those to come have one too
TITLES = [baseline.title for baseline in baselines.BASELINES.values()]
FIGURES = {
    "series": [*STEPS[:8], registry.UNFUSED, "PyTorch", "copy"],
    "short rows": [*STEPS[6:10], "PyTorch", "copy"],
    "rows that start anywhere": [STEPS[3], *STEPS[6:8], STEPS[10], "PyTorch", "copy"],
    "race": [*TITLES, "ours", "copy"],
    **{f"step {step}": [step, "PyTorch", "copy"] for step in STEPS},
    **{f"{one} and {other}": [one, other] for one, other in itertools.pairwise(STEPS)},
    "05 and 09": [STEPS[4], STEPS[8]],
}


def linear(color: str) -> np.ndarray:
    rgb = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB, with the white of sRGB."""
    ratio = TO_XYZ @ rgb / TO_XYZ.sum(axis=1)
    x, y, z = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str, view: str) -> float:
    seen = [lab(np.clip(np.array(SEEN[view]) @ linear(color), 0, 1)) for color in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def complaints(looks: dict[str, style.Look], apart: float = APART) -> list[str]:
    """Which lines of one figure cannot be told apart, by whom."""
    found = []
    for one, other in itertools.combinations(looks, 2):
        first, second = looks[one], looks[other]
        for view in SEEN:
            if (far := distance(first.color, second.color, view)) < apart:
                found.append(f"{one} and {other}: {far:.1f} apart in {view}")
        if (first.marker, first.linestyle) == (second.marker, second.linestyle):
            found.append(f"{one} and {other}: alike in grey")
    return found


def test_lines_that_share_a_figure_are_apart() -> None:
    for figure, names in FIGURES.items():
        looks = {name: style.look(name) for name in names}
        assert complaints(looks, APART if figure == "race" else STRONGER) == [], figure


def test_no_two_steps_look_alike_and_neighbours_differ_in_grey() -> None:
    looks = [style.look(name) for name in (*STEPS, registry.UNFUSED, "PyTorch")]
    assert len({look.marker for look in looks}) == len(looks)
    assert complaints({name: style.look(name) for name in STEPS[: len(style.COLORS)]}, FAR) == []
    for one, other in itertools.pairwise(STEPS):
        light = [lab(linear(style.look(name).color))[0] for name in (one, other)]
        assert abs(light[0] - light[1]) >= GREY_APART, (one, other)


def test_whatever_is_recorded_has_a_look_and_a_trial_that_of_its_step() -> None:
    for name in (*registry.known_steps(), *TITLES):
        color, marker, _ = style.look(name)
        assert color.startswith("#") and marker is not None
    assert style.look("06_registers-PACKS2") == style.look("06_registers")
    assert style.look("variants/04_shuffle_pairs") == style.look("04_shuffle")
    assert style.look("00_copy") == style.look("copy") == ("#000000", "", "--")
    for unknown in ("naive", "16 bytes", ""):
        with pytest.raises(ValueError, match="is not a step, such as 01_naive, and none of copy"):
            style.look(unknown)


# ---- the page -----------------------------------------------------------------------------------


def test_figure_is_a_png_with_a_plain_form_and_a_sentence(monkeypatch) -> None:
    shown = []
    monkeypatch.setattr(
        "IPython.display.display", lambda *data, **about: shown.append((data, about))
    )
    figure, _ = style.chart("Half as fast")
    style.finish(figure, "Half as fast", "It is half as fast, " + "and long enough " * 6)
    ((data,), about), ((caption,), _) = shown
    assert data["text/plain"] == "<figure: Half as fast>"
    assert plt.imread(io.BytesIO(data["image/png"])).shape[1] == 1448
    assert about["metadata"]["image/png"]["width"] == 724
    assert plt.get_fignums() == [], "none is kept, whatever ends a cell"
    assert ">It is half as fast, " in caption["text/html"]
    lines = caption["text/plain"].splitlines()
    assert lines[0].startswith("It is half as fast") and max(map(len, lines)) <= 80
    style.finish(figure, "Half as fast" + " as that" * 9, "It is.")
    assert shown[-2][0][0]["text/plain"].count("\n") == 1  # wider than 80 columns
    with pytest.raises(ValueError, match="needs a sentence"):
        style.finish(figure, "Half as fast", " ")
