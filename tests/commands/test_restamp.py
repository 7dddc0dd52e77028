"""A record takes a new text's hash where the machine code is proven to be the same, and only there.
The texts are compiled here, by this machine's NVRTC, which the made-up records name."""

import dataclasses
from pathlib import Path

import pytest

from helpers.base import paths
from helpers.base.json_files import write_json
from helpers.catalogue import dispatch
from helpers.commands import restamp
from helpers.measure import bench, chain, records, stamps
from helpers.measure.chain import ORDINARY
from helpers.measure.chains import Chains, load_chains, save_chains
from helpers.measure.evidence.part import hashes_of, part_path, read_part
from helpers.measure.races import Race, load_race, save_race
from helpers.measure.records import launch_of, load_record, save_record, step_hash
from helpers.measure.stamps import OldTexts, Refused, nvrtc_version
from tests import made_up
from tests.made_up import FOLDER, race_case

RENAMED = ("row_max", "largest")  # alike
OTHER = ("expf(", "__expf(")
HERE = {**made_up.VERSIONS, "nvrtc": nvrtc_version(), "commit": "0123456"}


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> made_up.Kernels:
    """Kernel files to edit; those of the repository are the old ones, and git has none."""
    monkeypatch.setattr(records, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(made_up, "VERSIONS", HERE)
    monkeypatch.setattr(stamps, "_git", lambda *_: "")
    (tmp_path / "records" / FOLDER).mkdir(parents=True)
    return made_up.Kernels(tmp_path, monkeypatch)


def run(*options: str, old: Path = paths.KERNELS) -> int:
    return restamp.main(["--gpu", FOLDER, "--old", str(old), *options])


def recorded(step: str = "01_naive", **changes):
    record = dataclasses.replace(made_up.record(step), **changes)
    save_record(record, FOLDER)
    return record


def test_equal_code_is_stamped_with_what_was_proven(kernels, capsys) -> None:
    before = recorded()
    kernels.edit("01_naive.cu", RENAMED)
    assert not load_record("01_naive", FOLDER).is_current()
    assert run("--only", "records") == 0
    after = load_record("01_naive", FOLDER)
    assert after.is_current() and after.cases == before.cases
    (stamp,) = after.stamped
    assert (stamp["old_hash"], stamp["new_hash"]) == (before.kernel_hash, step_hash("01_naive"))
    assert (stamp["kernel"], stamp["arch"], stamp["builds"]) == ("01_naive", "sm_90", 1)
    assert stamp["nvrtc"] == nvrtc_version() and stamp["utc"].startswith("20")
    assert "01_naive: 2 cases stamped" in capsys.readouterr().out
    text = records.record_path("01_naive", FOLDER).read_text()
    assert run("--only", "records") == 0
    assert records.record_path("01_naive", FOLDER).read_text() == text, "stamped once"


def test_different_code_is_refused_and_named(kernels, capsys) -> None:
    before = recorded()
    kernels.edit("01_naive.cu", OTHER)
    assert run("--only", "records") == 1
    assert load_record("01_naive", FOLDER) == before
    said = capsys.readouterr().err
    assert said.startswith("01_naive: 01_naive at 1024 x 512 float32 and 1 more: softmax_naive: ")
    assert "bytes of instructions" in said


def test_another_launch_is_refused(kernels, capsys) -> None:
    recorded()
    kernels.edit("01_naive.cu", ("block = 128", "block = 64"))
    assert run("--only", "records") == 1
    assert (
        "the launch was grid 8, block 128, shared_mem 0, it is grid 16, block 64, shared_mem"
        in (capsys.readouterr().err)
    )


def test_case_that_is_not_taken_any_more_is_left_out_if_that_is_asked_for(kernels, capsys) -> None:
    before = recorded()
    kernels.edit("01_naive.cu", ("cols >= 1", "cols >= 1 && cols <= 1024"), RENAMED)
    assert run("--only", "records") == 1
    assert load_record("01_naive", FOLDER) == before
    assert "01_naive at 64 x 2048 float32: the kernel does not take 64 x 2048 any more" in (
        capsys.readouterr().err
    )
    assert run("--only", "records", "--drop") == 1
    after = load_record("01_naive", FOLDER)
    assert after.is_current() and after.cases == before.cases[:1]


def test_pipelines_are_stamped_where_all_variants_are_alike(kernels, capsys) -> None:
    few = made_up.chain_case([2.0], 1, 32000)
    name = few.chosen
    for of_variants in (few.launches, few.chain_us, few.base_us):
        of_variants[name + ORDINARY] = of_variants[name]
    sixteen = made_up.chain_case([5.0], 65536, 256, "bfloat16")
    chains = Chains(made_up.DEVICE, HERE, made_up.UTC, [chain.PROTOCOL], [few, sixteen])
    save_chains(chains, FOLDER)
    kernels.edit("08_cluster.cu", ("row_shift", "shift_of_row"))
    kernels.edit("10_sixteen_bit.cu", ("* scale, e", "/ scale, e"))
    assert run("--only", "chain") == 1
    after = load_chains(FOLDER)
    assert [case.is_current() for case in after.cases] == [True, False]
    assert after.cases[0].chosen == name and after.cases[0].chain_us == few.chain_us
    (stamp,) = after.stamped
    assert stamp["kernel"] == "08_cluster" and stamp["builds"] == len({*few.launches}) - 1
    said = capsys.readouterr()
    assert "chain: 1 x 32000 float32: 1 case stamped" in said.out
    assert "chain: 65536 x 256 bfloat16, fresh: softmax_sixteen_bit: " in said.err
    kernels.edit("10_sixteen_bit.cu")
    assert run("--only", "chain") == 0 and len(load_chains(FOLDER).stamped) == 1


def test_another_compiler_proves_nothing(kernels, capsys) -> None:
    before = recorded(versions={**HERE, "nvrtc": "9.9"})
    kernels.edit("01_naive.cu", RENAMED)
    assert run("--only", "records") == 1
    assert load_record("01_naive", FOLDER) == before
    assert "01_naive: it is of NVRTC 9.9, here is " in capsys.readouterr().err


def test_text_is_looked_for_in_all_of_git(kernels, monkeypatch) -> None:
    asked = []

    def git(*arguments: str) -> str:
        asked.append(arguments)
        if arguments[0] == "log":
            return "bbb\nccc\nddd\n"
        text = (paths.KERNELS / "01_naive.cu").read_text()
        return text if arguments[1].startswith("ccc") else "another"

    wanted = step_hash("01_naive")
    kernels.edit("01_naive.cu", OTHER)
    monkeypatch.setattr(stamps, "_git", git)
    text = OldTexts().find("01_naive", wanted, "aaa")
    assert text == (paths.KERNELS / "01_naive.cu").read_text()
    revisions = [arguments[1] for arguments in asked if arguments[0] == "show"]
    assert revisions == [f"{name}:kernels/01_naive.cu" for name in ("aaa", "bbb", "ccc")]
    with pytest.raises(Refused, match="no text of kernels/01_naive.cu with hash 123 in git"):
        OldTexts(revision="eee").find("01_naive", "123", "aaa")


def test_race_is_stamped_case_by_case(kernels, monkeypatch, capsys) -> None:
    monkeypatch.setattr(dispatch, "choose", lambda rows, *_: f"0{rows % 7}_naive")
    monkeypatch.setattr(
        dispatch, "choose", lambda rows, *_: "01_naive" if rows > 9 else "02_online"
    )
    cases = [
        dataclasses.replace(
            race_case(rows, 512),
            step=step,
            kernel_hash=step_hash(step),
            launch=launch_of(step, rows, 512),
        )
        for step, rows in (("01_naive", 64), ("02_online", 8), ("01_naive", 7))
    ]
    save_race(Race(made_up.DEVICE, HERE, made_up.UTC, [bench.PROTOCOL], cases), FOLDER)
    kernels.edit("01_naive.cu", RENAMED)
    assert run("--only", "race") == 1
    race = load_race(FOLDER)
    assert [case.is_current() for case in race.cases] == [True, True, False]
    assert [stamp["kernel"] for stamp in race.stamped] == ["01_naive"]
    assert "02_online would be chosen now" in capsys.readouterr().err


def evidence(**versions: str) -> None:
    """The three files, with two steps each."""
    head = {"device": made_up.DEVICE, "versions": {**HERE, **versions}, "utc": made_up.UTC}
    cases = [(step, *shape, "float32") for step in STEPS for shape in ((64, 1024), (129, 77))]
    head["hashes"] = hashes_of(STEPS)
    launches = [launch_of(*case) for case in cases]
    write_json(
        part_path("counters", FOLDER),
        {
            **head,
            "cases": [
                {"metrics": {"m": 1}, "step": step, "rows": rows, "cols": cols, "launch": launch}
                for (step, rows, cols, _), launch in zip(cases, launches, strict=True)
            ],
        },
    )
    tools = {"memcheck": {"command": "c", "errors": 3, "steps": dict.fromkeys(STEPS, 3)}}
    sanitizer = {"cases": list(map(list, cases)), "launches": launches, "tools": tools}
    write_json(part_path("sanitizer", FOLDER), {**head, **sanitizer})
    entries = {step: {"options": [], "in_order": ["LDG"], "counts": {"LDG": 1}} for step in STEPS}
    write_json(part_path("sass", FOLDER), {**head, "kernels": entries})
    read_part.cache_clear()


STEPS = ("01_naive", "02_online")


def test_evidence_is_stamped_file_by_file(kernels, capsys) -> None:
    evidence()
    old = {name: dict(read_part(name, FOLDER)) for name in ("counters", "sass", "sanitizer")}
    kernels.edit("01_naive.cu", RENAMED)
    kernels.edit("02_online.cu", OTHER)
    assert run("--only", *old) == 1
    for name, before in old.items():
        after = read_part(name, FOLDER)
        assert after["hashes"] == {**before["hashes"], "01_naive": step_hash("01_naive")}
        assert [stamp["kernel"] for stamp in after["stamped"]] == ["01_naive"]
        assert {**after, "hashes": 0, "stamped": 0} == {**before, "hashes": 0, "stamped": 0}
    said = capsys.readouterr()
    assert "counters: 01_naive: 2 cases stamped" in said.out
    assert "sanitizer: 02_online at 64 x 1024 float32 and 1 more: softmax_online: " in said.err

    assert run("--only", *old, "--drop") == 1
    for name, before in old.items():
        assert read_part(name, FOLDER)["hashes"] == {
            **before["hashes"],
            "01_naive": step_hash("01_naive"),
        }


def test_evidence_of_a_launch_that_is_planned_otherwise_is_left_out(kernels) -> None:
    evidence()
    kernels.edit("01_naive.cu", ("cols >= 1", "cols >= 100"))
    assert run("--only", "counters", "sanitizer", "--drop") == 1
    counters = read_part("counters", FOLDER)["cases"]
    assert [entry["cols"] for entry in counters] == [1024, 1024, 77]
    sanitizer = read_part("sanitizer", FOLDER)
    assert [case[0] for case in sanitizer["cases"]] == ["02_online", "02_online"]
    assert len(sanitizer["launches"]) == 2
    assert sanitizer["tools"]["memcheck"]["steps"] == {"02_online": 3}
