"""Makes the golden data anew, or compares all of it; for developers, see README.md.

python -m tests.golden --write                     every file, in about three minutes
python -m tests.golden --write strangers series    these files
python -m tests.golden --check                     every case, not only the tests' samples
python -m tests.golden --check plans --plans 5000  the first 5,000 problems; 0: none
python -m tests.golden --chunk 41                  1,000 problems with their answers, one per line
"""

from __future__ import annotations

import argparse
import json
import os
import sys

os.environ.setdefault("SOFTMAX_PLANS", "0")  # plans that were tuned on this machine do not count
os.environ["SOFTMAX_REPLAY"] = "1"

from . import golden, plans, store  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status: 1 if something differs."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(golden.NAMES))
    parser.add_argument("--write", action="store_true", help="make the files anew")
    parser.add_argument("--check", action="store_true", help="compare all cases with the files")
    parser.add_argument("--plans", type=int, default=100_000, metavar="COUNT")
    parser.add_argument("--chunk", type=int, metavar="NUMBER", help="print a chunk of plans")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in golden.NAMES]:
        parser.error(f"no golden data {unknown[0]}; there are {', '.join(golden.NAMES)}")
    if options.chunk is not None:
        stored = store.read("plans")["subjects"][options.chunk]
        for problem, answer in plans.chunk(options.chunk, stored):
            print(plans.text_of(problem), "->", json.dumps(answer))
        return 0
    if not (options.write or options.check):
        parser.error("give --write, --check or --chunk")
    differing = 0
    for name in options.names or golden.NAMES:
        if options.write:
            store.write(name, golden.computed(name))
            print(f"{name}: {store.path_of(name).stat().st_size} bytes", flush=True)
            continue
        told = golden.differences(name)
        if name == "plans":
            told += plans.chunk_differences(store.read(name), options.plans)
        differing += len(told)
        print("\n".join(told) or f"{name}: no difference", flush=True)
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
