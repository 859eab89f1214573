"""Print what an experiment of many trials costs its driver (CPU a report, memory).

Also print how long a resume and a look at it take.

The driver, the store and the command line are the real ones, and so is the connection to the agent.
The agent is this script: it starts no processes, but speaks for the workers of all runs, which
report as fast as they are answered. When nine tenths of the trials have ended, the driver is
killed, and another one goes on to the end.

Shared machines are now faster, now slower, by half and more within minutes. So what the agent's
side of a report takes of a processor is told, too: it does the same on all machines and in all
runs, at the same time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from det_core.train.host import Outcome
from det_driver.config import load
from det_driver.driver import create
from det_driver.engines._links import read_secret
from det_driver.store import Store
from det_node import wire
from det_node.agent import (
    NOTE,
    AgentEvent,
    AgentHello,
    Ended,
    EndRuns,
    Order,
    RunAck,
    RunSpec,
    StartRun,
    WorkerMessage,
    WorkerReply,
    encode_frame,
)
from det_node.agent._frames import decode_attach, decode_orders
from det_node.agent._note import note_agent
from det_node.protocol import (
    AskTarget,
    Completed,
    Envelope,
    Finished,
    Message,
    Reported,
    Validated,
    welcome,
)

VALIDATIONS = 10
DET = (sys.executable, "-P", "-m", "det_driver.cli")
CONFIG = """
name: scale
entrypoint: model_def:Trial
hyperparameters: {{lr: {{type: log, minval: -5, maxval: 0}}, units: {{type: int, minval: 8, maxval: 512}}}}
searcher: {{name: {searcher}, metric: loss, max_trials: {trials}, max_length: 100, max_concurrent_trials: {at_once}}}
checkpoint_policy: none
"""


@dataclass
class Worker:
    """One run: its words that have not been answered, and how far it is."""

    spec: RunSpec
    newest: int = 0
    waiting: list[Envelope] = field(default_factory=list)
    at: int = 0
    ended: bool = False

    def say(self, word: Message) -> None:
        self.newest += 1
        self.waiting.append(Envelope(self.newest, word))


class Agent:
    """Speaks for the workers of all runs, each of which goes on when it is answered.

    A run's number is its link's, too. After the end of `trials` it does not look for another
    driver, which would take time from other experiments.
    """

    def __init__(self, directory: Path, training: int, trials: float = math.inf) -> None:
        self.workers: dict[int, Worker] = {}
        self.reports = self.ended = self.most = 0
        self.ordered = 0.0  # when the driver that is there gave its first order
        self._training, self._trials = training, trials
        self._directory = directory
        directory.mkdir(mode=0o700)
        note_agent(directory / NOTE, "scale")
        threading.Thread(target=self._dial, daemon=True).start()

    def _dial(self) -> None:
        """Connect to the driver, and to the one after it."""
        key = read_secret(self._directory)
        while self.ended < self._trials:
            with suppress(OSError, ValueError):
                host, port = json.loads((self._directory / "driver.json").read_text())
                with wire.connect((host, port), key) as connection:
                    self._attend(connection)
            time.sleep(0.02)

    def _attend(self, connection: wire.Connection) -> None:
        """Take the orders of a driver, which hears first what the last one has not answered."""
        ours, self.ordered = welcome(), 0.0
        here = AgentHello(
            protocol=ours.protocol,
            version=ours.version,
            name="scale",
            node=0,
            incarnation="scale",
            pid=os.getpid(),
            machine="here",
            runs=tuple(worker.spec for worker in self.workers.values()),
        )
        connection.send(encode_frame(here))
        decode_attach(connection.recv())
        connection.send(encode_frame([told for run in self.workers for told in self._waiting(run)]))
        while True:
            orders = decode_orders(connection.recv())
            self.ordered = self.ordered or time.time()
            told = [each for order in orders for each in self._obey(order)]
            if told:
                connection.send(encode_frame(told))
            if any(isinstance(order, EndRuns) for order in orders):
                return

    def _obey(self, order: Order) -> list[AgentEvent]:
        """Do what is ordered; return what there is to say then."""
        match order:
            case StartRun(spec):
                self.workers[spec.run_id] = Worker(spec)
                self.workers[spec.run_id].say(AskTarget())
                self.most = max(self.most, len(self.workers))
                return self._waiting(spec.run_id)
            case WorkerReply(run, answer):
                self._go_on(self.workers[run], answer.target.n if answer.target else None)
                return self._waiting(run)
            case RunAck(run):
                del self.workers[run]
                self.ended += 1
        return []

    def _go_on(self, worker: Worker, target: int | None) -> None:
        """Take the answer to the last of the words that wait."""
        last = worker.waiting[-1].message
        worker.waiting.clear()
        if isinstance(last, Finished):
            worker.ended = True
        elif target is None:
            worker.say(Finished(Outcome.COMPLETED))
        else:
            before, worker.at = worker.at, min(target, worker.at + target // VALIDATIONS)
            for part in range(1, self._training + 1):
                at = before + part * (worker.at - before) // self._training
                worker.say(Reported("training", at, self._metrics(worker, at)))
            measured = self._metrics(worker, worker.at)
            if worker.at == target:
                worker.say(Completed(worker.at, measured, target))
            else:
                worker.say(Validated(worker.at, measured, None))
            self.reports += 1 + self._training

    def _metrics(self, worker: Worker, at: int) -> dict[str, float]:
        loss = worker.spec.run_id * 7919 % 10007 / 10007 + 1 / (1 + at)
        return {"loss": loss, "accuracy": 1 - loss / 3, "batches": at, "epochs": at / 100}

    def _waiting(self, run: int) -> list[AgentEvent]:
        worker = self.workers[run]
        return (
            [Ended(run, 0)]
            if worker.ended
            else [WorkerMessage(run, 0, run, said) for said in worker.waiting]
        )


class Driver:
    """A `det resume` of the experiment, as a process."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.began = time.time()
        # Event files for TensorBoard, where that is installed, are the work of an observer, and
        # cost more than all else.
        code = (
            "import sys; sys.modules['tensorboard'] = None; from det_driver.cli._main import main;"
            " main()"
        )
        command = [sys.executable, "-P", "-c", code, "resume", "1", "--quiet"]
        self.process = subprocess.Popen(
            command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def until(self, done: Callable[[], bool]) -> None:
        """Wait for it to end, or for something else."""
        while self.process.poll() is None and not done():
            time.sleep(0.01)
        if self.process.returncode:
            raise SystemExit(f"the driver ended with status {self.process.returncode}")

    @property
    def cpu(self) -> float:
        """The seconds of CPU that it has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def used(self) -> resource.struct_rusage:
        """Kill it, and return what it has used."""
        self.process.kill()
        _, _, used = os.wait4(self.process.pid, 0)
        self.process.returncode = 0
        return used


def seconds(environ: dict[str, str], *arguments: str) -> str:
    """Return how long a command takes, the best of three.

    The first one may have to compile its modules.
    """

    def once() -> tuple[float, float]:
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*DET, *arguments], env=environ, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return time.perf_counter() - began, cpu

    wall, cpu = map(min, zip(*(once() for _ in range(3)), strict=True))
    return f"{wall:.2f} s, {cpu:.2f} s of them CPU"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=1000)
    parser.add_argument(
        "--training", type=int, default=0, help="reports of training before each validation"
    )
    parser.add_argument("--searcher", default="random")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="det-bench-") as scratch:
        home = Path(scratch) / "home"
        file = Path(scratch) / "scale.yaml"
        file.write_text(
            CONFIG.format(trials=options.trials, searcher=options.searcher, at_once=options.at_once)
        )
        with Store(home) as store:
            create(store, load(file).config, None)
            agent = Agent(store.agents_dir(1), options.training)
        environ = {**os.environ, "DET_HOME": str(home), "DET_SLOTS_TOTAL": str(options.at_once)}
        environ.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # commands are to find their modules compiled, as people's do
        driver = Driver(environ)
        driver.until(lambda: agent.ended >= 0.1 * options.trials)
        began, cpu, reports, ended = time.time(), driver.cpu, agent.reports, agent.ended
        own = time.process_time()
        driver.until(lambda: agent.ended >= 0.9 * options.trials)
        wall, cpu, reports, ended = (
            *(time.time() - began, driver.cpu - cpu),
            *(agent.reports - reports, agent.ended - ended),
        )
        own, used = time.process_time() - own, driver.used()
        print(
            f"{options.trials} trials, {agent.most} runs at once,"
            f" {VALIDATIONS * (1 + options.training)} reports each"
        )
        print(
            f"driver's CPU: {1e6 * cpu / reports:.0f} µs a report, starts and ends of runs included"
            f" (goal: 100); the agent's: {1e6 * own / reports:.0f} µs, {cpu / own:.2f} to one"
        )
        print(f"{reports / wall:.0f} reports a second, {ended / wall:.0f} trials a second")
        print(f"driver's memory: {used.ru_maxrss / 1024:.0f} MB at most (goal: 400)")
        print(f"det list: {seconds(environ, 'list')} (goal: 0.3)")
        print(f"det show --limit 20: {seconds(environ, 'show', '1', '--limit', '20')} (goal: 1)")
        driver = Driver(environ)
        driver.until(lambda: agent.ordered > driver.began)
        print(
            f"det resume: {agent.ordered - driver.began:.2f} s to its first decision,"
            f" {driver.cpu:.2f} s of them CPU (goal: 5)"
        )
        driver.until(lambda: False)
        with Store.reader(home) as store:
            summary = store.experiments.summary(1)
            assert sum(summary.trials.values()) == summary.trials["COMPLETED"] == options.trials, (
                summary
            )
            size = sum(
                each.stat().st_size for each in store.experiment_dir(1).glob("experiment.db*")
            )
        print(f"experiment.db: {size / 2**20:.0f} MB")


if __name__ == "__main__":
    main()
