"""What trials and files control does nothing to a terminal.

Output that cannot be written costs no training.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click
import pytest

from det_core.config import from_json
from det_driver.cli import main
from det_driver.cli._console import Settings
from det_driver.cli._live import Live
from det_driver.cli._main import det as commands
from det_driver.cli._output import Output, coloured, printable
from det_driver.cli._view import LineView
from det_driver.store import ExperimentState, Store

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil"
"""It names the window, clears the screen, colours, and turns the direction of text round."""
OURS = re.compile(r"\x1b\[[0-9;]*m")
"""The colours of tables."""
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose two experiments have escape sequences wherever a trial or a file can put one."""
    home = tmp_path / "home"
    config = {
        "name": EVIL,
        "entrypoint": f"python3 {EVIL}.py",
        "hyperparameters": {
            f"lr{EVIL}": {"type": "categorical", "vals": [f"a{EVIL}", "b"]},
            "same": f"s{EVIL}",
        },
        "searcher": {"name": "grid", "metric": f"error{EVIL}", "max_length": {"batches": 1}},
    }
    with Store(home) as store:
        for _ in range(2):
            id = store.experiments.create(
                name=f"name{EVIL}",
                config=json.dumps(config),
                entrypoint=config["entrypoint"],
                metric=f"error{EVIL}",
                description=f"note{EVIL}\nsecond line",
                labels=[f"label{EVIL}"],
            ).id
            with store.lock(id):
                for request, value in enumerate((f"a{EVIL}", "b")):
                    trial = store.trials.create(
                        id, request, {f"lr{EVIL}": value, "same": f"s{EVIL}"}, 0
                    )
                    run = store.runs.begin(trial.id, host=f"host{EVIL}")
                    metrics = {f"error{EVIL}": 0.5, f"text{EVIL}": f"value{EVIL}"}
                    store.metrics.report(trial.id, run.id, "validation", 1, metrics)
                    store.checkpoints.record(
                        f"{id}-{trial.id}",
                        trial.id,
                        run.id,
                        1,
                        storage="",
                        size=1,
                        framework=f"torch{EVIL}",
                    )
                    store.runs.end(run.id, "ERROR", f"because{EVIL}")
                    store.trials.update(trial.id, state="ERROR", exit_reason=f"reason{EVIL}")
                    run.log_dir.mkdir(parents=True)
                    (run.log_dir / "rank-0.log").write_text(
                        f"said \x1b[31mred\x1b[0m {EVIL}\n 1%\r 2%\r 3%\nno end"
                    )
                store.experiments.update(
                    id, state=ExperimentState.ERROR, reason=f"why{EVIL}", started=1.0, ended=2.0
                )
    monkeypatch.setenv("DET_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TERM", "xterm-256color")
    return home


def seen(*arguments: str) -> tuple[str, Any]:
    """Return what a command writes to a terminal, and its status."""
    terminal = Terminal()
    with redirect_stdout(terminal), redirect_stderr(terminal), pytest.raises(SystemExit) as end:
        main(list(arguments))
    return terminal.getvalue(), end.value.code


ARGUMENTS = {
    "alerts retry": ["1"],
    "checkpoint delete": None,
    "checkpoint describe": ["1-1"],
    "checkpoint download": ["1-1", "OUT"],
    "checkpoint export": ["1-1", "OUT"],
    "checkpoint list": ["1"],
    "checkpoint show": ["1-1"],
    "compare": ["1", "2"],
    "export": ["1", "OUT.tar"],
    "home repair": [],
    "label": ["1"],
    "list": [],
    "logs": ["1"],
    "metrics": ["1"],
    "model add-version": [EVIL, "1-1"],
    "model register-version": [EVIL, "1-1"],
    "note": ["1"],
    "rename": ["1", EVIL],
    "search": ["1", "--enqueue", f"lr{EVIL}=1"],
    "set": ["1", "weight", EVIL],
    "show": ["1"],
    "trust": ["1"],
    "verify": ["1"],
    "resume": None,
}
"""Of the commands that show experiments; None for those that another test sees."""
MORE = [
    ["show", "1", "--runs"],
    ["show", "1", "--slice", f"lr{EVIL}"],
    ["show", "1", "--config"],
    ["show", "1", "--json"],
    ["metrics", "1", "--csv"],
    ["metrics", "1", "--json"],
    ["metrics", "1", "--group", EVIL],
    ["list", "--filter", f"{EVIL}=1"],
    ["list", "--json"],
    ["queue"],
    ["checkpoint", "show", EVIL],
    ["label", "1", f"more{EVIL}"],
    ["search", "1", "--stop-when", f"loss < {EVIL}"],
    ["search", "1", "--enqueue", f"lr={EVIL}"],
    ["rm", "1", "--yes"],
    ["checkpoint", "delete", "1-1", "--yes"],
    ["run", f"{EVIL}.yaml"],
    [EVIL],
]


def _leaves() -> Iterator[tuple[str, click.Command]]:
    settings = Settings.read(os.environ)
    context = click.Context(commands, obj=settings)
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in command.commands.items())
        else:
            yield name, command


@pytest.mark.slow
def test_no_command_passes_escape_sequences_of_a_trial_on(home: Path, tmp_path: Path) -> None:
    """A walk over the commands that take an experiment or a checkpoint, and over `det list`."""
    of_experiments = {
        name
        for name, command in _leaves()
        if any(each.name in ("experiment", "uuid") for each in command.params)
        or name in ("list", "home repair")
    }
    # What a command wrote is printed as if it ran in the terminal itself.
    of_tasks = {
        "cmd kill",
        "cmd logs",
        "cmd status",
        "shell kill",
        "notebook kill",
        "notebook open",
    }
    elsewhere = {"rm", "checkpoint rm", "pause", "cancel", "tensorboard", *of_tasks}
    assert (
        of_experiments
        - elsewhere
        - ARGUMENTS.keys()
        - {n for n in of_experiments if n not in _own()}
        == set()
    )
    walked = [[*name.split(), *given] for name, given in ARGUMENTS.items() if given is not None]
    shows = 0
    for arguments in [*walked, *MORE]:
        own = [each.replace("OUT", str(tmp_path / "out")) for each in arguments]
        text, _ = seen(*own)
        assert FORBIDDEN.findall(OURS.sub("", text)) == [], arguments
        shows += "evil" in text
    assert shows >= 12


def _own() -> set[str]:
    from det_driver.cli._main import _COMMANDS

    return {name for name, _ in _leaves() if name.split()[0] in _COMMANDS}


def test_a_table_shows_that_something_is_written_out(home: Path) -> None:
    assert r"name\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil" in OURS.sub("", seen("list")[0]).replace(
        "\n", ""
    )


def test_a_log_on_a_terminal_is_coloured_and_does_nothing_else(home: Path) -> None:
    text, _ = seen("logs", "1", "--trial", "1")
    assert "\x1b[31mred\x1b[0m \\x1b]0;owned" in text
    assert "] 3%\n" in text.replace("]  3%", "] 3%")
    assert "1%" not in text, "a progress bar is a line, and no line for each time it was drawn"
    assert "] no end\n" in text, "the last line needs no newline"


def test_a_colour_of_a_log_ends_with_its_line_and_hides_nothing() -> None:
    assert coloured("\x1b[31mred") == "\x1b[31mred\x1b[0m"
    assert coloured("\x1b[31mred\x1b[m") == "\x1b[31mred\x1b[m"
    assert coloured("\x1b[8mhidden\x1b[1;08;4mtoo") == "hidden\x1b[1;4mtoo\x1b[0m"
    for colour in ("38;5;8", "48;2;8;8;8", "38:5:8", "0;38;5;8;1"):
        assert coloured(f"\x1b[{colour}mgrey\x1b[0m") == f"\x1b[{colour}mgrey\x1b[0m"


def test_a_log_in_a_pipe_is_as_it_was_written(home: Path) -> None:
    pipe = io.StringIO()
    with redirect_stdout(pipe), redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        main(["logs", "1"])
    assert EVIL in pipe.getvalue()
    pipe = io.StringIO()
    with redirect_stdout(pipe), pytest.raises(SystemExit):
        main(["metrics", "1", "--csv"])
    assert f"value{EVIL}" in pipe.getvalue()


def test_what_is_seen_of_a_search_that_runs_is_written_out() -> None:
    """Both views, of an experiment whose names, metrics and reasons are escape sequences."""
    lines, live = LineView(), Live()
    terminal = Terminal()
    with redirect_stdout(Output(terminal)):
        for view in (lines, live):
            view.det_experiment_started(_Experiment())
            view.det_trials_waiting(_Experiment(), f"for{EVIL}")
            view.det_run_started(_Experiment(), _Trial(), _Run())
            view.det_metrics_reported(
                _Experiment(), _Trial().id, f"group{EVIL}", 1, {f"error{EVIL}": f"x{EVIL}"}
            )
            view.waits = f"for{EVIL}"
            view.det_run_finished(_Experiment(), _Trial(), _Run(), "ERROR")
    drawn = "\n".join(line for _, line in live.lines(120, 40))
    for text in (terminal.getvalue(), drawn):
        assert "evil" in text
        assert FORBIDDEN.findall(text) == []


class _Search:
    progress, queued, waiting, ended, rungs, resting = 0.5, 0, 0, 0, (), {}


class _Experiment:
    id, name = 1, f"name{EVIL}"
    config = from_json(
        json.dumps(
            {
                "hyperparameters": {
                    f"lr{EVIL}": {"type": "categorical", "vals": [f"a{EVIL}", "b"]}
                },
                "searcher": {"name": "random", "metric": f"error{EVIL}", "max_trials": 2},
            }
        )
    )

    def search(self) -> Any:
        return _Search

    def trial(self, id: int) -> Any:
        return _Trial


class _Trial:
    id, state, hparams = 1, "ERROR", {f"lr{EVIL}": f"a{EVIL}"}
    progress, best_metric, best_batches, batches = 0.5, 0.5, 1, 1


class _Run:
    number, first_batch, reason = 2, 1, f"because{EVIL}"


def test_text_that_is_harmless_is_as_it_was() -> None:
    text = "größer 数 \u200f 50 % \\x1b"
    assert printable(text) == text
    assert coloured(text) == text
    assert printable("a\nb\tc\x1b") == "a\\nb\\tc\\x1b"
    assert coloured("\x1b[1;32mok\x1b[0m\x1b[1A\r") == "\x1b[1;32mok\x1b[0m\\x1b[1A\\r"


def test_a_metric_by_the_name_of_a_column_replaces_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {"error": 0.5, "trial": 7.0, "group": 8.0, "hparams.same": 9.0, "metrics.trial": 10.0}
    with Store(home) as store:
        id = store.experiments.create(name="x", config="{}", metric="error").id
        with store.lock(id):
            trial = store.trials.create(id, 0, {}, 0)
            store.metrics.report(trial.id, store.runs.begin(trial.id).id, "validation", 1, odd)
    for option in ("--json", "--csv"):
        with pytest.raises(SystemExit):
            main(["metrics", str(id), option])
    printed, names, values = capsys.readouterr().out.splitlines()
    own = {"trial": trial.id, "group": "validation", "batches": 1}
    assert json.loads(printed) == {**own, "metrics": odd}
    row = dict(zip(names.split(","), values.split(","), strict=True))
    assert [row[name] for name in own] == [str(value) for value in own.values()]
    assert {
        name.removeprefix("metrics."): float(row[name])
        for name in row
        if name not in own and name != "error"
    } == {name: value for name, value in odd.items() if name != "error"}


SCRIPT = """
from det_core import core
with core.init() as context:
    context.train.report_validation_metrics(1, {"error": 0.5})
"""


@pytest.mark.sample
@pytest.mark.process
@pytest.mark.parametrize("redirection", [">&-", "> /dev/full", "2>&- >&- <&-"])
def test_unwritable_output_does_not_affect_training(det: Any, redirection: str) -> None:
    (det.cwd / "train.py").write_text(SCRIPT)
    (det.cwd / "c.yaml").write_text(
        "entrypoint: python3 train.py\nsearcher: {name: single, metric: error}\n"
    )
    command = f"exec {sys.executable} -m det_driver.cli run c.yaml {redirection}"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=det.cwd,
        env=det.env(None),
        stderr=subprocess.PIPE,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") <= 1
    assert ("No space left on device" in done.stderr) == ("full" in redirection)
    assert det.json("list")[0]["experiment"]["state"] == "COMPLETED"


@pytest.mark.process
def test_detached_run_that_cannot_print_its_number_is_no_failure(
    det: Any, wait_until: Callable[..., None]
) -> None:
    (det.cwd / "train.py").write_text(SCRIPT)
    (det.cwd / "c.yaml").write_text(
        "entrypoint: python3 train.py\nsearcher: {name: single, metric: error}\n"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            det.argv(["run", "c.yaml", "--detach"]),
            cwd=det.cwd,
            env=det.env(None),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=90,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        0,
        "det: what was printed is lost (No space left on device); see it with: det show 1\n",
    )

    def is_completed() -> bool:
        return det.json("list")[0]["experiment"]["state"] == "COMPLETED"

    wait_until(is_completed, "the end of the experiment", 60)


def test_what_a_command_cannot_print_is_one_line_and_status_2(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = io.StringIO()
    with open("/dev/full", "w") as full:  # noqa: SIM117
        with redirect_stdout(full), redirect_stderr(errors), pytest.raises(SystemExit) as end:
            main(["list"])
    assert (end.value.code, errors.getvalue()) == (
        2,
        "det: cannot write what is printed: No space left on device\n",
    )


PRINTS = [
    ["--help"],
    ["checkpoint", "list", "1"],
    ["compare", "1", "2"],
    ["config", "schema"],
    ["list"],
    ["list", "--json"],
    ["logs", "1"],
    ["metrics", "1"],
    ["metrics", "1", "--csv"],
    ["metrics", "1", "--json"],
    ["show", "--help"],
    ["show", "1"],
    ["show", "1", "--config"],
    ["show", "1", "--json"],
    ["version"],
]


@pytest.mark.parametrize("arguments", PRINTS, ids=" ".join)
def test_a_reader_that_has_left_ends_a_command_quietly(home: Path, arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    errors = io.StringIO()
    with open(write, "w") as pipe:  # noqa: SIM117
        with redirect_stdout(pipe), redirect_stderr(errors), pytest.raises(SystemExit) as end:
            main(arguments)
    assert (end.value.code, errors.getvalue()) == (0, "")


@pytest.mark.process
@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_a_home_of_another_user_is_one_line_and_status_2(home: Path, tmp_path: Path) -> None:
    """For each of the commands that read it.

    A fork is the other user, with all of them imported.
    """
    list(_leaves())
    for arguments in (
        ["list"],
        ["show", "1"],
        ["home", "repair"],
        ["import", __file__],
        ["run", "c.yaml"],
    ):
        read, write = os.pipe()
        if not (child := os.fork()):
            try:
                os.chdir("/")
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                errors = io.StringIO()
                with redirect_stdout(errors), redirect_stderr(errors):
                    main(arguments)
            except SystemExit as end:
                os.write(write, f"{end.code} {errors.getvalue()}".encode())
            except BaseException as error:
                os.write(write, f"raised {error!r}".encode())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            said = file.read()
        os.waitpid(child, 0)
        assert said.startswith("2 det: "), said
        assert said.count("\n") == 1, said


@pytest.mark.process
def test_run_without_threads_left_reports_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `ulimit -u` and a machine without memory bring it about.

    Its experiment has ended, and can be resumed.
    """
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("")
    (tmp_path / "c.yaml").write_text(
        "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
    )
    before = threading.stack_size(1 << 46)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["run", str(tmp_path / "c.yaml"), str(tmp_path / "code")])
    finally:
        threading.stack_size(before)
    assert ended.value.code == 2
    lines = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith(("det: ", "Traceback"))
    ]
    assert "ulimit -u" in lines[-1]
    assert "Traceback" not in "".join(lines)
    with Store.reader(tmp_path / "home") as store:
        assert store.experiments.get(1).state is ExperimentState.ERROR
