"""A CUDA file as nvcc takes it, made ready for NVRTC, which compiles for the device alone.

Host code is blanked, line by line, so that every line keeps its number: functions without
`__device__` or `__global__`, variables that a kernel cannot read, declarations that use the host's
libraries, and of other classes the methods that do. The same holds for the headers that the file
includes, and an `#include` of a header that is not installed is blanked too. Headers of the host
are in `headers/`, with the part of them that a kernel can use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .compile import files_of, include_folders

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
HOST_HEADER = re.compile(  # NVRTC cannot take them
    r"thrust/|cub/(device|grid|util_allocator)\b|nvtx3/|cuda_\w+_interop\b|cuda(EGL|GL|VDPAU)\b"
    r"|(cublas|cufft|cusparse|cusolver|cudnn|nccl|nvjpeg|npp|nvml|cupti|nvrtc)\w*\."
)
SYSTEM_HEADER = re.compile(  # of the host, of which a kernel uses nothing
    r"[a-z_]+|(sys|netinet|arpa|net|linux|mach|X11|GL|GLES\d*|EGL|vulkan)/.*|(cuda_profiler_api"
    r"|ctype|dirent|dlfcn|errno|fcntl|inttypes|locale|malloc|memory|omp|pthread|pwd|sched|signal"
    r"|stdarg|stdbool|strings|wchar|windows|io|process|tchar|strsafe|sddl|aclapi|winternl|winsock2"
    r"|direct|conio|mm_malloc|[ex]mmintrin|immintrin)\.h"
)
TYPES_OF = re.compile(r"(cublas|cufft)\w*\.h")  # libraries whose types kernels use
DEVICE_RUNTIME = re.compile(r"<<<|\bcuda[A-Z]\w*\s*\(")  # with what cuda_runtime.h declares
KIND = re.compile(
    r"\s*(class|struct|union|enum|using|typedef|static_assert|namespace|friend|concept)\b"
)
OF_KIND = re.compile(r"\s*(struct|union|enum|class)\s+[\w:]+[\s*&]+\w+\s*(=|;|\[|\()")
ALIGNED = re.compile(r"\b(alignas|__align__|__declspec|__attribute__)\s*\((\([^()]*\)|[^()])*\)")
DECLARED = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?=[=,;({]|$)")
CLASS = re.compile(r"\s*(template\s*<[^{};]*>\s*)?(typedef\s+)?(class|struct|union)\b[^()=]*$")
ACCESS = re.compile(r"\s*(public|private|protected)\s*:(?!:)")
ON_LAMBDA = re.compile(r"(?<=\])(\s*)((?:__(?:device|host)__\s*)+)(?=[({]|mutable\b)")
SCOPE = re.compile(r"\s*(inline\s+)?(namespace\b[\w\s:]*|extern\s+\"\s*C?\s*\"\s*)$")


@dataclass(frozen=True)
class Source:
    """A CUDA file with the headers of its project, as NVRTC takes them."""

    path: str
    original: str  # the text of the file and its headers with their host code
    texts: dict[str, str]  # what is for the device, by path, the file first
    names: dict[str, str]  # of the headers, by path, as the texts include them
    options: tuple[str, ...]
    missing: tuple[str, ...]  # headers that were left out

    @property
    def code(self) -> str:
        """The text of the file, which names its path to the compiler."""
        return _located(self.path, self.texts[self.path])

    @property
    def whole(self) -> str:
        """All texts, one after the other."""
        return "\n".join(self.texts.values())

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """(name, text) of each header that is not read from disk."""
        return tuple((name, _located(path, self.texts[path])) for path, name in self.names.items())


class Declaration(NamedTuple):
    """Where a declaration stands in a text."""

    start: int
    stop: int
    body: int  # its brace, or -1
    in_class: bool = False
    around: tuple[str, ...] = ()  # namespaces

    def head(self, plain: str) -> str:
        """What stands before its body."""
        return plain[self.start : self.body if self.body >= 0 else self.stop]


def read(path: Path) -> str:
    """The text of a file, without a byte order mark; bytes that are no UTF-8 become a mark."""
    content = path.read_bytes()
    code = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return content.decode(code, errors="replace")


def for_nvcc(text: str) -> bool:
    """Whether the text is one for nvcc, in which what has no `__device__` is the host's."""
    return bool(FOR_NVCC.search(_blank(text)))


def implicit(text: str, nvcc: bool = False) -> tuple[str, ...]:
    """Compiler options that give NVRTC the headers of the host and, of what nvcc has without an
    include, the macros; all of it if the text is one for nvcc."""
    given = ["for_nvcc.h"] if nvcc else ["math.h", "limits.h"]
    if nvcc and "numeric_limits" in text:
        given.append("limits")  # a second of the compiler's time
    if nvcc and re.search(r"\bstd::(enable_if|conditional|decay|is_\w+)", text):
        given.append("type_traits")
    if DEVICE_RUNTIME.search(text):
        given.append("device_runtime.h")
    more = ["-device-int128"] if "__int128" in text and os.name == "posix" else []
    return (f"-I{HEADERS.as_posix()}", *(f"--pre-include={name}" for name in given), *more)


def prepare(path: Path, given: Sequence[str] = ()) -> Source:
    """Read a CUDA file and the headers that it includes; `given` are compiler options.

    A file for CuPy, without a sign of nvcc in it or in its headers, is left as it is. Raises
    `OSError` if the file cannot be read.
    """
    own = [*files_of(given)[0], path.parent.as_posix()]
    others = [HEADERS.as_posix(), *include_folders()]
    texts, includes = _with_headers(path, own, others)
    file, joined = path.as_posix(), "\n".join(texts.values())
    folder = f"-I{own[-1]}"
    if not any(map(for_nvcc, texts.values())):
        text = texts[file]
        return Source(file, text, {file: text}, {}, (*given, folder, *implicit(text)), ())
    names = {one: f"{number}/{Path(one).name}" for number, one in enumerate(texts) if number}
    missing: dict[str, None] = {}
    for one, text in texts.items():

        def replaced(match: re.Match, one: str = one) -> str:
            found = includes[one][match[2]]
            before = match[0][: match.start(1) - match.start()]
            if found is None:
                if match[1] != "<" or not SYSTEM_HEADER.fullmatch(match[2]):
                    missing[match[2]] = None
                types = TYPES_OF.match(match[2])
                return f"{before}<{types[1]}_types.h>" if types else _blanks(match)
            if match[2] == "cub/cub.cuh":  # NVRTC takes the part that runs within a block
                return f"{before}<cub_blocks.h>"
            name = names.get(found)
            return match[0] if name is None else f'{before}"{name}"'

        texts[one] = INCLUDE.sub(replaced, host_aside(text, joined))
    used = implicit("\n".join(texts.values()), nvcc=True)
    return Source(file, joined, texts, names, (*given, folder, *used), tuple(missing))


def _with_headers(
    path: Path, own: Sequence[str], others: Sequence[str]
) -> tuple[dict[str, str], dict[str, dict[str, str | None]]]:
    """(the texts of a file and of the headers in the folders `own` that it includes, by path; for
    each, the path of what it includes by name: None for what is nowhere)."""
    texts, includes = {path.as_posix(): read(path)}, {}
    waiting = list(texts)
    for one in waiting:
        includes[one] = {}
        home = [os.path.dirname(one)]
        for match in INCLUDE.finditer(texts[one]):
            name = match[2]
            beside = home if match[1] == '"' else []
            there = [os.path.normpath(os.path.join(f, name)) for f in (*beside, *own, *others)]
            found = next((place for place in there if os.path.isfile(place)), None)
            if HOST_HEADER.match(name):
                found = None
            includes[one][name] = found
            ours = found in there[: len(there) - len(others)] and found not in texts
            if ours and "__CUDACC_RTC__" not in (text := read(Path(found))):  # knows NVRTC
                texts[found] = text
                waiting.append(found)
    return texts, includes


def host_aside(text: str, project: str) -> str:
    """The text with host code blanked; `project` is a text with all its macros. Those that stand
    for `__device__` and its kin, `HD` say, are spelled out."""
    text = _spelled_out(text, project)
    left = _without(text, _hosts(plain_text(text)))
    for match in ON_LAMBDA.finditer(_blank(text)):  # in a kernel it goes without saying
        blanks = re.sub(r"[^\r\n]", " ", match[2])
        left = left[: match.start(2)] + blanks + left[match.end(2) :]
    return left


def _without(text: str, spans: Iterable[tuple[int, int]], ends: Sequence[int] = ()) -> str:
    """The text with blanks in these spans and a semicolon at each of `ends`; lines stay where they
    are. So do directives: those within a function are in pairs, or harmless."""
    cut = bytearray(len(text))
    for start, stop in spans:
        cut[start:stop] = b"\1" * (stop - start)
    for match in DIRECTIVE.finditer(_blank(text)):
        cut[match.start() : match.end()] = bytes(len(match[0]))
    characters = [
        " " if gone and character not in "\r\n" else character
        for gone, character in zip(cut, text, strict=True)
    ]
    for place in ends:
        characters[place] = ";"
    return "".join(characters)


def _located(path: str, text: str) -> str:
    return f'#line 1 "{path}"\n{text}'


def _spelled_out(text: str, project: str) -> str:
    """The text with macros of the project that speak of the device replaced by what they stand
    for, each in its line."""
    macros: dict[str, str] = {}
    for name, body in sorted(
        DEFINE.findall(_blank(project)), key=lambda one: bool(ON_DEVICE.search(one[1]))
    ):
        macros[name] = " ".join(body.replace("\\", " ").split())  # of several the device's
    found: set[str] = set()
    while found != (found := {name for name in macros if ON_DEVICE.search(macros[name])}):
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, sorted(found)))})\b")
        for name in macros.keys() - found:  # macros of macros
            macros[name] = pattern.sub(lambda match: macros[match[1]], macros[name])
    if not found:
        return text
    parts, end = [], 0
    for match in pattern.finditer(plain_text(text)):
        parts += [text[end : match.start()], macros[match[1]]]
        end = match.end()
    return "".join(parts) + text[end:]


def _hosts(plain: str) -> Iterator[tuple[int, int]]:
    """Where the host's declarations are, and of classes the methods that only the host can call."""
    gone: set[str] = set()  # names of the host's declarations so far
    for one in declarations(plain):
        head, whole = one.head(plain), plain[one.start : one.stop]
        if one.in_class:
            method = one.body >= 0 and "(" in head and not _is_class(head)
            calls = HOST_CALL.search(whole) or HOST_ONLY.search(whole)
            hosts = method and calls and not ON_DEVICE.search(head)
        elif hosts := _is_hosts(head, whole, gone):
            gone.update(DECLARED.findall(head.partition("(")[0] + ";"))
        if hosts:
            yield one.start, one.stop


def _is_hosts(head: str, whole: str, gone: set[str]) -> bool:
    """Whether a declaration is the host's; `head` is what stands before its body."""
    if ON_DEVICE.search(head):
        return False
    if HOST_ONLY.search(whole) and not ON_DEVICE.search(whole):
        return True
    words = re.sub(r"\btemplate\s*<[^{};]*?>\s*(?=\w)", "", ALIGNED.sub("", head)) + ";"
    if re.search(r"\bconstexpr\b", words) or not re.search(r"\w", words):
        return False
    if KIND.match(words) and not OF_KIND.match(words):
        return False
    if "(" in words and "=" not in words.partition("(")[0]:
        return True  # a function
    if re.search(r"\boperator\b|\b(texture|surface)\s*<", words):
        return False
    type_ = words.partition("=")[0].rpartition("*")[2] if "*" in words.partition("=")[0] else words
    constant = re.search(r"\bconst\b", type_.partition("=")[0])
    return not constant or not gone.isdisjoint(re.findall(r"\w+", whole.partition("=")[2]))


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
                head = ALIGNED.sub("", plain[place:body])
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


# ---- what does not compile ----


def without(text: str, line: int, column: int, kept: str) -> str | None:
    """The text without what is declared at a line, from 1, and a column, from 0 or -1 for unknown:
    a function or class stays as a declaration if that is in its body. None if nothing can be left
    out there, as in the kernel `kept`."""
    plain = plain_text(text)
    lines = text.split("\n")
    place = sum(len(one) + 1 for one in lines[: line - 1])
    first = len(lines[line - 1]) - len(lines[line - 1].lstrip())
    place += max(column, first)
    every = list(declarations(plain))
    around = [one for one in every if one.start <= place < one.stop]
    while len(around) > 1 and around[-1].body < 0 and "(" not in plain[slice(*around[-1][:2])]:
        around.pop()  # a class without a field would have another layout
    if not around:
        return None
    start, stop, body, in_class, _ = around[-1]
    head = around[-1].head(plain)
    if re.match(r"\s*static_assert\b", head) or is_kernel(head, kept):
        return None
    spans, at = [], start
    stays = _is_class(head) and not re.match(r"\s*typedef\b", head)
    if body >= 0 and "__global__" not in head and (stays or place >= body):
        base = re.search(r"(?<!:):(?!:)", head)
        at = start + base.start() if base else body
        spans += [] if in_class else _static(head, start)
    elif "__global__" not in head and (name := re.search(r"(\w+)\s*\(", head)):
        same = [one for one in every if _declares(plain, one, name[1])]
        if place < start + name.start() and len(same) > 1:
            return None  # its result has no type: a call would take another overload
    return _without(text, [*spans, (at, stop)], [] if at == start else [at])


def without_other_kernels(text: str, kept: str) -> str:
    """The text in which kernels of other names than `kept` are only declared."""
    plain, spans, ends = plain_text(text), [], []
    for one in declarations(plain):
        (start, stop, body, *_), head = one, one.head(plain)
        if "__global__" not in head or _is_class(head) or is_kernel(head, kept):
            continue
        if body >= 0:
            spans += [(body, stop), *_static(head, start)]
            ends.append(body)
        elif re.match(r"\s*template\b(?!\s*<)", head):  # an instance of it
            spans.append((start, stop))
    return _without(text, spans, ends)


def _static(head: str, start: int) -> list[tuple[int, int]]:
    """Where the word `static` is in a head that begins at `start`."""
    return [(start + one.start(), start + one.end()) for one in re.finditer(r"\bstatic\b", head)]


def _declares(plain: str, one: Declaration, name: str) -> bool:
    """Whether this declares a function of that name."""
    return bool(re.search(rf"\b{name}\s*$", one.head(plain).partition("(")[0]))


def _is_class(head: str) -> bool:
    return bool(CLASS.match(ALIGNED.sub("", head)))


def is_kernel(head: str, name: str) -> bool:
    """Whether a declaration with this head is that of a kernel of that name."""
    return "__global__" in head and bool(re.search(rf"\b{re.escape(name)}\s*[(<]", head))


def plain_text(text: str) -> str:
    """As long as the text, with comments, directives and the insides of literals blanked."""
    return DIRECTIVE.sub(_blanks, _blank(text))


def declarations(
    plain: str, start: int = 0, end: int = -1, in_class: bool = False, around: tuple = ()
) -> Iterator[Declaration]:
    """The declarations of a text without comments and directives; those of a class after it."""
    end = len(plain) if end < 0 else end
    while start < end:
        while in_class and (access := ACCESS.match(plain, start, end)):
            start = access.end()
        stop, body = _declaration(plain, start, end)
        head = plain[start:body] if body >= 0 else ""
        if body >= 0 and (scope := SCOPE.fullmatch(head)):
            names = re.findall(r"namespace\s+([\w:]+)", scope[2])
            yield from declarations(plain, body + 1, stop - 1, False, (*around, *names))
        else:
            yield Declaration(start, stop, body, in_class, around)
            if body >= 0 and _is_class(head):
                inside = body + 1, plain.rfind("}", body, stop)
                yield from declarations(plain, *inside, True, around)
        start = stop
