"""Stores that cannot be used, and experiments that are not there or not free."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from det_driver.store._schema import EXPERIMENT


def garbage(file: Path) -> None:
    file.write_bytes(os.urandom(5000))


def newer(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def damaged_within(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[100 : len(data) - 100] = bytes(len(data) - 200)
    file.write_bytes(data)


DAMAGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "no database": (
        garbage,
        "{db} is not a store of det (file is not a database); move it away, or choose another home",
    ),
    "a newer schema": (
        newer,
        (
            "{db} has schema version 99, newer than the {newest} that this det knows; upgrade"
            " det-driver"
        ),
    ),
    "damaged within": (
        damaged_within,
        (
            "{db} is damaged (database disk image is malformed); restore it from a copy, or move it"
            " away to begin again"
        ),
    ),
}


@pytest.mark.parametrize("title", DAMAGED)
def test_unreadable_experiment_is_one_line_and_stops_no_other(project: Any, title: str) -> None:
    """Its file stays unchanged."""
    spoil, line = DAMAGED[title]
    project.write("script.yaml", "entrypoint: 'true'\nsearcher: {name: single, metric: error}\n")
    project.quick("run", "script.yaml", "--quiet", status=0)
    project.sound = False
    file = project.home / "experiments" / "1" / "experiment.db"
    spoil(file)
    before = file.read_bytes()
    for command in ("show", "resume", "cancel"):
        done = project.quick(command, "1")
        assert (done.returncode, done.stderr, done.stdout) == (
            2,
            f"det: {line.format(db=file, newest=len(EXPERIMENT))}\n",
            "",
        )
    assert file.read_bytes() == before
    project.quick("run", "script.yaml", "--quiet", status=0)
    assert [row["experiment"]["id"] for row in project.json("list")] == [2, 1]


def test_a_file_in_the_place_of_the_home_is_one_line(project: Any) -> None:
    project.home.write_text("")
    project.sound = False
    project.model("Trial = Sound")
    done = project.quick("run", "const.yaml")
    line = f"cannot make the home {project.home}: File exists; choose one that you can write to"
    assert (done.returncode, done.stderr, done.stdout) == (2, f"det: {line}\n", "")


def test_the_home_of_an_earlier_det_is_one_line(project: Any) -> None:
    project.home.mkdir()
    project.home.joinpath("det.db").touch()
    project.sound = False
    line = (
        f"{project.home}/det.db is the store of an earlier det, which this one does not read;"
        " choose another home (DET_HOME), or move that file away to begin again"
    )
    for command in (("list",), ("show", "1"), ("run", "const.yaml")):
        done = project.quick(*command)
        assert (done.returncode, done.stderr, done.stdout) == (2, f"det: {line}\n", "")


def test_a_home_that_cannot_be_written_is_one_line(project: Any) -> None:
    project.home.mkdir(mode=0o555)
    project.sound = False
    project.model("Trial = Sound")
    done = project.quick("run", "const.yaml", mighty=False)
    line = (
        f"cannot make the home {project.home}: Permission denied; choose one that you can write to"
    )
    assert (done.returncode, done.stderr) == (2, f"det: {line}\n")


UNKNOWN = (
    ("show", "7"),
    ("logs", "7"),
    ("metrics", "7"),
    ("resume", "7"),
    ("pause", "7"),
    ("cancel", "7"),
    ("checkpoint", "list", "7"),
    ("tensorboard", "7"),
)


def test_an_unknown_experiment_is_one_line_for_every_command(project: Any) -> None:
    project.write("script.yaml", "entrypoint: 'true'\nsearcher: {name: single, metric: error}\n")
    project.quick("run", "script.yaml", "--quiet", status=0)
    for command in UNKNOWN:
        done = project.quick(*command)
        line = f"no experiment 7; det list shows those in {project.home}"
        assert (done.returncode, done.stderr) == (2, f"det: {line}\n"), command
    done = project.quick("show", "9" * 30)
    line = f"no experiment {'9' * 30}; det list shows those in {project.home}"
    assert (done.returncode, done.stderr) == (2, f"det: {line}\n")
    done = project.quick("metrics", "1", "--trial", "9" * 30)
    line = f"no trial {'9' * 30}; det show EXPERIMENT lists an experiment's trials"
    assert (done.returncode, done.stderr) == (2, f"det: {line}\n")


def test_missing_source_trial_makes_no_experiment(project: Any) -> None:
    project.model("Trial = Sound")
    done = project.quick("run", "const.yaml", "--quiet", "--config", "searcher.source_trial_id=55")
    assert (done.returncode, done.stderr) == (
        2,
        "det: no trial 55; det show EXPERIMENT lists an experiment's trials\n",
    )
    assert project.json("list") == []


def test_an_experiment_that_another_driver_holds_is_one_line(
    project: Any, wait_until: Callable[..., None]
) -> None:
    project.write(
        "script.yaml",
        "entrypoint: touch started; sleep 60\nsearcher: {name: single, metric: error}\n",
    )
    driver = project.det.start("run", "script.yaml", "--quiet")
    wait_until((project.home / "experiments" / "1" / "code" / "started").exists, "the start")
    done = project.quick("resume", "1")
    line = f"experiment 1 is held by process {driver.pid}; det pause 1 asks it to stop"
    assert (done.returncode, done.stderr) == (2, f"det: {line}\n")
    project.quick("cancel", "1", "--now", status=0)
    assert driver.wait(timeout=30) == 1


def test_ended_experiment_is_neither_resumed_nor_canceled(project: Any) -> None:
    project.write("script.yaml", "entrypoint: 'true'\nsearcher: {name: single, metric: error}\n")
    project.quick("run", "script.yaml", "--quiet", status=0)
    done = project.quick("resume", "1")
    line = (
        "experiment 1 is completed; start another from its checkpoints with"
        " searcher.source_trial_id"
    )
    assert (done.returncode, done.stderr) == (2, f"det: {line}\n")
    done = project.quick("cancel", "1")
    assert (done.returncode, done.stderr) == (
        2,
        "det: experiment 1 is completed already; nothing is left to cancel\n",
    )


def test_a_script_is_not_trained_in_process(project: Any) -> None:
    project.write("script.yaml", "entrypoint: 'true'\nsearcher: {name: single, metric: error}\n")
    done = project.quick("run", "script.yaml", "--in-process")
    line = "--in-process trains trial classes, and the entrypoint is 'true'; leave it out"
    assert (done.returncode, done.stderr) == (2, f"det: {line}\n")
