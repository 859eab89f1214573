"""Nothing of an imported experiment runs before its user allows it, whatever is done with it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from det_core.config import Extensions
from det_core.errors import DetError, StoreError
from det_core.hooks import Plugins
from det_driver.cli import main
from det_driver.client import Client
from det_driver.config import load
from det_driver.driver import (
    DriverSettings,
    SearchSteered,
    create,
    reopen,
    send_command,
    steer,
)
from det_driver.recording._experiment import FILE as OUTSIDE_FILE
from det_driver.recording._experiment import find_recorded
from det_driver.store import ExperimentState, Store, is_trusted, storage_of_checkpoint, trust
from det_driver.verify import verify

SEARCHERS = {
    "a searcher": "{name: custom, entrypoint: 'evil:Mine', metric: loss}",
    "a sampler": (
        "{sampler: 'evil:Mine', schedule: full, metric: loss, max_trials: 2, max_length: {batches:"
        " 1}}"
    ),
}
REFUSED = r"^experiment \d+ came with det import, and nothing of it has run here: read .*det trust"


def steered(**changes: Any) -> Callable[[Store, int, Path], object]:
    return lambda store, id, _: steer(store, id, SearchSteered(**changes), Plugins.installed())


def verified(store: Store, id: int, scratch: Path) -> object:
    settings = DriverSettings.detect({}, home=store.home)
    return verify(store, settings, Plugins.installed(), dict(os.environ), scratch, id)


def forked(store: Store, id: int, _: Path) -> object:
    return Client(store.home).get_experiment(id).fork(start=False)


def exported(store: Store, id: int, scratch: Path) -> object:
    return Client(store.home).get_checkpoint("one").export(scratch / "model", "safetensors")


DEEDS: dict[str, Callable[[Store, int, Path], object]] = {
    "a weight": steered(weight=2.0),
    "more trials": steered(add_trials=1),
    "a condition": steered(stop_when="loss < 1"),
    "a verification": verified,
    "a fork": forked,
    "an export of a model": exported,
}


@pytest.fixture(params=SEARCHERS)
def imported(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Store, int, Path]]:
    """An experiment of somebody else in a home, and a file that its code would write."""
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    canary, code = tmp_path / "canary", tmp_path / "code"
    code.mkdir()
    (code / "evil.py").write_text(
        f"open({str(canary)!r}, 'w')\nclass Mine: ...\nclass Trial: ...\n"
    )
    text = f"name: x\nentrypoint: 'evil:Trial'\nsearcher: {SEARCHERS[request.param]}\n"
    with Store(tmp_path / "theirs") as theirs:
        config = load(text, extensions=Extensions(open=True)).config
        id = create(theirs, config, code)
        (theirs.experiment_dir(id) / OUTSIDE_FILE).write_text(
            json.dumps({"experiment": "nightly", "trials": {}})
        )
        with theirs.lock(id):
            trial = theirs.trials.create(id, 0, {}, 1)
            run = theirs.runs.begin(trial.id)
            theirs.metrics.report(trial.id, run.id, "training", 10, {"loss": 0.5})
            saved = theirs.home / "checkpoints" / "one"
            saved.mkdir(parents=True)
            (saved / "manifest.json").write_text('{"uuid": "one"}')
            theirs.checkpoints.record("one", trial.id, run.id, 10, storage="", size=1)
            theirs.trials.update(trial.id, batches=10)
            theirs.experiments.update(id, state=ExperimentState.PAUSED)
        Client(theirs.home).get_experiment(id).export(tmp_path / "file.tar")
    assert not canary.exists()
    with Store(tmp_path / "mine") as mine:
        made = Client(mine.home).import_experiment(tmp_path / "file.tar").id
        yield mine, made, canary


@pytest.mark.parametrize("deed", DEEDS)
def test_nothing_of_an_import_runs_before_it_is_trusted(
    imported: tuple[Store, int, Path], tmp_path: Path, deed: str
) -> None:
    store, id, canary = imported
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(StoreError, match=REFUSED):
        DEEDS[deed](store, id, scratch)
    assert not canary.exists()


def test_an_import_runs_once_it_is_trusted(imported: tuple[Store, int, Path]) -> None:
    store, id, canary = imported
    trust(store, id)
    trust(store, id)
    with pytest.raises(DetError, match="evil:Mine"):
        DEEDS["a weight"](store, id, canary)
    assert canary.exists()


def test_resuming_an_import_trusts_it(imported: tuple[Store, int, Path]) -> None:
    store, id, _ = imported
    assert not is_trusted(store, id)
    reopen(store, id)
    assert is_trusted(store, id)


def test_an_import_of_a_trusted_one_is_not_trusted(
    imported: tuple[Store, int, Path], tmp_path: Path
) -> None:
    store, id, _ = imported
    trust(store, id)
    client = Client(store.home)
    client.get_experiment(id).export(tmp_path / "again.tar")
    assert not is_trusted(store, client.import_experiment(tmp_path / "again.tar").id)
    assert is_trusted(store, id)


def test_an_import_is_canceled_without_its_engine(
    imported: tuple[Store, int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its configuration names the engine, and the hosts to reach."""
    store, id, _ = imported
    monkeypatch.setattr(Plugins, "engines", None)
    send_command(store, id, "cancel")
    assert store.experiments.get(id).state is ExperimentState.CANCELED


def test_storage_that_an_import_names_is_not_opened(
    imported: tuple[Store, int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on a host of somebody else, who would get this user's credentials."""
    store, id, _ = imported
    (row,) = store.checkpoints.list(experiment_id=id)
    monkeypatch.setattr(Plugins, "storage_of", None)
    assert list(storage_of_checkpoint(store, row, Plugins.installed()).list()) == ["one"]
    shutil.rmtree(store.home / "checkpoints" / "one")
    with pytest.raises(StoreError, match=REFUSED):
        Client(store.home).get_checkpoint("one").download(store.home / "copy")


def test_scripts_do_not_go_on_with_an_import(imported: tuple[Store, int, Path]) -> None:
    """Otherwise it gives a script its checkpoints."""
    store, id, _ = imported
    assert find_recorded(store, "nightly") is None
    trust(store, id)
    assert find_recorded(store, "nightly") == id


def test_trusting_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path) as store, pytest.raises(StoreError, match=r"^no experiment 7"):
        trust(store, 7)


def test_show_says_that_an_import_is_not_trusted(
    imported: tuple[Store, int, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store, id, _ = imported
    monkeypatch.setenv("DET_HOME", str(store.home))

    def said(*words: str) -> str:
        with pytest.raises(SystemExit):
            main([*words, str(id)])
        return capsys.readouterr().out

    sentence = f"nothing of it runs before det resume {id} or det trust {id}"
    assert sentence in " ".join(said("show").split())
    assert said("trust") == f"experiment {id} may run\n"
    assert sentence not in " ".join(said("show").split())
