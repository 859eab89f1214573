"""Times and facts that no clock shows and no det writes, as of a damaged file: shown as such."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from det_driver.cli import main, shown_time
from det_driver.cli._console import ago, clock
from det_driver.provenance import FILE
from det_driver.store import ExperimentState, Store

NEVER = (float("inf"), float("-inf"), float("nan"), 1e300, -1e300, 1e18)


@pytest.mark.parametrize("never", NEVER)
def test_a_time_that_is_on_no_clock_is_a_question_mark(never: float) -> None:
    assert {shown_time(never), ago(never, 1e9), clock(never)} == {"?"}


def test_times_of_these_years_are_shown() -> None:
    assert shown_time(0.0, "%Y") == time.strftime("%Y", time.localtime(0.0))
    assert shown_time(1.8e9) == time.strftime("%Y-%m-%d %H:%M", time.localtime(1.8e9))
    assert (clock(61.5), clock(3600.0), clock(None)) == ("1:01", "1:00:00", "")
    assert (ago(1e9 - 86_400 * 3, 1e9), ago(None, 1e9)) == ("3 d ago", "")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two experiments that have run."""
    monkeypatch.setenv("DET_HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    with Store(tmp_path) as store:
        for _ in range(2):
            id = store.experiments.create(name="odd", config="{}", metric="loss").id
            with store.lock(id):
                trial = store.trials.create(id, 0, {}, 0)
                store.runs.end(store.runs.begin(trial.id).id, "completed")
                store.experiments.update(
                    id, state=ExperimentState.COMPLETED, started=1.0, ended=2.0
                )
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([*words])
    assert end.value.code in (0, None)
    return capsys.readouterr().out


@pytest.mark.parametrize("never", [float("inf"), 1e300])
def test_commands_show_experiments_of_odd_times(
    home: Path, capsys: pytest.CaptureFixture[str], never: float
) -> None:
    with closing(sqlite3.connect(home / "experiments/1/experiment.db")) as database:
        for table in ("experiment", "trials", "runs"):
            database.execute(f"UPDATE {table} SET started = ?, ended = ?", (-never, never))
        database.execute("UPDATE experiment SET created = ?", (never,))
        database.commit()
    (home / "index.db").unlink()
    assert "began ?, took ?" in printed(capsys, "show", "1")
    assert " ? " in printed(capsys, "show", "1", "--runs")
    assert " ? " in printed(capsys, "compare", "1", "2")
    assert " ?\n" in printed(capsys, "list")


@pytest.mark.parametrize(
    "text",
    [
        *("[1]", "7", '"x"', "null", "[" * 100_000, "{", '{"git": {}}', '{"git": [1]}'),
        *('{"host": 1}', '{"packages": ["a"]}', '{"devices": [1]}', '{"submitted": {"by": 1}}'),
        '{"host": "a"}',
    ],
)
def test_a_provenance_that_is_none_is_left_out(
    home: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (home / "experiments" / "1" / FILE).write_text(text)
    said = printed(capsys, "show", "1")
    assert "made on" not in said
    assert "commit" not in said
    shown = json.loads(printed(capsys, "show", "1", "--json"))
    assert shown["experiment"]["provenance"] in ({}, {"host": "a"})
