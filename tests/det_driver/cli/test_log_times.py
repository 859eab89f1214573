"""When the lines of a log were written, and what is left of lines that were redrawn."""

from __future__ import annotations

import os
import re
import time
import tracemalloc
from pathlib import Path

import pytest

from det_driver.cli import main
from det_driver.store import LogClock, LogTimes, Store

WORDS = "first line\n  0%|          | 0/3\r 33%|###       | 1/3\r100%|##########| 3/3\nlast line\n"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a run, in which nothing is written yet."""
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    with Store(tmp_path / "home") as store:
        id = store.experiments.create(name="x", config="{}", metric="loss").id
        with store.lock(id):
            run = store.runs.begin(store.trials.create(id, 0, {}, 0).id)
            run.log_dir.mkdir(parents=True)
    return run.log_dir / "rank-0.log"


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    with pytest.raises(SystemExit) as end:
        main(["logs", "1", *options])
    assert end.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_a_line_has_the_time_of_the_first_look_that_found_it(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, (first, second, _) = LogClock(), (f"{line}\n" for line in WORDS.split("\n")[:-1])
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    log.write_text(first)
    clock.note([log.parent])
    monkeypatch.setattr(time, "time", lambda: 86460.0)
    clock.note([log.parent])
    log.write_text(first + second)
    clock.forget(log.parent)
    log.write_text(WORDS)
    os.utime(log, (86500, 86500))
    label = "[trial 1 run 1 rank-0]"
    assert printed(capsys) == [
        f"01-02 00:00:00 {label} first line",
        f"01-02 00:01:00 {label} 100%|##########| 3/3",
        f"01-02 00:01:40 {label} last line",
    ]
    assert printed(capsys, "--tail", "1") == [f"01-02 00:01:40 {label} last line"]
    assert printed(capsys, "--no-times")[1:] == [
        f"{label} 100%|##########| 3/3",
        f"{label} last line",
    ]


def test_a_log_at_which_nobody_looked_has_no_times(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_text(WORDS)
    assert printed(capsys, "--times")[0] == "[trial 1 run 1 rank-0] first line"
    log.with_suffix(".times").write_text("what is this\n12 soon\n")
    assert LogTimes(log).at(3) is None
    assert printed(capsys)[0] == "[trial 1 run 1 rank-0] first line"


def test_what_cannot_be_noted_stops_nobody(log: Path) -> None:
    log.write_text(WORDS)
    log.with_suffix(".times").mkdir()
    clock = LogClock()
    clock.note([log.parent, log.parent / "gone"])
    clock.forget(log.parent)


@pytest.mark.process
def test_the_driver_notes_when_its_runs_write(det) -> None:
    det.cwd.joinpath("c.yaml").write_text(
        "entrypoint: echo one; sleep 2.5; echo two\nsearcher: {name: single, metric: x}\n"
    )
    det("run", "c.yaml", status=None)
    times = [
        re.match(r"\d\d-\d\d \d\d:(\d\d):(\d\d) \[.*\] (one|two)$", line)
        for line in det("logs", "1").stdout.splitlines()
    ]
    one, two = (int(found[1]) * 60 + int(found[2]) for found in times if found)
    assert 1 <= (two - one) % 3600 <= 6


def test_the_last_lines_of_a_long_log_are_read_from_its_end(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log of many runs is larger than the memory that a look at its end may take."""
    with log.open("wb") as file:
        file.writelines(b"%090d\n" % line for line in range(400_000))
    tracemalloc.start()
    try:
        shown = printed(capsys, "--no-times", "--tail", "2")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [int(line.rpartition(" ")[2]) for line in shown] == [399_998, 399_999]
    assert peak < log.stat().st_size / 4
