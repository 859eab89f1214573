"""Half a character (a surrogate) and bytes that are no text break no command.

JSON can write half a character, and a word of a command line can hold any bytes.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from det_driver.cli import main
from det_driver.store import ExperimentState, Store, dump, load

NO_TEXT = os.fsdecode(b"a\xff")
CONFIG = {
    "name": "a",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "error", "max_length": {"batches": 1}},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with two experiments of one trial each."""
    home = tmp_path / "home"
    with Store(home) as store:
        for _ in range(2):
            id = store.experiments.create(name="größe", config=json.dumps(CONFIG)).id
            with store.lock(id):
                trial = store.trials.create(id, 0, {"lr": 1}, 0)
                run = store.runs.begin(trial.id)
                store.metrics.report(trial.id, run.id, "validation", 1, {"error": 0.5})
                store.experiments.update(id, state=ExperimentState.COMPLETED)
    monkeypatch.setenv("DET_HOME", str(home))
    return home


def changed(home: Path, *statements: str) -> None:
    """Write into the first experiment what det does not write, and forget the index."""
    with closing(sqlite3.connect(home / "experiments" / "1" / "experiment.db")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    (home / "index.db").unlink()


def called(*arguments: str, encoding: str = "utf-8") -> tuple[Any, str, str]:
    """Return the status of a command, and what it writes to strict streams."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    with (
        redirect_stdout(streams[0]),
        redirect_stderr(streams[1]),
        pytest.raises(SystemExit) as end,
    ):
        main(list(arguments))
    out, err = (stream.detach().getvalue().decode() for stream in streams)
    return end.value.code, out, err


def test_half_a_character_in_an_experiment_is_shown_escaped(home: Path) -> None:
    changed(
        home,
        """UPDATE experiment SET labels = '["\\ud800"]'""",
        """UPDATE metrics SET data = '{"\\udfff": 0.5, "error": "\\ud800"}'""",
        """UPDATE trials SET hparams = '{"\\ud801": "\\udc01"}'""",
    )
    for command in (
        "list",
        "list --json",
        "home repair",
        "show 1",
        "show 1 --json",
        "metrics 1",
        "metrics 1 --csv",
        "metrics 1 --json",
        "compare 1 2",
    ):
        status, out, err = called(*command.split())
        assert (status, bool(out)) == (0, True), (command, err)
    assert "\\ud800" in called("list")[1]
    assert "\\ud801" in called("show", "1")[1]
    assert "\\udfff" in called("metrics", "1", "--csv")[1]


@pytest.mark.parametrize(
    "words",
    [
        ("label", "1", NO_TEXT),
        ("note", "1", NO_TEXT),
        ("rename", "1", NO_TEXT),
        ("search", "1", "--enqueue", f"lr={NO_TEXT}"),
        ("list", "--filter", f"{NO_TEXT}=1"),
        ("checkpoint", "show", NO_TEXT),
        ("model", "create", NO_TEXT),
        ("metrics", "1", "--group", NO_TEXT),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_word_that_is_no_text_is_refused_in_one_line(home: Path, words: tuple[str, ...]) -> None:
    status, _, err = called(*words)
    assert status == 2
    assert "a\\udcff" in err
    assert "is not UTF-8 text" in err
    assert err.count("\n") == 1
    with Store(home) as store:
        assert store.experiments.get(1).name == "größe"


def test_a_path_that_is_no_text_is_taken(home: Path, tmp_path: Path) -> None:
    file = tmp_path / f"{NO_TEXT}.tar"
    assert called("export", "1", str(file))[0] == 0
    assert file.exists()
    assert called("import", str(file))[0] == 0


def test_output_is_escaped_where_the_locale_lacks_characters(home: Path) -> None:
    status, out, _ = called("list", encoding="ascii")
    assert (status, "gr\\xf6\\xdfe" in out) == (0, True)


@pytest.mark.parametrize("value", [["\ud800"], {"\udfff": [{"a": "x\ud800y"}]}, "\ud800\udc00"])
def test_the_store_writes_no_half_character(value: Any) -> None:
    text = dump(value)
    text.encode()
    assert json.dumps(load(text), ensure_ascii=False).encode()
    assert load(text) == load(json.dumps(json.loads(text)))


def test_text_of_whole_characters_is_stored_as_it_is() -> None:
    value = {"größe": ["\U0001f600", "\\ud800", "a\\b"], "nan": float("inf")}
    assert load(dump(value)) == value
    assert load(json.dumps(value)) == value
