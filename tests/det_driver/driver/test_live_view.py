"""What a terminal shows while an experiment runs, whatever its width.

And what is printed where there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pytest
from tests.support.terminal import Screen, seen

SESSIONS = Path(__file__).with_name("sessions")
WIDTHS = (60, 80, 100, 200)
RECORDED = (80, 100, 120)
HALVING = (
    "searcher: {name: async_halving, metric: val_loss, num_rungs: 3, max_trials: 8, max_length: 64,"
    " divisor: 2, max_concurrent_trials: 4}\nscheduling_unit: 4\n"
)
SINGLE = "searcher: {name: single, metric: val_loss, max_length: 200}\nscheduling_unit: 10\n"


def written(project, text: str, name: str = "search.yaml") -> Path:
    """Write a configuration whose own period of reports takes the place of the project's.

    A single trial has no range.
    """
    path: Path = project.write(text, name)
    whole = path.read_text().replace("scheduling_unit: 1000\n", "", "scheduling_unit" in text)
    if "name: single" in text:
        whole = re.sub("lr: {.*}", "lr: 0.001", whole)
    path.write_text(whole)
    return path


def wrapped(screen: Screen) -> list[str]:
    """Return the lines that were too long, but for the last words, as paths may be long."""
    return list(
        takewhile(
            lambda line: not re.match(r"experiment \d is|best checkpoint: ", line), screen.wrapped
        )
    )


def watch(
    project, text: str, columns: int, *, slots: int = 1, pause: float = 0.005, **options
) -> Screen:
    """Run an experiment at a terminal of so many columns."""
    path = written(project, text)
    env = project.det.env(
        {**project.environ(slots, {"PAUSE": str(pause)}), **options.pop("env", {})}
    )
    return seen(project.det.argv(["run", path]), columns, env=env, cwd=project.det.cwd, **options)


@pytest.mark.sample
@pytest.mark.parametrize("columns", WIDTHS)
def test_live_view_fits_any_width_and_agrees_with_its_rows(project, columns):
    """No line is wrapped, no number is cut, and the heading agrees with the rows."""
    screen = watch(project, HALVING, columns, slots=2, env={"IMPORT": "0.3"})
    drawn = [frame for frame in screen.frames if any("% " in line for line in frame)]
    assert len(drawn) > 5
    assert wrapped(screen) == []
    for frame in drawn:
        text = "\n".join(frame)
        assert "…" not in text
        told = re.search(r"(\d+)(?: of 8)? running", text)
        rows = [line for line in frame if re.match(r" *\d+  running", line)]
        assert len(rows) == (int(told[1]) if told else 0), text
        bars = [line for line in frame if re.fullmatch("━*─*", line) and line]
        heading = re.search(r"(\d+)%", text)
        assert heading, text
        filled = int(heading[1]) / 100 * min(60, columns)
        assert all(
            len(line) == min(60, columns) and abs(line.count("━") - filled) < 2 for line in bars
        ), text
    found = project.outcome()
    text = screen.text
    assert "experiment 1 (search)  completed  100%" in text
    frames = ["\n".join(frame) for frame in screen.frames]
    assert any(re.search(r"\(search\)  starting  0:\d\d\n─+\n", frame) for frame in frames)
    assert any(re.search(r"\n *\d+  starting ", frame) for frame in frames)
    assert any(re.search(r"trials:  \d of 8 running", frame) for frame in frames)
    assert any(
        re.search(r"trials by length \(\+ on the way\):  .*\d+: \d( \(\+\d\))?", frame)
        for frame in frames
    )
    assert "trials:  8 of 8 ended" in text
    best = min(found.trials, key=lambda trial: trial.best_metric)
    assert (
        f"best val_loss {best.best_metric:.6g}:  trial {best.id}, batch {best.best_batches}" in text
    )
    for trial in sorted(found.trials, key=lambda trial: trial.best_metric)[:5]:
        row = next(line for line in screen.lines if re.match(rf" *{trial.id}  completed", line))
        assert f"{trial.best_metric:.6g}" in row
        assert f"{trial.hparams['lr']:.6g}" in row
    reached = {rung.length: rung.reached for rung in found.search.rungs}
    assert f"trials by length:  16: 8  32: {reached[32]}  64: {reached[64]}" in text


def test_a_search_says_how_far_how_fast_and_how_long_still(project):
    screen = watch(project, HALVING, 120)
    frames = ["\n".join(frame) for frame in screen.frames]
    assert any(re.search(r"\d+%  0:\d\d  0:\d\d left  [\d.]+ batches/s", frame) for frame in frames)
    assert any(
        re.search(r"trials:  1 of 8 (running|starting), \d queued", frame) for frame in frames
    )
    assert any(re.search(r"\n *\d+  running .*  ━+─* ", frame) for frame in frames)
    assert any("waiting" in frame for frame in frames)
    assert any(
        re.search(r"0:\d\d  trial \d+  batch \d+  validation  val_loss=", frame) for frame in frames
    )


@pytest.fixture
def recorded(pytestconfig) -> Callable[[str, str], None]:
    """Compare what is left on a screen with the session of that name, numbers masked.

    `pytest --record` writes it anew.
    """

    def compare(name: str, text: str) -> None:
        text = re.sub(r"Traceback.*?\n(?=\w+Error)", "TRACEBACK\n", text, flags=re.DOTALL)
        text = re.sub(
            r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", re.sub(r"/\S+", "PATH", text)
        )
        masked = [
            re.sub(r" +", " ", re.sub(r"[\d.:]*\d(e-\d+)?", "#", line)).rstrip()
            for line in text.splitlines()
        ]
        file = SESSIONS / f"{name}.txt"
        if pytestconfig.getoption("--record"):
            file.parent.mkdir(exist_ok=True)
            file.write_text("\n".join(masked) + "\n", encoding="utf-8")
        assert masked == file.read_text(encoding="utf-8").splitlines()

    return compare


@pytest.mark.sample
@pytest.mark.parametrize("columns", RECORDED)
def test_a_search_leaves_a_screen_as_it_was_recorded(project, recorded, columns):
    text = (
        "searcher: {name: grid, metric: val_loss, max_length: 40, max_concurrent_trials:"
        " 1}\nscheduling_unit: 20\n"
    )
    recorded(f"search-{columns}", watch(project, text, columns, pause=0.0).text)


@pytest.mark.sample
@pytest.mark.parametrize("columns", RECORDED)
def test_a_single_run_leaves_a_screen_as_it_was_recorded(project, recorded, columns):
    recorded(f"single-{columns}", watch(project, SINGLE, columns).text)


def test_a_pipe_gets_lines_as_they_were_recorded(project, recorded):
    path = written(
        project, "searcher: {name: single, metric: val_loss, max_length: 40}\nscheduling_unit: 20\n"
    )
    recorded("pipe", project.det("run", path, env=project.environ(1)).stdout)


@pytest.mark.sample
@pytest.mark.parametrize("columns", WIDTHS)
def test_a_single_trial_has_a_speed_a_time_left_and_no_constants(project, columns):
    screen = watch(project, SINGLE, columns)
    frames = ["\n".join(frame) for frame in screen.frames]
    assert wrapped(screen) == []
    assert any(re.search(r"\d+ batches/s", frame) and " left" in frame for frame in frames)
    assert not any("trials:" in frame for frame in frames)
    assert "completed  100%" in screen.text


@pytest.mark.thorough
def test_waiting_says_for_what_and_who_holds_it(project, wait_until):
    det = project.det
    first = det.start(
        "run",
        written(project, SINGLE, "first.yaml"),
        "--quiet",
        env=project.environ(1, {"PAUSE": "0.5"}),
    )
    wait_until(
        lambda: bool(det("metrics", "1", "--json", status=None).stdout), "the first one to train"
    )

    def stop_the_first_once_it_is_told(text: str) -> bool:
        if "waiting for 1 slot: experiment 1 holds 1" in text and first.poll() is None:
            first.terminate()
        return False

    screen = watch(project, SINGLE, 60, interrupt=stop_the_first_once_it_is_told)
    assert any("waiting for 1 slot: experiment 1 holds 1" in frame for frame in screen.frames)
    assert not any(line.startswith("waiting") for line in screen.lines)
    assert wrapped(screen) == []
    assert "experiment 2 is completed" in screen.text


@pytest.mark.thorough
def test_who_waits_sees_what_was_recorded(project, recorded, wait_until):
    env = project.environ(1, {"PAUSE": "0.5"})
    first = project.det.start("run", written(project, SINGLE, "first.yaml"), "--quiet", env=env)
    wait_until(
        lambda: bool(project.det("metrics", "1", "--json", status=None).stdout),
        "the first one to train",
    )
    for columns in RECORDED:
        screen = watch(
            project,
            SINGLE,
            columns,
            interrupt=lambda text: "waiting for 1 slot" in text,
            status=130,
        )
        waiting = next(
            frame for frame in screen.frames if any(line.startswith("waiting") for line in frame)
        )
        recorded(f"waiting-{columns}", "\n".join(waiting).strip("\n"))
    first.terminate()
    assert first.wait() == 130


@pytest.mark.thorough
def test_in_a_pipe_waiting_is_a_line_and_det_show_says_it_too(project, wait_until):
    det = project.det
    env = project.environ(1, {"PAUSE": "0.5"})
    first = det.start("run", written(project, SINGLE, "first.yaml"), "--quiet", env=env)
    wait_until(
        lambda: bool(det("metrics", "1", "--json", status=None).stdout), "the first one to train"
    )
    second = det.start("run", written(project, SINGLE), env=project.environ(1))
    said = "waiting for 1 slot: experiment 1 holds 1"
    wait_until(lambda: said in det("show", "2", status=None).stdout, "det show to say it")
    first.terminate()
    out, _ = second.communicate(timeout=60)
    assert out.splitlines()[:2] == ["experiment 2 (search)", said]
    assert first.wait() == 130


@pytest.mark.sample
@pytest.mark.parametrize("columns", RECORDED)
def test_a_failure_is_said_once_above_the_last_words(project, recorded, columns):
    path = written(project, SINGLE)
    path.write_text(path.read_text().replace("  lr:", "  fate: error\n  lr:"))
    env = project.det.env(project.environ(1))
    screen = seen(project.det.argv(["run", path]), columns, env=env, cwd=project.det.cwd, status=1)
    recorded(f"failure-{columns}", screen.text)
    assert "det: trial 1: RuntimeError: an error of the trial's" in screen.text
    assert "experiment 1 (search)  error" in screen.text
    assert "0%" not in screen.text
    assert screen.text.rstrip().endswith("experiment 1 is error\nits logs: det logs 1")


@pytest.mark.sample
@pytest.mark.parametrize("columns", RECORDED)
def test_ctrl_c_leaves_the_view_standing_and_says_how_to_go_on(project, recorded, columns):
    screen = watch(
        project, SINGLE, columns, pause=0.02, interrupt=lambda text: "training" in text, status=130
    )
    recorded(f"ctrl-c-{columns}", screen.text)
    assert "det: saving checkpoints and pausing; once more ends at once" in screen.text
    assert re.search(r"experiment 1 \(search\)  paused  \d+%", screen.text)
    assert "running" not in screen.text
    assert screen.text.rstrip().endswith("go on with: det resume 1")


@pytest.mark.thorough
def test_no_color_has_no_colours_and_dumb_terminals_get_lines(project):
    plain = watch(project, SINGLE, 80, env={"NO_COLOR": "1"})
    assert plain.frames
    assert plain.colours == set()
    dumb = watch(project, SINGLE, 80, env={"TERM": "dumb"})
    assert dumb.frames == []
    assert "trial 2 starts: lr=" in dumb.text


def test_quiet_prints_what_was_learnt_and_nothing_else(project):
    det = project.det
    text = (
        "searcher: {name: random, metric: val_loss, max_trials: 12, max_length: 40,"
        " max_concurrent_trials: 2}\n"
    )
    path = project.write(text)
    path.write_text(
        path.read_text().replace("lr: {", "n: {type: int, minval: 1, maxval: 9}\n  lr: {")
    )
    lines = det("run", path, "--quiet", env=project.environ()).stdout.splitlines()
    best = min(project.outcome().trials, key=lambda trial: trial.best_metric)
    assert (
        lines[0]
        == f"experiment 1 is completed: best val_loss {best.best_metric:.6g} (trial {best.id})"
    )
    assert lines[1] == f"with: n={best.hparams['n']}  lr={best.hparams['lr']:.6g}"
    assert re.match(r"what mattered: lr \d+%", lines[2])
    assert lines[3].startswith("best checkpoint: ")
    assert lines[-1] == "look at the trials: det show 1"
