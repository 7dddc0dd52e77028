"""Reading CUDA C++ as text: comments, the kernels of a source and what they take, a hash of code.

No compiler is asked, so that a source can be looked at before it compiles, and on any machine.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass

import ml_dtypes  # numpy knows bfloat16 after this
import numpy as np

C_DTYPES = {
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "int": np.dtype(np.int32),
    "unsigned": np.dtype(np.uint32),
    "long long": np.dtype(np.int64),
    "unsigned long long": np.dtype(np.uint64),
    "char": np.dtype(np.int8),
    "signed char": np.dtype(np.int8),
    "unsigned char": np.dtype(np.uint8),
    "half": np.dtype(np.float16),
    "__half": np.dtype(np.float16),
    "__nv_bfloat16": np.dtype(ml_dtypes.bfloat16),
    "nv_bfloat16": np.dtype(ml_dtypes.bfloat16),
    "bool": np.dtype(np.bool_),
    "short": np.dtype(np.int16),
    "unsigned short": np.dtype(np.uint16),
    "long": np.dtype(np.int64),
    "unsigned long": np.dtype(np.uint64),
    "uint": np.dtype(np.uint32),
    "ushort": np.dtype(np.uint16),
    "size_t": np.dtype(np.uint64),
    "ptrdiff_t": np.dtype(np.int64),
    "clock_t": np.dtype(np.int64),
    **{f"{u}int{n}_t": np.dtype(f"{u}int{n}") for u in ("", "u") for n in (8, 16, 32, 64)},
}
LETTERS = dict(  # of numbers in mangled names
    one.split(": ")
    for one in (
        "f: float, d: double, i: int, j: unsigned, l: long, m: unsigned long, x: long long, "
        "y: unsigned long long, c: char, a: signed char, h: unsigned char, s: short, "
        "t: unsigned short, b: bool"
    ).split(", ")
)
INTEGER_WORDS = {"unsigned", "signed", "long", "short", "char", "int"}
# Between __global__ and a kernel's name; the last may take arguments.
QUALIFIERS = re.compile(r"__\w+__|alignas|noexcept")
TEMPLATE = r"\btemplate\s*<(.*?)>\s*(?=(?!class\b|typename\b)\w|$)"
FUNCTION_MACRO = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+\w+\((?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL
)
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)[ \t]+([A-Za-z_][\w \t*]*)$", flags=re.MULTILINE)
NO_TYPE = re.compile(
    r"\b(__restrict__|__restrict|volatile|__grid_constant__|typename|struct|class|enum|std::)"
    r"|\[\[[^\]]*\]\]|\b(alignas|__align__)\s*\([^)]*\)|::(?=\w)(?<!\w::)"
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel as its source declares it."""

    name: str
    type: str  # "float", "long long"; of the element for a pointer
    pointer: bool
    const: bool  # of a pointer: whether what it points to is
    table: bool = False  # a pointer to pointers

    @property
    def dtype(self) -> np.dtype | None:
        """None for a type that only the compiler knows, such as a struct."""
        return C_DTYPES.get(_canonical(self.type))

    def __str__(self) -> str:
        """As in C: "const float* x"."""
        const = "const " if self.const else ""
        return f"{const}{self.type}{'*' * (self.pointer + self.table)} {self.name}"


@dataclass(frozen=True)
class Declared:
    """A `__global__` function as the text has it."""

    name: str
    parameters: str  # between the parentheses
    template: str  # between template < and >; "" for none


def signature(code: str, kernel_name: str) -> tuple[Parameter, ...]:
    """The parameters that `kernel_name` declares, typedefs of the same text looked up.

    Raises `ValueError` naming the kernels there are if it is not declared `__global__`.
    """
    return signatures(code, kernel_name)[0]


@functools.lru_cache(maxsize=256)
def signatures(code: str, kernel_name: str) -> tuple[tuple[Parameter, ...], ...]:
    """The parameters of each declaration of `kernel_name`: there are several if it is overloaded,
    declared before it is defined, or selected by `#if`.

    Raises what `signature` raises.
    """
    plain = strip_comments(code)
    short, _, arguments = kernel_name.partition("<")  # of a template's expression
    short = plain_name(short.strip().rpartition("::")[2])
    found = [kernel for kernel in _declared(plain) if kernel.name == short]
    if not found:
        known = ", ".join(kernel_names(code)) or "none, but for what macros make"
        raise ValueError(f"no kernel named {short!r} in this source; kernels there: {known}")
    aliases = _aliases(plain)
    given = split_items(arguments.rstrip().removesuffix(">"))
    return tuple(_parameters(one, given, aliases) for one in found)


def _parameters(
    kernel: Declared, given: list[str], aliases: dict[str, str]
) -> tuple[Parameter, ...]:
    """The parameters of a declaration with these template arguments."""
    types = {
        re.findall(r"\w+", name.partition("=")[0])[-1]: argument
        for name, argument in zip(split_items(kernel.template), given, strict=False)
        if re.match(r"(typename|class)\b", name)
    }
    texts = enumerate(split_items(kernel.parameters))
    return tuple(_parameter(text, k, aliases | types) for k, text in texts if text != "void")


def kernel_names(code: str) -> list[str]:
    """Names of the `__global__` functions of a source, in order."""
    return list(dict.fromkeys(kernel.name for kernel in _declared(strip_comments(code))))


@functools.lru_cache(maxsize=64)
def variables(code: str) -> dict[str, Parameter]:
    """The `__constant__` and `__device__` variables of a source; an array is a pointer to const."""
    plain = strip_comments(code)
    aliases, found = _aliases(plain), {}
    for declared in re.findall(r"__(?:constant|device)__\s([^;(){}=]*)(?=[=;{])", plain):
        first, *others = split_items(re.sub(r"\b(__\w+__|static|inline|extern)\b", " ", declared))
        base = re.sub(r"\w+\s*(\[[^\]]*\]\s*)*$", "", first)
        for text in (first, *(f"{base} {one}" for one in others)):
            if "*" not in text:  # a pointer that is a variable holds an address
                one = _parameter(f"const {text}", 0, aliases)
                found[one.name] = one
    return found


def template_of(code: str, kernel_name: str) -> Declared | None:
    """The first declaration of a kernel that is a template."""
    found = _declared(strip_comments(code))
    return next((one for one in found if one.name == kernel_name and one.template), None)


def is_template(code: str, kernel_name: str) -> bool:
    """Whether every kernel of that name is one."""
    found = [one for one in _declared(strip_comments(code)) if one.name == kernel_name]
    return bool(found) and all(one.template for one in found)


def plain_name(mangled: str) -> str:
    """The last name that the C++ compiler put into a mangled one: scale of _ZN2ns5scaleIfEEvPf."""
    match = re.match(r"_Z(N?)L?K?", mangled)
    if not match:
        return mangled
    name, place = mangled, match.end()
    while length := re.compile(r"L?(\d+)").match(mangled, place):
        place = length.end() + int(length[1])
        name = mangled[length.end() : place]
        if not match[1]:  # not in a namespace: parameters follow
            break
    return name


def parameter_types(mangled: str) -> list[Parameter]:
    """The parameters in a mangled name, without names; none if it has no types, as with extern "C",
    or others than numbers, classes and pointers to them."""
    match = re.match(r"_Z(\d+)", mangled)
    place, found, known = match.end() + int(match[1]) if match else len(mangled), [], []
    while part := re.compile(r"([PKVr]*)(?:S(\d?)_|(\d+)|(\w))").match(mangled, place):
        marks, earlier, length, letter = part.groups()
        place = part.end() + int(length or 0)
        if letter not in LETTERS and letter:
            return []
        kind = mangled[part.end() : place] if length else LETTERS.get(letter)
        known += [kind] if length else []
        kind = kind or known[int(earlier or -1) + 1]  # S_ is the first, S0_ the next
        for mark in reversed(re.findall("P|[KVr]+", marks)):
            constant = "const " if "K" in mark and "*" not in kind else ""
            kind = f"{kind}*" if mark == "P" else constant + kind
            known.append(kind)
        found.append(_parameter(kind, 0, {}))
    return found


@functools.lru_cache(maxsize=64)
def _declared(plain: str) -> tuple[Declared, ...]:
    """The kernels of a source without comments; what a macro makes is not seen."""
    plain, found = FUNCTION_MACRO.sub("", plain), []
    for match in re.finditer(r"\b__global__\b", plain):
        place = match.end()
        while open_ := re.compile(r"[^(){};=]*?(\w+)\s*\(").match(plain, place):
            end = closing(plain, open_.end() - 1)
            if end < 0:
                break
            if QUALIFIERS.fullmatch(open_[1]):
                place = end + 1
                continue
            head = plain[: match.start()]
            before = head[max(head.rfind(mark) for mark in ";}#") + 1 :]
            template = re.search(TEMPLATE, before, flags=re.DOTALL)
            template = template[1] if template else ""
            found.append(Declared(open_[1], plain[open_.end() : end], template))
            break
    return tuple(found)


def closing(text: str, place: int) -> int:
    """Where the parenthesis at `place` closes; -1 if it does not."""
    depth = 0
    for number in range(place, len(text)):
        depth += {"(": 1, ")": -1}.get(text[number], 0)
        if depth == 0:
            return number
    return -1


def split_items(text: str, marks: str = ",") -> list[str]:
    """Split at the commas, or other marks, that are in no bracket."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1}.get(
            character, 0
        )
        if character in marks and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [part.strip() for part in (*parts, current) if part.strip()]


def _aliases(plain: str) -> dict[str, str]:
    """What the typedefs, alias declarations and macros of a text stand for, if it is one thing."""
    pairs = [
        *re.findall(r"\btypedef\s+([^;{}()]+?[\s*])(\w+)\s*;", plain),
        *((kind, name) for name, kind in re.findall(r"\busing\s+(\w+)\s*=\s*([^;{}()]+);", plain)),
        *((kind, name) for name, kind in MACRO.findall(plain)),
    ]
    found: dict[str, str] = {}
    unsure = set()  # one thing or another, behind #if
    for kind, name in pairs:
        if found.setdefault(name, kind.strip()) != kind.strip():
            unsure.add(name)
    return {name: kind for name, kind in found.items() if name not in unsure}


def _parameter(text: str, number: int, aliases: dict[str, str]) -> Parameter:
    """One parameter from its declaration, whose name is "argument N" if it has none."""
    text = NO_TYPE.sub(" ", text.partition("=")[0]).replace("&", "*")
    arrays = bool(re.search(r"\[[^\]]*\]\s*$", text))
    text = re.sub(r"(\[[^\]]*\]\s*)+$", "", text).strip()
    if to_array := re.fullmatch(r"(.*)\(\s*\*\s*(?:const\s*)?(\w*)\s*\)", text, flags=re.DOTALL):
        text = f"{to_array[1]} {to_array[2]}"  # const float (*x)[16]
    words = re.match(r"(.*?)(\w+)$", text, flags=re.DOTALL)
    base, name = words.groups() if words else (text, "")
    if not base.replace("const", "").strip() or name in C_DTYPES or name in INTEGER_WORDS:
        base, name = text, ""  # a type alone
    base, levels = _resolved(base, aliases)
    levels += arrays
    const = bool(re.search(r"\bconst\b", base.partition("*")[0]))
    kind = " ".join(re.sub(r"\bconst\b", " ", base.partition("*")[0]).split())
    return Parameter(name or f"argument {number}", kind, levels > 0, const, levels > 1)


def _resolved(base: str, aliases: dict[str, str]) -> tuple[str, int]:
    """(a type without aliases, levels of pointers). In `const In x` of a pointer type In the
    pointer is const, not what it points to."""
    for _ in range(len(aliases) + 1):
        element, star, _ = base.partition("*")
        names = [word for word in re.findall(r"\w+", element) if word in aliases]
        if not names:
            break
        meant = NO_TYPE.sub(" ", aliases[names[0]])
        if "*" in meant:
            base = f"{meant} {base[len(element) :]}"
        else:
            base = re.sub(rf"\b{names[0]}\b", meant, element) + base[len(element) :]
        aliases = {name: kind for name, kind in aliases.items() if name != names[0]}
    return base, base.count("*")


def _canonical(kind: str) -> str:
    """unsigned long int  ->  unsigned long"""
    words = kind.split()
    if len(words) < 2 or not {*words} <= INTEGER_WORDS:
        return kind
    sign = [word for word in ("unsigned", "signed") if word in words]
    rest = [word for word in words if word in ("long", "short", "char")]
    if "char" not in rest:
        sign = [word for word in sign if word == "unsigned"]
    return " ".join(sign + rest) or "int"


@functools.lru_cache(maxsize=64)
def strip_comments(code: str) -> str:
    """The source without comments and `#line` directives."""
    # In one go: // may hold /* and the reverse, and a string both.
    pattern = r"(\"(?:\\.|[^\"\\\n])*\")|//[^\n]*|/\*.*?\*/|^#line[^\n]*$"
    return re.sub(pattern, lambda found: found[1] or " ", code, flags=re.MULTILINE | re.DOTALL)


_TOKEN = re.compile(
    r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])+'|[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*"
    r"|<<=|>>=|->|\+\+|--|<<|>>|[<>=!+\-*/%&|^]=|&&|\|\||::|\.\.\.|##|\S"
)


@functools.lru_cache(maxsize=256)
def token_hash(code: str) -> str:
    """Hash of a source's tokens: comments, white space and line breaks do not count, except where a
    preprocessor directive ends, and for spaces in it, which may tell a macro's name from its
    value."""
    parts: list[str] = []
    for line in strip_comments(code).replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("#"):
            parts += ["\n", " ".join(line.split()), "\n"]
        else:
            parts += _TOKEN.findall(line)
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
