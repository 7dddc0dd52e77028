"""The texts of kernel files, and of the files that they include, as they are exported."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from ..base.paths import KERNELS
from ..catalogue.registry import INCLUDE, ONCE
from ..simt.cuda_text import strip_comments
from .request import LICENCE

# The error if a macro of the Build table is not defined; a plan defines all of them.
GUARD = re.compile(
    r"^#if !defined(?:.*\\\n)*.*\n#error(?:.*\\\n)*.*\n#endif\n\n?", flags=re.MULTILINE
)
DEFINED = re.compile(r"(?:__forceinline__ [\w ]*?\b|^constexpr \w+ )(\w+)(?:\(| = )", re.MULTILINE)
PARAGRAPH = re.compile(
    r"(//.*\n)*((template .*\n)?__device__ __forceinline__ [\s\S]*}|(constexpr .*;\n?)+)"
)


def texts(files: Sequence[str], left_out: str) -> dict[str, str]:
    """Return the text of each kernel file by its name, and before it those of the files that it
    includes: "cluster.cuh".

    Without the licence, which the head of an exported file states, the guards, and the entries of
    some keys of headers: `left_out` is a regular expression.
    """
    found: dict[str, str] = {}

    def add(path: str, name: str) -> None:
        text = (KERNELS / path).read_text(encoding="utf-8")
        for other in map(PurePath, INCLUDE.findall(text)):
            if other.name not in found:
                add(f"include/{other.name}", other.name)
        text = GUARD.sub("", text.replace(f"{ONCE}\n", "").replace(f"// {LICENCE}\n", ""))
        found[name] = re.sub(rf"^// ({left_out}): .*\n(//  .*\n)*", "", text, flags=re.MULTILINE)

    for file in files:
        add(f"{file}.cu", file)
    return found


def without_unused(known: dict[str, str]) -> dict[str, str]:
    """Return texts of kernel files and of those that they include, without the functions and
    constants of included files that nothing else names."""
    kept = {**known}
    while any(_removed(name, kept) for name in kept if name.endswith(".cuh")):
        pass  # a function that is removed may have called others
    return kept


def _removed(name: str, known: dict[str, str]) -> bool:
    """Remove from an included file the functions and constants whose names stand only where they
    are defined. Return whether there were any. Each is a paragraph of its own, with its comment."""
    code = strip_comments("".join(known.values()))
    count, defined = Counter(re.findall(r"\w+", code)), Counter(DEFINED.findall(code))
    kept = [
        part
        for part in re.split(r"\n\n|(?<=;)\n(?=//)", known[name])
        if not PARAGRAPH.fullmatch(part.rstrip())
        or any(count[word] > defined[word] for word in DEFINED.findall(part))
    ]
    before = len(DEFINED.findall(known[name]))
    known[name] = "\n\n".join(kept).rstrip() + "\n"
    return len(DEFINED.findall(known[name])) < before


def complete_text(file: str, left_out: str) -> str:
    """Return the text of a kernel file in which each included file, without what the kernel does
    not use, stands where it is included."""
    known = without_unused(texts([file], left_out))

    def placed(line: re.Match) -> str:
        return directive.sub(placed, known.pop(PurePath(line[1]).name, ""))

    directive = re.compile(f"{INCLUDE.pattern}\n", flags=re.MULTILINE)
    return directive.sub(placed, known.pop(file)).lstrip()
