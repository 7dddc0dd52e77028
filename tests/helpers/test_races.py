"""The race's bookkeeping with candidates and figures made up: no GPU, no peer."""

import contextlib
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.race import RaceCase, race_table

import helpers
from helpers import bench, gpus, kernels, peers, race, recorder
from helpers.check import WrongResult
from helpers.paths import ROOT
from helpers.records import Case, step_hash

OURS = "06_registers"
CHOOSE, STEP_PLAN = kernels.choose, kernels.step_plan  # as they are before a test replaces them
TIMES = {OURS: 10.0, "torch": 40.0, "compile": 11.0, "triton": 12.5, bench.COPY: 9.5}


def made_up(rows=1024, cols=4096, dtype="float32", **times: float) -> RaceCase:
    times = {OURS: 10.0, "torch": 20.0, **times}
    return RaceCase(
        dtype,
        rows,
        cols,
        OURS,
        step_hash(OURS),
        {"grid": rows, "block": 128, "shared_mem": 0},
        {name: [us - 0.1, us, us + 0.5] for name, us in times.items()},
        [9.0, 9.7, 9.8],
        dict.fromkeys(times, 50),
    )


def lines_of(*cases: RaceCase, unit: str = "share") -> list[list[str]]:
    """The words of the table's head and of each case."""
    _, head, *lines = race_table(cases, unit).splitlines()
    return [head.split(), *(line.split() for line in lines[: len(cases)])]


# ---- figures of a case --------------------------------------------------------------------------


def test_table_says_which_cases_are_older_than_the_kernel(monkeypatch) -> None:
    monkeypatch.setattr(race, "is_current", lambda case: case.rows == 1)
    cases = [made_up(1, 8192), made_up(2, 8192)]
    _, new, old = lines_of(*cases)
    assert new[-1] == "ahead" and old[-2:] == ["ahead", "#"]
    text = race_table(cases).splitlines()
    assert text[-1] == "#: ours was another kernel or launch than would be chosen now"
    assert "#" not in race_table(cases[:1])


@pytest.mark.usefixtures("current")
def test_table_says_where_our_calls_overlap() -> None:
    plain, early = made_up(torch=20.0), made_up(torch=20.0)
    early = dataclasses.replace(early, launch={"PROGRAMMATIC": 1})
    assert "+" not in race_table([plain])
    lines = race_table([plain, early]).splitlines()
    assert [line.endswith(" +") for line in lines[2:4]] == [False, True]
    assert lines[-1].startswith("+: our kernel starts before")


def test_shares_best_peer_and_lead() -> None:
    case = made_up(cudnn=12.5, liger=16.0)
    assert case.copy_us == 9.7 and case.share(OURS) == pytest.approx(0.97)
    assert case.copy_gbps == pytest.approx(2 * 4 * 1024 * 4096 / 9.7e-6 / 1e9)
    assert dataclasses.replace(case, dtype="bfloat16").copy_gbps == case.copy_gbps / 2
    assert case.best_peer == "cudnn" and case.lead == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("ours_us", "peer_us", "verdict"),
    [
        (10.0, 10.2, "ahead"),
        (10.0, 10.05, "level"),  # the peer is at 0.965 of a copy, and we are a little faster
        (10.05, 10.05, "LOSS"),  # the peer leaves room, and we do not beat it
        (10.0, 9.95, "level"),  # the peer is at 0.975: within the tolerance is enough
        (10.0, 9.85, "LOSS"),
    ],
)
def test_verdict(ours_us: float, peer_us: float, verdict: str) -> None:
    assert made_up(quack=peer_us, **{OURS: ours_us}).verdict == verdict


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case was raced with the kernel as it is."""
    monkeypatch.setattr(race, "is_current", lambda case: True)


@pytest.mark.usefixtures("current")
def test_without_peers_there_is_no_loss() -> None:
    case = made_up()
    del case.samples_us["torch"]
    assert (case.best_peer, case.verdict) == (None, "ahead")
    assert lines_of(case)[1][4:] == ["-", "inf", "ahead"]


# ---- tables -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("current")
def test_table_of_shares() -> None:
    cases = [made_up(cudnn=12.5, quack=9.0), made_up(8192, 8192, triton=19.4)]
    head, first, second = lines_of(*cases)
    assert head == "rows cols copy GB/s ours torch triton quack cudnn best peer lead".split()
    assert first == "1024 4096 3459 0.970 0.485 - 1.078 0.776 quack 0.900 LOSS".split()
    assert second[4:] == "0.485 0.500 - - triton 1.940 ahead".split()
    text = race_table(cases).splitlines()
    assert text[0] == "float32, share of a copy's bandwidth"
    assert len({line.rfind(".") for line in text[2:4]}) == 1
    assert " ".join(text[4:]) == (
        "lead: time of the best peer / ours; ahead: above 1.01; level: 0.99 to 1.01; "
        "LOSS: below 0.99, or not above 1 although the best peer is below 0.97 of a copy"
    )


@pytest.mark.usefixtures("current")
def test_table_of_microseconds_and_unaligned_rows() -> None:
    case = made_up(*race.UNALIGNED_SHAPES[1], quack=9.9)
    head, first = lines_of(case, unit="us")
    assert head[2:4] == ["copy", "us"]
    assert first[1:6] == ["77*", "9.70", "10.00", "20.00", "9.90"]
    assert first[-1] == "level"
    text = race_table([case], "us").splitlines()
    assert text[0] == "float32, microseconds a call"
    assert text[-1] == "*: rows that do not start at multiples of 16 bytes"


def test_table_of_every_peer_fits_a_notebook() -> None:
    times = dict.fromkeys(peers.PEERS, 123.45)
    case = made_up(*race.UNALIGNED_SHAPES[1], **times)
    wide = dataclasses.replace(case, rows=8388608, cols=1048576)
    for unit in ("share", "us"):
        assert max(map(len, race_table([case, wide], unit).splitlines())) < 110


def test_reasons_are_listed_once_with_their_shapes() -> None:
    cases = [made_up(cols=cols) for cols in (64, 128, 256)]
    for case in cases[1:]:
        case.skipped["liger"] = "too long"
        case.skipped["cudnn"] = f"wrong result: at {case.shape}: {case.cols} elements are wrong"
    assert race.skipped_peers(cases).splitlines() == [
        "liger: too long (1024 x 128, 1024 x 256)",
        "cudnn: wrong result (1024 x 128, 1024 x 256)",
    ]


def test_plot_draws_ours_in_blue_and_breaks_no_axis(monkeypatch) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(plt, "show", lambda: None)
    cases = [made_up(cols=cols, cudnn=12.5) for cols in (1024, 64, 256)]
    del cases[0].samples_us["cudnn"]
    assert race.plot_race(cases) is None
    axes = plt.gcf().axes[0]
    lines = {line.get_color(): line for line in axes.lines}
    assert list(lines["#0072B2"].get_xdata()) == [64, 256, 1024]
    assert len({line.get_color() for line in axes.lines}) == 4  # the copy, torch, cudnn, ours
    assert sorted(label.get_text() for label in axes.texts) == ["cudnn", "ours", "torch"]
    assert sorted(len(line.get_xdata()) for line in axes.lines) == [2, 2, 3, 3]
    plt.close("all")


def test_plot_of_few_rows_has_bars(monkeypatch) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(plt, "show", lambda: None)
    cases = [made_up(*shape, cudnn=12.5) for shape in race.FEW_SHAPES[1:3]]
    del cases[0].samples_us["cudnn"]
    race.plot_race(cases)
    axes = plt.gcf().axes[0]
    heights = {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
    assert heights == {
        "ours": pytest.approx([0.97, 0.97]),
        "torch": pytest.approx([0.485, 0.485]),
        "cudnn": pytest.approx([0.776]),
    }
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4 x 102400", "16 x 131072"]
    (bar,) = axes.containers[2]
    assert 1 < bar.get_x() < 1.4, "above the second shape"
    plt.close("all")
    with pytest.raises(ValueError, match="no cases"):
        race.plot_race([])


def test_notebooks_import_the_race_from_helpers_and_its_command_imports_it_once() -> None:
    assert [getattr(helpers, name) for name in helpers.OF_THE_RACE] == [
        getattr(race, name) for name in helpers.OF_THE_RACE
    ]
    for name in helpers.__all__:
        assert hasattr(helpers, name), name
    with pytest.raises(AttributeError, match="'helpers' has no attribute 'no_such_thing'"):
        helpers.no_such_thing  # noqa: B018
    command = [sys.executable, "-W", "error", "-m", "helpers.race", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# ---- the race -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", race.DTYPES)
def test_recorded_race_is_of_the_kernels_as_they_are_now(dtype: str) -> None:
    if not race.race_path(race.REFERENCE_GPU).is_file():
        pytest.skip("no race is recorded yet")
    recorded = race.load_race()
    assert recorded.protocol == bench.PROTOCOL
    for case in race.race_cases(dtype):
        names = {*case.samples_us, *case.skipped} - {case.step}
        assert names == set(peers.PEERS), case.shape
        assert race.is_recorded(recorded, *case.shape, dtype, sorted(names)), (
            f"{case.step} at {case.shape} was edited or is not chosen any more: run the race"
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """A computer with a GPU on which every peer but QuACK is installed; returns what it measured:
    (dtype, rows, cols, names)."""
    measured = []

    def measure(makers, rows, cols, dtype):
        for name, make in makers.items():
            with bench.working_on(name):
                make(rows, cols, dtype).run(None, None)
        measured.append((dtype, rows, cols, list(makers)))
        copy = [TIMES[bench.COPY]] * 7
        return {
            name: Case(
                dtype,
                rows,
                cols,
                launch(rows, cols, dtype),
                [TIMES.get(name, 30.0)] * 7,
                copy,
                50,
                "right",
            )
            for name in makers
        }

    def launch(*shape) -> dict[str, int]:
        return kernels.step_plan(kernels.choose(*shape), *shape).launch

    def nothing(*_) -> bench.Candidate:
        return bench.Candidate(lambda x, y: None, {}, {}, None)

    def why_not(name: str, rows: int, cols: int, dtype: str) -> str:
        assert rows < cols * 5 and dtype in race.DTYPES
        return "not here" if name == "quack" else ""

    device, versions = {"name": "NVIDIA Test"}, {"driver": "1", "nvrtc": "13.0", "cupy": "14.0"}
    for module, name, replacement in (
        (race, "FOLDER", tmp_path),
        (race, "has_gpu", lambda: True),
        (race, "CACHE", tmp_path / "cache"),
        (recorder, "describe_device", lambda: device),
        (recorder, "describe_versions", lambda: dict(versions)),
        (recorder, "shapes_that_fit", list),
        (recorder, "maker", lambda step: nothing),
        (kernels, "choose", lambda rows, cols, dtype: OURS),
        (kernels, "step_plan", lambda step, *shape, plan=kernels.step_plan: plan(step, *shape[:2])),
        (bench, "measure", measure),
        (bench, "fresh_pool", contextlib.nullcontext),
        (gpus, "gpu_is_usable", lambda: True),
        (peers, "candidate", nothing),
        (peers, "versions", lambda: {"torch": "2.11.0"}),
        (peers, "why_not", why_not),
        (peers, "free_memory", lambda: None),  # collecting garbage takes long here
    ):
        monkeypatch.setattr(module, name, replacement, raising=name != "choose")
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, "")
    return measured


def run(*options: str) -> int:
    return race.main(["--shapes", "1024x4096", "64x2048", *options])


def recorded() -> dict[tuple[str, int, int], RaceCase]:
    return {(c.dtype, c.rows, c.cols): c for c in race.load_race("nvidia-test").cases}


def test_race_is_written_with_reasons_and_notes(machine, capsys) -> None:
    assert run("--dtypes", "float32") == 0
    case = recorded()["float32", 1024, 4096]
    assert case.skipped == {"quack": "not here"}
    assert set(case.samples_us) == {OURS, *peers.PEERS} - {"quack"}
    assert set(case.calls) == set(case.samples_us)
    assert case.notes == {"liger": peers.PEERS["liger"].note}
    assert case.copy_samples_us == [9.5] * 7 and case.best_peer == "compile"
    assert race.race_cases("bfloat16", "nvidia-test") == []
    origin = race.race_origin("nvidia-test")
    assert origin.startswith("recorded on NVIDIA Test on 20") and "torch 2.11.0)" in origin
    printed = capsys.readouterr().out
    assert "[2/2" in printed and "quack: not here" in printed and "compile 0.864" in printed


def test_race_goes_on_where_it_stopped(machine, monkeypatch) -> None:
    measure = bench.measure

    def interrupted(makers, rows, cols, dtype):
        if (dtype, rows) == ("bfloat16", 64):
            raise KeyboardInterrupt
        return measure(makers, rows, cols, dtype)

    with monkeypatch.context() as patch:
        patch.setattr(bench, "measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run()
    assert len(machine) == 3 == len(recorded())
    run()
    assert [one[:3] for one in machine[3:]] == [("bfloat16", 64, 2048)]
    run()
    assert len(machine) == 4
    run("--fresh", "--dtypes", "float32")
    assert len(machine) == 6 and len(recorded()) == 2


def test_what_is_raced_again(machine, monkeypatch) -> None:
    """Another kernel, another choice, a peer not asked before, other versions or protocol."""
    run("--peers", "torch", "--dtypes", "float32")
    run("--peers", "torch", "--dtypes", "float32")
    assert len(machine) == 2
    run("--peers", "torch", "cudnn", "--dtypes", "float32")
    assert len(machine) == 4
    for module, name, change in (
        (race, "step_hash", lambda step: "another"),
        (kernels, "choose", lambda *shape: "05_float4"),
        (kernels, "step_plan", lambda *shape: kernels.Plan(1, 2, 3)),
        (peers, "versions", lambda: {"torch": "2.12.0"}),
        (bench, "PROTOCOL", {**bench.PROTOCOL, "replays": 9}),
    ):
        before = race.race_path("nvidia-test").read_text()
        with monkeypatch.context() as patch:
            patch.setattr(module, name, change)
            count = len(machine)
            run("--peers", "torch", "--dtypes", "float32")
            assert len(machine) == count + 2, name
            assert len(race.load_race("nvidia-test").cases) == 2, name
        race.race_path("nvidia-test").write_text(before)


def test_a_failing_peer_is_left_out_with_its_message(machine, monkeypatch) -> None:
    def candidate(name: str, *_) -> bench.Candidate:
        def fail(x, y) -> None:
            raise ValueError("no room\nin here")

        if name == "cudnn":
            raise OSError("no '/opt/site/lib.so' (see ~/log): 1/2 of a/b")
        return bench.Candidate(fail if name == "triton" else lambda x, y: None, {}, {}, None)

    monkeypatch.setattr(peers, "candidate", candidate)
    assert race.main(["--shapes", "64x2048", "--dtypes", "float32"]) == 0
    case = recorded()["float32", 64, 2048]
    assert case.skipped == {
        "quack": "not here",
        "triton": "ValueError: no room",
        "cudnn": "OSError: no 'lib.so' (see log): 1/2 of a/b",
    }
    assert set(case.samples_us) == {OURS, "torch", "compile", "liger"}
    assert machine[-1][3] == [OURS, "torch", "compile", "liger"]


@pytest.mark.parametrize("message", ["left NaN in its output at (64, 2048)", "at (64, 2048): zero"])
def test_a_wrong_peer_is_left_out_and_a_wrong_kernel_is_reported(
    machine, monkeypatch, capsys, message
) -> None:
    measure, wrong = bench.measure, "liger"

    def checked(makers, *shape):
        if wrong in makers and shape[0] == 64:
            raise WrongResult(f"{wrong} {message}", "got 1, expected 0.5")
        return measure(makers, *shape)

    monkeypatch.setattr(bench, "measure", checked)
    assert run("--dtypes", "float32") == 0
    case = recorded()["float32", 64, 2048]
    assert case.skipped["liger"] == f"wrong result: {message}"
    assert "liger" not in case.samples_us and "torch" in case.samples_us
    wrong = OURS
    assert run("--dtypes", "float32", "--fresh") == 1
    assert set(recorded()) == {("float32", 1024, 4096)}, "the others are kept"
    printed = capsys.readouterr().err.splitlines()
    assert printed[-1] == f"not raced: {OURS} at 64 x 2048 float32: wrong result: {message}"


@pytest.mark.parametrize("culprit", [OURS, bench.COPY, ""])
def test_a_failure_of_our_kernel_or_the_copy_is_no_reason_to_skip_a_peer(
    machine, monkeypatch, culprit
) -> None:
    def failing(makers, *shape):
        if culprit == OURS:
            makers["torch"](*shape)
            makers[OURS](*shape).run(None, None)
        raise WrongResult(f"{culprit} at (1, 2)") if culprit else MemoryError("buffers")

    monkeypatch.setattr(bench, "measure", failing)
    with pytest.raises(gpus.Failure) as caught:
        race.run_task(race.Task(64, 2048, "float32", ("torch",)))
    assert caught.value.culprit == culprit
    assert run("--dtypes", "float32") == 1
    assert not race.race_path("nvidia-test").exists()


def test_cases_are_in_the_order_of_the_shapes_whichever_came_first(machine, monkeypatch) -> None:
    def dealt(work, tasks, jobs):
        assert jobs == 2
        return [(task, work(task)) for task in tasks]

    monkeypatch.setattr(gpus, "deal", dealt)
    shapes = ["1x32000", "4096x4096", "8192x8192"]
    assert race.main(["--shapes", *shapes, "--jobs", "2"]) == 0
    ordered = [case.shape for case in race.load_race("nvidia-test").cases]
    assert ordered == [(8192, 8192), (4096, 4096), (1, 32000)] * 2


def test_warm_up_compiles_what_is_missing_and_forgets_what_was_tuned(machine, monkeypatch) -> None:
    jobs = []

    class Pool:
        def __init__(self, workers, context, initializer):
            assert workers == 3

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def submit(self, function, *job):
            assert function is race.compile_ahead
            jobs.append(job)
            tuned = race.CACHE / "inductor" / "ab" / "x.best_config"
            tuned.parent.mkdir(parents=True, exist_ok=True)
            tuned.write_text("{}")
            tuned.with_suffix(".py").write_text("")

    run("--dtypes", "float32")
    monkeypatch.setattr(race, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(race, "as_completed", lambda submitted: [])
    run("--warm", "3")
    assert {job[0] for job in jobs} == {"compile", "triton", "liger"}
    assert {job[1:] for job in jobs} == {(1024, 4096, "bfloat16"), (64, 2048, "bfloat16")}
    assert [file.name for file in race.CACHE.rglob("*.*")] == ["x.py"]


def test_shape_that_none_of_our_kernels_takes_is_left_out(machine, monkeypatch, capsys) -> None:
    plan = kernels.step_plan
    monkeypatch.setattr(
        kernels,
        "step_plan",
        lambda step, rows, *rest: plan(step, rows, *rest) if rows > 64 else None,
    )
    run("--dtypes", "float32")
    assert [one[:3] for one in machine] == [("float32", 1024, 4096)]
    assert "none of our kernels takes 64 x 2048 float32" in capsys.readouterr().out
    monkeypatch.setattr(kernels, "choose", lambda *shape: None)
    run("--dtypes", "float32")
    assert "none of our kernels takes 1024 x 4096 float32" in capsys.readouterr().out


def test_race_over_every_shape_with_our_own_choice(machine, monkeypatch, capsys) -> None:
    """As on a GPU, but for the measuring: each shape is raced or said to be left out, warm or
    not."""
    monkeypatch.setattr(kernels, "choose", CHOOSE)
    monkeypatch.setattr(kernels, "step_plan", STEP_PLAN)
    monkeypatch.setattr(peers, "why_not", lambda *_: "not here")
    warmed = []
    monkeypatch.setattr(race, "warm_up", lambda cases, *_: warmed.extend(cases))
    assert race.main(["--warm", "2"]) == 0
    raced = [(rows, cols, dtype) for dtype, rows, cols, _ in machine]
    taken = [
        (*shape, dtype)
        for dtype in race.DTYPES
        for shape in race.PEER_SHAPES
        if CHOOSE(*shape, dtype)
    ]
    assert raced == warmed == taken
    left_out = re.findall(
        r"^none of our kernels takes (\d+) x (\d+) (\w+)$", capsys.readouterr().out, re.MULTILINE
    )
    left_out = [(int(rows), int(cols), dtype) for rows, cols, dtype in left_out]
    assert (8192, 50257, "float32") in left_out
    assert len(left_out) + len(raced) == len(race.DTYPES) * len(race.PEER_SHAPES)
    for case in recorded().values():
        step = CHOOSE(*case.shape, case.dtype)
        assert (case.step, case.kernel_hash) == (step, step_hash(step))


def test_without_a_gpu_the_race_says_so(monkeypatch, capsys) -> None:
    monkeypatch.setattr(race, "has_gpu", lambda: False)
    assert race.main([]) == 1
    assert "GPU" in capsys.readouterr().err


def test_race_that_is_missing_or_of_another_schema(machine) -> None:
    with pytest.raises(FileNotFoundError, match="no race of nvidia-test; .* -m helpers.race"):
        race.race_cases("float32", "nvidia-test")
    run()
    path = race.race_path("nvidia-test")
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(ValueError, match="has schema 99, this version reads 1"):
        race.load_race("nvidia-test")


def test_shapes_of_the_race() -> None:
    assert len(set(race.PEER_SHAPES)) == 28
    for rows, cols in race.ALIGNED_SHAPES:
        assert cols % 8 == 0, (rows, cols)
    for rows, cols in race.UNALIGNED_SHAPES:
        assert cols % 2, (rows, cols)
