"""The instances of kernel templates that host code launches, found in its text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .cuda_text import closing, split_items, template_of
from .sources import Declaration, declarations, plain_text

MOST = 64  # instances of a template
MOST_DEPTH = 3  # host templates that call one another
IGNORED = re.compile(r"\b(const|volatile|__restrict__|__restrict|typename)\b")
CALL = re.compile(r"\s*(?:<<<.*?>>>)?\s*\(", re.DOTALL)
CAST = re.compile(r"\((?:const\s+)?([\w:\s]+?)\s*\*\s*\)|\w+_cast<(?:const\s+)?([\w:\s]+?)\s*\*")
TYPE = r"([A-Za-z_][\w:]*(?:\s+(?:int|long|char|short))*)"
NO_TYPE = {"return", "new", "delete", "else", "case", "const"}


class Template(NamedTuple):
    """A function template, a kernel or one of the host."""

    name: str
    names: list[str]  # of the template's parameters
    required: int  # parameters without a default
    parameters: list[str]  # of the function


def launched(text: str, name: str) -> list[str]:
    """The instances of a kernel template that a text launches or names otherwise, as name
    expressions: "scale<float, 4>".

    Constants of the function around a launch are replaced by their values, and its own template
    parameters by the arguments that it is called with. Arguments that a launch leaves out are
    deduced from the types of the pointers that it passes.
    """
    kernel = template_of(text, name)
    if kernel is None:
        return []
    plain = plain_text(text)
    template = _template(name, kernel.template, kernel.parameters)
    found = _arguments(plain, list(declarations(plain)), template, 0)
    return list(dict.fromkeys(f"{name}<{', '.join(given)}>" for given in found))[:MOST]


def _template(name: str, template: str, parameters: str) -> Template:
    items = split_items(template)
    words = [re.findall(r"\w+", one.partition("=")[0]) for one in items]
    required = sum("=" not in one and "..." not in one for one in items)
    return Template(name, [one[-1] for one in words if one], required, split_items(parameters))


def _arguments(
    plain: str, declared: Sequence[Declaration], template: Template, depth: int
) -> Iterator[list[str]]:
    """The template arguments of each mention of a template, if all of them are known."""
    for match in re.finditer(rf"(?<![\w.>])(?:\w+::)*{template.name}\s*(<<<|<|\()", plain):
        given, place = [], match.start(1)
        if match[1] == "<":
            place = _closing_angle(plain, place) + 1
            given = split_items(plain[match.end() : place - 1])
        around = [one for one in declared if one.start <= match.start() < one.stop]
        if not place or not around:
            continue
        start, stop, body, _ = around[-1]
        before = plain[start : match.start()]
        if body < 0 or match.start() < body:  # a declaration, of an instance or a specialisation
            if match[1] == "<":
                yield given
            continue
        given = [_with_values(one, plain[body : match.start()]) for one in given]
        call = CALL.match(plain, place)
        passed = split_items(plain[call.end() : closing(plain, call.end() - 1)]) if call else []
        for name in template.names[len(given) :]:
            if deduced := _deduced(name, template.parameters, passed, before):
                given.append(deduced)
        if len(given) < template.required or "." in "".join(given):
            continue
        head = plain[start:body]
        outer = re.match(r"\s*template\s*<(.*?)>\s*(?=[\w\[])", head, re.DOTALL)
        function = re.search(r"(\w+)\s*\((.*)\)", head[outer.end() :], re.DOTALL) if outer else None
        if not function or not _words(given) & {*_template("", outer[1], "").names}:
            yield given
        elif depth < MOST_DEPTH and function[1] != template.name:
            caller = _template(function[1], outer[1], function[2])
            for arguments in _arguments(plain, declared, caller, depth + 1):
                values = dict(zip(caller.names, arguments, strict=False))
                yield [_with(values, one) for one in given]


def _words(texts: Sequence[str]) -> set[str]:
    return {word for text in texts for word in re.findall(r"\w+", text)}


def _with(values: dict[str, str], argument: str) -> str:
    return re.sub(r"\w+", lambda word: values.get(word[0], word[0]), argument)


def _deduced(name: str, parameters: list[str], passed: list[str], before: str) -> str | None:
    """The type for a template parameter, of a variable that a call passes for `T* x`; `before` is
    the function's text before the call."""
    for parameter, argument in zip(parameters, passed, strict=False):
        kind = IGNORED.sub(" ", parameter.partition("=")[0])
        if not re.fullmatch(rf"\s*{name}\b\s*[*&]?\s*\w*\s*(\[\s*\])?\s*", kind):
            continue
        if cast := CAST.match(argument):
            return (cast[1] or cast[2]).strip()
        if not re.fullmatch(r"&?\w+", argument):
            continue
        end = rf"\b{argument.lstrip('&')}\s*(?=[=;,)\[])"
        text = IGNORED.sub(" ", before)
        found = re.findall(rf"{TYPE}\s*[*&]?\s*{end}", text)
        found = found or re.findall(rf"{TYPE}\s*\*[^;(){{}}]*,\s*\*\s*{end}", text)
        found = [one for one in found if one not in NO_TYPE]
        if found:
            return found[-1]
    return None


def _with_values(argument: str, inside: str, depth: int = 0) -> str:
    """A template argument with the values of constants that the text before it defines."""

    def value(word: re.Match) -> str:
        pattern = rf"\bconst(?:expr)?\b[^;(){{}}]*?\b{word[0]}\s*=\s*([^;,{{}}]+)[;,]"
        defined = re.findall(pattern, inside)
        if not defined or depth == MOST_DEPTH:
            return word[0]
        inner = _with_values(defined[-1].strip(), inside, depth + 1)
        return inner if re.fullmatch(r"\w+", inner) else f"({inner})"

    return re.sub(r"\b[A-Za-z_]\w*", value, argument) if "::" not in argument else argument


def _closing_angle(plain: str, place: int) -> int:
    """Where the angle bracket at `place` closes; -1 if it does not."""
    depth = parentheses = 0
    for number in range(place, min(len(plain), place + 2000)):
        character = plain[number]
        parentheses += {"(": 1, ")": -1}.get(character, 0)
        if character in ";{" or parentheses < 0:
            return -1
        depth += {"<": 1, ">": -1}.get(character, 0) if not parentheses else 0
        if depth == 0:
            return number
    return -1
