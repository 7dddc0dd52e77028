"""PTX text to a list of instructions.

NVRTC writes PTX one statement a line, with `.loc` directives that tie each instruction to a line
of the source. The parser keeps what execution needs and nothing else; anything at module level
that it does not know (a texture, a device function) is refused by name.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field


class UnsupportedPTX(RuntimeError):
    """The kernel uses something that the SIMT machine does not execute; named in the message."""


@dataclass(frozen=True)
class Register:
    name: str


@dataclass(frozen=True)
class Special:
    """A read-only register of the hardware, such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A literal: an int, or the raw bits of a float written as 0f.. or 0d.."""

    value: int
    float_bits: int = 0  # 32 or 64 if the literal was a float, else 0


@dataclass(frozen=True)
class Address:
    """[base + offset]; base is a register, or the name of a parameter or variable."""

    base: Register | str
    offset: int


@dataclass(frozen=True)
class Label:
    name: str


@dataclass(frozen=True)
class Vector:
    elements: tuple


@dataclass(frozen=True)
class Negated:
    """!%p: a predicate read the other way round."""

    register: Register


Operand = Register | Special | Immediate | Address | Label | Vector | Negated


@dataclass(frozen=True)
class Instruction:
    opcode: str  # "ld"
    modifiers: tuple[str, ...]  # ("global", "nc", "f32")
    operands: tuple[Operand, ...]
    guard: tuple[Register, bool] | None  # (predicate, negated)
    text: str
    file: str
    line: int

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Parameter:
    name: str
    type: str  # "u64", "f32", "b8" for a struct by value
    size: int
    offset: int


@dataclass(frozen=True)
class Variable:
    """A variable in shared memory; size 0 if the launch gives the size (`extern`)."""

    name: str
    align: int
    size: int


@dataclass
class Kernel:
    name: str
    parameters: list[Parameter]
    registers: dict[str, str] = field(default_factory=dict)  # name -> type, e.g. "%r5" -> "b32"
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # label -> index of an instruction
    shared: list[Variable] = field(default_factory=list)  # those that the kernel names


SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
SPECIALS = re.compile(
    r"%(tid|ntid|ctaid|nctaid)\.[xyz]|%(laneid|warpid|nwarpid|gridid|smid|nsmid"
    r"|lanemask_(eq|le|lt|ge|gt)|clock|clock64|globaltimer|dynamic_smem_size|total_smem_size"
    r"|envreg\d+|cluster_\w+(\.[xyz])?|is_explicit_cluster)$"
)


def type_size(name: str) -> int:
    """Bytes of a PTX type such as f32, u64 or pred."""
    return 1 if name == "pred" else SIZES[name.lstrip("busf")]


def parse(ptx: str, kernel_name: str) -> Kernel:
    """Return the entry `kernel_name` of a PTX module.

    Raises `KeyError` naming the entries there are if it is missing, and `UnsupportedPTX` for
    module-level constructs that the machine does not execute.
    """
    ptx = re.sub(r"/\*.*?\*/", "", ptx, flags=re.S)
    lines = [line.split("//")[0].strip() for line in ptx.splitlines()]
    files = _source_files(lines)
    entries, shared, elsewhere = {}, [], {}
    for start, line in enumerate(lines):
        match = re.match(r"(?:\.(?:visible|weak|extern)\s+)*\.entry\s+([\w$]+)", line)
        if match:
            entries[match[1]] = start
        elif re.match(r"(\.\w+\s+)*\.func\b", line):
            raise UnsupportedPTX(f"the SIMT machine does not run function calls yet: {line}")
        elif re.match(r"(\.\w+\s+)*\.shared\b", line):
            shared.append(_parse_variable(line))
        elif re.match(r"(\.(visible|extern|weak|common)\s+)*\.(global|const|tex)\b", line):
            elsewhere[_parse_variable(line).name] = line
    if kernel_name not in entries:
        known = ", ".join(entries) or "none"
        hint = ' (is extern "C" missing?)' if any("_Z" in name for name in entries) else ""
        raise KeyError(
            f"no kernel named {kernel_name!r} in this source; kernels there: {known}{hint}"
        )
    kernel = _parse_entry(lines, entries[kernel_name], kernel_name, files)
    named = {part for one in kernel.instructions for part in re.findall(r"[\w$]+", one.text)}
    named -= {variable.name for variable in kernel.shared}  # declared in the kernel's own body
    for name, line in elsewhere.items():
        if name in named:
            raise UnsupportedPTX(f"the SIMT machine does not hold this variable yet: {line}")
    kernel.shared += [variable for variable in shared if variable.name in named]
    return kernel


def _parse_variable(text: str) -> Variable:
    """.shared .align 4 .b8 name[128]"""
    align = re.search(r"\.align\s+(\d+)", text)
    kind, name, array, count = re.search(r"\.([busf]\d+)\s+([\w$]+)\s*(\[(\d*)\])?", text).groups()
    elements = int(count or 0) if array else 1
    return Variable(name, int(align[1]) if align else type_size(kind), elements * type_size(kind))


def _source_files(lines: list[str]) -> dict[int, str]:
    """.file numbers to names; NVRTC prefixes the working directory, #line gave the tail."""
    found = {}
    for line in lines:
        match = re.match(r'\.file\s+(\d+)\s+"([^"]*)"', line)
        if match:
            found[int(match[1])] = short_name(match[2])
    return found


def short_name(path: str) -> str:
    """A source file as messages name it: from `kernels/` on, or its last part."""
    cut = path.rfind("kernels/")
    return path[cut:] if cut >= 0 else path.rsplit("/", 1)[-1]


def _parse_entry(lines: list[str], start: int, name: str, files: dict[int, str]) -> Kernel:
    header, body = [], start
    while not lines[body].startswith("{"):
        header.append(lines[body])
        body += 1
    kernel = Kernel(name, _parse_parameters(" ".join(header)))
    file, line_number, pending = "kernel.cu", 0, ""
    scopes: list[dict[str, str]] = []  # registers that each open brace declares, renamed
    opened = 0
    sites: dict[tuple[str, ...], tuple[str, int]] = {}
    for line in lines[body:]:
        if re.match(r"\.loc\s", line):
            file, line_number = _location(line, files, sites, file, line_number)
            continue
        pending = f"{pending} {line}".strip()
        while pending:
            if pending[0] in "{}":
                if pending[0] == "{":
                    scopes.append({})
                else:
                    scopes.pop()
                pending = pending[1:].lstrip()
                if not scopes:
                    return kernel
                continue
            label = re.match(r"([\w$%.]+):(?!:)\s*", pending)
            if label:
                if len(scopes) > 1:
                    raise UnsupportedPTX(
                        "the SIMT machine does not jump within a scope (inline asm with braces) "
                        f"yet, at {file}:{line_number}"
                    )
                kernel.labels[label[1]] = len(kernel.instructions)
                pending = pending[label.end() :]
                continue
            statement, semicolon, rest = pending.partition(";")
            if not semicolon:
                break
            pending = rest.strip()
            text = statement.strip()
            if len(scopes) > 1:
                opened += text.startswith(".reg")
                text = _rename_locals(text, scopes, opened)
            _parse_statement(text, kernel, file, line_number)
    raise ValueError(f"the PTX of {name} ends inside its body")


def _rename_locals(text: str, scopes: list[dict[str, str]], number: int) -> str:
    """Give the registers that a scope declares names of their own, throughout that scope."""
    if text.startswith(".reg"):
        for name, count in re.findall(r"([\w$%]+)\s*(<\d+>)?\s*(?:,|$)", text):
            for local in [f"{name}{k}" for k in range(int(count[1:-1]))] if count else [name]:
                scopes[-1][local] = f"%scope{number}${local}"
        kind, names = text.split()[1], [*scopes[-1].values()]
        own = [name for name in names if name.startswith(f"%scope{number}$")]
        return f".reg {kind} {', '.join(own)}"
    local = {name: renamed for scope in scopes for name, renamed in scope.items()}
    return re.sub(r"(?<![\w$%.])[\w$%]+", lambda match: local.get(match[0], match[0]), text)


def _location(
    line: str,
    files: dict[int, str],
    sites: dict[tuple[str, ...], tuple[str, int]],
    file: str,
    number: int,
) -> tuple[str, int]:
    """Follow a .loc directive; line 0 means "no line", and code inlined from a header counts
    for the user's line that it was inlined at.

    `sites` holds where each place met so far counts; the kernel's own comes first, and the place
    that code was inlined at comes before that code.
    """
    numbers = re.match(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)", line).groups()
    if numbers[1] == "0":
        return file, number
    inlined = re.search(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)", line)
    own_file = next(iter(sites), numbers)[0]
    if inlined and numbers[0] != own_file:
        there = inlined.groups()
        place = sites.get(there) or (files.get(int(there[0]), "kernel.cu"), int(there[1]))
    else:
        place = files.get(int(numbers[0]), "kernel.cu"), int(numbers[1])
    sites[numbers] = place
    return place


def _parse_parameters(header: str) -> list[Parameter]:
    parameters, offset = [], 0
    for text in re.findall(r"\.param\s+([^,)]*)", header):
        align = re.search(r"\.align\s+(\d+)", text)
        type_name = re.search(r"\.([busf]\d+)", text)[1]
        array = re.search(r"\[(\d+)\]", text)
        name = re.findall(r"[\w$]+", text.split("[")[0])[-1]
        size = type_size(type_name) * (int(array[1]) if array else 1)
        alignment = int(align[1]) if align and array else type_size(type_name)
        offset = -(-offset // alignment) * alignment
        parameters.append(Parameter(name, type_name, size, offset))
        offset += size
    return parameters


def _parse_statement(text: str, kernel: Kernel, file: str, line: int) -> None:
    if text.startswith(".reg"):
        match = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text)
        if match[1] != "pred" and match[1].lstrip("busf") not in SIZES:
            raise UnsupportedPTX(f"the SIMT machine does not know {text!r}, at {file}:{line}")
        for item in match[2].split(","):
            count = re.match(r"\s*([\w$%]+)<(\d+)>", item)
            if count:
                for number in range(int(count[2])):
                    kernel.registers[f"{count[1]}{number}"] = match[1]
            else:
                kernel.registers[item.strip()] = match[1]
        return
    if text.startswith(".pragma"):
        return
    if re.match(r"\.shared\b", text):
        kernel.shared.append(_parse_variable(text))
        return
    if re.match(r"\.local\b", text):
        raise UnsupportedPTX(f"the SIMT machine does not hold this variable yet: {text}")
    if text.startswith("."):
        raise UnsupportedPTX(f"the SIMT machine does not know {text!r}, at {file}:{line}")
    guard = re.match(r"@(!?)([\w$%]+)\s+", text)
    rest = text[guard.end() :] if guard else text
    opcode, _, operands = rest.partition(" ")
    opcode, *modifiers = opcode.replace("::", "_").split(".")
    kernel.instructions.append(
        Instruction(
            opcode,
            tuple(modifiers),
            tuple(_parse_operand(item, kernel) for item in _split_operands(operands.strip())),
            (Register(guard[2]), guard[1] == "!") if guard else None,
            re.sub(r"\s+", " ", text),
            file,
            line,
        )
    )


def _split_operands(text: str) -> list[str]:
    """Split at commas outside braces and brackets; `p|q` destinations split too."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(character, 0)
        if character in ",|" and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return [*parts, current.strip()] if current.strip() else parts


def _parse_operand(text: str, kernel: Kernel) -> Operand:
    if text.startswith("{"):
        return Vector(tuple(_parse_operand(t.strip(), kernel) for t in text[1:-1].split(",")))
    if text.startswith("["):
        base, sign, offset = re.match(r"\[([\w$%.]+)\s*([+-]?)\s*(-?\w+)?\s*\]", text).groups()
        number = int(offset, 0) if offset else 0
        number = -number if sign == "-" else number
        return Address(Register(base) if base in kernel.registers else base, number)
    if text.startswith("!"):
        return Negated(Register(text[1:]))
    if text in kernel.registers or text == "_":
        return Register(text)
    if SPECIALS.match(text):
        return Special(text)
    if re.match(r"0[fF][0-9a-fA-F]{8}$", text):
        return Immediate(int(text[2:], 16), 32)
    if re.match(r"0[dD][0-9a-fA-F]{16}$", text):
        return Immediate(int(text[2:], 16), 64)
    if re.match(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$", text):
        return Immediate(int(text.rstrip("U"), 0))
    if re.match(r"-?\d+\.\d*([eE][+-]?\d+)?$", text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
    return Label(text)
