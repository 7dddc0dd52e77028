"""PTX text to a list of instructions.

NVRTC writes PTX one statement a line, with `.loc` directives that tie each instruction to a line
of the source. The parser keeps what execution needs and nothing else; anything at module level
that it does not know (a texture, a device function) is refused by name.
"""

from __future__ import annotations

import functools
import re
import struct
from dataclasses import replace
from math import prod
from typing import NamedTuple

from .cuda_text import plain_name, split_items
from .instructions import (
    CARRY,
    DTYPES,
    Address,
    Call,
    Function,
    Immediate,
    Instruction,
    Label,
    Negated,
    Operand,
    PtxKernel,
    PtxParameter,
    Register,
    Special,
    UnsupportedPTX,
    Variable,
    Vector,
    elements,
    type_size,
)
from .places import short_name
from .refusals import FUNCTION_POINTER, of_call, of_opcode, refused

# At the beginning of a line or statement; very many of them are read.
ENTRY = re.compile(r"(?:\.(?:visible|weak|extern)\s+)*\.entry\s+([\w$]+)")
FUNCTION = re.compile(r"(\.(visible|weak)\s+)*\.func\b")
VARIABLE = re.compile(r"(\.(visible|extern|weak|common)\s+)*\.(shared|global|const)\b")
FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
LOCATION = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
BRACE_OR_LABEL = re.compile(r"[{}]|[\w$%.]+:(?!:)")
CALL = re.compile(r"(@!?[\w$%]+\s+)?call\b")
CALL_STATEMENT = re.compile(
    r"(?P<guard>@!?[\w$%]+\s+)?call(?:\.uni)?\s*(?:\((?P<results>[^)]*)\)\s*,)?"
    r"\s*(?P<name>[\w$%]+)\s*(?:,\s*\((?P<arguments>[^)]*)\))?\s*(?:,\s*[\w$%]+\s*)?$"
)
RETURN = re.compile(r"(@!?[\w$%]+\s+)?ret\b")
GUARD = re.compile(r"@(!?)([\w$%]+)\s+")
NAME = re.compile(r"(?<![\w$%.])[\w$%]+")
INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?$")


class Module(NamedTuple):
    """The lines of a PTX module and where it declares what."""

    lines: list[str]
    files: dict[int, str]
    entries: dict[str, int]  # numbers of lines
    functions: dict[str, int]
    shared: dict[str, str]
    variables: dict[str, str]


@functools.lru_cache(maxsize=64)
def parse(ptx: str, kernel_name: str) -> PtxKernel:
    """Return the entry `kernel_name` of a PTX module, with the functions that it calls inlined.

    Raises `KeyError` naming the entries there are if it is missing, and `UnsupportedPTX` for
    constructs that the machine does not execute.
    """
    module = _module(ptx)
    if kernel_name not in module.entries:
        known = ", ".join(dict.fromkeys(map(plain_name, module.entries))) or "none"
        same = any(plain_name(entry) == kernel_name for entry in module.entries)
        hint = ' (is extern "C" missing?)' if same else ""
        raise KeyError(
            f"no kernel named {kernel_name!r} in this source; kernels there: {known}{hint}"
        )
    parser = _BodyParser(module)
    kernel = parser.parse_entry(kernel_name, module.entries[kernel_name])
    named = parser.add_functions(module.variables)
    if kernel.calls and not kernel.functions:
        call = kernel.instructions[min(kernel.calls)]
        raise refused(FUNCTION_POINTER, call.where)
    own = {variable.name for variable in kernel.shared}  # declared in the kernel's own body
    kernel.shared += [
        _parse_variable(line)
        for name, line in module.shared.items()
        if name in named and name not in own
    ]
    kernel.module = _reachable_variables(module.variables, named)
    return kernel


@functools.lru_cache(maxsize=8)  # tests have many kernels in one
def _module(ptx: str) -> Module:
    ptx = re.sub(r"/\*.*?\*/", "", ptx, flags=re.S)
    lines = [line.split("//")[0].strip().replace(".reg.", ".reg .") for line in ptx.splitlines()]
    module = Module(lines, _source_files(lines), {}, {}, {}, {})
    for start, line in enumerate(lines):
        if not line.startswith(".") or line.startswith(".loc"):
            continue
        if match := ENTRY.match(line):
            module.entries[match[1]] = start
        elif FUNCTION.match(line):
            name = _function_name(lines, start)
            if name:
                module.functions[name] = start
        elif VARIABLE.match(line):
            name = re.search(r"\.[busf]\d+\s+([\w$]+)", line)[1]
            (module.shared if ".shared" in line else module.variables)[name] = line
    return module


def entry_named(ptx: str, name: str) -> str:
    """The entry of a PTX module that has this name, or has it before it was mangled; the name if
    there is none. Raises `KeyError` if there are several."""
    entries = re.findall(r"\.entry\s+([\w$]+)", ptx)
    found = [entry for entry in entries if plain_name(entry) == name]
    if name in entries or not found:
        return name
    if len(found) > 1:
        raise KeyError(
            f"{len(found)} kernels are named {name!r} in this source; rename all but one, or name "
            f"one with its namespace, or as the compiler does: {', '.join(found)}"
        )
    return found[0]


def _reachable_variables(lines: dict[str, str], named: set[str]) -> list[Variable]:
    """The variables that are named, and those whose address one of them holds."""
    found: dict[str, Variable] = {}
    wanted = [name for name in lines if name in named]
    while wanted:
        name = wanted.pop()
        if name in lines and name not in found:
            found[name] = _parse_variable(lines[name])
            addresses = [value for _, value in found[name].initial if isinstance(value, str)]
            wanted += [address.partition("+")[0] for address in addresses]
    return list(found.values())


def _parse_variable(text: str) -> Variable:
    """.global .align 4 .b8 name[8] = {0, 0, 128, 63, 0, 0, 0, 64}"""
    text = text.rstrip("; ")
    if ".extern" in text and ".shared" not in text:
        raise UnsupportedPTX(f"the SIMT machine does not link other modules: {text}")
    declared, _, given = text.partition("=")
    align = re.search(r"\.align\s+(\d+)", declared)
    match = re.search(r"\.([busf]\d+)\s+([\w$%]+)\s*((?:\[\d*\])*)", declared)
    kind, name, dimensions = match.groups()
    elements = 1
    for size in re.findall(r"\[(\d*)\]", dimensions):
        elements *= int(size or 0)
    size = type_size(kind)
    initial = []
    for place, item in enumerate(re.split(r"[,\s{}]+", given.strip(" {}")) if given else ()):
        initial.append((place * size, _parse_initial(item, kind, text)))
    return Variable(name, int(align[1]) if align else size, elements * size, tuple(initial))


def _parse_initial(item: str, kind: str, text: str) -> bytes | str:
    size = type_size(kind)
    if re.fullmatch(r"(generic\([\w$]+\)|[A-Za-z_$][\w$]*)(\+\d+)?", item):
        return re.sub(r"generic\(([\w$]+)\)", r"\1", item)
    if match := re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", item):
        return int(match[1], 16).to_bytes(size, "little")
    try:
        return (int(item, 0) & (1 << 8 * size) - 1).to_bytes(size, "little")
    except ValueError:
        raise UnsupportedPTX(
            f"the SIMT machine does not know the initial value {item!r}: {text[:80]}"
        ) from None


def _function_name(lines: list[str], start: int) -> str | None:
    """The name of the function whose definition starts here; None if it is a declaration."""
    text = " ".join(lines[start : start + 64])
    head = re.match(r"[^{;]*", text)
    if text[head.end() : head.end() + 1] != "{":
        return None
    return re.search(r"\.func\s*(?:\([^)]*\))?\s*([\w$]+)", head[0])[1]


def _source_files(lines: list[str]) -> dict[int, str]:
    """.file numbers to names; NVRTC prefixes the working directory, #line gave the tail."""
    found = {}
    for line in lines:
        if match := FILE.match(line):
            found[int(match[1])] = short_name(match[2])
    return found


class _BodyParser:
    """Reads the body of an entry. A call is replaced by the function's body, its registers and
    labels renamed: that is what a call does. Functions that are called within themselves, and
    those whose address somebody takes, stand behind the entry too."""

    def __init__(self, module: Module):
        self.lines, self.functions, self.files = module.lines, module.functions, module.files
        self.sites: dict[tuple[str, ...], tuple[str, int]] = {}
        self.scopes = 0  # opened so far; makes names unique
        self.called: dict[str, None] = {}  # functions that stay functions
        self.lenient = False  # what is read may never run
        self.inside: list[str] = []  # functions whose bodies are being read, one within the other

    def parse_entry(self, name: str, start: int) -> PtxKernel:
        header, statements = self._statements(start)
        self.kernel = PtxKernel(name, _parse_parameters(header))
        cluster = re.search(r"\.reqnctapercluster\s+([\d,\s]+)", header)
        if cluster:
            sizes = [int(size) for size in cluster[1].split(",")]
            self.kernel.cluster = tuple(sizes + [1] * (3 - len(sizes)))
        if bounds := re.search(r"\.(?:max|req)ntid\s+([\d,\s]+)", header):
            self.kernel.most_threads = prod(int(size) for size in bounds[1].split(","))
        self._scope(statements, {}, "")
        return self.kernel

    def _statements(self, start: int) -> tuple[str, list[tuple[str, str, int]]]:
        """(header, body): braces, labels and statements, each with its file and line."""
        header, number = [], start
        while not self.lines[number].startswith("{"):
            header.append(self.lines[number])
            number += 1
        found, depth, pending, file, line_number = [], 0, "", "kernel.cu", 0
        for line in self.lines[number:]:
            if location := LOCATION.match(line):
                numbers = location.groups()
                file, line_number = self._located(line, numbers, file, line_number)
                continue
            pending = f"{pending} {line}".strip()
            while pending:
                if match := BRACE_OR_LABEL.match(pending):
                    text, pending = match[0], pending[match.end() :].lstrip()
                    depth += {"{": 1, "}": -1}.get(text, 0)
                else:
                    text, semicolon, rest = pending.partition(";")
                    if not semicolon:
                        break
                    text, pending = " ".join(text.split()), rest.strip()
                found.append((text, file, line_number))
                if depth == 0:
                    return " ".join(header), found[1:-1]
        raise ValueError("the PTX ends inside a function's body")

    def _located(
        self, line: str, numbers: tuple[str, ...], file: str, number: int
    ) -> tuple[str, int]:
        """Follow a .loc directive; line 0 means "no line", and code inlined from a header counts
        for the user's line that it was inlined at.

        `sites` holds where each place met so far counts; the kernel's own comes first, and the
        place that code was inlined at comes before that code.
        """
        if numbers[1] == "0":
            return file, number
        files, sites = self.files, self.sites
        inlined = re.search(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)", line)
        own_file = next(iter(sites), numbers)[0]
        if inlined and numbers[0] != own_file:
            there = inlined.groups()
            place = sites.get(there) or (files.get(int(there[0]), "kernel.cu"), int(there[1]))
        else:
            place = files.get(int(numbers[0]), "kernel.cu"), int(numbers[1])
        sites[numbers] = place
        return place

    def _scope(self, statements: list, names: dict[str, str], end_label: str) -> None:
        """Parse the statements between two braces. `names` renames what outer scopes declare;
        `end_label` is where a return jumps to, "" if it ends the thread."""
        kernel, number = self.kernel, 0
        while number < len(statements):
            text, file, line = statements[number]
            number += 1
            if text == "{":
                inside = statements[number : _closing(statements, number)]
                number += len(inside) + 1
                self._scope(inside, names | self._declared(inside), end_label)
            elif text.startswith(".branchtargets"):
                label = statements[number - 2][0][:-1]
                kernel.tables[names.get(label, label)] = split_items(
                    _rename(text, names).removeprefix(".branchtargets")
                )
            elif text.endswith(":") and " " not in text:
                kernel.labels[names.get(text[:-1], text[:-1])] = len(kernel.instructions)
            elif ".callprototype" in text or ".calltargets" in text:
                continue
            elif CALL.match(text):
                self._call(_rename(text, names), file, line)
            elif end_label and RETURN.match(text):
                jump = re.sub(r"ret(\.uni)?$", f"bra {end_label}", text)
                _parse_statement(_rename(jump, names), kernel, file, line)
            else:
                _parse_statement(_rename(text, names), kernel, file, line)

    def _declared(self, statements: list) -> dict[str, str]:
        """New names for the registers, labels and variables that a scope declares itself."""
        self.scopes += 1
        names, depth = [], 0
        for text, _, _ in statements:
            depth += {"{": 1, "}": -1}.get(text, 0)
            if depth:
                continue
            if text.endswith(":") and " " not in text:
                names.append(text[:-1])
            elif re.match(r"\.(local|param)\b", text):
                names.append(re.search(r"\.[busf]\d+\s+([\w$]+)", text)[1])
            elif text.startswith(".reg"):
                names += _register_names(text)
        return {name: f"%scope{self.scopes}${name}" for name in names}

    def _call(self, text: str, file: str, line: int) -> None:
        match = CALL_STATEMENT.match(text)
        if match is None or match["guard"]:
            raise UnsupportedPTX(f"the SIMT machine does not know {text!r}, at {file}:{line}")
        name, kernel = match["name"], self.kernel
        results, arguments = (split_items(match[part] or "") for part in ("results", "arguments"))
        if name in ("vprintf", "__assertfail"):
            given = ", ".join([*results, *arguments])
            _parse_statement(f"{name.lstrip('_')} {given}", kernel, file, line)
            if name == "__assertfail":
                _parse_statement("exit", kernel, file, line)
            return
        if name in kernel.registers or name in self.inside:
            target: str | Register = Register(name)
            if name not in kernel.registers:
                self.called[name] = None
                target = name
            call = Call(target, tuple(results), tuple(arguments))
            kernel.calls[len(kernel.instructions)] = call
            _parse_statement(f"call {name}", kernel, file, line)
            return
        if name not in self.functions:
            feature, where = of_call(name), f"{file}:{line}"
            error = UnsupportedPTX(
                f"the SIMT machine cannot call {plain_name(name)}, which this source does not "
                f"define, at {where}"
            )
            error = refused(feature, where) if feature else error
            if not self.lenient:
                raise error
            _parse_statement("refused", kernel, file, line)
            kernel.instructions[-1] = replace(kernel.instructions[-1], text=str(error))
            return
        self._inline(name, results, arguments)

    def _inline(self, name: str, results: list[str], arguments: list[str]) -> None:
        header, statements = self._statements(self.functions[name])
        names = self._declared(statements)
        end = f"%scope{self.scopes}$return"
        for declared, given in zip(_formal(name, header), (results, arguments), strict=True):
            names |= dict(zip([one.name for one in declared], given, strict=True))
        self.inside.append(name)
        self._scope(statements, names, end)
        self.inside.pop()
        self.kernel.labels[end] = len(self.kernel.instructions)

    # ---- functions that stay functions ----

    def add_functions(self, variables: dict[str, str]) -> set[str]:
        """Read the functions that stay functions, those too whose address an instruction or one of
        the module's variables holds. Returns all names in the kernel's instructions."""
        kernel, done, looked = self.kernel, set(), 0
        named: set[str] = set()
        while True:
            for one in kernel.instructions[looked:]:
                named.update(re.findall(r"[\w$]+", one.text))
            for one in kernel.instructions[looked:] if self.functions else ():
                parts = [part for operand in one.operands for part in elements(operand)]
                names = [part.name for part in parts if isinstance(part, Label)]
                self.called |= dict.fromkeys(name for name in names if name in self.functions)
            looked = len(kernel.instructions)
            held = _reachable_variables(variables, named) if self.functions else ()
            values = [value for variable in held for _, value in variable.initial]
            self.called |= dict.fromkeys(value for value in values if value in self.functions)
            left = [name for name in self.called if name not in done]
            if not left:
                return named
            if not done:  # who runs on past the entry's end has ended
                _parse_statement("exit", kernel, *kernel_end(kernel))
            for name in left:
                done.add(name)
                kernel.functions.append(self._function(name))

    def _function(self, name: str) -> Function:
        kernel, self.lenient = self.kernel, True
        header, statements = self._statements(self.functions[name])
        names = self._declared(statements)
        scope = f"%scope{self.scopes}$"
        known, local, start = set(kernel.registers), len(kernel.local), len(kernel.instructions)
        formal: list[tuple[str, ...]] = []
        for declared in _formal(name, header):
            names |= {one.name: scope + one.name for one in declared}
            formal.append(tuple(scope + one.name for one in declared))
            kernel.arguments += [Variable(scope + one.name, 16, one.size) for one in declared]
        frame, back = f"{scope}frame", f"{scope}back"
        kernel.registers |= {frame: "b64", back: "b32"}
        self.inside = [name]
        self._scope(statements, names, f"{scope}return")
        self.inside = []
        kernel.labels[f"{scope}return"] = len(kernel.instructions)
        _parse_statement("return", kernel, *kernel_end(kernel))
        size = 0
        for one in kernel.local[local:]:
            size = -(-size // one.align) * one.align
            kernel.framed[one.name] = frame, size
            size += one.size
        del kernel.local[local:]
        own = tuple(one for one in kernel.registers if one not in known)
        size = -(-size // 16) * 16
        return Function(name, start, len(kernel.instructions), *formal, own, frame, back, size)


def kernel_end(kernel: PtxKernel) -> tuple[str, int]:
    """File and line of the last instruction."""
    last = kernel.instructions[-1] if kernel.instructions else None
    return (last.file, last.line) if last else ("kernel.cu", 0)


def _formal(name: str, header: str) -> tuple[list[PtxParameter], list[PtxParameter]]:
    """(results, parameters) that a function declares."""
    match = re.match(rf".*?\.func\s*(?:\(([^)]*)\))?\s*{re.escape(name)}\s*\(([^)]*)\)", header)
    results, parameters = match.groups()
    return _parse_parameters(results or ""), _parse_parameters(parameters)


def _register_names(text: str) -> list[str]:
    """.reg .b32 %r<3>, flag  ->  %r0, %r1, %r2, flag"""
    names = []
    for item in text.split(None, 2)[2].split(","):
        name, _, count = item.strip().partition("<")
        names += [f"{name}{k}" for k in range(int(count[:-1]))] if count else [name]
    return names


def _closing(statements: list, number: int) -> int:
    """Where the brace that was opened just before `number` closes."""
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(statements[number][0], 0)
        number += 1
    return number - 1


def _rename(text: str, names: dict[str, str]) -> str:
    if not names:
        return text
    if text.startswith(".reg"):  # one by one, since %r<3> stands for %r0, %r1 and %r2
        kind = text.split()[1]
        return f".reg {kind} {', '.join(names[name] for name in _register_names(text))}"
    return NAME.sub(lambda match: names.get(match[0], match[0]), text)


def _parse_parameters(header: str) -> list[PtxParameter]:
    parameters, offset = [], 0
    for text in re.findall(r"\.param\s+([^,)]*)", header):
        align = re.search(r"\.align\s+(\d+)", text)
        type_name = re.search(r"\.([busf]\d+)", text)[1]
        array = re.search(r"\[(\d+)\]", text)
        name = re.findall(r"[\w$]+", text.split("[")[0])[-1]
        size = type_size(type_name) * (int(array[1]) if array else 1)
        alignment = int(align[1]) if align and array else type_size(type_name)
        offset = -(-offset // alignment) * alignment
        parameters.append(PtxParameter(name, type_name, size, offset, bool(array)))
        offset += size
    return parameters


def _parse_declaration(text: str, kernel: PtxKernel, file: str, line: int) -> None:
    if text.startswith(".reg"):
        match = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text)
        if match[1] not in DTYPES:
            raise UnsupportedPTX(f"the SIMT machine does not know {text!r}, at {file}:{line}")
        kernel.registers.update(dict.fromkeys(_register_names(text), match[1]))
        return
    if text.startswith(".pragma"):
        return
    if re.match(r"\.shared\b", text):
        kernel.shared.append(_parse_variable(text))
        return
    if re.match(r"\.(local|param)\b", text):
        kind = kernel.local if text.startswith(".local") else kernel.arguments
        kind.append(_parse_variable(text))
        return
    raise UnsupportedPTX(f"the SIMT machine does not know {text!r}, at {file}:{line}")


def _parse_statement(text: str, kernel: PtxKernel, file: str, line: int) -> None:
    if text.startswith("."):
        _parse_declaration(text, kernel, file, line)
        return
    guard = GUARD.match(text)
    rest = text[guard.end() :] if guard else text
    opcode, _, operands = rest.partition(" ")
    opcode, *modifiers = opcode.replace("::", "_").split(".")
    if feature := of_opcode(opcode, modifiers, rest):
        raise refused(feature, f"{file}:{line}", rest.partition(" ")[0])
    try:
        # `p|q` are two destinations.
        parsed = [_parse_operand(item, kernel) for item in split_items(operands, ",|")]
    except UnsupportedPTX as error:
        raise UnsupportedPTX(f"{error}, at {file}:{line}: {text}") from None
    if "cc" in modifiers or opcode in ("addc", "subc", "madc"):  # the carry flag is not written out
        parsed[1:1] = [CARRY] * ("cc" in modifiers)
        parsed += [CARRY] * opcode.endswith("c")
        kernel.registers.setdefault(CARRY.name, "pred")
    kernel.instructions.append(
        Instruction(
            opcode,
            tuple(modifiers),
            tuple(parsed),
            (Register(guard[2]), guard[1] == "!") if guard else None,
            text,
            file,
            line,
            len(kernel.instructions),
        )
    )


def _parse_operand(text: str, kernel: PtxKernel) -> Operand:
    if text in kernel.registers:
        return Register(text)
    if text.startswith("{"):
        return Vector(tuple(_parse_operand(t.strip(), kernel) for t in text[1:-1].split(",")))
    if text.startswith("["):
        match = re.match(r"\[([\w$%.]+)\s*([+-]?)\s*(-?\w+)?\s*\]", text)
        if not match:
            raise UnsupportedPTX(f"the SIMT machine does not know the address {text}")
        base, sign, offset = match.groups()
        number = int(offset, 0) if offset else 0
        number = -number if sign == "-" else number
        return Address(Register(base) if base in kernel.registers else base, number)
    if text == "WARP_SZ":
        return Immediate(32)
    if text.startswith("!"):
        return Negated(Register(text[1:]))
    if text == "_":
        return Register(text)
    if text.startswith("%") and not text.startswith("%scope"):
        return Special(text)
    if re.match(r"0[fF][0-9a-fA-F]{8}$", text):
        return Immediate(int(text[2:], 16), 32)
    if re.match(r"0[dD][0-9a-fA-F]{16}$", text):
        return Immediate(int(text[2:], 16), 64)
    if INTEGER.match(text):
        return Immediate(int(text.rstrip("U"), 0))
    if re.match(r"-?\d+\.\d*([eE][+-]?\d+)?$", text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 64)
    return Label(text)
