"""Measure on this machine's GPU and write notebooks/records: `make measure ARGS="steps"`.

Each campaign can be interrupted: every result is written as soon as it is measured, and a second
run resumes where the first one stopped. What is wrong or fails is left out, named at the end, and
makes the exit status 1.
"""

from __future__ import annotations

import argparse
import sys

from ..base import gpu
from .campaigns import calls, comparison, pipelines, profile, steps, tuned

CAMPAIGNS = {
    "steps": (steps, "every kernel of the series beside a copy of the same bytes"),
    "tuned": (tuned, "the plans of softmax over a grid of shapes"),
    "comparison": (comparison, "our kernels beside other libraries"),
    "pipelines": (pipelines, "softmax between a producer and a consumer kernel"),
    "calls": (calls, "what a call of the exported PyTorch file costs"),
    "profile": (profile, "profiler counters, sanitizer verdicts, disassembly"),
}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m helpers.commands.measure", description=__doc__)
    campaigns = parser.add_subparsers(required=True, metavar="CAMPAIGN")
    for name, (module, help) in CAMPAIGNS.items():
        one = campaigns.add_parser(
            name,
            help=help,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(run=module.run)
        module.add_options(one)
    options = parser.parse_args(arguments)
    if not getattr(options, "show", None) and not gpu.has_gpu():
        print("kernels are measured on a GPU, and CuPy finds none here", file=sys.stderr)
        return 1
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
