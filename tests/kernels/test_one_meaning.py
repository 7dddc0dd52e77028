"""One name, one meaning: device functions, types and constants of one name are the same text in
every kernel file, comments and white space aside."""

import re
from collections.abc import Iterator

import pytest

from helpers.base.paths import KERNELS
from helpers.simt.cuda_text import strip_comments

# (name, file) -> why it may differ there from what other files say.
MERGE = "merge(row_max, sum, other_max, other_sum)"
EXCEPTIONS = {
    (MERGE, "05_float4"): "with its `exponential` in place of expf",
    (MERGE, "variants/05_float4_divide"): "that of 05",
    ("exponential(value)", "variants/05_float4_divide"): "what it tries: expf",
    ("Pack", "07_warp"): "of WIDTH columns, as the shape allows; elsewhere 16 bytes",
    ("Pack", "variants/07_waiting_loads"): "that of 07",
    ("Pack", "13_any_axis"): "as wide as the shape allows, and by words too",
    ("Pack", "exercises/10_eight_at_once"): "of one dtype, so that no T2 is needed",
    ("Pack", "exercises/solutions/10_eight_at_once"): "that of the exercise",
    ("load(from)", "08_cluster"): "a programmatic launch may not load x as read-only",
    ("load(from)", "09_grid"): "without a hint for the L2, and again programmatic",
    ("load(from)", "11_any_row"): "usual accesses where there is no hint",
    ("load(from)", "variants/11_short_rows"): "likewise",
    ("Window", "exercises/12_window"): "what the reader is to write",
    ("load(from)", "14_backward"): "that of 11",
    ("merge(a, b)", "exercises/14_merge"): "what the reader is to write",
    ("load(from)", "variants/15_gradient"): "dx may be x: then it is not read-only",
    ("copy_async(to, from)", "variants/08_ahead"): "with a hint for the L2, which 08_shared lacks",
}
# Beside FLOAT16 and BFLOAT16, which choose the dtype, conditionals are part of a text.
DTYPE_CHOICES = {"float32": set(), "float16": {"FLOAT16"}, "bfloat16": {"BFLOAT16"}}


def kernel_texts() -> dict[str, str]:
    """Path below kernels/, without .cu -> text."""
    names = (path.relative_to(KERNELS).with_suffix("") for path in sorted(KERNELS.rglob("*.cu")))
    return {name.as_posix(): (KERNELS / f"{name}.cu").read_text() for name in names}


def for_dtype(code: str, defined: set[str]) -> str:
    """The code with the choice of a dtype made: the branches of `#if defined(FLOAT16)` not taken
    left out, with the #if itself."""
    kept, open_choices = [], []  # of each #if: None, or [has a branch been taken, is this one]
    for line in code.splitlines():
        directive = re.match(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)", line)
        kind, condition = directive.groups() if directive else ("", "")
        ours = open_choices[-1] if open_choices else None
        if kind in ("if", "ifdef", "ifndef"):
            name = re.fullmatch(r" defined\((B?FLOAT16)\)", condition)
            open_choices.append([name[1] in defined] * 2 if name else None)
        elif kind in ("elif", "else") and ours:
            name = re.search(r"B?FLOAT16", condition)
            ours[1] = not ours[0] and (kind == "else" or name[0] in defined)
            ours[0] |= ours[1]
        elif kind == "endif":
            open_choices.pop()
        if kind and (open_choices[-1] if kind in ("if", "ifdef", "ifndef") else ours):
            continue
        if all(choice is None or choice[1] for choice in open_choices):
            kept.append(line)
    return "\n".join(kept)


def definitions(code: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each device function, with the names of its parameters, type and constant."""
    head = r"^(?:template <[^\n]*>\n)?__device__ [^;{}()]*?(\w+)\(([^)]*)\)\s*\{"
    for match in re.finditer(head, code, flags=re.MULTILINE):
        parameters = ", ".join(re.findall(r"(\w+)(?:,|$)", match[2].strip()))
        yield f"{match[1]}({parameters})", match[0] + body(code, match.end())
    for match in re.finditer(r"^(?:struct|union)\b[^{;]*?(\w+) \{", code, flags=re.MULTILINE):
        yield match[1], match[0] + body(code, match.end())
    for match in re.finditer(r"^using (\w+) = [^;]*;", code, flags=re.MULTILINE):
        yield match[1], match[0]
    for match in re.finditer(r"^constexpr \w+ (\w+) = [^;]*;", code, flags=re.MULTILINE):
        yield match[1], match[0]


def body(code: str, start: int) -> str:
    """What follows an opening brace, up to the closing one."""
    depth = 1
    for place in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[place], 0)
        if depth == 0:
            return code[start : place + 1]
    raise AssertionError("a brace is not closed")


def meanings(texts: dict[str, str]) -> dict[tuple[str, str], dict[str, list[str]]]:
    """(name, dtype) -> text -> the files that have it, without the exceptions."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for file, text in texts.items():
        for dtype, defined in DTYPE_CHOICES.items():
            if not re.search(rf"^// Dtype:.* {dtype}\b", text, flags=re.MULTILINE):
                continue
            for name, code in definitions(strip_comments(for_dtype(text, defined))):
                if (name, file) not in EXCEPTIONS:
                    same = found.setdefault((name, dtype), {})
                    same.setdefault(" ".join(code.split()), []).append(file)
    return found


def test_one_name_has_one_meaning() -> None:
    several = {key: found for key, found in meanings(kernel_texts()).items() if len(found) > 1}
    assert not several, "\n".join(
        f"{name} ({dtype}):\n" + "\n".join(f"  {files}: {code}" for code, files in found.items())
        for (name, dtype), found in several.items()
    )


def test_exceptions_are_exceptions() -> None:
    """Each names something that is there and differs; else it has to go."""
    texts = kernel_texts()
    all_usual = meanings(texts)
    for name, file in EXCEPTIONS:
        found = [
            (dict(definitions(strip_comments(for_dtype(texts[file], defined))))[name], usual)
            for dtype, defined in DTYPE_CHOICES.items()
            if (usual := all_usual.get((name, dtype)))
        ]
        assert found, f"{name} is in {file} alone"
        assert not any(" ".join(own.split()) in usual for own, usual in found), f"{name} in {file}"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("09_grid", "2 to the power", "e to the power"),
        ("variants/08_ahead", "fast_exp2(float value)\n{", "fast_exp2(float value)\n{ value *= 2;"),
        ("08_cluster", "__float22half2_rn(v)", "__floats2half2_rn(v.x, v.y)"),
        ("08_cluster", "return v; }", "return {v.y, v.x}; }"),
        ("variants/11_any_length", "st.relaxed.gpu", "st.relaxed.cta"),
        ("09_grid", "    uint4 bits;\n", "    uint4 bits;\n    float4 columns4;\n"),
        ("10_sixteen_bit", "using T2 = __half2;", "using T2 = unsigned;"),
        ("variants/08_shared", "constexpr int warps = THREADS / 32", "constexpr int warps = 4"),
    ],
)
def test_a_difference_is_found(file: str, old: str, new: str) -> None:
    """All but the first are differences; that is a comment."""
    texts = kernel_texts()
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new)
    different = [key for key, found in meanings(texts).items() if len(found) > 1]
    assert bool(different) == ("the power" not in old)
