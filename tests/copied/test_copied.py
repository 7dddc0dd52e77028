"""Exported files in a C++ project: compiled without a warning, and linked together. Experiments are
no kernels that a program would export; test_files.py compiles them too."""

import re
import subprocess
from pathlib import Path

import pytest

from helpers.base.gpu import H200, Gpu
from helpers.catalogue.registry import PRODUCTION, steps
from helpers.export import cpp
from helpers.export.request import export_request, takes_matrix
from helpers.run.bound import load
from tests.copied.compilers import NO_RUN, compiled, host_compiled, needs_headers, needs_nvcc
from tests.copied.library import INVALID, Case, alone

KERNELS = [*filter(takes_matrix, (*steps(), *PRODUCTION))]


def clean(done: subprocess.CompletedProcess[str]) -> None:
    """Hold that nvcc took it without a warning."""
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr


ARCHES = sorted({load(step).header.arch for step in KERNELS})
RELOCATABLE = 80  # what it has is linked as relocatable device code


def of_arch(arch: int) -> list[tuple[Case, str]]:
    """The kernels whose headers name it as the oldest GPU, and their files for that."""
    gpu = Gpu(arch, H200.sms, H200.l2)
    steps = [step for step in KERNELS if load(step).header.arch == arch]
    return [(case, case.text(gpu)) for case in (alone(step, gpu=gpu) for step in steps)]


class Objects:
    """Objects that several tests link, each compiled when the first of them asks for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, Path] = {}

    def of(self, name: str, text: str, *options: str) -> Path:
        """The object of a file, which nvcc compiles without a warning."""
        if name not in self.known:
            (self.folder / f"{name}.cu").write_text(text)
            clean(compiled(self.folder, *NO_RUN, *options, "-c", f"{name}.cu"))
            self.known[name] = self.folder / f"{name}.o"
        return self.known[name]

    def of_arch(self, arch: int) -> Path:
        """All kernels of it behind one another in one file, for that GPU. They are not included: of
        what is, nvcc tells fewer warnings."""
        text = "".join(text for _, text in of_arch(arch))
        relocatable = str(arch == RELOCATABLE).lower()
        return self.of(f"sm_{arch}", text, f"-arch=sm_{arch}", f"-rdc={relocatable}")

    def program(self, *arguments: object) -> list[str]:
        """What a program that nvcc makes of objects defines; it calls a function wrongly."""
        done = compiled(self.folder, *arguments, "-o", "program")
        assert done.returncode == 0, done.stderr
        assert subprocess.run([self.folder / "program"]).returncode == INVALID
        return symbols(self.folder / "program")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return Objects(tmp_path_factory.mktemp("objects"))


def symbols(path: Path, kinds: str = "TDBR") -> list[str]:
    """What an object or a program defines for others; what the standard library leaves in every
    object is weak."""
    done = subprocess.run(["nm", "-gC", "--defined-only", path], capture_output=True, text=True)
    lines = (line.split(" ", 2) for line in done.stdout.splitlines())
    return [symbol for _, kind, symbol in lines if kind in kinds]


@needs_nvcc
@pytest.mark.parametrize("arch", ARCHES)
def test_every_exported_kernel_compiles_as_cpp17_without_a_warning(
    arch: int, objects: Objects
) -> None:
    """And defines no name but its function's own, and that of its workspace."""
    strong = symbols(objects.of_arch(arch))
    names = [case.name for case, _ in of_arch(arch)]
    assert {name for name in names if any(name in symbol for symbol in strong)} == {*names}
    if arch != RELOCATABLE:  # which gives each kernel a name to link it by
        assert all(any(name in symbol for name in names) for symbol in strong), strong
        shared = symbols(objects.of_arch(arch), "u")
        assert not shared, "libraries would share it, whatever they are loaded for"


@needs_nvcc
def test_a_file_finds_itself_under_any_name_in_any_folder(tmp_path: Path) -> None:
    """It includes itself once for each build, whichever way it was found."""
    text = cpp.write(export_request("08_cluster", ["1..4096x32000"], "fast"), "fast.cu")
    old = text.replace("#ifdef __FILE_NAME__", "#if 0")  # a compiler that does not know it
    assert old != text and text.count("softmax_cluster(const") == 1
    (tmp_path / "inner").mkdir()
    for name, content in (("other", old), ("renamed", text), ("fast", old)):
        (tmp_path / "inner" / f"{name}.cu").write_text(content)
        (tmp_path / "including.cu").write_text(f"#include <{name}.cu>\n")
        for arguments in (["-E", f"inner/{name}.cu"], ["-E", "-Iinner", "including.cu"]):
            done = compiled(tmp_path, "-arch=sm_90", *arguments)
            if name == "other":
                assert done.returncode and "fast.cu: No such file" in done.stderr
                continue
            assert done.returncode == 0, done.stderr
            builds = text.count("namespace fast_build_")
            assert done.stdout.count("softmax_cluster(const") == builds > 3


def calling(case: Case, text: str, folder: Path) -> str:
    """A program that calls, wrongly, what another file defines."""
    (folder / f"{case.name}.cu").write_text(text)
    return (
        f"#define {case.name.upper()}_DECLARATIONS\n"
        f'#include "{case.name}.cu"\n'
        f"int main() {{ return {case.name}(nullptr, nullptr, 1, 1, nullptr); }}\n"
    )


@needs_nvcc
@pytest.mark.parametrize("relocatable", [False, True])
def test_exports_link_into_one_program(relocatable: bool, objects: Objects) -> None:
    """Those of one file with those of another, as relocatable device code too."""
    arches = [arch for arch in ARCHES if (arch == RELOCATABLE) is relocatable]
    exports = [export for arch in arches for export in of_arch(arch)]
    gpu = Gpu(arches[0], H200.sms, H200.l2)
    other = export_request("11_any_row", ["37x8200"], f"of_other_{gpu.capability}", gpus=[gpu])
    options = f"-arch=sm_{gpu.capability}", f"-rdc={str(relocatable).lower()}"
    main = objects.of(f"main_{relocatable}", calling(*exports[0], objects.folder), *options)
    files = (objects.of(other.name, cpp.write(other), *options), *map(objects.of_arch, arches))
    defined = objects.program(*options, main, *files)
    for name in (*(case.name for case, _ in exports), other.name):
        assert sum(symbol.startswith(f"{name}(") for symbol in defined) == 1, name


@needs_headers
def test_another_dtype_does_not_compile(tmp_path: Path) -> None:
    case = alone("10_sixteen_bit", "bfloat16")
    (tmp_path / f"{case.name}.cu").write_text(case.text(H200))
    call = f"{case.name}(x, x, 1, 8, nullptr);"
    dtypes = "__nv_bfloat16", "double", "__half", "unsigned short", "float"
    functions = "".join(f"void with({dtype}* x) {{ {call} }}\n" for dtype in dtypes)
    (tmp_path / "call.cpp").write_text(
        f'#include <cuda_fp16.h>\n#include "{case.name}.cu"\n{functions}'
    )
    errors = host_compiled(tmp_path, "-fsyntax-only", "call.cpp").stderr
    wrong = re.findall(r"call.cpp:(\d+):\d+: error: cannot convert", errors)
    assert wrong == ["4", "5", "6", "7"], errors  # all but the first, in line 3
