"""Places in a source: the lines around them, and exceptions that show them without a traceback."""

import pickle
import re

import pytest

from helpers.simt import CompileError, ShownShort, UnsupportedPTX, around, citing, compile_ptx
from helpers.simt.places import lines_of, own_file, short_name

NAMED = '#line 1 "kernels/a.cu"\nint one;\nint two;\nint three;\nint four;\n'
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def rendered(error: ShownShort) -> str:
    return ANSI.sub("", "\n".join(error._render_traceback_()))


def test_names_and_first_lines() -> None:
    assert short_name("/somewhere/kernels/exercises/a.cu") == "kernels/exercises/a.cu"
    assert short_name("/somewhere/a.h") == "a.h"
    assert own_file(NAMED) == "kernels/a.cu" and own_file("int one;") == "kernel.cu"


def test_lines_of_files_that_are_included() -> None:
    code = (
        '#line 1 "kernels/a.cu"\nint one;\n// #include "include/b.cuh"\n'
        '#line 1 "kernels/include/b.cuh"\nint two;\n#line 3 "kernels/a.cu"\nint three;'
    )
    assert lines_of(code) == {
        "kernels/a.cu": {1: "int one;", 2: '#include "include/b.cuh"', 3: "int three;"},
        "kernels/include/b.cuh": {1: "int two;"},
    }
    assert around(code, "kernels/include/b.cuh", 1) == [(1, "int two;")]


def test_lines_around_a_place() -> None:
    assert around(NAMED, "kernels/a.cu", 1) == [(1, "int one;"), (2, "int two;"), (3, "int three;")]
    assert around(NAMED, "kernels/a.cu", 3, reach=1) == [
        (2, "int two;"),
        (3, "int three;"),
        (4, "int four;"),
    ]
    assert around("int one;\nint two;", "kernel.cu", 2) == [(1, "int one;"), (2, "int two;")]
    for file, line in (("kernels/b.cu", 1), ("cuda_fp16.hpp", 2), ("kernels/a.cu", 5)):
        assert around(NAMED, file, line) == []


def test_a_message_is_shown_with_the_lines_that_it_names() -> None:
    error = UnsupportedPTX("the SIMT machine does not know 'x', at kernels/a.cu:2: x.y", NAMED)
    assert rendered(error).splitlines() == [
        "UnsupportedPTX: the SIMT machine does not know 'x', at kernels/a.cu:2: x.y",
        "  1   int one;",
        "  2 > int two;",
        "  3   int three;",
        "  4   int four;",
    ]
    assert rendered(UnsupportedPTX("no place: 3:4 (12)", NAMED)) == (
        "UnsupportedPTX: no place: 3:4 (12)"
    )
    assert (
        rendered(UnsupportedPTX("at kernels/a.cu:2: x")) == "UnsupportedPTX: at kernels/a.cu:2: x"
    )
    assert str(error) == str(pickle.loads(pickle.dumps(error))), "a worker hands it on"


def test_two_places_are_enough() -> None:
    log = "\n".join(f"kernels/a.cu({line}): error: {line}" for line in (1, 1, 2, 3, 4))
    lines = rendered(CompileError(f"broken\n{log}", NAMED)).splitlines()
    assert [line for line in lines if ">" in line] == ["  1 > int one;", "  2 > int two;"]
    assert sum("error" in line for line in lines) == 3 and lines[-1] == "and 2 more"


def test_of_the_compiler_the_errors_alone() -> None:
    code = (
        '#line 1 "kernels/a.cu"\n__device__ void f(int a, int b);\n'
        '__global__ void k()\n{\n    int unused;\n    f(1, "a");\n    thread = 1;\n}\n'
    )
    with pytest.raises(CompileError) as caught:
        compile_ptx(code)
    assert caught.value.code == code
    text = rendered(caught.value)
    assert text.startswith("CompileError: NVRTC could not compile the kernel")
    assert text.count("f(1,") == 2 and text.count("  5 > ") == 1 == text.count("  6 > ")
    for noise in ("^", "warning", "detected in the compilation", "Traceback"):
        assert noise not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_what_passes_through_is_told_its_source() -> None:
    with pytest.raises(UnsupportedPTX) as caught, citing("outer"), citing(NAMED):
        raise UnsupportedPTX("unknown, at kernels/a.cu:2: x")
    assert caught.value.code == NAMED
    with pytest.raises(KeyError), citing(NAMED):
        raise KeyError("x")
