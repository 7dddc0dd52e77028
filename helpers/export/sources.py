"""The texts of kernel files, and of the files that they include, as they are exported."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from ..base.paths import KERNELS
from ..catalogue.registry import INCLUDE, ONCE, self_contained, source
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


def texts(files: Sequence[str]) -> dict[str, str]:
    """Return the text of each kernel file by its name, and before it those of the files that it
    includes: "cluster.cuh"."""
    found: dict[str, str] = {}

    def add(path: str, name: str) -> None:
        text = (KERNELS / path).read_text(encoding="utf-8")
        for other in map(PurePath, INCLUDE.findall(text)):
            if other.name not in found:
                add(f"include/{other.name}", other.name)
        found[name] = GUARD.sub("", text.replace(f"{ONCE}\n", ""))

    for file in files:
        add(f"{file}.cu", file)
    return found


def complete_text(file: str, left_out: str) -> str:
    """Return the text of a kernel file with the files that it includes: without the licence, which
    the head of an exported file states, the guards, functions and constants that nothing uses, and
    the entries of some keys of the header (`left_out` is a regular expression)."""
    text = GUARD.sub("", self_contained(source(f"{file}.cu")).replace(f"// {LICENCE}\n", ""))
    text = re.sub(r'^// #include ".*"$', "", text, flags=re.MULTILINE)
    text = re.sub(rf"^// ({left_out}): .*\n(//  .*\n)*", "", text, flags=re.MULTILINE)
    while (shorter := _without_unused(text)) != text:
        text = shorter  # a function that is removed may have called others
    return text.lstrip()


def _without_unused(text: str) -> str:
    """Return a text without the functions and constants whose names stand only where they are
    defined. Each is a paragraph of its own, with its comment."""
    code = strip_comments(text)
    count, defined = Counter(re.findall(r"\w+", code)), Counter(DEFINED.findall(code))
    kept = [
        part
        for part in re.split(r"\n\n+|(?<=;)\n(?=//)", text)
        if not PARAGRAPH.fullmatch(part.rstrip())
        or any(count[word] > defined[word] for word in DEFINED.findall(part))
    ]
    return "\n\n".join(kept).rstrip() + "\n"
