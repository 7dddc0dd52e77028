"""Commands that measure end with status 1 and one sentence where there is no GPU."""

import importlib

import pytest

from helpers.base import gpu
from helpers.commands.measure import CAMPAIGNS
from helpers.measure import records


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        *(("measure", [campaign]) for campaign in CAMPAIGNS),
        ("tune", ["65536x512"]),
    ],
)
def test_without_a_gpu_there_is_one_sentence(
    command: str, arguments: list[str], monkeypatch, tmp_path, capsys
) -> None:
    module = importlib.import_module(f"helpers.commands.{command}")
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)
    monkeypatch.setattr(records, "RECORDS", tmp_path)
    assert module.main(arguments) == 1
    said = capsys.readouterr()
    assert "GPU" in said.err and said.err.count("\n") == 1 and not said.out
    assert not [*tmp_path.iterdir()]
