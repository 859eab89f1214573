"""An experiment is a directory: it is moved as one file, and nothing of it lands where it does not belong."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from det_core.errors import ExperimentBusy, StoreError
from det_driver.store import ExperimentState, Store, export_experiment, import_experiment


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "other") as store:
        yield store


def made(store: Store, name: str = "mine", trials: int = 2) -> int:
    """An experiment with trials that have logs, metrics and a checkpoint each, the second started from the first's."""
    id = store.experiments.create(name=name, config="{}", metric="loss").id
    with store.lock(id):
        for request in range(trials):
            source = f"{name}-0" if request else None
            trial = store.trials.create(id, request, {"n": request}, seed=request, source_checkpoint=source)
            run = store.runs.begin(trial.id)
            run.log_dir.mkdir(parents=True)
            (run.log_dir / "rank-0.log").write_text(f"trial {request}\n")
            (store.experiment_dir(id) / "tensorboard" / f"trial-{trial.id}").mkdir(parents=True)
            store.metrics.report(trial.id, run.id, "validation", 10, {"loss": 0.5 + request})
            for batches in range(10):
                store.metrics.report(trial.id, run.id, "training", batches, {"loss": 0.6 + request})
            saved = store.home / "checkpoints" / f"{name}-{request}"
            saved.mkdir(parents=True)
            (saved / "weights").write_bytes(b"w" * 1000)
            store.checkpoints.record(saved.name, trial.id, run.id, 10, storage=saved.as_uri(), size=1000)
            store.runs.end(run.id, "COMPLETED")
        store.journal.append(id, '{"n": 1}')
        (store.code_dir(id) / "deep").mkdir(parents=True)
        (store.code_dir(id) / "deep" / "model_def.py").write_text("x = 1\n")
        store.experiments.update(id, state=ExperimentState.PAUSED, progress=0.5)
    return id


def facts(store: Store, id: int) -> object:
    """All that an experiment holds, but for its own and its trials' numbers."""
    trials = store.trials.list(id)
    return (
        [event.data for event in store.journal.read(id)],
        [(t.request, t.hparams, t.best_metric, t.latest_checkpoint, t.source_checkpoint) for t in trials],
        [(r.number, r.outcome, (r.log_dir / "rank-0.log").read_text()) for t in trials for r in store.runs.list(t.id)],
        [(m.batches, m.values) for m in store.metrics.read(experiment_id=id)],
        [(c.uuid, c.size, c.metric) for c in store.checkpoints.list(experiment_id=id)],
        (store.code_dir(id) / "deep" / "model_def.py").read_text(),
        [(store.experiment_dir(id) / "tensorboard" / f"trial-{t.id}").is_dir() for t in trials],
        store.experiments.get(id).state,
    )


def test_an_experiment_goes_to_another_home_as_it_was(store: Store, other: Store, tmp_path: Path) -> None:
    made(store, "first")
    id = made(store)
    assert export_experiment(store, id, tmp_path / "file.tar") == 2

    assert import_experiment(other, tmp_path / "file.tar") == id

    assert facts(other, id) == facts(store, id)
    assert [t.id for t in other.trials.list(id)] == [t.id for t in store.trials.list(id)]
    saved = other.checkpoints.list(experiment_id=id)[0]
    assert saved.storage == (other.home / "checkpoints" / saved.uuid).as_uri()
    assert (other.home / "checkpoints" / saved.uuid / "weights").read_bytes() == b"w" * 1000
    assert [each.experiment.id for each in other.experiments.list()] == [id]
    assert other.experiments.create(name="next", config="{}").id == id + 1


def test_what_a_driver_and_its_agents_know_of_one_another_stays_at_home(store: Store, tmp_path: Path) -> None:
    id = made(store)
    store.agents_dir(id).mkdir()
    (store.agents_dir(id) / "secret").write_text("0123456789")

    export_experiment(store, id, tmp_path / "file.tar")

    with tarfile.open(tmp_path / "file.tar") as tar:
        assert [name for name in tar.getnames() if "agents" in name] == []


def test_numbers_that_are_taken_are_replaced(store: Store, tmp_path: Path) -> None:
    """A home that has the experiment already gets a copy of it."""
    id = made(store, trials=5)
    export_experiment(store, id, tmp_path / "file.tar")

    copy = import_experiment(store, tmp_path / "file.tar")

    assert copy == id + 1
    assert facts(store, copy) == facts(store, id)
    mine, theirs = ({t.id for t in store.trials.list(each)} for each in (id, copy))
    assert not mine & theirs
    assert all(store.trials.get(trial).experiment_id == copy for trial in theirs)
    assert store.checkpoints.elsewhere(id) == {f"mine-{k}" for k in range(5)}, "a copy has the same checkpoints"
    with store.lock(copy):
        assert store.trials.create(copy, 9, {}, 0).id not in mine | theirs


def test_checkpoints_stay_behind_where_that_is_asked_for(store: Store, other: Store, tmp_path: Path) -> None:
    id = made(store)
    assert export_experiment(store, id, tmp_path / "file.tar", checkpoints=False) == 0
    import_experiment(other, tmp_path / "file.tar")
    assert not (other.home / "checkpoints").exists()


def test_one_that_is_driven_is_not_exported_and_no_file_is_written_over(store: Store, tmp_path: Path) -> None:
    id = made(store)
    with Store(store.home) as driver, driver.lock(id), pytest.raises(ExperimentBusy, match=r"is held by process"):
        export_experiment(store, id, tmp_path / "file.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]

    (tmp_path / "file.tar").write_text("mine")
    with pytest.raises(StoreError, match=r"file.tar exists already; name another file$"):
        export_experiment(store, id, tmp_path / "file.tar")
    with pytest.raises(StoreError, match=r"^cannot write .*: No such file or directory; choose another place$"):
        export_experiment(store, id, tmp_path / "nowhere" / "file.tar")


def no_tar(file: Path) -> None:
    file.write_bytes(b"no tar" * 1000)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def one_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[data.index(b"w" * 1000) + 500] ^= 1
    file.write_bytes(data)


def of_tomorrow(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'{"format": 1,', b'{"format": 2,'))


def somebodys(file: Path) -> None:
    with tarfile.open(file, "w") as tar:
        tar.addfile(tarfile.TarInfo("det-experiment.txt"))


def outwards(file: Path) -> None:
    with tarfile.open(file, "a") as tar:
        member = tarfile.TarInfo("../../../stolen")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"ha!"))


def linked_outwards(file: Path) -> None:
    with tarfile.open(file, "a") as tar:
        member = tarfile.TarInfo("experiment/link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)


def a_stowaway(file: Path) -> None:
    with tarfile.open(file, "a") as tar:
        tar.addfile(tarfile.TarInfo("experiment/code/sitecustomize.py"))


def without_database(file: Path) -> None:
    with tarfile.open(file, "w") as tar:
        for name, value in (("det-experiment.json", {"format": 1, "experiment": 1}), ("det-digests.json", {})):
            data = json.dumps(value).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


SPOILT = (no_tar, cut_short, one_bit, of_tomorrow, somebodys, outwards, linked_outwards, a_stowaway, without_database)


@pytest.mark.parametrize("spoil", SPOILT)
def test_files_that_are_damaged_or_no_exports_are_refused_and_leave_nothing(
    store: Store, other: Store, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    file = tmp_path / "file.tar"
    export_experiment(store, made(store), file)
    spoil(file)
    assert other.experiments.list() == []
    before = sorted(path for path in tmp_path.rglob("*") if not path.name.startswith("index.db"))

    with pytest.raises(
        StoreError, match=r"^\S+/file.tar is no whole export of an experiment \(.+\); make another with det export$"
    ):
        import_experiment(other, file)

    assert sorted(path for path in tmp_path.rglob("*") if not path.name.startswith("index.db")) == before
    assert other.experiments.list() == []


def test_a_file_that_is_not_there_is_named(other: Store, tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"^cannot import .*/file.tar: No such file or directory; see that it can be read"
    ):
        import_experiment(other, tmp_path / "file.tar")
