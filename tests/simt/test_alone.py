"""The machine stands alone: it imports nothing of its siblings."""

import ast
import sys
from pathlib import Path

import pytest

import helpers.simt

FOLDER = Path(helpers.simt.__file__).parent
FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.py"))
LIBRARIES = {"numpy", "cuda"}


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_the_machine_numpy_and_nvrtc_alone(file: str) -> None:
    for node in ast.walk(ast.parse((FOLDER / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level <= len(Path(file).parts), f"line {node.lineno} leaves the machine"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            roots = {name.partition(".")[0] for name in names}
            assert roots <= LIBRARIES | sys.stdlib_module_names
