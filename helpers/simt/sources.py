"""A CUDA file as nvcc takes it, made ready for NVRTC, which compiles for the device alone.

What belongs to the host is blanked, line by line, so that every line keeps its number: functions
without `__device__` or `__global__`, declarations that speak of the host's libraries, and of other
classes the methods that do. Headers of the host stand in `headers/`, with what a kernel may use of
them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

HEADERS = Path(__file__).with_name("headers")
# What only a file for nvcc has.
FOR_NVCC = re.compile(
    r"<<<|\bint\s+main\s*\(|\bcuda(Malloc|Memcpy|Free|Error_t|DeviceSynchronize|Stream_t|Event_t)\b"
    r"|^\s*#\s*include\s*<([a-z_]+|std\w+\.h|math\.h|assert\.h|cuda_runtime\w*\.h|cuda\.h)>",
    flags=re.MULTILINE,
)
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*([<\"])([^<>\"\n]+)[>\"]", flags=re.MULTILINE)
LITERAL = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"(\w*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.[^'\n]*|[^'\\\n])'",
    flags=re.DOTALL,
)
DIRECTIVE = re.compile(r"^[ \t]*(#|%:)(?:[^\n\\]|\\\r?\n|\\)*", flags=re.MULTILINE)
DEFINE = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?!\w|\()((?:[^\n\\]|\\\r?\n|\\.)*)",
    flags=re.MULTILINE,
)
ON_DEVICE = re.compile(r"\b__(device|global|constant|shared|managed|host__\s+__device|grid_const)")
HOST_ONLY = re.compile(
    r"\bstd::(vector|string|map|unordered_map|set|cout|cerr|unique_ptr|shared_ptr|function|mt19937"
    r"|ostream|ofstream|ifstream|chrono|thread|mutex|random_device|exception|runtime_error"
    r"|multimap|unordered_set|queue|deque|list|stack|optional|variant|atomic|future|bitset)\b"
    r"|\bcuda(Stream|Event|Error|DeviceProp|Graph|GraphExec|Array)_?t?\b|\bFILE\b|\btimeval\b"
    r"|\b(dim3|cu(blas|rand|fft|sparse|solver|dnn)\w+)\b|\busing\s+namespace\s+std\b"
)
# What a method of the host does, but declares at no other place.
HOST_CALL = re.compile(r"\bcu(da|blas|rand|fft|sparse|solver|dnn)[A-Z]\w*\s*\(|<<<")
CLASS = re.compile(r"\s*(template\s*<[^{};]*>\s*)?(typedef\s+)?(class|struct|union)\b[^()=]*$")
ACCESS = re.compile(r"\s*(public|private|protected)\s*:(?!:)")
ON_LAMBDA = re.compile(r"(?<=\])(\s*)((?:__(?:device|host)__\s*)+)(?=[({]|mutable\b)")
SCOPE = re.compile(r"\s*(inline\s+)?(namespace\b[\w\s:]*|extern\s+\"\s*C?\s*\"\s*)$")


def read(path: Path) -> str:
    """The text of a file, without a byte order mark; bytes that are no UTF-8 become a mark."""
    return path.read_bytes().decode("utf-8-sig", errors="replace")


def for_nvcc(text: str) -> bool:
    """Whether the text is one for nvcc, in which what has no `__device__` is the host's."""
    return bool(FOR_NVCC.search(_blank(text)))


def options(path: Path, text: str) -> tuple[str, ...]:
    """What lets NVRTC find the headers beside a file and those of the host, and gives it what nvcc
    has without an include; macros alone if the text need not be for nvcc."""
    given = ["for_nvcc.h"] if for_nvcc(text) else ["math.h", "limits.h"]
    if for_nvcc(text) and "numeric_limits" in text:
        given.append("limits")  # a second of the compiler's time
    folders = f"-I{path.parent.as_posix()}", f"-I{HEADERS.as_posix()}"
    return (*folders, *(f"--pre-include={name}" for name in given))


def device_part(text: str) -> str:
    """The text with what is the host's blanked; all of it if nothing is. Macros that stand for
    `__device__` and its kin, `HD` say, are spelled out."""
    if not for_nvcc(text):
        return text
    text = _spelled_out(text)
    plain = _blank(text)
    directives = [match.span() for match in DIRECTIVE.finditer(plain)]
    cut = bytearray(len(text))
    _set_aside(DIRECTIVE.sub(_blanks, plain), 0, len(plain), cut)
    for start, stop in directives:  # those within a function are in pairs, or harmless
        cut[start:stop] = bytes(stop - start)
    for match in ON_LAMBDA.finditer(plain):  # in a kernel it goes without saying
        cut[match.start(2) : match.end(2)] = b"\1" * len(match[2])
    return "".join(
        " " if gone and character not in "\r\n" else character
        for gone, character in zip(cut, text, strict=True)
    )


def without_missing(text: str, folders: Sequence[str]) -> tuple[str, list[str]]:
    """(the text for nvcc without the includes of headers that no folder has, their names): most are
    of libraries that only the host uses. thrust's are left out too, which NVRTC does not take."""
    missing: list[str] = []

    def replace(match: re.Match) -> str:
        name = match[2]
        if not name.startswith("thrust/") and any(Path(one, name).is_file() for one in folders):
            return match[0]
        missing.append(name)
        return re.sub(r"[^\r\n]", " ", match[0])

    return (INCLUDE.sub(replace, text) if for_nvcc(text) else text), missing


def _spelled_out(text: str) -> str:
    """The text with macros that speak of the device replaced by what they stand for, each in its
    line."""
    plain = _blank(text)
    macros: dict[str, str] = {}
    for name, body in sorted(DEFINE.findall(plain), key=lambda one: bool(ON_DEVICE.search(one[1]))):
        macros[name] = " ".join(body.replace("\\", " ").split())  # of several the device's
    found: set[str] = set()
    while found != (found := {name for name in macros if ON_DEVICE.search(macros[name])}):
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, sorted(found)))})\b")
        for name in macros.keys() - found:  # macros of macros
            macros[name] = pattern.sub(lambda match: macros[match[1]], macros[name])
    if not found:
        return text
    code = DIRECTIVE.sub(_blanks, plain)
    parts, end = [], 0
    for match in pattern.finditer(code):
        parts += [text[end : match.start()], macros[match[1]]]
        end = match.end()
    return "".join(parts) + text[end:]


def _set_aside(plain: str, place: int, end: int, cut: bytearray) -> None:
    """Mark the host's declarations between two places, which lie at the scope of a namespace."""
    while place < end:
        start = place
        stop, body = _declaration(plain, start, end)
        head = plain[start : body if body >= 0 else stop]
        if body >= 0 and SCOPE.fullmatch(head):
            _set_aside(plain, body + 1, stop - 1, cut)
        elif _is_hosts(head, plain[start:stop], body >= 0):
            cut[start:stop] = b"\1" * (stop - start)
        elif body >= 0 and CLASS.match(head):
            _set_methods_aside(plain, body + 1, plain.rfind("}", body, stop), cut)
        place = stop


def _set_methods_aside(plain: str, place: int, end: int, cut: bytearray) -> None:
    """Mark the methods of a class, between its braces, that only the host can call."""
    while place < end:
        while access := ACCESS.match(plain, place, end):
            place = access.end()
        stop, body = _declaration(plain, place, end)
        head, whole = plain[place:body], plain[place:stop]
        if body >= 0 and CLASS.match(head):
            _set_methods_aside(plain, body + 1, plain.rfind("}", body, stop), cut)
        elif body >= 0 and "(" in head and not ON_DEVICE.search(head):
            if HOST_CALL.search(whole) or HOST_ONLY.search(whole):
                cut[place:stop] = b"\1" * (stop - place)
        place = stop


def _is_hosts(head: str, whole: str, has_body: bool) -> bool:
    """Whether a declaration is the host's; `head` is what stands before its body."""
    if ON_DEVICE.search(head):
        return False
    if HOST_ONLY.search(whole) and not ON_DEVICE.search(whole):
        return True
    words = re.sub(r"\btemplate\s*<[^{};]*?>\s*(?=\w)", "", head)
    if re.match(r"\s*(class|struct|union|enum|using|typedef|static_assert|namespace)\b", words):
        return False
    if "(" not in words or "=" in words.partition("(")[0]:
        return False  # a variable
    return not re.search(r"\bconstexpr\b", words)


def _declaration(plain: str, place: int, end: int) -> tuple[int, int]:
    """(where the declaration that begins at `place` ends, its brace or -1)."""
    depth, body = 0, -1
    for number in range(place, end):
        character = plain[number]
        if character in "({[":
            if character == "{" and depth == 0 and body < 0:
                body = number
            depth += 1
        elif character in ")}]":
            depth -= 1
            if depth == 0 and character == "}":
                rest = re.compile(r"\s*;").match(plain, number + 1)
                head = plain[place:body]
                own = re.search(r"\b(class|struct|union|enum)\b|=\s*$", head)
                if own and "(" not in head.partition("=")[0]:
                    semicolon = plain.find(";", number)
                    return (semicolon + 1 if 0 <= semicolon < end else end), body
                return (rest.end() if rest else number + 1), body
        elif character == ";" and depth == 0:
            return number + 1, body
    return end, body


def _blank(text: str) -> str:
    """As long as the text, with comments and the insides of literals blanked; "C" stays."""
    return LITERAL.sub(_hide, text)


def _hide(match: re.Match) -> str:
    text = match[0]
    if text[0] in "\"'":
        return text if text == '"C"' else text[0] + re.sub(r"[^\n]", " ", text[1:-1]) + text[-1]
    return _blanks(match)


def _blanks(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match[0])
