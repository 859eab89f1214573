"""Fifos and devices in place of files, and a home of no user, end a command in one line."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from det_driver.cli import main
from det_driver.store import ExperimentState, Store

UUID = "686adb29-ede6-48f2-af76-d1907c588d61"
CONFIG = {
    "name": "a",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "error", "max_length": {"batches": 1}},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with one experiment of one trial, whose run has a log and a checkpoint."""
    home = tmp_path / "home"
    with Store(home) as store:
        id = store.experiments.create(name="a", config=json.dumps(CONFIG)).id
        with store.lock(id):
            trial = store.trials.create(id, 0, {"lr": 1}, 0)
            run = store.runs.begin(trial.id)
            store.checkpoints.record(
                UUID, trial.id, run.id, 1, storage="", size=1, framework="torch"
            )
            store.experiments.update(id, state=ExperimentState.COMPLETED)
        run.log_dir.mkdir(parents=True)
        (run.log_dir / "rank-0.log").write_text("said\n")
    monkeypatch.setenv("DET_HOME", str(home))
    return home


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in what takes longer, also in a system call that waits."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str, str]:
    with within(60), pytest.raises(SystemExit) as end:
        main(list(arguments))
    return end.value.code, *capsys.readouterr()


@pytest.mark.parametrize(
    "name",
    [
        "lock",
        "commands/1.json",
        "provenance.json",
        "secrets.json",
        "trials/1/run-1/rank-0.log",
        "trials/1/run-1/rank-0.times",
    ],
)
def test_no_command_waits_for_the_writer_of_a_fifo(
    home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo = home / "experiments" / "1" / name
    fifo.parent.mkdir(exist_ok=True)
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    for command in ("list", "show 1", "logs 1 --times", "checkpoint list 1", "queue", "rm 1 -y"):
        status, _, err = called(capsys, *command.split())
        assert status in (0, 2), (command, err)
        assert len(err.splitlines()) <= 1, (command, err)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_in_place_of_a_log_is_named(
    home: Path, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    log = home / "experiments/1/trials/1/run-1/rank-0.log"
    log.unlink()
    make(log)
    assert called(capsys, "logs", "1") == (2, "", f"det: {log}: it is no regular file\n")


@pytest.mark.parametrize("command", ["config show", "run", "check", "preview"])
def test_a_configuration_without_end_is_refused(
    home: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = called(capsys, *command.split(), "/dev/zero")
    assert (status, err) == (2, "det: /dev/zero has more than 16 MiB; name a YAML file\n")


def test_a_home_of_no_user_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DET_HOME", "~no-such-user/x")
    assert called(capsys, "list") == (
        2,
        "",
        "det: cannot resolve '~no-such-user/x': there is no such user; write it without ~\n",
    )


@pytest.mark.parametrize("name", ["", ",", UUID[:1], UUID[:7]])
def test_a_checkpoint_is_deleted_by_no_empty_or_short_name(
    home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = called(capsys, "checkpoint", "delete", name, "--yes")
    assert status == 2
    assert len(err.splitlines()) == 1
    with Store(home) as store:
        assert store.checkpoints.get(UUID).state == "COMPLETED"
