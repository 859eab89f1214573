"""`det model`, and that nothing removes the checkpoint of a version."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from det_core import Plugins
from det_core.checkpoint import write_checkpoint
from det_core.config import parse, to_json
from det_core.errors import StoreError
from det_core.storage import LocalStorage
from det_driver.cli import main
from det_driver.client import Client
from det_driver.driver import collect_left
from det_driver.driver._connections import _handle
from det_driver.driver._deleting import Deleter
from det_driver.driver._garbage import expect_garbage
from det_driver.driver._transactions import Transactions
from det_driver.store import ExperimentState, Store, _models
from det_node import protocol

CONFIG = {
    "entrypoint": "m:T",
    "searcher": {"name": "single", "metric": "loss", "max_length": 10},
    "checkpoint_storage": {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 1},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with an ended experiment, whose trial has the checkpoints one, two and three."""
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DET_MASTER", raising=False)
    storage = {
        "type": "shared_fs",
        "host_path": str(tmp_path / "home" / "checkpoints"),
        **CONFIG["checkpoint_storage"],  # type: ignore[dict-item]
    }
    config = to_json(parse({**CONFIG, "checkpoint_storage": storage}).config)
    with Store(tmp_path / "home") as store:
        made = store.experiments.create(name="x", config=config, metric="loss")
        with store.lock(made.id):
            trial = store.trials.create(made.id, 0, {}, 0)
            run = store.runs.begin(trial.id)
            for batches, uuid in enumerate(("one", "two", "three"), 1):
                write_checkpoint(
                    LocalStorage(tmp_path / "home" / "checkpoints"),
                    lambda place, uuid=uuid: (place / "weight").write_text(uuid),
                    uuid=uuid,
                    framework="script",
                    batches=batches,
                )
                store.metrics.report(trial.id, run.id, "validation", batches, {"loss": 1 / batches})
                store.checkpoints.record(uuid, trial.id, run.id, batches, storage="{}", size=1)
            store.experiments.update(made.id, state=ExperimentState.COMPLETED)
    return tmp_path / "home"


class Typed:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str, status: int = 0) -> str:
        """Return what a command prints, or its error if `status` is not 0."""
        with pytest.raises(SystemExit) as end:
            main(list(words))
        out, err = self._capsys.readouterr()
        assert (end.value.code, bool(err)) == (status, bool(status)), out + err
        return err if status else out


@pytest.fixture
def det(home: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(capsys)


def files(home: Path) -> list[str]:
    return sorted(path.parent.name for path in (home / "checkpoints").glob("*/weight"))


def states(home: Path) -> list[str]:
    with Store.reader(home) as store:
        return [str(row.state) for row in store.checkpoints.list(experiment_id=1)]


def test_model_is_made_listed_shown_and_deleted(det: Typed) -> None:
    assert det("model", "list").split() == (
        ["name", "versions", "latest", "aliases", "labels", "changed", "description"]
    )
    assert det("model", "create", "digits", "--description", "reads", "--label", "a") == (
        "created model digits\n"
    )
    made = det("model", "add-version", "digits", "tw", "--alias", "production", "--name", "first")
    assert made == "checkpoint two is version 1 of model digits\n"
    det("model", "register-version", "digits", "three", "--notes", "n", "--metadata", "a=[1]")
    moved = det("model", "alias", "digits", "production", "2")
    assert moved == "digits@production is version 2, checkpoint three\n"
    listed = det("m", "list").splitlines()
    assert listed[1].split()[:6] == ["digits", "2", "2", "production:", "2", "a"]
    shown = det("model", "show", "digits").splitlines()
    assert shown[:3] == ["model digits has 2 versions", "description: reads", "labels: a"]
    assert [line.split()[:2] for line in shown[-2:]] == [["2", "production"], ["1", "two"]]
    assert det("model", "describe", "digits@production") == (
        "version 2 of model digits: checkpoint three of trial 1 of experiment 1 at batch 3,"
        " 0.333333 in validation\naliases: production\nmetadata: a=[1]\nnotes: n\n"
    )
    found = json.loads(det("model", "show", "digits/1", "--json"))
    assert (found["version"], found["name"], found["checkpoint"]["uuid"], found["experiment"]) == (
        1,
        "first",
        "two",
        1,
    )
    assert [v["uuid"] for v in json.loads(det("model", "show", "digits", "--json"))["list"]] == [
        "three",
        "two",
    ]
    refused = det("model", "delete", "digits/2", "--yes", status=2)
    assert refused.startswith("det: version 2 of model 'digits' has the alias 'production'; point")
    det("model", "alias", "digits", "production", "--remove")
    assert det("model", "delete", "digits/2", "--yes") == (
        "deleted version 2 of model digits\n"
        "its checkpoints stay; delete them with: det checkpoint delete UUID\n"
    )
    assert det("model", "delete", "digits", "--yes").startswith("deleted model digits\n")
    assert json.loads(det("model", "list", "--all", "--json")) == []


def test_model_and_version_are_edited(det: Typed, home: Path) -> None:
    det("model", "create", "digits", "--metadata", "a=1", "--metadata", "b=x")
    det("model", "add-version", "digits", "one")
    det("model", "edit", "digits", "--metadata", "b=", "--metadata", "c=2", "--label", "l")
    det("model", "edit", "digits", "--notes", "read this", "--name", "numbers", "--archive")
    det("model", "edit", "numbers/1", "--notes", "the first", "--name", "v1")
    [found] = Client().list_models(archived=True)
    assert (found.name, found.metadata, found.labels) == ("numbers", {"a": 1, "c": 2}, ["l"])
    assert (found.notes, found.description, found.archived) == ("read this", "", True)
    assert found.updated >= found.created
    version = found.get_version("latest")
    assert (version.notes, version.name, version.labels) == ("the first", "v1", [])
    assert (version.metadata, version.aliases, version.checkpoint.uuid) == ({}, [], "one")
    det("model", "edit", "numbers", "--label", "", "--unarchive")
    assert found.labels == []
    assert "numbers" in det("model", "list")
    assert [repr(each) for each in (found, version)] == [
        "Model(id=1, name='numbers')",
        "ModelVersion(model_name='numbers', version=1)",
    ]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["create", "x\x1b[2J"], r"the model 'x\x1b[2J' contains a character that cannot be"),
        (["create", "y", "--metadata", "a"], "--metadata is 'a'; give a key and a value, as in"),
        (["edit", "digits"], "nothing to change is given; see det model edit --help"),
        (["edit", "digits/1", "--archive"], "a version has no description of its own, and is not"),
        (["alias", "digits", "a"], "give either a VERSION or --remove; see det model alias"),
        (["alias", "digits", "a", "1", "--remove"], "give either a VERSION or --remove"),
        (["alias", "digits", "latest", "1"], "the alias 'latest' means the newest version already"),
        (["alias", "digits", "a", "7"], "model 'digits' has no version or alias '7'; it has vers"),
        (["add-version", "digits", "four"], "no checkpoint 'four'; det checkpoint list EXPERIMENT"),
        (["add-version", "digit", "one"], "no model 'digit'; did you mean 'digits'?"),
        (["show", "digits@x"], "model 'digits' has no version or alias 'x'; it has versions up to"),
    ],
)
def test_mistake_is_answered_in_one_line(det: Typed, words: list[str], error: str) -> None:
    det("model", "create", "digits")
    det("model", "add-version", "digits", "one")
    before = det("model", "show", "digits", "--json")
    said = det("model", *words, status=2)
    assert said.startswith(f"det: {error}")
    assert said.count("\n") == 1
    assert det("model", "show", "digits", "--json") == before


def test_version_stands_for_its_checkpoint(det: Typed, home: Path, tmp_path: Path) -> None:
    det("model", "create", "digits")
    det("model", "add-version", "digits", "one", "--alias", "production")
    det("model", "add-version", "digits", "two")
    for reference, uuid in {
        "model:digits@production": "one",
        "digits@production": "one",
        "digits/2": "two",
        "model:digits": "two",
    }.items():
        place = tmp_path / uuid / reference.replace("/", "-")
        assert det("checkpoint", "export", reference, str(place)) == (
            f"exported checkpoint {uuid} to {place}\n"
        )
        assert (place / "weight").read_text() == uuid
        assert det("checkpoint", "show", reference).startswith(f"checkpoint {uuid} of trial 1 ")
    assert det("checkpoint", "show", "model:digits@x", status=2).startswith(
        "det: model 'digits' has no version or alias 'x'"
    )


def test_version_of_a_lost_experiment_is_shown_and_deleted(det: Typed, home: Path) -> None:
    det("model", "create", "my digits")
    det("model", "add-version", "my digits", "one")
    refused = det("rm", "1", "--yes", status=2)
    assert refused.endswith("delete that first: det model delete 'my digits/1'\n")
    shutil.rmtree(home / "experiments" / "1")
    assert "one" in det("model", "show", "my digits").splitlines()[-1].split()
    assert det("model", "show", "my digits/1", status=2).startswith("det: no checkpoint 'one'")
    det("model", "delete", "my digits/1", "--yes")


KEPT = (
    "checkpoint two is version 1 of model 'digits', and is kept for it; delete that first: det model"
    " delete digits/1"
)


def test_no_command_deletes_the_checkpoint_of_a_version(det: Typed, home: Path) -> None:
    det("model", "create", "digits")
    det("model", "add-version", "digits", "two")
    for words in (
        ("checkpoint", "delete", "two", "--yes"),
        ("checkpoint", "delete", "digits@latest", "--yes"),
        ("checkpoint", "rm", "two", "--yes"),
        ("rm", "1", "--yes"),
        ("rm", "1", "--yes", "--keep-checkpoints"),
    ):
        assert det(*words, status=2) == f"det: {KEPT}\n"
    experiment = Client().get_experiment(1)
    for keep in (False, True):
        with pytest.raises(StoreError, match="is version 1 of model 'digits'"):
            experiment.delete(keep_checkpoints=keep)
    assert files(home) == ["one", "three", "two"]
    assert states(home) == ["COMPLETED"] * 3
    det("checkpoint", "delete", "one", "--yes")
    assert files(home) == ["three", "two"]
    det("model", "delete", "digits", "--yes")
    det("rm", "1", "--yes")
    assert files(home) == []


def test_collection_keeps_the_checkpoint_of_a_version(det: Typed, home: Path) -> None:
    det("model", "create", "digits")
    det("model", "add-version", "digits", "one")
    with Store(home) as store:
        expect_garbage(store, 1)
    assert det("gc") == "experiment 1: 1 checkpoints deleted\n"
    assert files(home) == ["one", "three"]
    assert states(home) == ["COMPLETED", "DELETED", "COMPLETED"]
    assert not [*(home / "garbage").iterdir()]


def test_collection_deletes_nothing_without_its_registry(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged registry cannot say what must be kept."""
    (home / "models.db").write_bytes(b"no database" * 1000)
    with Store(home) as store:
        expect_garbage(store, 1)
        assert collect_left(store, Plugins.installed()) == {1: []}
    assert "are still there: " in capsys.readouterr().err
    assert files(home) == ["one", "three", "two"]
    with pytest.raises(StoreError, match="is not a store of det"):
        Client().get_checkpoint("one").delete()
    assert files(home) == ["one", "three", "two"]


class Recording(Transactions):
    """The transactions of a driver, without its memory."""

    id = 1

    def _read(self) -> None:
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_no_version_is_added_while_a_driver_records_a_deletion(
    det: Typed, home: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Until the commit the checkpoint is complete for others, and files go soon after it."""
    monkeypatch.setattr(_models, "BUSY_SECONDS", 0.05)
    det("model", "create", "digits")
    event: Any = SimpleNamespace(envelope=protocol.Envelope(1, protocol.Deleted("one")))
    with Store(home) as store, store.lock(1), Store(home) as other:
        state: Any = Recording(store, Plugins.installed())
        with suppress(ZeroDivisionError), state.group():
            with state.transaction():
                _handle(state, state, state, event)
            with pytest.raises(StoreError, match="is locked by processes that delete checkpoints"):
                other.models.add_version("digits", "one")
            if fails:
                raise ZeroDivisionError
        if fails:
            assert other.models.add_version("digits", "one").uuid == "one"
            return
        with pytest.raises(StoreError, match="one is deleted; a version needs one that is comple"):
            other.models.add_version("digits", "one")


def test_a_version_that_is_added_meanwhile_is_not_collected(
    det: Typed, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the others are: the collection goes on."""
    det("model", "create", "digits")
    may_delete = Deleter.may_delete

    def add(deleter: Deleter, uuid: str) -> bool:
        if uuid == "one":
            with Store(home) as other:
                other.models.add_version("digits", uuid)
        return may_delete(deleter, uuid)

    monkeypatch.setattr(Deleter, "may_delete", add)
    with Store(home) as store:
        expect_garbage(store, 1)
        assert collect_left(store, Plugins.installed()) == {1: ["two"]}
    assert files(home) == ["one", "three"]


def test_driver_refuses_a_script_that_deletes_a_version(det: Typed, home: Path) -> None:
    det("model", "create", "digits")
    det("model", "add-version", "digits", "two")
    with Store(home) as store, store.lock(1):
        state: Any = Recording(store, Plugins.installed())
        for uuid in ("one", "two"):
            event: Any = SimpleNamespace(envelope=protocol.Envelope(1, protocol.Deleted(uuid)))
            if uuid == "one":
                with state.group():
                    assert _handle(state, state, state, event) == protocol.Reply(1)
                continue
            with state.group(), pytest.raises(StoreError, match="is version 1 of model 'digits'"):
                _handle(state, state, state, event)
    assert states(home) == ["DELETED", "COMPLETED", "COMPLETED"]
