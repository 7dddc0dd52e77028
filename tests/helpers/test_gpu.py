"""The GPU at hand, the one that a record names, and what SOFTMAX_REPLAY decides."""

import json
import re
import sys

import pytest

from helpers.base import gpu
from helpers.base.gpu import H200, Gpu
from helpers.base.paths import RECORDS


def test_a_block_has_the_shared_memory_of_its_capability() -> None:
    kilobytes = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}
    kilobytes |= {70: 48, 121: 99}  # older than all, and one that nobody has listed
    found = {capability: Gpu(capability, 100, 2**22).max_shared for capability in kilobytes}
    assert found == {capability: 1024 * most for capability, most in kilobytes.items()}


def test_records_of_the_h200_name_the_gpu_that_plans_are_for() -> None:
    lines = [line for file in RECORDS.glob("nvidia-h200/*.jsonl") for line in file.open("rb")]
    devices = [run["device"] for run in map(json.loads, lines) if "device" in run]
    assert devices and {gpu.gpu_from_record(device) for device in devices} == {H200}


@pytest.mark.gpu
def test_gpu_in_use_is_described_as_records_hold_it() -> None:
    described = gpu.describe_device()
    assert gpu.gpu_from_record(described) == gpu.gpu_in_use()
    assert described["name"] == gpu.gpu_name() and described["memory_bytes"] > 2**30
    assert gpu.gpu_in_use().capability >= 70 and gpu.gpu_in_use().sms > 1


def test_versions_are_unknown_where_a_tool_is_missing() -> None:
    assert gpu.run_quietly(["no-such-command-anywhere"]) == "unknown"
    assert gpu.run_quietly([sys.executable, "-c", "raise SystemExit(3)"]) == "unknown"
    assert gpu.run_quietly([sys.executable, "-c", "print(' 580.1 ')"]) == "580.1"


# ---- live or replay -----------------------------------------------------------------------------


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
