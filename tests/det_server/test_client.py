"""The Python client on a server: the same answers as on its home, and the same changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient
from tests.det_server.conftest import PASSWORD, ROLES

from det_core.checkpoint import write_checkpoint
from det_core.errors import CheckpointError, DetError, ExperimentBusy, StoreError
from det_core.storage import LocalStorage
from det_driver.client import Client, Experiment
from det_driver.client._home import Home
from det_driver.config import load
from det_driver.store import Store, TrialState
from det_server import Users, create_app
from det_server.submit import routes
from det_web.serve import listening

CONFIG = {
    "name": "remote",
    "entrypoint": "python3 train.py",
    "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}},
    "searcher": {
        "name": "random",
        "metric": "error",
        "max_trials": 9,
        "max_length": {"batches": 3},
    },
}
ANN, OTHER = 1, 2
"""The numbers of the experiments of Ann and of nobody."""


def fill(home: Path) -> Users:
    """Make two experiments with trials, reports, logs, checkpoints and code."""
    from det_core.config import to_json

    users = Users(home)
    for name, role in ROLES.items():
        users.add(name, role, PASSWORD)
    with Store(home) as store:
        for id in (ANN, OTHER):
            config = to_json(load(CONFIG).config)
            made = store.experiments.create(
                name=f"number {id}", config=config, metric="error", entrypoint="python3 train.py"
            )
            with store.lock(id):
                code = store.code_dir(id)
                (code / "package").mkdir(parents=True)
                (code / "train.py").write_text("print('ünicode')\n")
                (code / "package" / "run.sh").write_text("#!/bin/sh\n")
                (code / "package" / "run.sh").chmod(0o755)
                for n in range(9):
                    _fill_trial(store, home, id, n)
                store.experiments.update(id, state="COMPLETED", started=1.0, ended=2.0)
        users.note_owner("ann", ANN, store.experiments.get(ANN).created)
        assert made
    return users


def _fill_trial(store: Store, home: Path, id: int, n: int) -> None:
    trial = store.trials.create(id, n, {"lr": n / 10}, n)
    run = store.runs.begin(trial.id, first=True)
    for batches in range(1, 4):
        store.metrics.report(trial.id, run.id, "training", batches, {"loss": 1 / batches})
    store.metrics.report(trial.id, run.id, "validation", 3, {"error": n / 7, "odd": float("nan")})
    run.log_dir.mkdir(parents=True)
    (run.log_dir / "rank-0.log").write_text(f"line {n}\n" * 3 + "no end")

    def write(directory: Path) -> None:
        (directory / "deep").mkdir()
        (directory / "deep" / "weights").write_bytes(bytes([n]) * 1000)

    storage = LocalStorage(home / "checkpoints")
    manifest = write_checkpoint(storage, write, trial_id=trial.id, batches=3, framework="script")
    store.checkpoints.record(
        manifest.uuid,
        trial.id,
        run.id,
        3,
        storage=storage.url(manifest.uuid),
        size=1000,
        metadata={"n": n},
        framework="script",
    )
    store.runs.end(run.id, "COMPLETED")
    store.trials.update(trial.id, state=TrialState.COMPLETED, ended=2.0)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def users(home: Path) -> Users:
    return fill(home)


@pytest.fixture
def address(processes: object, home: Path, users: Users) -> Iterator[str]:
    """A server of the home, in a thread."""
    import uvicorn

    sock = listening("127.0.0.1", 0)
    port = sock.getsockname()[1]
    app = create_app(home, users, hosts={"127.0.0.1"}, port=port, routes=routes(home, {}))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([sock],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def remote(address: str, users: Users) -> Client:
    return Client(master=address, token=users.make_token("ann").text)


def plain(value: Any) -> Any:
    """Return what two clients can be compared by."""
    if hasattr(value, "_home"):
        return {key: plain(each) for key, each in vars(value).items() if key != "_home"}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return repr(value)


LOOKS: dict[str, Callable[[Client], Any]] = {
    "experiments": lambda c: c.list_experiments(),
    "two": lambda c: c.list_experiments(archived=None, limit=1),
    "state": lambda c: c.get_experiment(ANN).state,
    "config": lambda c: c.get_experiment(ANN).config,
    "trials": lambda c: c.get_experiment(ANN).list_trials(),
    "table": lambda c: c.get_experiment(ANN).table(),
    "wait": lambda c: c.get_experiment(ANN).wait(),
    "importances": lambda c: c.get_experiment(ANN).what_mattered(),
    "slices": lambda c: c.get_experiment(ANN).slices("lr"),
    "html": lambda c: c.get_experiment(ANN)._repr_html_(),
    "best": lambda c: c.get_experiment(ANN).top_checkpoint(),
    "top": lambda c: c.get_experiment(ANN).top_n_checkpoints(3),
    "reports": lambda c: list(c.get_trial(2).iter_metrics()),
    "validation": lambda c: list(c.get_trial(2).iter_metrics("validation")),
    "curve": lambda c: [
        [*map(float, of)] for of in c.get_trial(2).series("loss", range=(1, 2))[1:]
    ],
    "seconds": lambda c: c.get_trial(2).series("loss", by="seconds"),
    "logs": lambda c: list(c.get_trial(2).logs()),
    "log": lambda c: c.get_trial(2).log(offset=-10),
    "checkpoint": lambda c: c.get_trial(2).select_checkpoint(latest=True).metadata,
    "models": lambda c: c.list_models(archived=None),
}


def test_a_client_of_a_server_sees_what_one_of_its_home_does(remote: Client, home: Path) -> None:
    local = Client(home)
    for name, look in LOOKS.items():
        assert plain(look(remote)) == plain(look(local)), name


def test_pages_of_reports_are_complete(
    remote: Client, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = list(Client(home).get_trial(2).iter_metrics())
    monkeypatch.setattr("det_driver.client._calls._MOST_REPORTS", 2)
    assert repr(list(remote.get_trial(2).iter_metrics())) == repr(whole)


def test_a_change_by_a_server_is_one_of_its_home(remote: Client, home: Path) -> None:
    mine, local = remote.get_experiment(ANN), Client(home)
    mine.set_name("other")
    mine.set_labels(["a", "a", "b"])
    mine.set_description("a note")
    mine.archive()
    found = local.get_experiment(ANN)
    assert (found.name, found.labels, found.description, found.archived) == (
        "other",
        ["a", "b"],
        "a note",
        True,
    )
    mine.unarchive()
    last = mine.list_checkpoints()[-1]
    last.set_metadata({"n": 5, "deep": {"x": [1.5]}})
    assert local.get_checkpoint(last.uuid).metadata == {"n": 5, "deep": {"x": [1.5]}}
    last.delete()
    assert local.get_checkpoint(last.uuid).state == "DELETED"
    model = remote.create_model("mnist", labels=["good"])
    version = model.add_version(mine.top_checkpoint(), aliases=["production"], notes="n")
    model.edit(name="digits", metadata={"x": 1})
    version.model_name = "digits"
    assert local.get_model_version("digits@production").notes == "n"
    assert local.get_model("digits").metadata == {"x": 1}
    with pytest.raises(StoreError, match="digits"):
        mine.delete()
    model.remove_alias("production")
    for each in (version, model):
        with pytest.raises(DetError, match="only an admin may do this"):
            each.delete()
    local.get_model("digits").delete()
    assert mine.delete() == []
    assert [each.id for each in local.list_experiments()] == [OTHER]


def test_what_a_server_refuses_has_the_error_of_its_home(remote: Client, home: Path) -> None:
    def error(client: Client, act: Callable[[Client], object]) -> tuple[type, str]:
        with pytest.raises(DetError) as raised:
            act(client)
        return raised.type, str(raised.value).replace(str(home), "HOME")

    acts: list[Callable[[Client], object]] = [
        lambda c: c.get_experiment(99),
        lambda c: c.get_trial(10**30),
        lambda c: c.get_checkpoint("nosuch"),
        lambda c: c.get_model("nosuch"),
        lambda c: c.get_experiment(ANN).pause(),
        lambda c: c.get_trial(1).log(rank=7),
        lambda c: c.get_trial(1).select_checkpoint(uuid="nosuch"),
        lambda c: c.get_experiment(ANN).slices("nosuch"),
    ]
    for act in acts:
        if act is acts[1]:
            assert issubclass(error(remote, act)[0], DetError)
            continue
        assert error(remote, act) == error(Client(home), act)
    # A driver holds the lock.
    with Store(home) as store, store.lock(ANN), pytest.raises(ExperimentBusy):
        remote.get_experiment(ANN).check_deletable()
    with pytest.raises(DetError, match="is of nobody who is known here, and not ann's"):
        remote.get_experiment(OTHER).set_name("mine")
    with pytest.raises(DetError, match=r"Client.watch acts on a home only, and not on http://"):
        remote.watch()


def test_code_and_checkpoints_come_to_this_machine(remote: Client, tmp_path: Path) -> None:
    experiment = remote.get_experiment(OTHER)
    code = Path(experiment.download_code(tmp_path / "code"))
    assert (code / "train.py").read_text() == "print('ünicode')\n"
    assert (code / "package" / "run.sh").stat().st_mode & 0o111
    best = experiment.top_checkpoint()
    target = tmp_path / "far" / "best"
    assert best.download(target) == str(target)
    assert (target / "deep" / "weights").read_bytes() == bytes(1000)
    # It is there already.
    assert best.download(target) == str(target)
    with pytest.raises(CheckpointError, match="is not empty; name a directory"):
        best.download(tmp_path / "code")


def test_a_checkpoint_that_breaks_off_leaves_nothing(
    remote: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = remote.get_experiment(OTHER).top_checkpoint()

    def cut(self: Any) -> Iterator[bytes]:
        parts = whole(self)
        yield next(parts)
        yield next(parts)
        raise OSError("the disk fails")

    from det_driver.client import Checkpoint

    whole = Checkpoint.archive
    monkeypatch.setattr(Checkpoint, "archive", cut)
    with pytest.raises(DetError):
        best.download(tmp_path / "best")
    assert not (tmp_path / "best").exists()
    assert not list(tmp_path.glob(".det-download-*"))
    monkeypatch.setattr(Checkpoint, "archive", whole)
    best.download(tmp_path / "best")


def test_a_damaged_checkpoint_is_not_downloaded(remote: Client, home: Path, tmp_path: Path) -> None:
    best = remote.get_experiment(OTHER).top_checkpoint()
    weights = home / "checkpoints" / best.uuid / "deep" / "weights"
    weights.write_bytes(bytes(999))
    with pytest.raises(DetError, match="cut short"):
        best.download(tmp_path / "best")
    assert not (tmp_path / "best").exists()


def test_an_experiment_is_submitted_paused(remote: Client, tmp_path: Path, home: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    made = remote.create_experiment(CONFIG, code, start=False)
    assert isinstance(made, Experiment)
    assert (made.state, made.name) == ("PAUSED", "remote")
    with Store.reader(home) as store:
        assert (store.code_dir(made.id) / "train.py").is_file()


def test_a_fork_of_the_same_configuration_has_todays_defaults(
    remote: Client, home: Path, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it trains does not matter here.
    monkeypatch.setattr(Home, "start", lambda self, id: None)
    users.set_preferences("ann", {"resources.priority": "60", "resources.weight": "2"})
    made = remote.create_experiment({**CONFIG, "resources": {"weight": 3}}, start=False)
    assert made.config["resources"].items() >= {("priority", 60), ("weight", 3)}
    users.set_preferences("ann", {"resources.priority": "70", "resources.weight": "2"})
    assert made.fork().config["resources"].items() >= {("priority", 70), ("weight", 3)}


@pytest.fixture
def ann(home: Path, users: Users) -> TestClient:
    app = create_app(home, users, hosts={"det.example"}, port=443, routes=routes(home, {}))
    headers = {"authorization": f"Bearer {users.make_token('ann').text}", "x-det": "1"}
    return TestClient(
        app, base_url="https://det.example", headers=headers, raise_server_exceptions=False
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/changes/nosuch", "[]"),
        ("/changes/delete", "[1, false]"),
        ("/changes/create_model", "[1, {}]"),
        ("/changes/create_model", '["x"]'),
        ("/changes/create_model", "[" * 100_000),
        (f"/experiments/{ANN}/changes/delete", f"[{OTHER}, false]"),
        (f"/experiments/{ANN}/changes/send", f'[{ANN}, "detach"]'),
        (f"/experiments/{ANN}/changes/delete_checkpoint", f'[{ANN}, "x"]'),
        (f"/experiments/{ANN}/changes/experiment", f"[{ANN}]"),
        (f"/experiments/{ANN}/changes/describe", f'[{ANN}, {{"labels": 5}}]'),
    ],
)
def test_odd_changes_are_refused(ann: TestClient, path: str, body: str) -> None:
    reply = ann.post(f"/api/v1{path}", content=body)
    # What no rule is for is for admins only.
    assert reply.status_code in (400, 403, 409), reply.text
    assert "error" in reply.json()


@pytest.mark.parametrize(
    ("name", "args"),
    [
        *(("nosuch", "[]"), ("delete", "[1, false]"), ("experiment", '["../../x"]')),
        *(("experiment", "[1, 2]"), ("experiment", "{}"), ("experiment", "\0"), ("trial", "[1.5]")),
        *(("experiment", f"[{10**30}]"), ("code_file", '[1, "../outside.json"]')),
        *(("log", "[1, 0, 0, null, -5]"), ("curve", '[1, "x", "y", 0, [1, 0], "weeks"]')),
        ("checkpoint", '["../../x"]'),
    ],
)
def test_odd_queries_are_refused(ann: TestClient, name: str, args: str) -> None:
    reply = ann.get(f"/api/v1/queries/{name}", params={"args": args})
    assert reply.status_code in (200, 400, 409), reply.text
    if reply.status_code == 200:
        assert name == "log"


def test_a_checkpoint_of_others_is_not_deleted(ann: TestClient, home: Path) -> None:
    uuid = Client(home).get_experiment(OTHER).top_checkpoint().uuid
    for id, status in ((ANN, 409), (OTHER, 403)):
        reply = ann.post(
            f"/api/v1/experiments/{id}/changes/delete_checkpoint",
            content=msgspec.json.encode([id, uuid]),
        )
        assert reply.status_code == status
    assert Client(home).get_checkpoint(uuid).state == "COMPLETED"


def test_a_viewer_asks_and_changes_nothing(home: Path, users: Users) -> None:
    app = create_app(home, users, hosts={"det.example"}, port=443, routes=routes(home, {}))
    headers = {"authorization": f"Bearer {users.make_token('vera').text}", "x-det": "1"}
    vera = TestClient(app, base_url="https://det.example", headers=headers)
    assert vera.get("/api/v1/queries/experiment", params={"args": "[1]"}).status_code == 200
    for path in ("/changes/create_model", f"/experiments/{ANN}/changes/archive"):
        assert vera.post(f"/api/v1{path}", content="[]").status_code == 403
