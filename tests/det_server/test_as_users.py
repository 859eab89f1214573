"""A server started by root that runs the code of each user as the system user of that name."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.other_user import entered_by_all
from tests.support.system_users import (
    SystemUser,
    make_interpreter,
    needs_useradd,
    processes_of,
    system_user,
)

from det_driver.config import to_yaml
from det_driver.store import Store
from det_server import Users

pytestmark = [pytest.mark.process, pytest.mark.slow, needs_useradd]

PASSWORD = "a long password"
SECONDS = 90.0
LOOK = """\
import os
import sys
from pathlib import Path

from det_core import core

with core.init() as context:
    print("as", os.getuid(), os.getgid(), os.getgroups(), oct(os.umask(0o077)), os.environ["HOME"])
    print("variables", sorted({"SECRET_OF_ROOT", "DET_HOME"} & os.environ.keys()))
    for place in sys.argv[1:]:
        path = Path(place)
        try:
            found = os.listdir(path) if path.is_dir() else path.read_bytes()
            print("open", place, len(found))
        except OSError as error:
            print("closed", place, error.strerror)
    context.train.report_validation_metrics(1, {"loss": 1.0})
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("w" * 100)
"""
TRAIN = """\
import json
import os
import random
import time
from pathlib import Path

from det_core import core

with core.init() as context:
    print("process", os.getpid(), flush=True)
    done, generator = 0, random.Random(context.info.trial.trial_seed)
    if latest := context.info.latest_checkpoint:
        with context.checkpoint.restore_path(latest) as path:
            done, state = json.loads((path / "state.json").read_text())
            generator.setstate((state[0], tuple(state[1]), state[2]))
    while done < 8:
        done += 1
        context.train.report_validation_metrics(done, {"loss": generator.random()})
        while not Path("GATES", str(done)).exists():
            if context.preempt.should_preempt():
                break
            time.sleep(0.05)
        with context.checkpoint.store_path({"steps_completed": done}) as (path, uuid):
            (path / "state.json").write_text(json.dumps([done, generator.getstate()]))
        if context.preempt.should_preempt():
            break
"""


class Served:
    """A server of a home that two system users have names on, and its command line for each."""

    def __init__(self, place: Path, users: list[SystemUser]) -> None:
        self.place, self.users = place, users
        self.home = place / "home"
        self.python = str(make_interpreter(place))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                *self._det,
                "server",
                "start",
                "--run-as-users",
                "--behind-proxy",
                "--port",
                str(self.port),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env=self._environ(),
        )
        assert process.stdout is not None
        self.said = ""
        while "is at" not in (line := process.stdout.readline()):
            assert line, "the server has ended"
            self.said += line
        return process

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def _det(self) -> list[str]:
        return [self.python, "-P", "-m", "det_driver.cli"]

    def _environ(self, **more: str) -> dict[str, str]:
        # A run goes on without its driver, however busy the machine is.
        own = {"SECRET_OF_ROOT": "1", "DET_LEASE": "600"}
        of_test = {**own, "DET_HOME": str(self.home), "DET_MASTER": ""}
        return {**os.environ, **of_test, **more}

    def by_root(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Execute a command in the home."""
        return subprocess.run(
            [*self._det, *words],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env=self._environ(),
        )

    def by(self, user: str, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Execute a command on the server."""
        environ = self._environ(XDG_CONFIG_HOME=str(self.place / f"config-{user}"))
        del environ["DET_HOME"]
        environ["DET_MASTER"] = self.address if words[0] != "login" else ""
        return subprocess.run(
            [*self._det, *words],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            env=environ,
        )

    def add(self, user: str) -> None:
        self.by_root("server", "user", "add", user, "--role", "editor", text=f"{PASSWORD}\n")
        words = ("login", self.address, "--user", user, "--password-stdin")
        assert not self.by(user, *words, text=f"{PASSWORD}\n").returncode

    def project(self, code: str, config: str) -> tuple[str, str]:
        directory = self.place / "project"
        directory.mkdir(exist_ok=True)
        (directory / "train.py").write_text(code)
        (directory / "const.yaml").write_text(
            "searcher: {name: single, metric: loss, max_length: {batches: 8}}\n"
            f"checkpoint_policy: none\n{config}\n"
        )
        return str(directory / "const.yaml"), str(directory)

    def submit(self, user: str, code: str, config: str, *words: str) -> int:
        done = self.by(user, "run", *self.project(code, config), *words)
        found = re.search(r"experiment (\d+)", done.stdout)
        assert found, done.stderr
        return int(found[1])

    def log(self, user: str, experiment: int) -> str:
        return self.by(user, "logs", str(experiment)).stdout

    def state(self, experiment: int) -> str:
        with Store.reader(self.home) as store:
            return store.experiments.get(experiment).state.value

    def checkpoint(self, experiment: int) -> str:
        with Store.reader(self.home) as store:
            return store.checkpoints.list(experiment_id=experiment)[-1].uuid


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with (
        entered_by_all() as place,
        system_user("det-ann-", place) as ann,
        system_user("det-bob-", place) as bob,
    ):
        made = Served(place, [ann, bob])
        try:
            for user in (ann, bob):
                made.add(user.name)
            yield made
        finally:
            made.end()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_code_has_the_rights_of_its_user_and_no_others(served: Served) -> None:
    ann, bob = served.users
    assert "the code of each user runs as the system user of the same name" in served.said
    of_root = (served.home, served.home / "server.db", "/etc/shadow", bob.home)
    words = " ".join(map(str, of_root))
    first = served.submit(ann.name, LOOK, f"entrypoint: python3 train.py {words}")
    said = served.log(ann.name, first)
    assert served.state(first) == "COMPLETED", said
    assert f"as {ann.uid} {ann.uid} [{ann.uid}] 0o77 {ann.home}" in said
    assert "variables []" in said
    assert [f"closed {place} Permission denied" in said for place in of_root] == [True] * 4
    checkpoint = ann.home / ".det-server/checkpoints" / served.checkpoint(first)
    assert {path.stat().st_uid for path in (checkpoint, *checkpoint.iterdir())} == {ann.uid}
    assert oct((checkpoint / "weights").stat().st_mode)[-3:] == "600"
    # The other user.
    of_ann = (ann.home, checkpoint, ann.home / ".cache/det/agents")
    words = " ".join(map(str, of_ann))
    second = served.submit(bob.name, LOOK, f"entrypoint: python3 train.py {words}")
    said = served.log(bob.name, second)
    assert f"as {bob.uid} " in said
    assert [f"closed {place} Permission denied" in said for place in of_ann] == [True] * 3
    # A storage that is ann's is none of bob's.
    storage = f"{{type: shared_fs, host_path: {ann.home}/.det-server/checkpoints}}"
    third = served.submit(
        bob.name,
        LOOK,
        "max_restarts: 0\nentrypoint: python3 train.py\ncheckpoint_storage: " + storage,
    )
    assert served.state(third) in ("ERROR", "PAUSED", "ACTIVE")
    served.by(bob.name, "cancel", "--now", str(third))
    assert not served.by(bob.name, "checkpoint", "list", str(third), "--json").returncode


def test_links_of_a_user_lead_root_nowhere(served: Served, tmp_path: Path) -> None:
    ann, _ = served.users
    experiment = served.submit(ann.name, LOOK, "entrypoint: python3 train.py")
    uuid = served.checkpoint(experiment)
    place = ann.home / ".det-server/checkpoints" / uuid
    got = served.by(ann.name, "checkpoint", "download", uuid, "-o", str(tmp_path / "got"))
    assert (tmp_path / "got" / "weights").read_text() == "w" * 100, got.stderr
    secret = served.home / "secret"
    # It would be taken for the file, by its size and its digest.
    secret.write_text("w" * 100)
    as_ann = {"user": ann.uid, "group": ann.uid, "extra_groups": ()}
    subprocess.run(["ln", "-sf", secret, place / "weights"], check=True, **as_ann)
    for ask in (served.by_root, lambda *words: served.by(ann.name, *words)):
        asked = ask("checkpoint", "download", uuid, "-o", str(tmp_path / "link"))
        assert asked.returncode
        assert not (tmp_path / "link").exists()
    # A directory of somebody else that has a manifest of this name.
    victim = served.place / "victim"
    victim.mkdir()
    victim.joinpath("manifest.json").write_text(json.dumps({"uuid": uuid}))
    victim.joinpath("file").write_text("precious")
    subprocess.run(["rm", "-r", place], check=True, **as_ann)
    subprocess.run(["ln", "-s", victim, place], check=True, **as_ann)
    served.by(ann.name, "rm", "--yes", str(experiment))
    assert victim.joinpath("file").read_text() == "precious"
    assert victim.joinpath("manifest.json").exists()
    victim.joinpath("file").unlink()


def test_a_configuration_gives_no_rights_of_root(served: Served, tmp_path: Path) -> None:
    """A storage that only root can read is neither read nor deleted."""
    ann, _ = served.users
    storage = ann.home / "storage"
    config = f"checkpoint_storage: {{type: shared_fs, host_path: {storage}}}"
    mine = served.submit(ann.name, LOOK, f"entrypoint: python3 train.py\n{config}")
    uuid = served.checkpoint(mine)
    assert (storage / uuid / "weights").stat().st_uid == ann.uid
    hidden = served.home / "hidden"
    shutil.copytree(storage, hidden)
    as_ann = {"user": ann.uid, "group": ann.uid, "extra_groups": ()}
    subprocess.run(["mv", storage, f"{storage}.away"], check=True, **as_ann)
    subprocess.run(["ln", "-s", hidden, storage], check=True, **as_ann)
    asked = served.by(ann.name, "checkpoint", "download", uuid, "-o", str(tmp_path / "got"))
    assert "Permission denied" in asked.stderr
    assert not (tmp_path / "got").exists()
    served.by(ann.name, "rm", "--yes", str(mine))
    assert (hidden / uuid / "weights").exists()


def test_a_fork_runs_as_who_made_it(served: Served) -> None:
    ann, bob = served.users
    config = "entrypoint: python3 train.py\nlabels: [vision]"
    first = served.submit(ann.name, LOOK, config)
    workspace = ("server", "workspace")
    assert not served.by_root(*workspace, "set", "vision", "--open").returncode
    granted = served.by_root(*workspace, "grant", "vision", bob.name, "--role", "editor")
    assert not granted.returncode, granted.stderr
    token = Users(served.home).make_token(bob.name).text
    asked = urllib.request.Request(
        f"{served.address}/api/v1/experiments/{first}/fork",
        data=json.dumps({"config": yaml_of(served, first)}).encode(),
        headers={"Authorization": f"Bearer {token}", "X-Det": "1"},
        method="POST",
    )
    with urllib.request.urlopen(asked, timeout=60) as reply:
        second = json.load(reply)["id"]
    wait_for(lambda: served.state(second) == "COMPLETED")
    assert f"as {bob.uid} " in served.log(bob.name, second)


def yaml_of(served: Served, experiment: int) -> str:
    with Store.reader(served.home) as store:
        return to_yaml(store.experiments.config(experiment))


def test_what_has_no_account_does_not_run(served: Served) -> None:
    """Neither that of a user without one, nor that of root who has the home."""
    place = served.project(LOOK, "entrypoint: python3 train.py")
    served.add("nobody-of-this-name")
    asked = served.by("nobody-of-this-name", "run", *place)
    assert "this machine has no user 'nobody-of-this-name'" in asked.stderr
    asked = served.by_root("run", *place)
    assert (asked.returncode, "submit it to the server" in asked.stderr) == (2, True)
    with Store.reader(served.home) as store:
        assert not [
            each
            for each in store.experiments.list(archived=None, unread={})
            if each.experiment.name == "project" and each.experiment.started is None
        ]
    # A server that is started in another way would run their code as root.
    asked = served.by_root("server", "start", "--port", "0")
    assert (asked.returncode, "give --run-as-users" in asked.stderr) == (2, True)


def losses(served: Served, experiment: int) -> list[float]:
    with Store.reader(served.home) as store:
        [trial] = store.trials.list(experiment)
        return [each.values["loss"] for each in store.metrics.read(trial_id=trial.id)]


def test_a_disturbed_run_is_equal_to_an_undisturbed_one(served: Served) -> None:
    ann, _ = served.users
    gates = served.place / "gates"
    gates.mkdir()
    config = "entrypoint: python3 train.py\nreproducibility: {experiment_seed: 3}\nlabels: [x]"
    code = TRAIN.replace("GATES", str(gates))
    disturbed = served.submit(ann.name, code, config, "--detach")
    pass_gate(gates, 1, served, disturbed)
    # Its driver is killed. The next one, which the server starts, finds the run.
    with Store.reader(served.home) as store:
        driver = store.experiments.get(disturbed).pid
    assert driver
    before = runs_of(served, disturbed)
    os.kill(driver, signal.SIGKILL)
    wait_for(lambda: new_driver(served, disturbed, driver))
    pass_gate(gates, 2, served, disturbed)
    assert runs_of(served, disturbed) == before
    # The server is killed, too.
    served.end()
    pass_gate(gates, 3, served, disturbed)
    served.process = served.start()
    assert not served.by(ann.name, "pause", str(disturbed)).returncode
    wait_for(lambda: served.state(disturbed) == "PAUSED")
    wait_for(lambda: not processes_of(ann.uid))
    assert not served.by(ann.name, "resume", "--detach", str(disturbed)).returncode
    for each in range(4, 9):
        (gates / str(each)).touch()
    wait_for(lambda: served.state(disturbed) == "COMPLETED")
    assert len(runs_of(served, disturbed)) == 2
    calm = served.submit(ann.name, code, config)
    assert served.state(calm) == "COMPLETED"
    assert losses(served, calm) == losses(served, disturbed)
    assert len(losses(served, calm)) == 8


def pass_gate(gates: Path, number: int, served: Served, experiment: int) -> None:
    wait_for(lambda: len(losses_so_far(served, experiment)) >= number)
    (gates / str(number)).touch()
    wait_for(lambda: len(losses_so_far(served, experiment)) > number)


def losses_so_far(served: Served, experiment: int) -> list[float]:
    with Store.reader(served.home) as store:
        return losses(served, experiment) if store.trials.list(experiment) else []


def runs_of(served: Served, experiment: int) -> list[int]:
    with Store.reader(served.home) as store:
        [trial] = store.trials.list(experiment)
        return [run.id for run in store.runs.list(trial.id)]


def new_driver(served: Served, experiment: int, old: int) -> bool:
    with Store.reader(served.home) as store:
        return store.experiments.get(experiment).pid not in (None, old)
