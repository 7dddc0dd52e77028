"""SOFTMAX_REPLAY and the GPU in use decide whether a notebook runs live or in replay mode."""

import re

import pytest

from helpers.base import mode
from helpers.base.gpu import H200, Gpu


@pytest.mark.parametrize("value", ["yes", "2", "true", " 1"])
def test_switch_takes_0_and_1_alone(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mode.SWITCH, value)
    message = re.escape(f"SOFTMAX_REPLAY must be 0 or 1, not {value!r}")
    for ask in (mode.replaying, mode.gpu_for_plans, mode.describe_mode):
        with pytest.raises(ValueError, match=message):
            ask()


@pytest.mark.parametrize("value", ["", "0", "1", None])
@pytest.mark.parametrize("gpu", [False, True])
def test_switch_decides_the_mode(value, gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode, "has_gpu", lambda: gpu)
    monkeypatch.delenv(mode.SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(mode.SWITCH, value)
    if value == "0" and not gpu:
        with pytest.raises(RuntimeError, match="SOFTMAX_REPLAY=0 requires a GPU.* finds none"):
            mode.replaying()
    else:
        assert mode.replaying() is (value == "1" or not gpu)


def test_plans_are_for_the_gpu_in_use_or_in_replay_for_an_h200(monkeypatch) -> None:
    small = Gpu(capability=86, sms=36, l2=4 * 2**20)
    monkeypatch.setattr(mode, "has_gpu", lambda: True)
    monkeypatch.setattr(mode, "gpu_in_use", lambda: small)
    monkeypatch.setenv(mode.SWITCH, "0")
    assert mode.gpu_for_plans() == small
    monkeypatch.setenv(mode.SWITCH, "1")
    assert mode.gpu_for_plans() == H200


def test_mode_is_described_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mode.SWITCH, "1")
    assert mode.describe_mode().startswith("Replay mode: kernels run on the SIMT machine")
    monkeypatch.setattr(mode, "has_gpu", lambda: True)
    monkeypatch.setattr(mode, "gpu_name", lambda: "NVIDIA Test")
    monkeypatch.setenv(mode.SWITCH, "0")
    text = mode.describe_mode()
    assert text.startswith("Live mode: kernels run on this NVIDIA Test") and "\n" not in text
