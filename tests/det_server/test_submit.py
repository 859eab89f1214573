"""Archives of code that clients send, and what may not be executed."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.det_server.conftest import CONFIG, OF_ANN, OF_BOB

from det_core.errors import DetError
from det_core.hooks import Plugins
from det_driver.client._home import Home
from det_driver.config import load
from det_driver.driver import create
from det_driver.remote import pack
from det_driver.store import Store
from det_server import Role, Users, create_app
from det_server.submit import FOLDER, Uploads, routes

DATA = b"an archive in three parts"
DIGEST = hashlib.sha256(DATA).hexdigest()
ADDRESS = f"/api/v1/code/{DIGEST}"


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path)


@pytest.fixture
def ann(home: Path, users: Users) -> TestClient:
    return client(home, users, "ann")


def client(home: Path, users: Users, name: str) -> TestClient:
    app = create_app(home, users, hosts={"det.example"}, port=443, routes=routes(home, {}))
    headers = {"authorization": f"Bearer {users.make_token(name).text}", "x-det": "1"}
    return TestClient(app, base_url="https://det.example", headers=headers)


def put(ann: TestClient, offset: int, data: bytes, size: int = len(DATA)) -> tuple[int, dict]:
    reply = ann.put(ADDRESS, params={"offset": offset, "size": size}, content=data)
    return reply.status_code, reply.json()


def test_an_upload_goes_on_where_it_was(ann: TestClient) -> None:
    assert ann.get(ADDRESS).json() == {"offset": 0, "complete": False}
    assert put(ann, 0, DATA[:10]) == (200, {"offset": 10, "complete": False})
    assert ann.get(ADDRESS).json() == {"offset": 10, "complete": False}
    assert put(ann, 10, DATA[10:]) == (200, {"offset": len(DATA), "complete": True})
    assert ann.get(ADDRESS).json() == {"offset": len(DATA), "complete": True}
    # The reply of the last part may have been lost.
    assert put(ann, 10, DATA[10:]) == (200, {"offset": len(DATA), "complete": True})


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--filter", "a=\0"],
        ["show", "1", "--plot", "\0"],
        ["search", "9" * 5000],
        ["list", "--filter", "x" * 40_000],
    ],
    ids=["NUL", "NUL in a path", "a long number", "long"],
)
def test_words_that_no_process_takes_are_refused(
    home: Path, users: Users, words: list[str]
) -> None:
    vera = client(home, users, "vera")
    reply = vera.get("/api/v1/commands", params={"argv": json.dumps(words)})
    assert reply.status_code in (400, 409)


def test_odd_input_is_refused(home: Path, users: Users) -> None:
    ann = client(home, users, "ann")
    deep = '{"zz":' + "[" * 100_000
    assert ann.post("/api/v1/submissions", content=deep).status_code == 400
    assert ann.post("/api/v1/check", content=deep).status_code == 400
    for ask in (ann.get, ann.delete):
        assert ask(f"/api/v1/experiments/{'9' * 5000}").status_code < 500
    form = "&".join(f"a{n}=1" for n in range(9))
    same = {"sec-fetch-site": "same-origin"}
    assert ann.post("/login", content=form, headers=same).status_code == 400
    note = {"argv": ["note", str(OF_ANN), "x" * 200_000]}
    assert ann.post(f"/api/v1/experiments/{OF_ANN}/command", json=note).status_code == 409


def test_resume_leaves_its_driver_in_the_background(ann: TestClient) -> None:
    words = {"argv": ["resume", str(OF_ANN)]}
    reply = ann.post(f"/api/v1/experiments/{OF_ANN}/command", json=words)
    assert reply.status_code == 400
    assert "--detach" in reply.json()["error"]


def test_code_that_comes_and_goes_breaks_no_upload(uploads: Uploads) -> None:
    (uploads.root / "code-x").mkdir(parents=True)
    (uploads.root / "code-x" / "gone.py").symlink_to("nowhere")
    assert uploads.write("ann", "0" * 64, 0, 9, b"x") == 1


def test_code_that_has_just_gone_stops_no_upload(uploads: Uploads) -> None:
    """A submission removes the directory in which its code was unpacked."""
    uploads.root.mkdir()
    # It is listed, and has no status.
    (uploads.root / "code-1").symlink_to(uploads.root / "gone")
    data = b"an archive"
    digest = hashlib.sha256(data).hexdigest()
    assert uploads.write("ann", digest, 0, len(data), data) == len(data)


@pytest.mark.process
def test_git_of_submitted_code_is_not_asked(home: Path, tmp_path: Path) -> None:
    """It would run what the code's own settings of Git name."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("")
    for words in (
        ["init", "-q"],
        ["config", "core.fsmonitor", f"touch {tmp_path}/ran; false"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=code, check=True)
    (tmp_path / "ran").unlink(missing_ok=True)
    with Store(home) as store:
        create(store, load(CONFIG).config, code, origin={"git": None})
    assert not (tmp_path / "ran").exists()


def test_bytes_that_are_not_the_next_are_refused(ann: TestClient) -> None:
    put(ann, 0, DATA[:10])
    for offset in (0, 9, 11):
        assert put(ann, offset, b"x") == (
            409,
            {"error": f"byte 10 of the archive is next, and not {offset}"},
        )
    assert put(ann, -1, b"x")[0] == 400
    assert ann.put(ADDRESS, content=b"x").status_code == 400
    assert ann.get(ADDRESS).json() == {"offset": 10, "complete": False}


def test_an_archive_of_another_digest_is_not_kept(ann: TestClient) -> None:
    status, said = put(ann, 0, DATA.upper())
    assert (status, said["error"][:40]) == (409, "the archive has another digest than its ")
    assert ann.get(ADDRESS).json() == {"offset": 0, "complete": False}


def test_a_name_that_is_no_digest_is_refused(ann: TestClient, home: Path) -> None:
    for name in ("x", DIGEST.upper(), f"{DIGEST}0", "..%2f..%2fetc"):
        reply = ann.put(f"/api/v1/code/{name}?offset=0&size=1", content=b"x")
        assert reply.status_code in (403, 409)
    assert not (home / FOLDER).exists()


def test_an_archive_that_is_too_long_is_refused(ann: TestClient) -> None:
    status, said = put(ann, 0, b"x", size=1 << 40)
    assert (status, said["error"][:26]) == (409, "the archive is longer than")
    assert put(ann, 0, b"xx", size=1)[0] == 409


def test_users_do_not_see_the_archives_of_others(ann: TestClient, home: Path, users: Users) -> None:
    put(ann, 0, DATA)
    bob = client(home, users, "bob")
    assert bob.get(ADDRESS).json() == {"offset": 0, "complete": False}
    reply = bob.post(
        "/api/v1/submissions",
        json={"config": CONFIG, "name": "x", "code": DIGEST, "key": "1"},
    )
    assert (reply.status_code, reply.json()["error"][:32]) == (
        409,
        "the code of this submission is n",
    )


def test_a_viewer_sends_nothing(home: Path, users: Users) -> None:
    vera = client(home, users, "vera")
    assert put(vera, 0, DATA)[0] == 403
    assert vera.post("/api/v1/submissions", json={}).status_code == 403


def test_a_full_disk_keeps_nothing_of_a_part(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads.write("ann", DIGEST, 0, len(DATA), DATA[:10])
    opened = Path.open

    class Full(io.FileIO):
        def write(self, data: object) -> int:
            super().write(b"part of it")
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(path: Path, mode: str = "r", *rest: object) -> object:
        return Full(path, "ab") if mode == "ab" else opened(path, mode)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        with pytest.raises(OSError, match="No space"):
            uploads.write("ann", DIGEST, 10, len(DATA), DATA[10:])
    assert uploads.held("ann", DIGEST) == (10, False)
    assert uploads.write("ann", DIGEST, 10, len(DATA), DATA[10:]) == len(DATA)


def test_old_archives_make_room(uploads: Uploads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("det_server.submit.MOST_BYTES", 3 * len(DATA))
    for text in (b"1", b"2", b"3", b"4"):
        data = text * len(DATA)
        uploads.write("ann", hashlib.sha256(data).hexdigest(), 0, len(data), data)
    kept = [each.read_bytes()[:1] for each in uploads.root.rglob("*.tar.gz")]
    assert sorted(kept) == [b"2", b"3", b"4"]


def test_code_is_replaced_by_an_archive(
    ann: TestClient, home: Path, users: Users, tmp_path: Path
) -> None:
    code, archive = tmp_path / "code", io.BytesIO()
    code.mkdir()
    (code / "train.py").write_text("better = True\n")
    digest = pack(code, archive)
    path, data = f"/api/v1/experiments/{OF_ANN}/replace-code", archive.getvalue()
    for odd, status in (("x", 400), (digest, 409)):
        assert ann.post(path, json={"code": odd}).status_code == status
    query = {"offset": 0, "size": len(data)}
    assert ann.put(f"/api/v1/code/{digest}", params=query, content=data).status_code == 200
    with Store(home) as store:
        with store.lock(OF_ANN):
            assert ann.post(path, json={"code": digest}).status_code == 409
        assert ann.post(path, json={"code": digest}).status_code == 200
        assert (store.code_dir(OF_ANN) / "train.py").read_text() == "better = True\n"
    other = f"/api/v1/experiments/{OF_BOB}/replace-code"
    assert ann.post(other, json={"code": digest}).status_code == 403


def test_a_submission_without_its_code_is_refused(uploads: Uploads, tmp_path: Path) -> None:
    with pytest.raises(DetError, match="the code of this submission is not here; send it again"):
        uploads.unpack("ann", DIGEST, tmp_path)


def test_code_whose_server_was_killed_at_its_last_byte_is_used(
    uploads: Uploads, tmp_path: Path
) -> None:
    """Its client finds all bytes on the next server, and sends no more."""
    code, target, archive = tmp_path / "code", tmp_path / "target", io.BytesIO()
    code.mkdir()
    target.mkdir()
    (code / "train.py").write_text("done = True\n")
    digest = pack(code, archive)
    data = archive.getvalue()
    uploads.write("ann", digest, 0, len(data), data[:-1])
    with pytest.raises(DetError, match="send it again"):
        uploads.unpack("ann", digest, target)
    (part,) = uploads.root.rglob("*.part")
    part.write_bytes(data)
    uploads.unpack("ann", digest, target)
    assert (target / "train.py").read_text() == "done = True\n"
    assert uploads.held("ann", digest) == (len(data), True)


def test_a_bad_submission_leaves_nothing(ann: TestClient, home: Path, tmp_path: Path) -> None:
    code, file = tmp_path / "code", io.BytesIO()
    code.mkdir()
    digest = pack(code, file)
    data = file.getvalue()
    ann.put(f"/api/v1/code/{digest}", params={"offset": 0, "size": len(data)}, content=data)
    given = {"config": CONFIG, "name": "x", "code": digest, "key": "1"}
    before = sorted((home / "experiments").iterdir())
    for wrong, status in (
        ({"config": "entrypoint: 7"}, 400),
        ({"config": "{"}, 400),
        ({"code": "../x"}, 400),
        ({"code": "0" * 64}, 409),
        ({"key": 1}, 400),
        ({"engine": "nosuch"}, 409),
    ):
        reply = ann.post("/api/v1/submissions", json=given | wrong)
        assert (reply.status_code, "error" in reply.json()) == (status, True), reply.text
    assert sorted((home / "experiments").iterdir()) == before
    assert not [each for each in (home / FOLDER).iterdir() if each.name.startswith("code-")]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["run", "const.yaml"],
        ["show", "1", "--plot", "/tmp/x.png"],
        ["metrics", "1", "--parquet", "/tmp/x"],
        ["checkpoint", "export", "x", "/tmp/x"],
        ["checkpoint", "delete", "x"],
        ["export", "1", "/tmp/x"],
        ["-m", "", "list"],
        ["--help"],
        ["list", "--help"],
        ["show", "x"],
        ["show", "1", "--nosuch"],
        ["pause", "1"],
    ],
)
def test_what_does_not_only_read_is_not_executed(ann: TestClient, argv: list[str]) -> None:
    reply = ann.get("/api/v1/commands", params={"argv": json.dumps(argv)})
    assert (reply.status_code, "error" in reply.json()) in ((400, True), (409, True))


@pytest.mark.parametrize(
    "argv",
    [
        ["pause", str(OF_BOB)],
        ["rm", "--yes", str(OF_ANN), str(OF_BOB)],
        ["show", str(OF_ANN)],
        ["resume", str(OF_ANN), "--code", "/tmp"],
        ["resume", str(OF_ANN), "--in-process"],
        ["resume", str(OF_ANN), "--in-job"],
    ],
)
def test_a_change_names_its_own_experiment_only(ann: TestClient, argv: list[str]) -> None:
    reply = ann.post(f"/api/v1/experiments/{OF_ANN}/command", json={"argv": argv})
    assert (reply.status_code, "error" in reply.json()) in ((400, True), (409, True))


def test_the_experiment_of_another_is_not_changed(ann: TestClient) -> None:
    reply = ann.post(f"/api/v1/experiments/{OF_BOB}/command", json={"argv": ["pause", str(OF_BOB)]})
    assert reply.status_code == 403


@pytest.mark.parametrize("argv", [["list"], ["pause", str(OF_ANN)], ["checkpoint", "delete", "x"]])
def test_only_what_is_shared_is_changed_for_all(ann: TestClient, argv: list[str]) -> None:
    reply = ann.post("/api/v1/commands", json={"argv": argv})
    assert (reply.status_code, "error" in reply.json()) in ((400, True), (409, True))


def test_shared_changes_need_their_roles(home: Path, users: Users, ann: TestClient) -> None:
    create, retry = ({"argv": each} for each in (["model", "create", "m"], ["alerts", "retry"]))
    assert client(home, users, "vera").post("/api/v1/commands", json=create).status_code == 403
    refused = ann.post("/api/v1/commands", json=retry)
    assert (refused.status_code, refused.json()["error"]) == (
        403,
        "only an admin may do this, and ann is an editor",
    )
    for argv in (create, retry):
        reply = ann.post(f"/api/v1/experiments/{OF_ANN}/command", json=argv)
        assert reply.status_code == 400


def submit_code(who: TestClient, code: Path, more: str, key: str) -> int:
    """Submit an experiment that is not started, and return its number."""
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text("")
    file = io.BytesIO()
    digest, data = pack(code, file), file.getvalue()
    who.put(f"/api/v1/code/{digest}", params={"offset": 0, "size": len(data)}, content=data)
    given = {"config": CONFIG + more, "name": "x", "code": digest, "key": key, "paused": True}
    reply = who.post("/api/v1/submissions", json=given)
    assert reply.status_code == 201, reply.text
    return int(reply.json()["id"])


def config_of(home: Path, id: int) -> Any:
    with Store.reader(home) as store:
        return json.loads(store.experiments.get(id).config)


def test_defaults_of_a_user_are_below_the_configuration(
    ann: TestClient, home: Path, users: Users, tmp_path: Path
) -> None:
    pytest.importorskip("det_slurm")
    (home / "config.yaml").write_text("engine: {name: slurm, account: all, memory: 8G}\n")
    users.set_preferences("ann", {"slurm.account": "vision", "slurm.qos": "low"})
    users.set_preferences("bob", {"slurm.account": "sound"})

    def submit(who: TestClient, more: str, key: str) -> Any:
        return config_of(home, submit_code(who, tmp_path / "code", more, key))["engine"]

    assert submit(ann, "", "1").items() >= {
        *(("account", "vision"), ("qos", "low"), ("memory", "8G"))
    }
    engine = submit(ann, "engine: {name: slurm, qos: high}", "2")
    assert (engine["account"], engine["qos"]) == ("vision", "high")
    engine = submit(client(home, users, "bob"), "", "3")
    assert (engine["account"], engine["qos"]) == ("sound", None)
    assert submit(ann, "engine: {name: local}", "4") == {"name": "local"}


SLURM = "engine: {name: slurm, partition: gpu}\nresources: {weight: 1}\n"
"""What Ann writes. Her account and her priority are those that she has by default."""


@pytest.fixture
def of_ann(ann: TestClient, home: Path, users: Users, tmp_path: Path) -> int:
    """An experiment of Ann, on a server where Bob has other defaults than she has."""
    pytest.importorskip("det_slurm")
    (home / "config.yaml").write_text("engine: {name: slurm, account: all, memory: 8G}\n")
    of_ann = {"slurm.account": "vision", "slurm.qos": "low", "resources.priority": "60"}
    of_bob = {"slurm.account": "sound", "resources.weight": "5", "resources.max_slots": "2"}
    users.set_preferences("ann", of_ann)
    users.set_preferences("bob", of_bob)
    # Editors of a workspace change the experiments of others in it.
    users.set_workspace("team", private=False)
    for name in ("ann", "bob", "root"):
        users.set_member("team", name, Role.EDITOR)
    return submit_code(ann, tmp_path / "code", f"{SLURM}labels: [team]\n", "1")


def test_what_a_user_has_by_default_is_not_as_written(ann: TestClient, of_ann: int) -> None:
    told = ann.get(f"/api/v1/experiments/{of_ann}").json()
    assert "engine:\n  name: slurm\n  partition: gpu\n" in told["source"]
    assert "resources:\n  weight: 1\n" in told["source"].replace("1.0", "1")
    assert {"engine.account", "engine.qos", "engine.memory", "resources.priority"} <= {
        *told["defaulted"]
    }
    assert told["config"]["engine"]["account"] == "vision"


def test_a_fork_has_the_defaults_of_who_makes_it(
    ann: TestClient, home: Path, users: Users, of_ann: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A driver would wait for Slurm, which is not here.
    monkeypatch.setattr(Home, "start", lambda self, id: None)

    def fork(who: TestClient, id: int, text: str | None = None) -> tuple[int, dict[str, Any]]:
        text = text or who.get(f"/api/v1/experiments/{id}").json()["source"]
        assert who.post("/api/v1/check", json={"config": text, "experiment": id}).json() == {
            "errors": []
        }
        reply = who.post(f"/api/v1/experiments/{id}/fork", json={"config": text})
        assert reply.status_code == 201, reply.text
        config = config_of(home, reply.json()["id"])
        keys = ("account", "qos", "partition", "memory")
        return reply.json()["id"], {
            **{key: config["engine"][key] for key in keys},
            **{key: config["resources"][key] for key in ("priority", "weight", "max_slots")},
        }

    bob, root = client(home, users, "bob"), client(home, users, "root")
    ours = {"partition": "gpu", "memory": "8G", "weight": 1.0}
    of_bob = {"account": "sound", "qos": None, "priority": None, "max_slots": 2}
    second, found = fork(bob, of_ann)
    assert found == {**ours, **of_bob}
    # Root has no defaults, and those of the home count.
    _, found = fork(root, second)
    assert found == {**ours, **of_bob, "account": "all", "max_slots": None}
    _, found = fork(ann, second)
    assert found == {**ours, "account": "vision", "qos": "low", "priority": 60, "max_slots": None}
    # What is written is meant.
    text = bob.get(f"/api/v1/experiments/{of_ann}").json()["source"]
    text = text.replace("name: slurm\n", "name: slurm\n  account: theirs\n", 1)
    third, found = fork(bob, of_ann, text)
    assert found == {**ours, **of_bob, "account": "theirs"}
    _, found = fork(ann, third)
    assert (found["account"], found["qos"], found["max_slots"]) == ("theirs", "low", None)


def test_a_trial_goes_on_with_the_defaults_of_who_continues_it(
    home: Path, users: Users, of_ann: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Home, "start", lambda self, id: None)
    with Store(home) as store, store.lock(of_ann):
        trial = store.trials.create(of_ann, 0, {"lr": 0.1}, 0)
        run = store.runs.begin(trial.id)
        store.checkpoints.record("latest", trial.id, run.id, 4, storage="{}", size=1)
    reply = client(home, users, "bob").post(f"/api/v1/trials/{trial.id}/continue")
    assert reply.status_code == 201, reply.text
    config = config_of(home, reply.json()["id"])
    assert config["searcher"]["source_trial_id"] == trial.id
    assert (config["engine"]["account"], config["engine"]["partition"]) == ("sound", "gpu")
    assert (config["resources"]["priority"], config["resources"]["max_slots"]) == (None, 2)


def test_submissions_look_for_plugins_once(
    ann: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer than everything else that they need."""
    looks, look = [], Plugins.installed
    monkeypatch.setattr(Plugins, "installed", lambda: looks.append(1) or look())
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("")
    file = io.BytesIO()
    digest, data = pack(tmp_path / "code", file), file.getvalue()
    ann.put(f"/api/v1/code/{digest}", params={"offset": 0, "size": len(data)}, content=data)
    given = {"config": CONFIG, "name": "x", "code": digest, "paused": True}
    made = {
        ann.post("/api/v1/submissions", json={**given, "key": key}).json()["id"] for key in "123"
    }
    assert (len(made), len(looks)) == (3, 1)
