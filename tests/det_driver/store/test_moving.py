"""An experiment is a directory.

It is moved as one file, and nothing of it lands where it does not belong.
"""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.support.crafted import reads_safely
from tests.support.exports import repack

from det_core.config import Extensions, from_json, to_json
from det_core.errors import ExperimentBusy, StorageError, StoreError
from det_core.hooks import Plugins
from det_driver.cli import main
from det_driver.client import Client
from det_driver.config import load
from det_driver.driver import collect_left, create, environment_of, reopen
from det_driver.driver._garbage import expect_garbage
from det_driver.driver._recover import end_leftovers
from det_driver.driver._state import State
from det_driver.store import (
    ExperimentState,
    Store,
    export_experiment,
    import_experiment,
    missing_secrets,
)
from det_node.process import note_process, noted_processes


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "other") as store:
        yield store


def made(store: Store, name: str = "mine", trials: int = 2) -> int:
    """An experiment with trials that have logs, metrics and a checkpoint each.

    The second started from the first's.
    """
    id = store.experiments.create(name=name, config="{}", metric="loss").id
    with store.lock(id):
        for request in range(trials):
            source = f"{name}-0" if request else None
            trial = store.trials.create(
                id, request, {"n": request}, seed=request, source_checkpoint=source
            )
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
            (saved / "manifest.json").write_text(json.dumps({"uuid": saved.name}))
            store.checkpoints.record(
                saved.name, trial.id, run.id, 10, storage=saved.as_uri(), size=1000
            )
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
        [
            (t.request, t.hparams, t.best_metric, t.latest_checkpoint, t.source_checkpoint)
            for t in trials
        ],
        [
            (r.number, r.outcome, (r.log_dir / "rank-0.log").read_text())
            for t in trials
            for r in store.runs.list(t.id)
        ],
        [(m.batches, m.values) for m in store.metrics.read(experiment_id=id)],
        [(c.uuid, c.size, c.metric) for c in store.checkpoints.list(experiment_id=id)],
        (store.code_dir(id) / "deep" / "model_def.py").read_text(),
        [(store.experiment_dir(id) / "tensorboard" / f"trial-{t.id}").is_dir() for t in trials],
        store.experiments.get(id).state,
        [each.experiment.progress for each in store.experiments.list() if each.experiment.id == id],
    )


def test_an_experiment_goes_to_another_home_as_it_was(
    store: Store, other: Store, tmp_path: Path
) -> None:
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


def test_agent_state_of_a_driver_is_not_exported(store: Store, tmp_path: Path) -> None:
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
    assert store.checkpoints.elsewhere(id) == {f"mine-{k}" for k in range(5)}, (
        "a copy has the same checkpoints"
    )
    with store.lock(copy):
        assert store.trials.create(copy, 9, {}, 0).id not in mine | theirs


def test_checkpoints_stay_behind_where_that_is_asked_for(
    store: Store, other: Store, tmp_path: Path
) -> None:
    id = made(store)
    assert export_experiment(store, id, tmp_path / "file.tar", checkpoints=False) == 0
    import_experiment(other, tmp_path / "file.tar")
    assert not (other.home / "checkpoints").exists()


def test_driven_experiment_and_existing_file_prevent_export(store: Store, tmp_path: Path) -> None:
    id = made(store)
    with (
        Store(store.home) as driver,
        driver.lock(id),
        pytest.raises(ExperimentBusy, match=r"is held by process"),
    ):
        export_experiment(store, id, tmp_path / "file.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]

    (tmp_path / "file.tar").write_text("mine")
    with pytest.raises(StoreError, match=r"file.tar exists already; name another file$"):
        export_experiment(store, id, tmp_path / "file.tar")
    with pytest.raises(
        StoreError, match=r"^cannot write .*: No such file or directory; choose another place$"
    ):
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
        for name, value in (
            ("det-experiment.json", {"format": 1, "experiment": 1}),
            ("det-digests.json", {}),
        ):
            data = json.dumps(value).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


SPOILT = (
    no_tar,
    cut_short,
    one_bit,
    of_tomorrow,
    somebodys,
    outwards,
    linked_outwards,
    a_stowaway,
    without_database,
)


@pytest.mark.parametrize("spoil", SPOILT)
def test_damaged_or_foreign_files_are_refused_without_a_trace(
    store: Store, other: Store, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    file = tmp_path / "file.tar"
    export_experiment(store, made(store), file)
    spoil(file)
    assert other.experiments.list() == []
    before = sorted(path for path in tmp_path.rglob("*") if not path.name.startswith("index.db"))

    with pytest.raises(
        StoreError,
        match=(
            r"^\S+/file.tar is no whole export of an experiment \(.+\); make another with det"
            r" export$"
        ),
    ):
        import_experiment(other, file)

    assert (
        sorted(path for path in tmp_path.rglob("*") if not path.name.startswith("index.db"))
        == before
    )
    assert other.experiments.list() == []


def test_a_file_that_is_not_there_is_named(other: Store, tmp_path: Path) -> None:
    with pytest.raises(
        StoreError,
        match=r"^cannot import .*/file.tar: No such file or directory; see that it can be read",
    ):
        import_experiment(other, tmp_path / "file.tar")


def with_sql(*statements: str) -> Callable[[Path], None]:
    def change(scratch: Path) -> None:
        with closing(sqlite3.connect(scratch / "experiment" / "experiment.db")) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()

    return change


def link_out(scratch: Path) -> None:
    """Inside the file it leads nowhere; once it is imported, into another experiment."""
    (scratch / "experiment" / "trials" / "x").symlink_to("../../2/trials")


def link_checkpoint(scratch: Path) -> None:
    (scratch / "checkpoints" / "x").symlink_to("../experiment")


def without_manifest(scratch: Path) -> None:
    (scratch / "checkpoints" / "mine-0" / "manifest.json").write_text('{"uuid": "another"}')


def head(scratch: Path, text: str) -> None:
    (scratch / "det-experiment.json").write_text(text)


def digests(scratch: Path, text: str) -> None:
    (scratch / "det-digests.json").write_text(text)


def negative_number(scratch: Path) -> None:
    head(scratch, '{"format": 1, "experiment": -4}')


HOSTILE = {
    "a path for a uuid": with_sql(
        "UPDATE checkpoints SET uuid = '../../documents' WHERE uuid = 'mine-0'"
    ),
    "a uuid longer than a name": with_sql(
        f"UPDATE checkpoints SET uuid = '{'a' * 5000}' WHERE uuid = 'mine-0'"
    ),
    "a directory for a uuid": lambda scratch: (scratch / "checkpoints" / "a b").mkdir(),
    "a path for a latest checkpoint": with_sql("UPDATE trials SET latest_checkpoint = '/home'"),
    "logs elsewhere": with_sql("UPDATE runs SET log_dir = '/var/log'"),
    "logs above": with_sql("UPDATE runs SET log_dir = '../../../secret'"),
    "a trigger": with_sql(
        "CREATE TRIGGER t AFTER UPDATE ON experiment BEGIN DELETE FROM trials; END"
    ),
    "a view": with_sql("CREATE VIEW v AS SELECT * FROM trials"),
    "another table": with_sql("CREATE TABLE t (x)"),
    "a text for a number": with_sql("UPDATE trials SET batches = 'many'"),
    "bytes for a text": with_sql("UPDATE experiment SET name = x'00ff'"),
    "a state that is none": with_sql("UPDATE trials SET state = 'DANCING'"),
    "a configuration that is none": with_sql("UPDATE experiment SET config = '[]'"),
    "hyperparameters that are none": with_sql("UPDATE trials SET hparams = '[1]'"),
    "labels that are none": with_sql("""UPDATE experiment SET labels = '{"a": 1}'"""),
    "a block of no numbers": with_sql("UPDATE blocks SET first = -5"),
    "metrics that are none": with_sql("UPDATE metrics SET data = 'x'"),
    "a chunk that is none": with_sql(
        "INSERT INTO chunks SELECT 1000, min(id), 'x', 1, 2, 2, x'00', 0 FROM trials"
    ),
    "rows of no trial": with_sql("PRAGMA foreign_keys = OFF", "DELETE FROM trials"),
    "a trial below zero": with_sql(
        "DELETE FROM runs",
        "DELETE FROM metrics",
        "DELETE FROM checkpoints",
        "UPDATE trials SET id = -3 WHERE id = 1",
    ),
    "a last number of no bounds": with_sql("UPDATE sqlite_sequence SET seq = 9223372036854775807"),
    "a time without end": with_sql("UPDATE experiment SET started = -9e999"),
    "a time far away": with_sql("UPDATE runs SET started = 1e300"),
    "an event that is none": with_sql("UPDATE journal SET event = 'x'"),
    "no experiment": with_sql("DELETE FROM experiment"),
    "a newer schema": with_sql("PRAGMA user_version = 1000"),
    "an empty schema": with_sql("PRAGMA user_version = 0"),
    "a link out": link_out,
    "a linked checkpoint": link_checkpoint,
    "a checkpoint of another": without_manifest,
    "a number below zero": negative_number,
    "digests that are a text": lambda scratch: digests(scratch, '"x"'),
    "digests that are a number": lambda scratch: digests(scratch, "5"),
    "digests that are deep": lambda scratch: digests(scratch, "[" * 200_000),
    "a head that is a list": lambda scratch: head(scratch, "[1]"),
    "a head that is deep": lambda scratch: head(scratch, '{"format": ' + "[" * 200_000),
    "a number of many digits": lambda scratch: head(
        scratch, '{"format": 1, "experiment": ' + "9" * 6000 + "}"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_export_that_somebody_has_changed_is_refused(
    store: Store, other: Store, tmp_path: Path, name: str
) -> None:
    """Every row and every link is looked at; nothing runs, and nothing is left."""
    file = tmp_path / "file.tar"
    export_experiment(store, made(store), file)
    repack(file, HOSTILE[name])
    assert not reads_safely(lambda: import_experiment(other, file), tmp_path, StoreError)
    with pytest.raises(
        StoreError,
        match=r"is no whole export of an experiment \(.+\); make another with det export$",
    ):
        import_experiment(other, file)
    assert list((other.home / "experiments").iterdir()) == []


@pytest.mark.parametrize("mtime", ["1e300", "nan", "-1e18", "later"])
def test_odd_times_of_files_do_not_matter(
    store: Store, other: Store, tmp_path: Path, mtime: str
) -> None:
    file = tmp_path / "file.tar"
    export_experiment(store, made(store), file)
    with tarfile.open(file) as tar, tarfile.open(tmp_path / "odd.tar", "w") as odd:
        for member in tar:
            member.pax_headers = {"mtime": mtime} if member.isreg() else {}
            odd.addfile(member, tar.extractfile(member) if member.isreg() else None)
    id = import_experiment(other, tmp_path / "odd.tar")
    assert facts(other, id) == facts(store, 1)


def test_trials_keep_to_numbers_that_a_home_counts(
    store: Store, other: Store, tmp_path: Path
) -> None:
    """The next trial of the home gets the number after the highest, whatever an import says."""
    file = tmp_path / "file.tar"
    id = made(store, trials=3)
    export_experiment(store, id, file)

    def change(scratch: Path) -> None:
        far = 9 * 10**17
        statements = [
            f"UPDATE {table} SET {column} = {far} + 5 WHERE {column} = 3"
            for table, column in (
                *(("trials", "id"), ("runs", "trial_id"), ("metrics", "trial_id")),
                *(("chunks", "trial_id"), ("checkpoints", "trial_id")),
            )
        ]
        with_sql(
            "PRAGMA foreign_keys = OFF",
            *statements,
            f"UPDATE runs SET log_dir = 'trials/{far + 5}/run-1' WHERE trial_id = {far + 5}",
            f"UPDATE blocks SET last = {far}",
        )(scratch)
        inside = scratch / "experiment"
        (inside / "trials" / "3").rename(inside / "trials" / str(far + 5))
        (inside / "tensorboard" / "trial-3").rename(inside / "tensorboard" / f"trial-{far + 5}")
        (inside / "trials" / "3" / "run-1").mkdir(parents=True)
        (inside / "tensorboard" / "trial-3").symlink_to("trial-1")

    repack(file, change)
    copy = import_experiment(other, file)
    assert [trial.id for trial in other.trials.list(copy)] == [1, 2, 3]
    assert facts(other, copy) == facts(store, id)
    with other.lock(copy):
        assert other.trials.create(copy, 9, {}, 0).id == 4
    again = import_experiment(other, file)
    assert [trial.id for trial in other.trials.list(again)] == [7, 8, 9]
    assert facts(other, again) == facts(store, id)


def test_what_only_the_old_home_needs_is_not_imported(
    store: Store, other: Store, tmp_path: Path
) -> None:
    """Agents, commands, checkpoints to record, and notes of processes."""
    file = tmp_path / "file.tar"
    export_experiment(store, made(store), file)
    notes = (
        *("agents/1.json", "commands/1.json", "spool/1.json", "secrets.json", ".hidden", "plugin"),
        *("trials/1/run-1/process.json", "trials/1/run-1/process-3.json", "trials/2/run-7/x.log"),
        "trials/1/run-2/scratch/socket",
    )

    def add(scratch: Path) -> None:
        for name in notes:
            place = scratch / "experiment" / name
            place.parent.mkdir(exist_ok=True, parents=True)
            place.write_text('{"pid": 1}')
        (scratch / "experiment" / "trials/1/run-9").symlink_to("../../code")

    repack(file, add)
    place = other.experiment_dir(import_experiment(other, file))
    assert sorted(path.name for path in place.iterdir()) == [
        *("code", "experiment.db", "tensorboard", "trials", "untrusted"),
    ]
    assert sorted(
        path.relative_to(place).as_posix()
        for path in (place / "trials").rglob("*")
        if not path.is_dir() or path.is_symlink()
    ) == ["trials/1/run-1/rank-0.log", "trials/2/run-1/rank-0.log"]


def test_an_import_ends_no_process_of_this_machine(
    store: Store, other: Store, tmp_path: Path, processes: None
) -> None:
    """Its database may have runs that have not ended, and notes of their processes."""
    file = tmp_path / "file.tar"
    export_experiment(store, made(store), file)
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as victim, ExitStack() as end:
        end.callback(victim.kill)

        def add(scratch: Path) -> None:
            run = scratch / "experiment" / "trials" / "1" / "run-1"
            note_process(run, victim.pid)
            (run / "process.json").rename(run / "process-0.log")
            note_process(run, victim.pid)
            with_sql("UPDATE runs SET ended = NULL, outcome = NULL")(scratch)

        repack(file, add)
        id = import_experiment(other, file)
        assert other.runs.open(id) == []
        with other.lock(id):
            end_leftovers(other, id, 0.0, lambda: True)
        for run in other.runs.list(1):
            assert run.outcome == "LOST"
            assert run.ended is not None
            assert noted_processes(run.log_dir) == []
        assert victim.poll() is None


def test_secrets_do_not_travel_and_the_file_is_its_owners(
    store: Store, other: Store, tmp_path: Path
) -> None:
    """Not in any page of the database either; who imports it learns which are missing."""
    id = made(store)
    config = {
        "environment": {"environment_variables": ["HF_TOKEN=hf_deadbeef", "DEPTH=3"]},
        "checkpoint_storage": {
            "type": "s3",
            "bucket": "b",
            "access_key": "AKIASECRET",
            "secret_key": "sk-12345",
        },
        "data": {"url": "https://user:pa55w0rd@host/data"},
    }
    with store.lock(id):
        store.experiments.update(id, config=to_json(from_json(json.dumps(config))))
    export_experiment(store, id, tmp_path / "file.tar")

    assert (tmp_path / "file.tar").stat().st_mode & 0o777 == 0o600
    held = (tmp_path / "file.tar").read_bytes()
    assert [
        secret
        for secret in (b"hf_deadbeef", b"AKIASECRET", b"sk-12345", b"pa55w0rd")
        if secret in held
    ] == []
    imported = from_json(
        other.experiments.get(import_experiment(other, tmp_path / "file.tar")).config
    )
    assert missing_secrets(imported) == [
        "HF_TOKEN",
        "checkpoint_storage.access_key",
        "checkpoint_storage.secret_key",
        "data.url",
    ]
    assert missing_secrets(from_json(store.experiments.get(id).config)) == []
    environ = environment_of({"HF_TOKEN": "mine"}, imported, gpus=False)
    assert (environ["HF_TOKEN"], environ["DEPTH"]) == ("mine", "3")
    with pytest.raises(
        StoreError,
        match=r"came without its secrets, as every export does: set HF_TOKEN, checkpoint",
    ):
        reopen(other, id)


SECRETS = ("hf_deadbeef", "AKIASECRET", "sk-12345", "pa55w0rd")
WITH_SECRETS = """
name: secretive
entrypoint: model:Trial
environment:
  environment_variables: [HF_TOKEN=hf_deadbeef, DEPTH=3]
checkpoint_storage: {type: s3, bucket: b, access_key: AKIASECRET, secret_key: sk-12345}
data: {url: "https://user:pa55w0rd@host/data"}
searcher: {name: single, metric: loss, max_length: {batches: 1}}
"""


def files_with(secrets: Iterable[str], place: Path) -> list[str]:
    """Return the names of the files that hold any of some texts.

    A directory's, with those below it.
    """
    files = [each for each in place.rglob("*") if each.is_file()]
    return sorted(
        each.name
        for each in files
        if any(secret.encode() in each.read_bytes() for secret in secrets)
    )


@pytest.fixture
def secretive(store: Store, tmp_path: Path) -> int:
    """An experiment whose configuration has secrets; so has that of another one in its code."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "model.py").write_text("class Trial: ...\n")
    (code / "other.yaml").write_text(
        "name: other\nenvironment:\n  environment_variables: [API_TOKEN=other-t0ken]\n"
    )
    (code / "mine.yaml").write_text(WITH_SECRETS)
    return create(store, load(WITH_SECRETS, extensions=Extensions(open=True)).config, code)


def test_secrets_are_in_one_file_of_the_experiment(store: Store, secretive: int) -> None:
    """It is its owner's.

    Databases and the index have them masked, and who trains gets them back.
    """
    store.index.repair()
    store.experiments.update(secretive, progress=0.5)
    assert files_with(SECRETS, store.home) == ["mine.yaml", "secrets.json"]
    assert (store.experiment_dir(secretive) / "secrets.json").stat().st_mode & 0o777 == 0o600
    wanted = load(WITH_SECRETS, extensions=Extensions(open=True)).config
    config = store.experiments.config(secretive)
    assert (config.checkpoint_storage, config.environment, config.data) == (
        *(wanted.checkpoint_storage, wanted.environment, wanted.data),
    )
    assert State(store, secretive, Plugins.installed()).config == config
    reopen(store, secretive)


def test_an_export_has_no_secrets_of_configurations_in_its_code(
    store: Store, other: Store, tmp_path: Path, secretive: int
) -> None:
    Client(store.home).get_experiment(secretive).export(tmp_path / "file.tar")
    held = (tmp_path / "file.tar").read_bytes()
    assert [secret for secret in (*SECRETS, "other-t0ken") if secret.encode() in held] == []
    copy = import_experiment(other, tmp_path / "file.tar")
    assert files_with([*SECRETS, "other-t0ken"], other.home) == []
    assert "API_TOKEN=********" in (other.code_dir(copy) / "other.yaml").read_text()
    assert (other.code_dir(copy) / "model.py").read_text() == "class Trial: ...\n"
    with pytest.raises(
        StoreError,
        match=r"came without its secrets, as every export does: set HF_TOKEN, checkpoint",
    ):
        reopen(other, copy)


def test_secrets_stored_by_an_earlier_det_move_to_their_file(store: Store, secretive: int) -> None:
    """Its databases have whole configurations.

    The next driver moves the secrets, and no free page keeps them.
    """
    config = store.experiments.config(secretive)
    (store.experiment_dir(secretive) / "secrets.json").unlink()
    store.experiments.update(secretive, config=to_json(config))
    assert store.experiments.config(secretive) == config
    with store.lock(secretive):
        store.experiments.hide_secrets(secretive)
        store.experiments.hide_secrets(secretive)
    assert store.experiments.config(secretive) == config
    with store.lock(secretive) as database:
        database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    assert files_with(SECRETS, store.experiment_dir(secretive)) == ["mine.yaml", "secrets.json"]


@pytest.mark.parametrize("data", [b"", b"{", b"[[1]]", b"7", b"[[[], []]]", b"\xff"])
def test_a_file_of_secrets_that_is_damaged_is_named(
    store: Store, secretive: int, data: bytes
) -> None:
    (store.experiment_dir(secretive) / "secrets.json").write_bytes(data)
    with pytest.raises(StoreError, match=r"secrets\.json is damaged"):
        store.experiments.config(secretive)


@pytest.mark.parametrize("confirmed", [False, True], ids=["plain", "with a manifest"])
def test_an_import_deletes_nothing_outside_of_the_home(
    store: Store, other: Store, tmp_path: Path, confirmed: bool
) -> None:
    """The database says where checkpoints are, and what they are called.

    Neither gives it a right to anything here.
    """
    documents = tmp_path / "person" / "documents"
    documents.mkdir(parents=True)
    (documents / "thesis").write_text("all of it")
    if confirmed:
        (documents / "manifest.json").write_text('{"uuid": "documents"}')
    storage = {
        "type": "shared_fs",
        "host_path": str(documents.parent),
        "save_trial_best": 0,
        "save_trial_latest": 0,
    }
    config = json.dumps(
        {"checkpoint_storage": storage, "searcher": {"name": "single", "metric": "loss"}}
    )
    id = made(store)
    export_experiment(store, id, tmp_path / "file.tar", checkpoints=False)
    change = with_sql(
        f"UPDATE experiment SET state = 'COMPLETED', config = '{config}'",
        "UPDATE trials SET source_checkpoint = NULL, latest_checkpoint = 'documents'",
        f"UPDATE checkpoints SET uuid = 'documents', storage = '{documents.as_uri()}' WHERE uuid ="
        " 'mine-0'",
    )
    repack(tmp_path / "file.tar", change)
    client = Client(other.home)
    experiment = client.import_experiment(tmp_path / "file.tar")

    expect_garbage(other, experiment.id)
    assert collect_left(other, Plugins.installed()) == {experiment.id: []}
    with pytest.raises(
        StorageError,
        match=r"checkpoint documents came with det import and does not lie in .*/checkpoints",
    ):
        client.get_checkpoint("documents").delete()
    assert experiment.delete() == ["documents", "mine-1"]
    assert (documents / "thesis").read_text() == "all of it"


def test_imported_checkpoints_are_deleted_with_their_experiment(
    store: Store, other: Store, tmp_path: Path
) -> None:
    export_experiment(store, made(store), tmp_path / "file.tar")
    experiment = Client(other.home).import_experiment(tmp_path / "file.tar")
    assert experiment.delete() == []
    assert list((other.home / "checkpoints").iterdir()) == []


KEEPS_NONE = {
    "checkpoint_storage": {
        "type": "shared_fs",
        "host_path": "/nowhere",
        "save_experiment_best": 0,
        "save_trial_best": 0,
        "save_trial_latest": 0,
    },
    "searcher": {"name": "single", "metric": "loss"},
}
ENDED = f"UPDATE experiment SET state = 'COMPLETED', config = '{json.dumps(KEEPS_NONE)}'"


def checkpoints_in(store: Store) -> list[str]:
    return sorted(path.name for path in (store.home / "checkpoints").iterdir())


def collect(store: Store, id: int) -> list[str]:
    expect_garbage(store, id)
    return collect_left(store, Plugins.installed())[id]


def test_a_copy_leaves_the_checkpoints_of_the_original(
    store: Store, other: Store, tmp_path: Path
) -> None:
    """Whatever its configuration says, and whether the original can be read or not."""
    id = made(store)
    export_experiment(store, id, tmp_path / "file.tar")
    repack(tmp_path / "file.tar", with_sql(ENDED, "UPDATE trials SET source_checkpoint = NULL"))
    client = Client(store.home)
    copy = client.import_experiment(tmp_path / "file.tar")

    assert collect(store, copy.id) == []
    assert copy.delete() == ["mine-0", "mine-1"]
    assert checkpoints_in(store) == ["mine-0", "mine-1"]
    assert {c.state for c in store.checkpoints.list(experiment_id=id)} == {"COMPLETED"}

    another = client.import_experiment(tmp_path / "file.tar")
    store.experiments.release(id)
    (store.experiment_dir(id) / "experiment.db").write_bytes(b"")
    with pytest.raises(StoreError, match=rf"^experiment {id} cannot be read, and may need these"):
        another.delete()
    assert checkpoints_in(store) == ["mine-0", "mine-1"]


def test_an_original_keeps_the_checkpoints_of_its_copy(store: Store, tmp_path: Path) -> None:
    id = made(store)
    export_experiment(store, id, tmp_path / "file.tar")
    copy = import_experiment(store, tmp_path / "file.tar")
    store.experiments.update(id, state=ExperimentState.COMPLETED, config=json.dumps(KEEPS_NONE))
    assert collect(store, id) == []
    assert Client(store.home).get_experiment(id).delete() == ["mine-0", "mine-1"]
    assert checkpoints_in(store) == ["mine-0", "mine-1"]
    assert len(store.checkpoints.list(experiment_id=copy)) == 2


def test_checkpoints_that_an_import_brings_are_collected(
    store: Store, other: Store, tmp_path: Path
) -> None:
    export_experiment(store, made(store), tmp_path / "file.tar")
    repack(tmp_path / "file.tar", with_sql(ENDED, "UPDATE trials SET source_checkpoint = NULL"))
    id = import_experiment(other, tmp_path / "file.tar")
    assert collect(other, id) == ["mine-0", "mine-1"]
    assert checkpoints_in(other) == []


def test_an_import_deletes_no_checkpoint_that_it_only_names(
    store: Store, other: Store, tmp_path: Path
) -> None:
    """The home may have checkpoints that no experiment of it has recorded."""
    precious = other.home / "checkpoints" / "precious"
    precious.mkdir(parents=True)
    (precious / "manifest.json").write_text('{"uuid": "precious"}')
    export_experiment(store, made(store), tmp_path / "file.tar", checkpoints=False)
    change = with_sql(
        ENDED,
        "UPDATE trials SET source_checkpoint = NULL, latest_checkpoint = 'precious'",
        "UPDATE checkpoints SET uuid = 'precious', imported = 3 WHERE uuid = 'mine-0'",
    )
    repack(tmp_path / "file.tar", change)
    experiment = Client(other.home).import_experiment(tmp_path / "file.tar")
    assert collect(other, experiment.id) == []
    assert experiment.delete() == ["mine-1", "precious"]
    assert checkpoints_in(other) == ["precious"]


def test_an_import_does_not_hide_the_checkpoints_of_another(store: Store, tmp_path: Path) -> None:
    id = made(store)
    export_experiment(store, id, tmp_path / "file.tar")
    import_experiment(store, tmp_path / "file.tar")
    for name in ("mine-0", "mine-1"):
        trial = store.checkpoints.get(name).trial_id
        assert store.trials.get(trial).experiment_id == id
    Client(store.home).get_checkpoint("mine-0").delete()
    assert store.checkpoints.get("mine-0").state == "DELETED"
    with store.lock(copy := id + 1):
        trial = store.checkpoints.get("mine-1").trial_id
        assert store.trials.get(trial).experiment_id == copy


def test_import_brings_no_alerts_for_webhooks_of_another_home(
    store: Store, other: Store, tmp_path: Path
) -> None:
    id = made(store)
    with store.lock(id):
        store.alerts.add("an-id", "team", "failed", {})
    export_experiment(store, id, tmp_path / "file")
    assert other.alerts.list(import_experiment(other, tmp_path / "file")) == []


def test_a_new_home_is_not_said_to_have_lost_its_index(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither by the import, nor by the next command."""
    export_experiment(store, made(store), tmp_path / "file.tar")
    monkeypatch.setenv("DET_HOME", str(tmp_path / "new"))
    for words in (["import", str(tmp_path / "file.tar")], ["list"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        said = capsys.readouterr()
        assert (end.value.code, "index.db" in said.out + said.err) == (0, False), said
