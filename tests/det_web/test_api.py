"""/api/v1: every endpoint is asked as its OpenAPI document says, and answers as that says."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import jsonschema
import pytest
from tests.det_web.conftest import CONFIG, SCRIPT, Server, det, environment, start, stop

from det_driver.client import Client
from det_driver.store import Store
from det_web.openapi import document

pytestmark = pytest.mark.process

DOCUMENT = document()
QUERIES = {"metric": "error", "group": "validation", "text": "training", "ids": "1,2", "since": ""}
BODIES: dict[str, Any] = {
    "/api/v1/check": {"config": "sercher: {}\n", "experiment": 1},
    "/api/v1/experiments/{id}": {"note": "*seen*", "labels": ["a"], "name": "other"},
}
OPERATIONS = [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Iterator[Server]:
    """A server on a copy of the home, to be changed."""
    shutil.copytree(made, tmp_path / "home", symlinks=True)
    server = start(tmp_path / "home")
    yield server
    stop(server)


def schema(of: dict[str, Any]) -> dict[str, Any]:
    return {**of, "components": DOCUMENT["components"]}


def saved(server: Server) -> list[str]:
    """Return the checkpoints whose files are there."""
    found = server.get("/experiments/1/checkpoints")
    return [
        uuid
        for uuid, state in zip(found["uuid"], found["state"], strict=True)
        if state == "COMPLETED"
    ]


def asked(server: Server, method: str, path: str, **parts: Any) -> Any:
    """Send what the document says that an operation takes.

    Check what comes against what it says that comes.
    """
    operation = DOCUMENT["paths"][path][method]
    taken = [
        p["name"]
        for p in operation.get("parameters", ())
        if p["in"] == "query" and p["name"] in QUERIES
    ]
    file = "run/a.pt.trace.json" if "traces" in path else "train.py"
    if "media" in path:
        file = server.get("/trials/1/media")["media"][1]["files"][0]["path"]
    if "checkpoints" in path:
        file = saved(server)[0]
    place = path.format(**{"id": 1, "path": file, "model": "seen"} | parts)
    query = "&".join(f"{name}={QUERIES[name]}" for name in taken if QUERIES[name])
    answer = server.ask(
        f"{place}?{query}", method.upper(), BODIES.get(path) if "requestBody" in operation else None
    )
    said = operation["responses"].get(str(answer.status))
    assert said is not None, f"{answer.status}: {answer.body!r}"
    (kind, content), *_ = said["content"].items()
    assert answer.headers["content-type"].partition(";")[0] == kind
    if kind != "application/json":
        return answer.body
    jsonschema.Draft202012Validator(schema(content["schema"])).validate(answer.json)
    assert answer.status < 300, answer.body
    return answer.json


@pytest.mark.parametrize(
    "path", [path for method, path in OPERATIONS if method == "get" and not path.endswith("events")]
)
def test_what_is_read_is_as_the_document_says(server: Server, path: str) -> None:
    assert asked(server, "get", path) not in (None, b"")


def test_logged_media_is_listed_and_served_with_a_fixed_type(server: Server) -> None:
    listed = server.get("/trials/1/media")["media"]
    assert [
        (each["name"], each["kind"], [file["batches"] for file in each["files"]][:1])
        for each in listed
    ] == [("said/at each", "text", [1]), ("seen", "image", [2]), ("table", "table", [2])]
    kinds = {"text": "text/plain; charset=utf-8", "image": "image/png", "table": "application/json"}
    for each in listed:
        answer = server.ask(f"/api/v1/trials/1/media/{quote(each['files'][0]['path'])}")
        assert answer.status == 200
        assert answer.headers["content-type"] == kinds[each["kind"]]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert len(answer.body) == each["files"][0]["size"]


@pytest.mark.parametrize(
    "path",
    [
        "..%2f..%2f..%2fexperiment.db",
        "seen/..%2f..%2f..%2f..%2fexperiment.db",
        "../media/seen/2.png",
        "seen",
        "%00",
        "",
        "seen/2.html",
        "seen/7.png",
        "said/at%20each/1.txt",
        "%2fetc%2fpasswd",
        f"{'x' * 300}/1.txt",
    ],
)
def test_no_other_file_comes_as_one_that_was_logged(server: Server, path: str) -> None:
    assert server.ask(f"/api/v1/trials/1/media/{path}").status == 404


def test_a_trace_of_the_profiler_is_listed_and_comes_as_a_file(server: Server) -> None:
    assert server.get("/trials/1")["traces"] == [{"name": "run/a.pt.trace.json", "size": 18}]
    answer = server.ask("/api/v1/trials/1/traces/run/a.pt.trace.json")
    assert answer.body == b'{"traceEvents":[]}'
    assert answer.headers["content-disposition"] == 'attachment; filename="trial-1-a.pt.trace.json"'
    assert server.get("/trials/2")["traces"] == []
    for path in (
        "..%2f..%2f..%2fexperiment.db",
        "../trial-1/run/a.pt.trace.json",
        "run",
        "other.json",
        "%00",
    ):
        assert server.ask(f"/api/v1/trials/1/traces/{path}").status == 404


def test_a_checkpoint_comes_as_a_tar_of_what_its_manifest_names(own: Server) -> None:
    uuid, other, *_ = saved(own)
    address = "/api/v1/experiments/1/checkpoints"
    answer = own.ask(f"{address}/{uuid}")
    assert answer.headers["content-disposition"] == f'attachment; filename="checkpoint-{uuid}.tar"'
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
        names = {member.name for member in tar}
        file = tar.extractfile(f"{uuid}/weight.txt")
        assert file is not None
        weight = file.read()
    place = own.home / "checkpoints" / uuid
    assert names == {f"{uuid}/{each.name}" for each in place.iterdir()}
    assert weight == (place / "weight.txt").read_bytes()
    assert own.ask(f"{address}/{uuid}", headers={"Cookie": None}).status == 401
    for path in ("..%2f..%2fui.key", "0" * 8, "%00"):
        assert own.ask(f"{address}/{path}").status == 404
    # Of one that was altered nothing is sent.
    (own.home / "checkpoints" / other / "weight.txt").write_text("another")
    assert own.ask(f"{address}/{other}").status == 409


def test_curves_are_over_time_too(server: Server) -> None:
    over = {by: server.get(f"/experiments/1/curves?by={by}") for by in ("batches", "seconds")}
    assert over["batches"]["y"] == over["seconds"]["y"]
    assert over["batches"]["x"] != over["seconds"]["x"]
    assert all(0 <= x < 120 for xs in over["seconds"]["x"] for x in xs)


def test_the_server_gives_the_document_itself(server: Server) -> None:
    assert server.get("/openapi.json") == DOCUMENT


def test_every_struct_says_what_it_is() -> None:
    assert [
        name for name, of in DOCUMENT["components"]["schemas"].items() if not of.get("description")
    ] == []
    assert [
        path for method, path in OPERATIONS if not DOCUMENT["paths"][path][method]["summary"]
    ] == []


def test_an_experiment_is_described_archived_and_deleted(own: Server) -> None:
    assert asked(own, "patch", "/api/v1/experiments/{id}") == {"state": "COMPLETED"}
    one = own.get("/experiments/1")
    assert (one["name"], one["labels"], one["note"]) == ("other", ["a"], "*seen*")
    assert own.ask("/api/v1/experiments/1", "PATCH", {"archived": True}).status == 200
    listed = own.get("/experiments")
    assert listed["columns"]["archived"] == [True]
    for act in ("pause", "cancel", "kill", "activate"):
        answer = own.ask(f"/api/v1/experiments/1/{act}", "POST")
        assert answer.status == 409
        assert "experiment 1 is completed" in answer.json["error"]
    assert asked(own, "delete", "/api/v1/experiments/{id}") == {"kept": []}
    after = own.get(f"/experiments?since={listed['version']}")
    assert (after["gone"], after["whole"], after["columns"]["id"]) == ([1], False, [])
    assert own.ask("/api/v1/experiments/1").status == 404


def test_only_rows_that_have_changed_are_sent(own: Server) -> None:
    listed, trials = own.get("/experiments"), own.get("/experiments/1/trials")
    assert (listed["columns"]["id"], trials["columns"]["id"]) == ([1], [1, 2, 3, 4])
    assert trials["hparams"]["lr"] == [
        t.hparams["lr"] for t in Client(own.home).get_experiment(1).list_trials()
    ]
    again = own.get(f"/experiments?since={listed['version']}")
    assert (again["columns"]["id"], again["whole"], again["version"]) == (
        [],
        False,
        listed["version"],
    )
    assert own.get(f"/experiments/1/trials?since={trials['version']}")["columns"]["id"] == []
    Client(own.home).get_experiment(1).set_name("again")
    assert own.get(f"/experiments?since={listed['version']}")["columns"]["name"] == ["again"]
    assert own.get("/experiments?since=0badcafe.7")["whole"] is True


def test_a_search_has_its_rungs_and_who_went_on(server: Server) -> None:
    found = server.get("/experiments/1/search")
    assert (found["kind"], found["metric"]) == ("rungs", "error")
    [low, high] = found["brackets"][0]["rungs"]
    assert [low["length"], high["length"]] == [2, 4]
    assert [t["id"] for t in low["trials"]] == [1, 2, 3, 4]
    assert (
        {t["id"] for t in low["trials"] if t["promoted"]}
        == {t["id"] for t in high["trials"]}
        != set()
    )
    rates = {t.id: t.hparams["lr"] for t in Client(server.home).get_experiment(1).list_trials()}
    reached = [t for t in high["trials"] if t["metric"] is not None]
    assert all(t["metric"] == pytest.approx(rates[t["id"]] / 4) for t in reached)


def test_trial_has_runs_checkpoints_and_how_to_load_the_best(server: Server) -> None:
    trial = server.get("/trials/1")
    assert trial["metrics"] == {"training": ["loss", "<b>odd</b>"], "validation": ["error"]}
    first = trial["runs"][0]
    assert (first["number"], first["from"], first["state"]) == (1, 0, "COMPLETED")
    assert trial["runs"][0]["ranks"][0]["size"] > 0
    assert [c["best"] for c in trial["checkpoints"]].count(True) == 1
    assert "Client().get_trial(1).top_checkpoint().load()" in trial["load"]
    assert server.get("/trials?ids=2,99,1")["trials"][1] == trial


def test_a_log_is_read_from_its_end_and_searched(server: Server) -> None:
    part = server.get("/trials/1/log?offset=-30")
    assert part["end"] == part["size"]
    found = server.ask("/api/v1/trials/1/log/search?text=TRAINING")
    text = server.get("/trials/1/log?offset=0")["text"]
    (line,) = [each for each in text.splitlines() if "training with" in each]
    assert [json.loads(each) for each in found.body.splitlines()] == [
        {"offset": text.index(line), "line": line}
    ]
    error = server.ask("/api/v1/trials/1/log?rank=7").json["error"]
    assert re.fullmatch(
        r"run \d of trial 1 has no log of rank 7", error
    )  # the second, where it was promoted late


def test_code_is_text_whatever_it_is(server: Server) -> None:
    assert {"train.py", "evil.html"} <= {each["path"] for each in server.get("/experiments/1/code")}
    evil = server.ask("/api/v1/experiments/1/code/evil.html")
    assert (evil.status, evil.body) == (200, b"<script>alert(3)</script>")
    assert evil.headers["content-type"] == "text/plain; charset=utf-8"


def test_configuration_hides_secrets_and_marks_defaults(server: Server) -> None:
    one = server.get("/experiments/1")
    assert "API_TOKEN=********" in one["source"]
    assert "hush" not in str(one)
    assert "searcher.smaller_is_better" in one["defaulted"]
    assert "smaller_is_better" not in one["source"]
    assert one["space"][0] == {
        "name": "lr",
        "type": "double",
        "minval": 0.01,
        "maxval": 0.1,
        "base": None,
        "vals": None,
    }
    checked = server.ask("/api/v1/check", "POST", {"config": one["source"], "experiment": 1})
    assert checked.json == {"errors": []}, one["source"]


def test_mistakes_have_the_lines_and_columns_that_det_check_says(
    server: Server, tmp_path: Path
) -> None:
    text = (
        "entrypoint: train:T\nsearcher: {name: single, metric: m, max_length: {batches:"
        " 1}}\nlr: 1\n"
    )
    answer = server.ask("/api/v1/check", "POST", {"config": text}).json
    (tmp_path / "c.yaml").write_text(text)
    said = det(tmp_path / "none", tmp_path, "check", "--config-only", "c.yaml").stderr
    assert [
        f"det: c.yaml:{e['line']}:{e['column']}: {e['message']}" for e in answer["errors"]
    ] == said.splitlines()
    assert answer["errors"][0]["line"] == 3
    path = server.ask("/api/v1/check", "POST", {"config": "/etc/hostname"}).json["errors"][0][
        "message"
    ]
    assert "the configuration is '/etc/hostname'" in path, (
        "a text is never taken for the name of a file"
    )


def test_fork_keeps_a_hidden_secret_and_a_trial_is_continued(own: Server) -> None:
    source = own.get("/experiments/1")["source"].replace("name: small", "name: forked", 1)
    wrong = own.ask("/api/v1/experiments/1/fork", "POST", {"config": source + "sercher: {}\n"})
    assert (wrong.status, "did you mean 'searcher'?" in wrong.json["error"]) == (400, True)
    made = own.ask("/api/v1/experiments/1/fork", "POST", {"config": source})
    assert (made.status, made.json) == (201, {"id": 2}), made.body
    with Store.reader(own.home) as store:
        assert "API_TOKEN=hush" in store.experiments.config(2).environment.environment_variables.cpu
        assert "hush" not in store.experiments.get(2).config
    client = Client(own.home)
    assert (client.get_experiment(2).name, client.get_experiment(2).wait()) == (
        "forked",
        "COMPLETED",
    )
    assert own.ask("/api/v1/trials/1/kill", "POST").status == 409
    best = own.get("/experiments/1")["best_trial"]
    longer = own.ask(f"/api/v1/trials/{best}/continue", "POST")
    assert longer.status == 201, longer.body
    assert client.get_experiment(longer.json["id"]).wait() in ("COMPLETED", "ERROR")


def test_a_change_is_told_to_a_page_that_listens(own: Server) -> None:
    with socket.create_connection(("127.0.0.1", own.port), timeout=60) as page:
        head = (
            f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{own.port}\r\nCookie:"
            f" {own.cookie}\r\n\r\n"
        )
        page.sendall(head.encode())
        told = b""
        while b"event: hello" not in told:
            told += page.recv(65536)
        done = threading.Event()

        def rename() -> (
            None
        ):  # until it has been told: the first look may come after the first change
            client, count = Client(own.home), 0
            while not done.wait(0.3):
                count += 1
                client.get_experiment(1).set_name(f"name {count}")

        changing = threading.Thread(target=rename)
        changing.start()
        try:
            while b'event: experiments\ndata: {"ids":[1]}' not in told:
                more = page.recv(65536)
                assert more, told
                told += more
        finally:
            done.set()
            changing.join()


def test_one_that_is_damaged_is_shown_as_such_and_the_rest_works(own: Server) -> None:
    shutil.copytree(own.home / "experiments/1", own.home / "experiments/5")
    shutil.copytree(own.home / "experiments/1", own.home / "experiments/6")
    (own.home / "experiments/5/experiment.db").write_bytes(b"SQLite format 3\0" + b"?" * 5000)
    with Store(own.home) as store, store.lock(6) as database:
        database.run("PRAGMA user_version = 999")
    columns = own.get("/experiments")["columns"]
    by_id = dict(
        zip(columns["id"], zip(columns["state"], columns["problem"], strict=True), strict=True)
    )
    assert by_id[1] == ("COMPLETED", None)
    assert by_id[5][0] == by_id[6][0] == "UNREADABLE"
    assert "is not a store of det" in by_id[5][1]
    assert "newer than the" in by_id[6][1]
    shutil.copytree(own.home / "experiments/1", own.home / "experiments/7")
    assert 7 in own.get("/experiments")["columns"]["id"]
    for file in (own.home / "experiments/7").glob("experiment.db*"):
        file.write_bytes(b"")
    columns = own.get("/experiments")["columns"]
    assert "is empty" in columns["problem"][columns["id"].index(7)], "the index has it as it was"
    assert b'det_experiments{state="UNREADABLE"} 3' in own.ask("/metrics").body
    answer = own.ask("/api/v1/experiments/6")
    assert (answer.status, "upgrade det-driver" in answer.json["error"]) == (409, True)


def test_half_a_character_in_metrics_is_answered_escaped(own: Server) -> None:
    """JSON of another user's file can hold one (a surrogate), and no encoding can."""
    with closing(sqlite3.connect(own.home / "experiments/1/experiment.db")) as database:
        database.execute("""UPDATE trials SET hparams = '{"\\ud801": "\\udc01"}'""")
        database.execute("""UPDATE metrics SET data = '{"\\udfff": 0.5, "error": 0.5}'""")
        database.commit()
    for path in ("/experiments/1", "/experiments/1/trials", "/trials/1", "/trials?ids=1"):
        assert own.ask(f"/api/v1{path}").status == 200, path
    assert "\\ud801" in own.get("/trials/1")["hparams"]


def test_empty_home_and_one_of_an_earlier_det_are_recognized(tmp_path: Path) -> None:
    server = start(tmp_path / "home")
    try:
        assert server.get("/experiments")["columns"]["id"] == []
        assert server.ask("/metrics").status == 200
        (tmp_path / "home").mkdir(exist_ok=True)
        (tmp_path / "home/det.db").touch()
        answer = server.ask("/api/v1/experiments")
        assert (answer.status, "the store of an earlier det" in answer.json["error"]) == (409, True)
    finally:
        stop(server)


def test_prometheus_reads_counts_and_names_are_escaped(own: Server) -> None:
    text = own.ask("/metrics").body.decode()
    assert 'det_experiments{state="COMPLETED"} 1' in text.splitlines()
    assert own.ask("/metrics").headers["content-type"].startswith("text/plain")


def test_nothing_heavy_is_imported() -> None:
    names = "torch tensorflow numpy pandas lightning keras optuna"
    code = (
        "import sys, det_web.command, det_web.app, det_web.serve; print([n for n in"
        f" {names.split()} if n in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_a_search_brings_the_page_for_as_long_as_it_runs(tmp_path: Path) -> None:
    """However it ends: here its driver is killed."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "const.yaml").write_text(CONFIG)
    (tmp_path / "wait").touch()
    env = {**environment(tmp_path / "home"), "WAIT_FOR": str(tmp_path / "wait")}
    command = [sys.executable, "-m", "det_driver.cli", "run", "const.yaml", "--ui", "-q"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as driver:
        assert driver.stderr is not None
        found = re.search(rb":(\d+)/login\?token=(\S+)", driver.stderr.readline())
        assert found
        server = Server(tmp_path / "home", driver, int(found[1]), found[2].decode())  # type: ignore[arg-type]
        server.sign_in()
        assert server.get("/experiments/1")["state"] == "ACTIVE"
        driver.kill()
    (tmp_path / "wait").unlink()
    deadline = time.monotonic() + 30
    with suppress(ConnectionError):
        while server.ask("/"):
            assert time.monotonic() < deadline, "the page outlives its driver"
            time.sleep(0.05)


def test_the_page_is_not_for_a_search_in_the_background(made: Path) -> None:
    done = det(made, made.parent / "project", "run", "const.yaml", "--ui", "--detach")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--ui is for as long as this command runs" in done.stderr
    done = det(made, made.parent / "project", "run", "const.yaml", "--keep")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--keep is about the page; give --ui, too" in done.stderr


def test_a_page_that_a_search_brought_stays_where_it_is_kept(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "const.yaml").write_text(CONFIG)
    home = tmp_path / "home"
    try:
        done = det(home, tmp_path, "run", "const.yaml", "--ui", "--keep", "-q")
        found = re.search(r":(\d+)/login\?token=", done.stderr)
        assert found, done.stderr
        assert "experiment 1 is completed" in done.stdout
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=10).close()
    finally:
        stopped = det(home, tmp_path, "ui", "--stop")
    assert stopped.returncode == 0


def test_a_run_says_on_which_machine_it_was(server: Server) -> None:
    assert {run["host"] for id in (1, 2) for run in server.get(f"/trials/{id}")["runs"]} == {
        socket.gethostname()
    }


def test_tensorboard_starts_on_demand_and_ends_with_the_server(made: Path) -> None:
    pytest.importorskip("tensorboard")
    server = start(made)
    try:
        first = server.ask("/api/v1/tensorboard", "POST", {"experiments": [1]}).json["address"]
        with urlopen(f"{first}data/runs", timeout=60) as answer:
            assert any("experiment-1" in run for run in json.load(answer))
        assert (
            server.ask("/api/v1/tensorboard", "POST", {"experiments": [1]}).json["address"] == first
        )
        unknown = server.ask("/api/v1/tensorboard", "POST", {"experiments": [77]})
        assert (unknown.status, "no experiment 77" in unknown.json["error"]) == (409, True)
    finally:
        server.process.kill()  # however it ends
        stop(server)
    deadline = time.monotonic() + 30
    with suppress(OSError):  # nobody listens, or whoever does ends while it is asked
        while urlopen(first, timeout=10):
            assert time.monotonic() < deadline, "TensorBoard outlives the server"
            time.sleep(0.05)


def test_stopped_server_ends_silently_with_an_open_page(made: Path) -> None:
    server = start(made, stderr=subprocess.PIPE)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as page:
        head = (
            f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nCookie:"
            f" {server.cookie}\r\n\r\n"
        )
        page.sendall(head.encode())
        told = b""
        while b"event: hello" not in told:
            told += page.recv(65536)
        server.process.send_signal(signal.SIGTERM)
        _, said = server.process.communicate(timeout=60)
        while page.recv(65536):
            continue
    assert said == ""
