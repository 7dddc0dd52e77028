"""What is said of the GPU at hand."""

import sys

from helpers import gpu


def test_versions_are_unknown_where_a_tool_is_missing() -> None:
    assert gpu.run_quietly(["no-such-command-anywhere"]) == "unknown"
    assert gpu.run_quietly([sys.executable, "-c", "raise SystemExit(3)"]) == "unknown"
    assert gpu.run_quietly([sys.executable, "-c", "print(' 580.1 ')"]) == "580.1"
