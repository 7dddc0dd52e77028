"""SOFTMAX_REPLAY and the GPU in use decide whether a notebook runs live or in replay mode."""

import re

import pytest

from helpers.base import gpu
from helpers.base.gpu import H200, Gpu


@pytest.mark.parametrize("value", ["yes", "2", "true", " 1"])
def test_switch_takes_0_and_1_alone(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpu.SWITCH, value)
    message = re.escape(f"SOFTMAX_REPLAY must be 0 or 1, not {value!r}")
    for ask in (gpu.replaying, gpu.gpu_for_plans, gpu.describe_mode):
        with pytest.raises(ValueError, match=message):
            ask()


@pytest.mark.parametrize("value", ["", "0", "1", None])
@pytest.mark.parametrize("found", [False, True])
def test_switch_decides_the_mode(value, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "has_gpu", lambda: found)
    monkeypatch.delenv(gpu.SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(gpu.SWITCH, value)
    if value == "0" and not found:
        with pytest.raises(RuntimeError, match="SOFTMAX_REPLAY=0 requires a GPU.* finds none"):
            gpu.replaying()
    else:
        assert gpu.replaying() is (value == "1" or not found)


def test_plans_are_for_the_gpu_in_use_or_in_replay_for_an_h200(monkeypatch) -> None:
    small = Gpu(capability=86, sms=36, l2=4 * 2**20)
    monkeypatch.setattr(gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(gpu, "gpu_in_use", lambda: small)
    monkeypatch.setenv(gpu.SWITCH, "0")
    assert gpu.gpu_for_plans() == small
    monkeypatch.setenv(gpu.SWITCH, "1")
    assert gpu.gpu_for_plans() == H200


def test_mode_is_described_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpu.SWITCH, "1")
    assert gpu.describe_mode().startswith("Replay mode: kernels run on the SIMT machine")
    monkeypatch.setattr(gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(gpu, "gpu_name", lambda: "NVIDIA Test")
    monkeypatch.setenv(gpu.SWITCH, "0")
    text = gpu.describe_mode()
    assert text.startswith("Live mode: kernels run on this NVIDIA Test") and "\n" not in text
