"""Experiments of Determined with one trial, imported, whose checkpoints are copied."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from tests.det_migrate.eras import (
    NEW,
    OLD,
    REQUESTS,
    SECRET,
    Tables,
    archive,
    at_least,
    change,
    dump,
    tables,
)

from det_driver.cli import Settings
from det_driver.cli._main import det


def invoke(home: Path, *words: str | Path) -> Result:
    """Call `det` in this process, with a home."""
    return CliRunner().invoke(
        det,
        [str(word) for word in words],
        obj=Settings.read({"DET_HOME": str(home)}),
        catch_exceptions=False,
    )


def only(made: Tables, kept: int) -> None:
    """Remove the other trial of the small history."""
    other = 14 - kept
    for name, (columns, rows) in made.items():
        keys = [
            columns.index(each) for each in ("trial_id", "run_id", "run_type_fk") if each in columns
        ]
        if "hparams" in columns:
            keys = [columns.index("id")]
        left = [
            row
            for row in rows
            if all(row[key] != other for key in keys)
            and not any(REQUESTS[other] in str(each) for each in row)
        ]
        made[name] = columns, left


def one_trial(
    era: str,
    place: Path,
    code: Mapping[str, str],
    *,
    entrypoint: str,
    hparams: Mapping[str, Any],
    length: int,
    state: str = "ERROR",
    searcher: Mapping[str, Any] | None = None,
) -> Tables:
    """Return the tables of an experiment with one trial, whose checkpoints lie in `place`.

    `length` is in batches. The configuration has a range for `lr` of `hparams`.
    """
    made = tables(era)
    only(made, 5)
    steps = (
        {"max_length": {"batches": length}}
        if at_least(era, "0.15.6")
        else {"max_steps": length // 100}
    )
    config = {
        **(NEW if at_least(era, "0.15.6") else OLD),
        "environment": {},
        "entrypoint": entrypoint,
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(place), "access_key": SECRET},
        # A random one, which Determined drew: it is not what det's searcher would draw.
        "hyperparameters": {**hparams, "lr": {"type": "double", "minval": 0.01, "maxval": 0.1}},
        "searcher": {
            "name": "single",
            "metric": "error",
            "smaller_is_better": True,
            **steps,
            **(searcher or {}),
        },
    }
    change(made, "experiments", 0, config=config, state=state, model_definition=archive(code))
    table = "runs" if at_least(era, "0.26.7") else "trials"
    change(made, table, 0, state=state, hparams=dict(hparams))
    return made


def import_copied(home: Path, made: Tables, *options: str) -> Result:
    """Import a history with experiment 3, and copy its checkpoints: `det migrate checkpoints`."""
    file = home.parent / "dump.sql"
    file.write_bytes(dump(made))
    assert invoke(home, "migrate", file).exit_code == 0
    return invoke(home, "migrate", "checkpoints", "3", *options)
