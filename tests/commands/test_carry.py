"""`python -m helpers.commands.carry`: records stay valid where the machine code is equal."""

from pathlib import Path

import pytest

from helpers.base.paths import RECORDS
from helpers.catalogue.registry import source, steps
from helpers.commands.carry import builds_of, different_builds, main, replace_hashes
from helpers.run.bound import bind
from helpers.simt.cuda_text import token_hash

CODE = source("08_cluster.cu")
BUILDS = [bind(CODE, 4096, cols, dtype).options for cols, dtype in ((4096, "f4"), (32768, "f2"))]


@pytest.mark.parametrize(
    ("old", "new", "equal"),
    [
        ("row_pair", "pair_of_the_row", True),
        ("    const int lane = threadIdx.x % 32;\n", "", None),  # does not compile
        ("threadIdx.x % 32", "threadIdx.x & 31", True),
        ("* THREADS + threadIdx.x", "* THREADS + (THREADS - 1 - threadIdx.x)", False),
        ("8 * senders", "16 * senders", False),  # an operand
        ("messages[senders];", "messages[senders + 64];", False),  # shared memory alone
        ("__launch_bounds__(THREADS, RESIDENT)", "__launch_bounds__(THREADS, 2)", False),
        ("int rows, int cols)", "int rows, int cols, int unused)", True),
    ],
)
def test_texts_are_equal_where_their_machine_code_is(old: str, new: str, equal) -> None:
    changed = CODE.replace(old, new)
    assert token_hash(changed) != token_hash(CODE)
    if equal is None:
        with pytest.raises(ValueError, match="could not compile"):
            different_builds(CODE, changed, BUILDS)
    else:
        assert bool(different_builds(CODE, changed, BUILDS)) != equal


def test_every_step_has_builds_in_the_records() -> None:
    found = builds_of(sorted(RECORDS.glob("*/*.jsonl")))
    for step in steps():
        assert found.get(token_hash(source(f"{step}.cu"))), f"there is no record of {step}"
    options = found[token_hash(CODE)]
    assert len(options) > 100 and all("-DCLUSTER=" in " ".join(build) for build in options)
    assert {build[0] for build in options} >= {"-DFLOAT16", "-DBFLOAT16"}


def test_hashes_are_replaced_in_every_file(tmp_path: Path) -> None:
    texts = {
        "a": '{"kernel_hash":"0123"}\n{"kernel_hash":"4567"}\n',
        "b": '{"kernel_hash":"89ab"}\n',
    }
    files = [tmp_path / name for name in texts]
    for file in files:
        file.write_text(texts[file.name])
    replace_hashes(files, {"0123": "cdef", "89ab": "0123"}, {})
    assert [file.read_text() for file in files] == [
        '{"kernel_hash":"cdef"}\n{"kernel_hash":"4567"}\n',
        '{"kernel_hash":"0123"}\n',
    ]


def test_records_of_builds_that_differ_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    equal, other = (f'{{"kernel_hash":"0123","launch":{{"grid":{n},"LOG":{n}}}}}\n' for n in (0, 1))
    unknown, free = '{"kernel_hash":"0123"}\n', '{"kernel_hash":"4567","launch":{"LOG":1}}\n'
    file.write_text(equal + other + unknown + free)
    renamed = {"0123": "cdef", "4567": "89ab"}
    replace_hashes([file], renamed, {"0123": [("-DLOG=1",)]})
    kept = equal.replace("0123", "cdef"), other, unknown, free.replace("4567", "89ab")
    assert file.read_text() == "".join(kept)


def test_an_unknown_kernel_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["HEAD", "08_clusters"])
    assert "no kernel 08_clusters; there are: 00_copy, " in capsys.readouterr().err
