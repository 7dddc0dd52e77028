"""`make tune`: what it keeps, when `choose` uses it, and Ctrl-C; times are made up."""

import json
from pathlib import Path

import pytest

from helpers.base import gpu, paths
from helpers.base.gpu import H200
from helpers.catalogue import dispatch, tuned
from helpers.catalogue.dispatch import best, choose, why
from helpers.catalogue.plan import Plan
from helpers.commands import plan as plan_command
from helpers.commands import tune as command
from helpers.measure.campaign import Failure
from helpers.problem.problem import Problem
from tests.helpers.test_tuning import SHORT, MadeUp
from tests.made_up import DEVICE, FOLDER, VERSIONS, Kernels, on_a_gpu

SHAPE, BF16 = "65536x512", ["--dtypes", "bfloat16"]
FAST = "10_sixteen_bit-LANES16"


def us(plan: Plan) -> float:
    """Half the lanes are faster in 10 alone."""
    return 20.0 if plan.macros.get("LANES") == 16 and "WIDTH" not in plan.macros else 21.0


class Machine(MadeUp):
    """A computer with a GPU where short rows are faster with half the lanes."""

    def __init__(self, folder: Path):
        super().__init__(us, SHORT)
        self.path, self.stop_at = folder / "plans" / f"{FOLDER}.jsonl", -1
        self.stops, self.fails = 1, 0  # how often it is interrupted there; rows that fail

    def time(self, problem, names, few):
        if len(self.asked) == self.stop_at and self.stops:
            self.stops -= 1
            raise KeyboardInterrupt
        if problem.rows == self.fails:
            raise Failure("out of memory", names[0])
        return super().time(problem, names, few)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.delenv(tuned.SWITCH, raising=False)
    on_a_gpu(
        *(tmp_path / "records", monkeypatch),
        (paths, "MINE", tmp_path),
        (tuned, "gpu_name", lambda: DEVICE["name"]),
        (tuned, "replaying", lambda: False),
        (dispatch, "gpu_for_plans", lambda: H200),
        (gpu, "gpu_name", lambda: DEVICE["name"]),
        (command, "Lab", lambda: made),
    )
    return made


def test_what_is_faster_is_kept_and_chosen_on_that_gpu_alone(machine, monkeypatch, capsys) -> None:
    assert best(SHORT) == "10_sixteen_bit"
    assert command.main([SHAPE, *BF16]) == 0
    said = capsys.readouterr().out
    assert f"{FAST}" in said and "times as fast as 10_sixteen_bit, 4." in said
    run, entry = map(json.loads, machine.path.read_text().splitlines())
    assert (entry["trial"], entry["rule"]) == (FAST, "10_sixteen_bit")
    assert len(entry["trial_us"]) == len(entry["rule_us"]) == len(entry["copy_us"]) == 21
    assert entry["kernels"][FAST]["launch"]["LANES"] == 16 and entry["rows"] == [65536, 65536]
    assert (run["device"], run["versions"]) == (DEVICE, VERSIONS)

    assert best(SHORT) == FAST
    taken, rule = why(*SHORT.shape, SHORT.dtype).splitlines()[:2]
    assert taken.startswith(f"{FAST}: tuned here on 20") and "1.05" in taken
    assert taken.endswith(" times as fast as the rule's plan")
    assert rule.startswith("not 10_sixteen_bit (")
    assert rule.endswith("): it is the rule's plan")
    for other in (
        {"gpu": H200},  # as records ask
        {"x_stride": 520},
        {"aligned": False},
        {"alike": False},
        {"dtype": "float16"},
        {"rows": 65537},
    ):
        given = {"rows": SHORT.rows, "cols": SHORT.cols, "dtype": SHORT.dtype, **other}
        assert "LANES16" not in choose(**given), other
    for module, name, value in (
        (tuned, "gpu_name", lambda: "NVIDIA Other"),
        (tuned, "replaying", lambda: True),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert best(SHORT) == "10_sixteen_bit"
    monkeypatch.setenv(tuned.SWITCH, "0")
    assert best(SHORT) == "10_sixteen_bit" == why(*SHORT.shape, SHORT.dtype).partition(":")[0]


def test_plan_and_show_say_what_was_tuned(machine, capsys) -> None:
    command.main([SHAPE, *BF16])
    capsys.readouterr()
    assert plan_command.main(["choose", "65536", "512", *"--dtype bfloat16".split()]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{FAST}: tuned here on ") and "-DLANES=16" in said
    assert (
        plan_command.main(
            ["choose", "65536", "512", *"--dtype bfloat16 --gpu 114,62914560,90".split()]
        )
        == 0
    )
    assert capsys.readouterr().out.startswith("10_sixteen_bit: ")
    assert command.main(["--show"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{machine.path}: 1 plans\n  65536 x 512 bfloat16, 20") and FAST in said
    assert "not used" not in said


def test_a_plan_of_an_older_kernel_is_not_used(machine, tmp_path, monkeypatch, capsys) -> None:
    command.main([SHAPE, *BF16])
    kernels = Kernels(tmp_path, monkeypatch)
    kernels.edit("10_sixteen_bit.cu", ("// Idea:     fewer", "// Idea:     far fewer"))
    assert best(SHORT) == FAST, "comments do not count"
    kernels.edit(
        "10_sixteen_bit.cu", ("static_assert(LANES >= 1 &&", "static_assert(1 <= LANES &&")
    )
    assert best(SHORT) == "10_sixteen_bit"
    taken, old = why(*SHORT.shape, SHORT.dtype).splitlines()[:2]
    reason = f"{FAST} is another text or another launch now"
    assert taken.startswith("10_sixteen_bit: ") and old.startswith(f"not {FAST} (tuned here on ")
    assert old.endswith(reason)
    capsys.readouterr()
    command.main(["--show"])
    assert f"    not used: {reason}" in capsys.readouterr().out
    # The table plans otherwise: the code is the same, the launch is not.
    kernels.edit(
        "10_sixteen_bit.cu",
        ("EVICT_LAST = 4 * rows * row > 5 * l2", "EVICT_LAST = rows > 0"),
    )
    assert best(SHORT) == "10_sixteen_bit"
    (kernels.folder / "10_sixteen_bit.cu").unlink()
    assert tuned.read_plans(FOLDER) and dispatch.out_of_date(tuned.read_plans(FOLDER)[0], H200)


def test_a_plan_is_of_its_matrix_alone_where_rows_are_no_whole_packs(machine) -> None:
    machine.us = lambda plan: 20.0 - (plan.block == 128) - 5 * ("ITEMS" not in plan.macros)
    assert choose(65536, 31).startswith("11_short_rows") and command.main(["65536x31"]) == 0
    assert choose(65536, 31).startswith("07_warp")
    for other in ({"x_stride": 36, "y_stride": 36}, {"aligned": False}, {"alike": False}):
        assert choose(65536, 31, **other) == "11_short_rows", other


@pytest.mark.parametrize("damage", ['{"run": 0}', '{"schema": 2}', "", "[]"])
def test_a_damaged_file_is_named_and_no_plan_of_it_is_used(machine, damage, capsys) -> None:
    machine.path.parent.mkdir()
    machine.path.write_text(damage)
    assert best(SHORT) == "10_sixteen_bit"
    for arguments in (["--show"], [SHAPE, *BF16]):
        assert command.main(arguments) == 1
        assert capsys.readouterr().err.startswith(f"plans/{FOLDER}.jsonl")
    assert not machine.asked and machine.path.read_text() == damage


def test_several_shapes_are_kept_side_by_side(machine) -> None:
    assert command.main([SHAPE, "32768x512", "--dtypes", "bfloat16", "float16"]) == 0
    assert len(tuned.read_plans(FOLDER)) == 4
    assert command.main([SHAPE, *BF16, "--minutes", "0.5"]) == 0, "in the place of the former"
    assert len(tuned.read_plans(FOLDER)) == 4


def test_nothing_faster_keeps_nothing(machine, capsys) -> None:
    machine.us = lambda plan: 20.0
    assert command.main([SHAPE, *BF16]) == 0
    assert not machine.path.exists()
    assert "nothing is faster than 10_sixteen_bit beyond the spread" in capsys.readouterr().out


def test_ctrl_c_keeps_what_was_found_and_a_second_one_does_not(machine, capsys) -> None:
    machine.stop_at = 2  # as the third batch is timed
    with pytest.raises(KeyboardInterrupt):
        command.main([SHAPE, "32768x512", *BF16])
    assert "Ctrl-C again" in capsys.readouterr().out
    assert [plan.trial for plan in tuned.read_plans(FOLDER)] == [FAST]
    assert all(few == 0 for _, few in machine.asked[2:]), "no further batch"
    machine.path.unlink()
    machine.asked.clear()
    machine.stop_at, machine.stops = 2, 2
    with pytest.raises(KeyboardInterrupt):
        command.main([SHAPE, *BF16])
    assert not machine.path.exists()


def test_a_shape_that_fails_is_named_and_the_others_are_tuned(machine, capsys) -> None:
    machine.fails = 32768
    assert command.main(["32768x512", SHAPE, *BF16]) == 1
    said = capsys.readouterr().err
    assert said == "32768 x 512 bfloat16: 10_sixteen_bit: out of memory\n"
    assert [plan.problem for plan in tuned.read_plans(FOLDER)] == [SHORT]


@pytest.mark.parametrize("arguments", [[], ["4x"], ["0x8"], [SHAPE, "--minutes", "0"]])
def test_arguments_that_make_no_sense_are_refused(arguments) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)


# ---- related operations --------------------------------------------------------------------------

BACKWARD = ["4096x8192", "--operation", "softmax_backward", "--features", "LOG=1"]


def test_a_gradient_is_tuned_and_chosen_for_that_operation_alone(machine, capsys) -> None:
    machine.us = lambda plan: 20.0 - (plan.block == 128) - 5 * plan.macros["LOG"]
    asked = {"operation": "softmax_backward", "features": {"LOG": 1}}
    assert choose(4096, 8192, **asked) == "14_backward-LOG1"
    assert command.main(BACKWARD) == 0
    (plan,) = tuned.read_plans(FOLDER)
    assert plan.rule == "14_backward-LOG1"
    assert plan.problem == Problem(4096, 8192, **asked)
    assert choose(4096, 8192, **asked) == plan.trial
    assert "LOG1" in plan.trial and plan.kernels[plan.trial]["launch"]["block"] == 128
    assert not any("LOG0" in name or "FROM_X" in name for name in machine.trials)
    taken, rule = why(4096, 8192, **asked).splitlines()
    assert taken.startswith(f"{plan.trial}: tuned here on 20")
    assert rule.startswith("not 14_backward-LOG1 (both rows") and rule.endswith("rule's plan")
    for other in ({"gpu": H200}, {"features": {}}, {"aligned": False}, {"rows": 8}):
        given = {"rows": 4096, "cols": 8192, **asked, **other}
        try:
            assert choose(**given) != plan.trial, other
        except ValueError:
            assert other == {"aligned": False}
    assert choose(4096, 8192) == "08_cluster", "softmax has no such plan"
    command.main(["--show"])
    assert "gradient of log-softmax, 4096 x 8192 float32, 20" in capsys.readouterr().out


def test_another_axis_is_three_sizes(machine) -> None:
    machine.us = lambda plan: 20.0 - (plan.macros.get("TILE") == 16)
    assert choose(64 * 128, 512, inner=128) == "13_any_axis"
    assert command.main(["64x512x128"]) == 0
    (plan,) = tuned.read_plans(FOLDER)
    assert plan.problem == Problem(8192, 512, inner=128, operation="softmax_any_axis")
    assert choose(8192, 512, inner=128) == plan.trial
    assert plan.kernels[plan.trial]["launch"]["TILE"] == 16, "by another value that it follows from"
    assert choose(8192, 512, inner=64) == "13_any_axis"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["8x64x2", "--operation", "cross_entropy"],
            "cross-entropy, 8 x 64 x 2 float32: kernels/15",
        ),
        ([SHAPE, "--features", "DROPOUT=1", "LOG=1"], "softmax, 65536 x 512 float32: kernels/12"),
        (["8x64", "--features", "FOO=1"], "softmax has no FOO = 1; its features: MASK"),
    ],
)
def test_what_cannot_be_tuned_is_refused_by_name(machine, arguments, said, capsys) -> None:
    assert command.main(arguments) == 1
    assert capsys.readouterr().err.startswith(said) and not machine.asked
