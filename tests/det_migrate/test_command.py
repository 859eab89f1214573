"""The command: what it is asked, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.det_migrate.eras import OLD, SECRET, change, dump, tables
from tests.det_migrate.test_odd_rows import add

from det_driver.cli import Settings
from det_driver.cli._main import det


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tables("0.17.0")
    add(made, "experiments", id=4, config={**OLD, "our_key": SECRET})
    change(made, "experiments", 0, notes=f"the key is {SECRET}")
    (tmp_path / "dump.sql").write_bytes(dump(made))
    return tmp_path / "dump.sql"


def invoke(home: Path, *words: str) -> Result:
    settings = Settings.read({"DET_HOME": str(home)})
    return CliRunner().invoke(det, words, obj=settings, catch_exceptions=False)


def call(home: Path, *arguments: object) -> Result:
    return invoke(home, "migrate", *map(str, arguments))


def test_the_report_names_every_row_and_no_secret(file: Path, home: Path) -> None:
    dry = call(home, "--dry-run", "--archived", file)
    assert dry.stdout.startswith("nothing was written; what would be")
    assert not home.exists()
    done = call(home, file)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "experiments: 2 read, 2 written",
        "trials: 2 read, 2 written",
        "attempts: 4 read, 4 written",
        "metrics: 14 read, 12 written",
        "  2 left out: without metrics",
        "checkpoints: 3 read, 2 written",
        "  1 left out: without a uuid",
        "log lines: 3 read, 3 written",
        "models: 0 read, 0 written",
        "model versions: 0 read, 0 written",
        "experiment 4: its configuration is read without our_key; all of it is in determined.json",
        "look at them: det list",
    ]
    again = invoke(home, "migrate", "determined", str(file))
    assert again.stdout.splitlines()[:2] == [
        "experiments: 2 read, 0 written",
        "  2 left out: there already",
    ]
    assert SECRET not in f"{dry.output}{done.output}{again.output}"
    assert not [
        path for path in home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize(
    ("option", "why"),
    [
        (("--experiments", "1,x"), "'x' is no number and no range; give some such as 1,5-9"),
        (("--storage", "a=b"), "'a=b' is not OLD=NEW"),
        (("--since", "yesterday"), "does not match the format"),
    ],
)
def test_options_that_cannot_be_read_are_refused(
    option: tuple[str, str], why: str, file: Path, home: Path
) -> None:
    done = call(home, *option, file)
    assert done.exit_code == 2
    assert why in done.output
    assert not home.exists()


def test_experiments_are_chosen_by_numbers_and_ranges(file: Path, home: Path) -> None:
    done = call(
        home,
        "--experiments",
        "3-3",
        "--no-logs",
        "--batch-metrics",
        "--no-archived",
        "--since",
        "2020-01-01",
        file,
    )
    assert done.stdout.splitlines()[:2] == [
        "experiments: 2 read, 1 written",
        "  1 left out: not asked for (--experiments)",
    ]


def test_what_came_along_is_shown_as_what_was_trained_here(file: Path, home: Path) -> None:
    call(home, file)
    shown = invoke(home, "show", "3")
    lines = shown.stdout.splitlines()
    assert lines[0] == "experiment 3 (digits) is completed, 100%"
    assert "commit c0ffee" in lines
    assert "entrypoint: model_def:Digits   metric: error" in lines
    assert len([line for line in lines if "COMPLETED" in line]) == 2
    everything = invoke(home, "show", "3", "--all").stdout
    assert everything.startswith(shown.stdout)
    assert '"owner": "ann"' in everything
    asked = invoke(home, "show", "3", "--all", "--json").stdout
    assert json.loads(asked)["experiment"]["elsewhere"]["cluster_id"] == "the-cluster"
