"""No database, index or export of an experiment holds a secret of its configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from det_core import Framework, hookimpl
from det_core.checkpoint import write_checkpoint
from det_core.config import Extensions, masked, masked_hparams, to_json
from det_core.hooks import Plugins
from det_core.storage import LocalStorage
from det_core.train.exporting import EXPERIMENT, export
from det_core.train.load_data import read_load_data
from det_core.train.saving import LOAD_FILE
from det_driver.client import Client
from det_driver.config import load
from det_driver.driver import create
from det_driver.driver._search import SearchStarted
from det_driver.driver._state import State
from det_driver.store import Store
from det_driver.store._schema import dump
from det_driver.store._secrets import find_unmasked

CONFIG = """
name: at https://me:key-name@host
description: see https://me:key-note@host/x
labels: [token=key-label]
entrypoint: python3 train.py --api-key=key-entry
hyperparameters: {dsn: "postgres://me:key-dsn@h/d", lr: {type: double, minval: 0, maxval: 1}}
data: {password: key-data}
searcher: {name: random, metric: loss, max_trials: 3, max_length: {batches: 1}}
"""
NAMES = ("name", "note", "label", "entry", "dsn", "data")
DSN = "postgres://me:key-dsn@h/d"


def holding(place: Path) -> list[str]:
    """Return the names of the files that hold a secret."""
    files = [each for each in place.rglob("*") if each.is_file()]
    secrets = [f"key-{name}".encode() for name in NAMES]
    return sorted(
        each.name for each in files if any(secret in each.read_bytes() for secret in secrets)
    )


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The code of an experiment, whose configuration and other files have its secrets."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    for name in ("exp.cfg", "exp.YAML", ".env", "run.sh", "notes.txt"):
        (code / name).write_text(CONFIG)
    (code / "picture.png").write_bytes(b"\x89PNG\xff")
    return code


def test_columns_and_rows_of_trials_hold_no_secrets(store: Store, code: Path) -> None:
    """The driver's trials have them, from a journal and from a snapshot of the search."""
    id = create(store, load(CONFIG, extensions=Extensions(open=True)).config, code)
    with store.lock(id):
        state = State(store, id, Plugins.installed())
        with state.transaction():
            state.append_event(SearchStarted())
        given = {request: plan.hparams for request, plan in state.search.plans.items()}
        assert {hparams["dsn"] for hparams in given.values()} == {DSN}
        for _ in range(2):
            again = State(store, id, Plugins.installed())
            assert {n: plan.hparams for n, plan in again.search.plans.items()} == given
            with again.transaction():
                again.save_snapshot()
        store.experiments.publish(id)
    rows = store.trials.list(id)
    assert {row.hparams["dsn"] for row in rows} == {"postgres://me:********@h/d"}
    assert [row.hparams["lr"] for row in rows] == [given[row.request]["lr"] for row in rows]
    shown = store.experiments.get(id)
    assert (shown.name, shown.labels) == ("at https://me:********@host", ("token=********",))
    assert shown.entrypoint == "python3 train.py --api-key=********"
    assert holding(store.experiment_dir(id) / "code") == sorted(
        ["exp.cfg", "exp.YAML", ".env", "run.sh", "notes.txt"]
    )
    code_files = {path.name for path in code.iterdir()}
    assert {*holding(store.home)} - code_files == {"secrets.json"}


def test_an_export_masks_secrets_in_any_text_of_the_code(
    store: Store, code: Path, tmp_path: Path
) -> None:
    id = create(store, load(CONFIG, extensions=Extensions(open=True)).config, code)
    Client(store.home).get_experiment(id).export(tmp_path / "file.tar")
    held = (tmp_path / "file.tar").read_bytes()
    assert [name for name in NAMES if f"key-{name}".encode() in held] == []
    assert b"\x89PNG\xff" in held


def test_secrets_unknown_to_an_earlier_det_join_the_others(store: Store, code: Path) -> None:
    id = create(store, load(CONFIG, extensions=Extensions(open=True)).config, code)
    complete = store.experiments.config(id)
    shown = json.loads(store.experiments.get(id).config)
    with store.lock(id):
        store.experiments.update(id, config=json.dumps(shown | {"data": {"password": "key-data"}}))
        store.experiments.hide_secrets(id)
    assert store.experiments.config(id) == complete
    assert json.loads(store.experiments.get(id).config) == shown


EARLIER = """
name: sweep
labels: [nightly, token=sekret2]
description: see https://me:sekret3@host
entrypoint: python3 train.py --token=hf_abcdef --lr 3
hyperparameters: {api_key: sekret1, lr: {type: double, minval: 0, maxval: 1}}
searcher: {name: random, metric: loss, max_trials: 2, max_length: {batches: 1}}
"""
EARLIER_SECRETS = ("sekret1", "sekret2", "sekret3", "hf_abcdef")


@pytest.fixture
def earlier(store: Store, code: Path) -> int:
    """An experiment as an earlier det wrote it: with its secrets in all columns."""
    config = load(EARLIER, extensions=Extensions(open=True)).config
    for file in code.iterdir():
        file.write_text("")
    id = create(store, config, code)
    with store.lock(id) as database:
        state = State(store, id, Plugins.installed())
        with state.transaction():
            state.append_event(SearchStarted())
        for trial in store.trials.list(id):
            store.trials.update(trial.id, hparams=dump(trial.hparams | {"api_key": "sekret1"}))
        store.experiments.update(
            id,
            config=to_json(store.experiments.config(id)),
            labels=config.labels,
            description=str(config.description),
        )
        database.run("UPDATE experiment SET entrypoint = ?", (config.entrypoint,))
    (store.experiment_dir(id) / "secrets.json").unlink()
    return id


def test_an_export_masks_the_columns_of_an_earlier_det(
    store: Store, earlier: int, tmp_path: Path
) -> None:
    Client(store.home).get_experiment(earlier).export(tmp_path / "file.tar")
    held = (tmp_path / "file.tar").read_bytes()
    assert [secret for secret in EARLIER_SECRETS if secret.encode() in held] == []
    assert b"python3 train.py --token=******** --lr 3" in held
    assert store.experiments.config(earlier).hyperparameters is not None
    assert [t.hparams["api_key"] for t in store.trials.list(earlier)] == ["sekret1"] * 2


def test_the_next_driver_masks_the_columns_of_an_earlier_det(store: Store, earlier: int) -> None:
    """Its trials have the hyperparameters that they had before, in the same order."""
    config, rows = store.experiments.config(earlier), store.trials.list(earlier)
    with store.lock(earlier) as database:
        before = State(store, earlier, Plugins.installed()).search.plans
        store.experiments.hide_secrets(earlier)
        assert find_unmasked(database, config) == []
        database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        after = State(store, earlier, Plugins.installed()).search.plans
    assert {n: dump(p.hparams) for n, p in after.items()} == {
        n: dump(p.hparams) for n, p in before.items()
    }
    assert store.experiments.config(earlier) == config
    assert [t.hparams for t in store.trials.list(earlier)] == [
        t.hparams | {"api_key": "********"} for t in rows
    ]
    place = store.experiment_dir(earlier)
    assert {
        each.name
        for each in place.rglob("*")
        if each.is_file() and any(s.encode() in each.read_bytes() for s in EARLIER_SECRETS)
    } == {"secrets.json"}


class Facts:
    """The hooks of a framework whose models are the facts of checkpoints."""

    @hookimpl
    def det_frameworks(self) -> Iterator[Framework]:
        yield Framework(
            name="facts",
            trial="facts:Facts",
            load=lambda: None,  # type: ignore[arg-type, return-value]
            loader=f"{__name__}.load_facts",
            exporters={"json": f"{__name__}.write_facts"},
        )


def load_facts(path: str) -> dict[str, Any]:
    return read_load_data(Path(path))


def write_facts(directory: Path, target: Path) -> None:
    (target / "model.json").write_text(json.dumps(read_load_data(directory)))


def test_a_model_is_built_with_the_secrets_of_its_experiment(
    store: Store, code: Path, tmp_path: Path
) -> None:
    """Its checkpoint has masks, and so have the facts that an export of the model gives away."""
    config = load(CONFIG, extensions=Extensions(open=True)).config
    id = create(store, config, code)
    given = {"dsn": DSN, "lr": 0.5}
    facts = {"hparams": masked_hparams(given, config), "experiment_config": masked(config)}
    storage = LocalStorage(store.home / "checkpoints")
    uuid = write_checkpoint(
        storage,
        lambda path: (path / LOAD_FILE).write_text(json.dumps(facts)),
        framework="facts",
        batches=1,
    ).uuid
    with store.lock(id):
        trial = store.trials.create(id, 0, facts["hparams"], 1)
        run = store.runs.begin(trial.id)
        store.checkpoints.record(
            uuid, trial.id, run.id, 1, storage=storage.url(uuid), size=1, framework="facts"
        )
    client, plugins = Client(store.home), Plugins(strict=True)
    plugins.register(Facts(), "facts")
    client._home.plugins = plugins
    loaded = client.get_checkpoint(uuid).load(tmp_path / "mine")
    assert (loaded["hparams"], loaded["experiment_config"]["data"]["password"]) == (
        given,
        "key-data",
    )
    assert holding(tmp_path / "mine") == []
    assert read_load_data(tmp_path / "mine") == facts

    (tmp_path / EXPERIMENT).write_text(to_json(config))
    (tmp_path / "model").mkdir()
    export(tmp_path / "mine", tmp_path / "model", "facts", "json", plugins)
    assert json.loads((tmp_path / "model" / "model.json").read_text())["hparams"] == given
    assert holding(tmp_path / "model") == ["model.json"]
