"""Random problems by their number: what dispatch chooses for them and how it is launched.

A chunk is 1,000 problems about one subject: an operation, for which dispatch chooses, or a kernel
file with its variants of macros. The subjects are stored with the golden data, so that a kernel
that is added or removed changes no other chunk.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence

from . import sources

CHUNK = 1000
CHUNKS = 100
EVERY = 50  # one problem of so many is stored with its full answer
DTYPES = ("float32", "float16", "bfloat16")
MB = 2**20
GPUS = {  # compute capability, multiprocessors, bytes of L2
    "H200": (90, 132, 60 * MB),
    "H100 PCIe": (90, 114, 50 * MB),
    "B200": (100, 148, 126 * MB),
    "A100": (80, 108, 40 * MB),
    "L4": (89, 58, 48 * MB),
    "T4": (75, 40, 4 * MB),
}
INNER = (1, 2, 3, 8, 32, 64, 100, 3136)


def subjects() -> list[dict]:
    """One subject per chunk, of the operations and kernel files that there are."""
    operations = sources.operations()
    softmax, *others = operations.items()
    asked = [{"operation": softmax[0], "features": {}}] * 20
    asked += [
        {"operation": name, "features": features}
        for name, features in (softmax, *others)
        for _ in range(20 // len(operations))
    ]
    files = list(sources.kernels().items())
    rest = CHUNKS - len(asked)
    return asked + [
        {"kernels": names, "dtypes": sources.dtypes(file)}
        for file, names in (files[number % len(files)] for number in range(rest))
    ]


def drawn(number: int, subject: dict) -> dict:
    """The problem of a number. Rows and columns are log-uniform, a third of them 3, 5, 7 or 9
    times a power of two; some are problems that no kernel takes."""
    chance = random.Random(f"golden problem {number}")

    def one_of(choices: Sequence):
        return choices[int(chance.random() * len(choices))]

    def size(most: float) -> int:
        found = 2 ** (chance.random() * most)
        kind = one_of(("any", "any", "power", "odd", "odd", "near"))
        if kind in ("power", "near"):
            found = 2 ** int(chance.random() * (most + 1))
        if kind == "odd":
            found = one_of((3, 5, 7, 9)) * 2 ** int(chance.random() * (most - 2))
        return max(1, int(found) + (one_of((-1, 1, 4, 8)) if kind == "near" else 0))

    few = chance.random() < 0.3
    rows, cols = 1 + int(chance.random() * 40) if few else size(24), size(21.5)
    if "kernels" in subject and chance.random() < 0.5:
        cols = 1 + cols % (1024, 16384)[chance.random() < 0.5]  # many kernels take no longer row
    if chance.random() < 0.5:
        cols = max(8, cols // 8 * 8)
    inner = 1
    if subject.get("operation") == "softmax_any_axis" or sources.has_inner(subject):
        inner = one_of((*INNER, size(13)))
        cols = min(cols, 2**16)
        rows = max(1, min(rows, 2**16)) * inner + (chance.random() < 0.02)
    own = "dtypes" in subject and chance.random() < 0.97
    dtype = one_of(subject["dtypes"] if own else DTYPES)
    kind = chance.random()
    if kind < 0.005:
        rows, cols = one_of(((0, cols), (rows, 0), (2**31, cols), (2**31 - 1, 2**28), (rows, -1)))
    elif kind < 0.01:
        dtype = "float64"
    gaps = ((0, 0),) * 6 + ((5, 2), (8, 0), (16, 16), (-1, 0))
    apart = subject.get("operation") == "softmax" or chance.random() < 0.3
    gap = one_of(gaps) if apart else (0, 0)  # most other kernels take no strides
    gpus = tuple(GPUS) if chance.random() < 0.6 else ("H200", "H100 PCIe", "B200")
    problem = {
        "rows": rows,
        "cols": cols,
        "inner": inner,
        "dtype": dtype,
        "gpu": one_of(gpus),
        "x_stride": cols + gap[0],
        "y_stride": cols + gap[1],
    }
    if "kernels" in subject:
        return {"kernel": one_of(subject["kernels"]), **problem}
    aligned, alike = one_of(((True, True),) * 4 + ((False, True), (False, False)))
    features = {}
    for name, count in sorted(subject["features"].items()):
        if chance.random() < 0.35:
            features[name] = 1 + int(chance.random() * (count - 1))
    problem |= {"aligned": aligned, "alike": alike, "features": features}
    return {"operation": subject["operation"], **problem}


def answer(problem: dict) -> dict:
    """What is chosen and how it is launched, or {"refused": the reason}."""
    given = dict(problem)
    return sources.plan(**given | {"gpu": GPUS[given["gpu"]]})


def text_of(problem: dict) -> str:
    """A problem in one line, as the sentence about a difference names it."""
    return " ".join(f"{key}={value}" for key, value in problem.items() if value not in (None, {}))


def chunk(number: int, subject: dict) -> list[tuple[dict, dict]]:
    """The problems of a chunk with their answers."""
    first = number * CHUNK
    problems = (drawn(one, subject) for one in range(first, first + CHUNK))
    return [(problem, answer(problem)) for problem in problems]


def hashes(answers: Sequence[dict]) -> list[str]:
    """A hash of the plans and one of the reasons for refusals, whose wording changes more often."""
    plans = [one if "refused" not in one else {} for one in answers]
    reasons = [one.get("refused", "") for one in answers]
    return [
        hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]
        for part in (plans, reasons)
    ]


def sampled(all_subjects: Sequence[dict]) -> Iterator[tuple[int, dict]]:
    """The number and the problem of each that is stored with its answer."""
    for number in range(0, CHUNK * len(all_subjects), EVERY):
        yield number, drawn(number, all_subjects[number // CHUNK])


def computed() -> dict:
    """All 100,000: hashes of each chunk, and the sample's full answers."""
    found = {"subjects": subjects(), "hashes": [], "sample": {}}
    for number, subject in enumerate(found["subjects"]):
        pairs = chunk(number, subject)
        found["hashes"].append(hashes([one for _, one in pairs]))
        found["sample"] |= {
            str(number * CHUNK + place): pairs[place][1] for place in range(0, CHUNK, EVERY)
        }
    return found


def chunk_differences(stored: dict, count: int) -> list[str]:
    """A sentence for each of the first chunks that differs from what is stored."""
    told = []
    for number, subject in enumerate(stored["subjects"][: -(-count // CHUNK)]):
        found = hashes([one for _, one in chunk(number, subject)])
        for what, one, other in zip(
            ("a plan", "a reason for a refusal"), stored["hashes"][number], found, strict=True
        ):
            if one != other:
                about = subject.get("operation") or subject["kernels"][0]
                told.append(
                    f"Problems {number * CHUNK} to {(number + 1) * CHUNK - 1} ({about}): {what} "
                    f"differs from the golden data; compare --chunk {number} with that of an "
                    "earlier commit."
                )
    return told
