"""Print what `det server` costs a team: waits, processor time, memory, and the ratio without it.

    python benchmarks/server.py [--users 4] [--experiments 8] [--trials 500] [--slots 64]

Users submit experiments over HTTP at the same time. The server, the drivers that it starts, the
queue for slots and the store are the real ones. The workers of all runs are this script, which
reports as fast as it is answered (`scale.py`). Meanwhile the page's lists are read. Before that,
drivers in the background, as `det run --detach` starts them, train the same experiments in another
home. They print each validation to their logs, which takes about half of their time.

First all users submit an experiment at the same moment, and then each of them about one in a
second. A submission is timed until the server has its number. Its driver is started by another
request, so that this script can be its agent before. Processor time is counted from when all drivers have
started until nine tenths of the trials have ended, so that starts of interpreters do not count.
Machines that others use too are now faster, now slower. So the ratio is given for processor time as
well, which they change less.

The goals are for 20 users, 200 experiments and 100,000 trials on two cores.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

from queue_decisions import make_state, measure
from scale import DET, VALIDATIONS, Agent

from det_driver.config import load
from det_driver.driver import create, start_driver
from det_driver.queue import decide
from det_driver.remote import pack
from det_driver.store import Store
from det_server import Role, Users

EXPERIMENTS = 200
"""Experiments whose runs wait in the decisions that are timed."""
THINK_SECONDS = 1.0
"""How long a user thinks between two submissions, on average."""
LOOK_SECONDS = 5.0
"""How often the lists of the page are read. The page itself reads what has changed."""
CONFIG = """
name: server
entrypoint: model_def:Trial
hyperparameters: {{lr: {{type: log, minval: -5, maxval: 0}}}}
searcher: {{name: random, metric: loss, max_trials: {trials}, max_length: 100}}
checkpoint_policy: none
check_first: false
"""
# Event files for TensorBoard, where that is installed, are the work of an observer.
SITE = "import sys\nsys.modules['tensorboard'] = None\n"


class Meter:
    """The processor time of all processes of a home, which is read until they end."""

    def __init__(self, home: Path) -> None:
        self._mark = f"DET_HOME={home}".encode() + b"\0"
        self._seconds: dict[str, float] = {}

    def read(self, *, pid: int | None = None) -> float:
        """Return the seconds that all of them, or the one with this id, have used so far."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and self._mark in (entry / "environ").read_bytes():
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                    # A number of a process may be used again.
                    key = f"{entry.name} {fields[19]}"
                    self._seconds[key] = max(used, self._seconds.get(key, 0.0))
        return sum(
            seconds
            for key, seconds in self._seconds.items()
            if pid is None or key.startswith(f"{pid} ")
        )


class Figures:
    """What was measured while experiments trained. `server` is the id of its process."""

    def __init__(self, home: Path, agents: list[Agent], trials: int, server: int = 0) -> None:
        self._meter, self._agents, self._trials = Meter(home), agents, trials
        self._server = server
        self.began = time.monotonic()

    def wait(
        self,
        started: Callable[[], bool],
        fails: Callable[[], bool],
        meanwhile: Callable[[], object] = bool,
    ) -> None:
        """Wait for the end of all trials, and note the costs of those between the first and last.

        `started` returns whether all drivers have started, and `fails` whether trials will not end.
        """
        start = end = (0.0, 0, 0.0, 0.0)
        total = len(self._agents) * self._trials
        while (ended := sum(each.ended for each in self._agents)) < total:
            reports = sum(each.reports for each in self._agents)
            used = self._meter.read()
            now = (used, reports, time.monotonic(), self._meter.read(pid=self._server))
            if not start[1] and started():
                start = now
            if ended <= 0.9 * total:
                end = now
            if fails():
                raise SystemExit(f"a driver or the server failed after {ended} of {total} trials")
            meanwhile()
            time.sleep(0.25)
        self.seconds = time.monotonic() - self.began
        if not start[1] or end[1] <= start[1]:
            raise SystemExit("the experiments are too short to be measured; give more --trials")
        self.reports = end[1] - start[1]
        self.cost = 1e6 * (end[0] - start[0]) / self.reports
        self.of_server = 1e6 * (end[3] - start[3]) / self.reports
        self.rate = self.reports / (end[2] - start[2])


class Requests:
    """What one user asks the server for, over one connection."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {"Authorization": f"Bearer {token}"}

    def __call__(self, method: str, path: str, body: bytes = b"") -> tuple[Any, float]:
        """Return the reply, and the milliseconds that it took."""
        began = time.perf_counter()
        self._connection.request(method, f"/api/v1{path}", body, self._headers)
        reply = self._connection.getresponse()
        data = reply.read()
        took = 1e3 * (time.perf_counter() - began)
        if reply.status >= 300:
            raise SystemExit(f"{method} {path}: {reply.status} {data.decode(errors='replace')}")
        return json.loads(data) if data else None, took

    def close(self) -> None:
        self._connection.close()


def at(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def train_alone(home: Path, options: argparse.Namespace, environ: Mapping[str, str]) -> Figures:
    """Train all experiments with drivers that are started here."""
    config = home.parent / "server.yaml"
    config.write_text(CONFIG.format(trials=options.trials))
    with Store(home) as store:
        made = [create(store, load(config).config, None) for _ in range(options.experiments)]
        agents = [Agent(store.agents_dir(id), 0, options.trials) for id in made]
    figures = Figures(home, agents, options.trials)

    def start(id: int) -> int:
        with Store(home) as store:
            return start_driver(store, home, id, {**environ, "DET_HOME": str(home)})[0]

    with ThreadPoolExecutor(options.experiments) as threads:
        starting = [threads.submit(start, id) for id in made]
        figures.wait(
            lambda: all(each.done() for each in starting),
            lambda: any(each.done() and each.exception() for each in starting),
        )
    return figures


class Team:
    """A server in a process, with users who have tokens and the same code."""

    def __init__(self, home: Path, options: argparse.Namespace, environ: Mapping[str, str]) -> None:
        self._options = options
        users = Users(home)
        for number in range(options.users):
            users.add(f"user{number}", Role.EDITOR, "a long password")
        self.tokens = [users.make_token(each.name).text for each in users.everybody()]
        command = [*DET, "server", "start", "--port", "0"]
        environ = {**environ, "DET_HOME": str(home)}
        self.process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = re.search(r":(\d+)/$", self.process.stdout.readline().strip())
        assert found is not None
        self.port = int(found[1])
        with tempfile.TemporaryDirectory() as code:
            (Path(code) / "model_def.py").write_text("class Trial:\n    pass\n")
            file = io.BytesIO()
            self._digest, self._archive = pack(Path(code), file), file.getvalue()

    def requests(self, user: int) -> closing[Requests]:
        """Return a connection of a user, which is closed at the end of the block."""
        return closing(Requests(self.port, self.tokens[user]))

    def submit(self, user: int, key: str, wait: float = 0.0) -> tuple[int, float]:
        """Submit an experiment without starting it; return its number and the milliseconds.

        The user thinks about it for `wait` seconds before.
        """
        time.sleep(wait)
        body = {
            "config": CONFIG.format(trials=self._options.trials),
            "name": "server",
            "code": self._digest,
            "key": key,
            "paused": True,
        }
        with self.requests(user) as ask:
            ask("PUT", f"/code/{self._digest}?offset=0&size={len(self._archive)}", self._archive)
            made, took = ask("POST", "/submissions", json.dumps(body).encode())
        return made["id"], took

    def start(self, user: int, experiment: int) -> float:
        """Start the driver of an experiment; return the milliseconds."""
        with self.requests(user) as ask:
            return ask("POST", f"/experiments/{experiment}/activate", b"{}")[1]

    def memory(self) -> float:
        """Return the most memory that the server has had, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def train_by_server(home: Path, options: argparse.Namespace, environ: Mapping[str, str]) -> Figures:
    """Let users submit the experiments to a server, and print what they meet."""
    team, listed = Team(home, options, environ), list[float]()
    users = [key % options.users for key in range(options.experiments)]
    pauses = Random(0)
    waits = [
        pauses.expovariate(1 / THINK_SECONDS) if key >= options.users else 0.0
        for key in range(options.experiments)
    ]
    try:
        with ThreadPoolExecutor(options.users) as threads:
            # The first one imports what the others need, too.
            team.submit(0, "first")
            meter = Meter(home)
            spent = -meter.read()
            made = [*threads.map(team.submit, users, map(str, range(options.experiments)), waits)]
            spent += meter.read()
            ids = [id for id, _ in made]
            at_once = [took for _, took in made[: options.users]]
            submitted = [took for _, took in made[options.users :]]
            with Store.reader(home) as store:
                agents = [Agent(store.agents_dir(id), 0, options.trials) for id in ids]
            figures = Figures(home, agents, options.trials, team.process.pid)
            starting = [threads.submit(team.start, *each) for each in zip(users, ids, strict=True)]

            def look() -> None:
                paths = ("/experiments", f"/experiments/{ids[0]}/trials", "/queue")
                if len(listed) <= len(paths) * (time.monotonic() - figures.began) / LOOK_SECONDS:
                    with team.requests(0) as ask:
                        listed.extend(ask("GET", path)[1] for path in paths)

            figures.wait(
                lambda: all(each.done() for each in starting),
                lambda: team.process.poll() is not None,
                look,
            )
            started = [each.result() for each in starting]
            memory = team.memory()
    finally:
        team.process.send_signal(signal.SIGTERM)
        team.process.communicate()
    print(
        f"submission: {at(submitted, 0.5):.0f} ms, p99 {at(submitted, 0.99):.0f} ms (goal: 100);"
        f" of {options.users} users at the same moment: {at(at_once, 0.5):.0f} ms, the last one"
        f" {max(at_once):.0f} ms; {1e3 * spent / options.experiments:.0f} ms of CPU"
    )
    print(f"start of a driver: {at(started, 0.5):.0f} ms, p99 {at(started, 0.99):.0f} ms")
    print(
        f"lists of the page: {at(listed, 0.5):.0f} ms, p99 {at(listed, 0.99):.0f} ms (goal: 1000)"
    )
    print(f"memory of the server: {memory:.0f} MB at most (goal: 200)")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--experiments", type=int, default=8)
    parser.add_argument("--trials", type=int, default=500, help="of each experiment")
    parser.add_argument("--slots", type=int, default=64, help="which all experiments share")
    options = parser.parse_args()
    waiting, running = make_state(EXPERIMENTS)
    took = measure(lambda: decide(waiting, running, 1e6), 50)
    print(
        f"decision of the queue, 10,000 runs of {EXPERIMENTS} experiments: {took:.2f} ms (goal: 1)"
    )
    with tempfile.TemporaryDirectory(prefix="det-bench-") as scratch:
        site = Path(scratch) / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE)
        path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
        environ = {**os.environ, "DET_SLOTS_TOTAL": str(options.slots), "PYTHONPATH": path}
        for name in ("PYTHONDONTWRITEBYTECODE", "DET_MASTER"):
            environ.pop(name, None)
        print(
            f"{options.users} users, {options.experiments} experiments of {options.trials} trials,"
            f" {VALIDATIONS} reports each, on {options.slots} slots",
            flush=True,
        )
        alone = train_alone(Path(scratch) / "alone", options, environ)
        served = train_by_server(Path(scratch) / "served", options, environ)
    for name, each in (("drivers alone", alone), ("server and drivers", served)):
        print(
            f"{name}: {each.cost:.0f} µs of CPU a report (goal: 100), {each.of_server:.0f} of them"
            f" the server's; {each.rate:.0f} reports a second, {each.seconds:.1f} s in all"
        )
    print(
        f"ratio: {alone.seconds / served.seconds:.2f} of the time, {alone.cost / served.cost:.2f} of"
        " the CPU a report (goal: 0.95)"
    )


if __name__ == "__main__":
    main()
