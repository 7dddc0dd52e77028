"""Whether two texts of a kernel are the same machine code.

A record holds for a kernel's text. Where the text changed and the instructions did not, the record
still holds: `differences` compiles both texts and compares what the hardware would execute and
what a launch depends on, but no names and no line numbers. Parameters that are added behind the
others change nothing where the instructions are the same: none reads them.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from helpers.simt import compile_cubin, compile_ptx

OBJECT, FUNCTION = 1, 2  # types of an ELF symbol
# Attributes in .nv.info and .nv.info.KERNEL, as cuobjdump names them.
PARAM_CBANK, FRAME_SIZE, MIN_STACK_SIZE, REGCOUNT = 0x0A, 0x11, 0x12, 0x2F
KPARAM_INFO, CBANK_PARAM_SIZE = 0x17, 0x19
OF_PARAMETERS = (PARAM_CBANK, CBANK_PARAM_SIZE, KPARAM_INFO)


class Build(NamedTuple):
    """A kernel's text and the options that it is compiled with beside CuPy's."""

    code: str
    options: tuple[str, ...] = ()


class MachineCode(NamedTuple):
    """What the hardware gets of one kernel."""

    instructions: bytes
    relocations: bytes  # of the instructions
    registers: int
    frame_bytes: int
    stack_bytes: int
    static_shared_bytes: int  # with the KB that the system takes of a block that has any
    parameters: bytes  # for each, first to last: its place among the arguments, its size
    constants: bytes  # other banks, and what those variables hold that the kernels read
    attributes: bytes  # sizes of cluster and block, places of exits and barriers


def differences(before: Build, after: Build, arch: str = "sm_90") -> list[str]:
    """What differs in the machine code of two builds, a line each; none if it is the same.

    Kernels are compared in the order in which their names sort, whatever these are. Raises
    `simt.compile.CompileError` if a text does not compile.
    """
    old, new = machine_code(before, arch), machine_code(after, arch)
    if len(old) != len(new):
        return [f"{len(old)} and {len(new)} kernels"]
    pairs = zip(new, old.values(), new.values(), strict=True)
    return [f"{name}: {line}" for name, was, now in pairs for line in _compared(was, now)]


def machine_code(build: Build, arch: str = "sm_90") -> dict[str, MachineCode]:
    """The kernels of a build, by name and sorted by it."""
    elf = Elf(compile_cubin(build.code, build.options, arch))
    ptx = compile_ptx(build.code, build.options, arch.replace("sm_", "compute_"))
    read = _variables_read(ptx)
    return {name: _machine_code(elf, name, read) for name in sorted(elf.functions)}


def _compared(was: MachineCode, now: MachineCode) -> list[str]:
    lines = []
    for field, old, new in zip(MachineCode._fields, was, now, strict=True):
        what = field.replace("_", " ")
        if field == "parameters" and new.startswith(old):
            continue
        if isinstance(old, int) and old != new:
            lines.append(f"{old} and {new} {what}")
        elif old != new:
            same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None)
            where = "one goes on" if same is None else f"different from byte {same} on"
            lines.append(f"{len(old)} and {len(new)} bytes of {what}, {where}")
    return lines


def _machine_code(elf: Elf, name: str, variables: list[str]) -> MachineCode:
    numbers = elf.numbers(elf.functions[name])
    shared = elf.sections.get(f".nv.shared.{name}")
    attributes = elf.attributes(f".nv.info.{name}")
    banks = [s for s in elf.sections if re.fullmatch(rf"\.nv\.constant[1-9]\d*\.{name}", s)]
    return MachineCode(
        elf.content(f".text.{name}"),
        elf.content(f".rela.text.{name}") + elf.content(f".rel.text.{name}"),
        numbers.get(REGCOUNT, 0),
        numbers.get(FRAME_SIZE, 0),
        numbers.get(MIN_STACK_SIZE, 0),
        shared.size if shared else 0,
        b"".join(sorted(value for kind, value in attributes if kind == KPARAM_INFO)),
        b"".join([*map(elf.content, banks), *map(elf.variable, variables)]),
        b"".join(bytes([kind]) + value for kind, value in attributes if kind not in OF_PARAMETERS),
    )


def _variables_read(ptx: str) -> list[str]:
    """Variables in global or constant memory that the functions of the PTX use, as they come.

    Under CuPy's options a file's `constexpr` values are such variables, though each use of one is
    an immediate operand: they are no part of what a kernel does.
    """
    declared = r"^(?:\.\w+ )*\.(?:global|const) [^;={\[]*?([\w$]+)(?:\[[^;={]*)?(?: = [^;]*)?;"
    names = re.findall(declared, ptx, flags=re.MULTILINE)
    bodies = "\n".join(re.findall(r"^\{.*?^\}", ptx, flags=re.MULTILINE | re.DOTALL))
    return [n for n in names if re.search(rf"(?<![\w$]){re.escape(n)}(?![\w$])", bodies)]


# ---- reading a cubin --------------------------------------------------------------------------


class Section(NamedTuple):
    kind: int
    start: int
    size: int


class Elf:
    """The sections and functions of a cubin: ELF, 64 bits, little-endian."""

    EMPTY = 8  # the type of a section that has a size and no bytes in the file

    def __init__(self, data: bytes) -> None:
        """Raises `ValueError` if `data` is no such file."""
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a cubin")
        self.data = data
        (table,) = struct.unpack_from("<Q", data, 0x28)
        size, count, names = struct.unpack_from("<HHH", data, 0x3A)
        rows = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
        listed = [
            (self._text(rows[names][4] + name), Section(kind, start, length))
            for name, kind, _, _, start, length in rows
        ]
        self.sections = dict(listed)
        self._names = [name for name, _ in listed]
        texts = self.sections[".strtab"].start
        symbols = struct.iter_unpack("<IBBHQQ", self.content(".symtab"))
        self.symbols = [(self._text(texts + symbol[0]), *symbol[1:]) for symbol in symbols]
        self.functions = {  # name -> place in the table of symbols; parts of one left out
            name: place
            for place, (name, info, *_) in enumerate(self.symbols)
            if info & 15 == FUNCTION and f".text.{name}" in self.sections
        }

    def content(self, section: str) -> bytes:
        """The bytes of a section; none if there is no such section, or it has no bytes."""
        found = self.sections.get(section)
        if found is None or found.kind == self.EMPTY:
            return b""
        return self.data[found.start : found.start + found.size]

    def variable(self, name: str) -> bytes:
        """Where a variable stands and what it holds at first, zeros if the file does not say."""
        for found, info, _, section, start, size in self.symbols:
            if found == name and info & 15 == OBJECT:
                home = self._names[section]
                return struct.pack("<QQ", start, size) + self.content(home)[start : start + size]
        raise ValueError(f"the cubin has no variable {name}")

    def numbers(self, function: int) -> dict[int, int]:
        """Attribute -> number of the function with this place in the table of symbols."""
        found = {}
        for attribute, value in self.attributes(".nv.info"):
            if len(value) == 8:
                owner, number = struct.unpack("<II", value)
                if owner == function:
                    found[attribute] = number
        return found

    def attributes(self, section: str) -> list[tuple[int, bytes]]:
        """(kind, value) of what a section of attributes says, in its order."""
        content, place, found = self.content(section), 0, []
        while place < len(content):
            form, attribute, size = struct.unpack_from("<BBH", content, place)
            place += 4
            value = struct.pack("<H", size)  # the number itself, unless it says how many follow
            if form == 4:
                value = content[place : place + size]
                place += size
            found.append((attribute, value))
        return found

    def _text(self, start: int) -> str:
        return self.data[start : self.data.index(b"\0", start)].decode()
