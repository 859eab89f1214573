"""Print how many trials a second a search finishes, beside Ray Tune and Optuna.

Each trial reports one number and ends.

Every worker has torch imported. det and Ray Tune give each trial a process of its own; Optuna runs
them as threads of one. Peers are compared where they are installed
(`pip install 'ray[tune]' optuna`), alternated with det in every round. A rate is that after the
first result, which is told apart. The processor's time for a trial, by process, says more on a
machine that is busy.
"""

from __future__ import annotations

import argparse
import atexit
import fcntl
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from results import record

from det_driver.store import Store

_GET_FLAGS, _SET_FLAGS, _TOP_DIRECTORY = 0x80086601, 0x40086602, 0x00020000  # of linux/fs.h

# A framework plugin as a stranger would write it: its adapter imports torch and trains nothing.
HOOKS = """
    from det_core import Framework, hookimpl

    @hookimpl
    def det_frameworks():
        yield Framework(name="reporter", trial="reporter:Trial", load=load, requires=("torch",))

    def load():
        from reporter_adapter import ReporterAdapter
        return ReporterAdapter
"""
TRIAL = """
    class Trial:
        def __init__(self, run):
            self.lr = run.hparams["lr"]
"""
ADAPTER = """
    import torch
    from det_core import Adapter

    class ReporterAdapter(Adapter):
        framework_version = str(torch.__version__)
        batches_per_epoch = None

        def __init__(self, trial):
            self.trial = trial

        @classmethod
        def create(cls, trial, run):
            return cls(trial(run))

        def train(self, loop):
            for _ in loop.batches(iter(int, 1)):
                loop.step({})

        def validate(self):
            return {"loss": self.trial.lr}

        def save(self, path):
            (path / "nothing").touch()

        def load(self, path):
            pass
"""
MODEL = "import reporter\n\nclass Trial(reporter.Trial):\n    pass\n"
CONFIG = """
    name: throughput
    entrypoint: model_def:Trial
    hyperparameters: {{lr: {{type: log, minval: -5, maxval: 0}}}}
    searcher: {{name: random, metric: loss, max_trials: {trials}, max_length: 1, max_concurrent_trials: {at_once}}}
    checkpoint_policy: none
"""
RAY = """
    import sys, tempfile, time
    start = time.time()
    import ray
    from ray import tune
    trials, at_once, reuse = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "reuse"
    def trainable(config):
        import time, torch
        tune.report({"loss": config["lr"], "at": time.time()})
    ray.init(num_cpus=at_once, include_dashboard=False, log_to_driver=False, logging_level="error")
    tuner = tune.Tuner(
        trainable,
        param_space={"lr": tune.loguniform(1e-5, 1)},
        tune_config=tune.TuneConfig(num_samples=trials, max_concurrent_trials=at_once, reuse_actors=reuse),
        run_config=tune.RunConfig(verbose=0, storage_path=tempfile.mkdtemp()),
    )
    results = tuner.fit()
    times = [r.metrics["at"] - start for r in results]
    print(min(times), max(times), time.time() - start, len(results))
"""
OPTUNA = """
    import sys, tempfile, time
    start = time.time()
    import optuna, torch
    trials, at_once, where = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    optuna.logging.disable_default_handler()
    times = []
    def objective(trial):
        value = trial.suggest_float("lr", 1e-5, 1, log=True)
        times.append(time.time())
        return value
    storage = f"sqlite:///{tempfile.mkdtemp()}/study.db" if where == "sqlite" else None
    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(storage=storage, sampler=sampler)
    study.optimize(objective, n_trials=trials, n_jobs=at_once)
    print(min(times) - start, max(times) - start, time.time() - start, len(study.trials))
"""


@dataclass(frozen=True)
class Result:
    """Seconds to the first result, to the last and to the end.

    How many trials. The processor's milliseconds for each.
    """

    first: float
    last: float
    whole: float
    trials: int
    cpu: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Trials a second, once they run."""
        return (self.trials - 1) / (self.last - self.first)


class Meter:
    """Reads now and then how much of the processor's time the processes have taken.

    They are a driver, its agent, its fork server, and the workers.
    """

    def __init__(self, driver: int) -> None:
        self._pids = {"driver": driver}
        self._read: list[tuple[float, dict[str, float]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def between(self, first: float, last: float, trials: int) -> dict[str, float]:
        """Return the milliseconds for each of so many trials between two times."""
        self._over.set()
        self._thread.join()
        inside = [read for at, read in self._read if first <= at <= last and "workers" in read]
        return (
            {who: 1e3 * (inside[-1][who] - inside[0][who]) / trials for who in inside[-1]}
            if inside
            else {}
        )

    def _watch(self) -> None:
        tick = os.sysconf("SC_CLK_TCK")
        while not self._over.wait(0.05):
            self._look_for("agent", of="driver")
            self._look_for("fork server", of="agent")
            read: dict[str, float] = {}
            for who, pid in self._pids.items():
                if times := stat(pid)[11:15]:
                    read[who] = sum(map(int, times[:2])) / tick
                    if who == "fork server":
                        read["workers"] = sum(map(int, times[2:])) / tick
            if read:
                self._read.append((time.time(), read))

    def _look_for(self, who: str, of: str) -> None:
        parent = self._pids.get(of)
        if parent is not None and who not in self._pids:
            there = map(int, filter(str.isdigit, os.listdir("/proc")))
            if child := next((pid for pid in there if stat(pid)[1:2] == [str(parent)]), None):
                self._pids[who] = child


def stat(pid: int) -> list[str]:
    """Return what the kernel says of a process, behind its name; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def det(trials: int, at_once: int, on: str = "local") -> Result:
    """Search with det: a new home, a process for each trial, the journal and the store included.

    On Ray, the agent is in an actor, and forks the trials.
    """
    engine = {
        "local": "",
        "ray": f"engine: {{name: ray, address: '127.0.0.1:6379', slots_per_node: {at_once}}}\n",
    }[on]
    root = new_directory()
    write(root / "project", model_def=MODEL)
    (root / "project" / "c.yaml").write_text(
        textwrap.dedent(CONFIG.format(trials=trials, at_once=at_once)) + engine
    )
    site = write(root / "site", reporter_hooks=HOOKS, reporter=TRIAL, reporter_adapter=ADAPTER)
    info = site / "reporter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reporter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[det]\nreporter = reporter_hooks\n")
    env = {
        **os.environ,
        "DET_HOME": str(root / "home"),
        "PYTHONPATH": str(site),
        "DET_SLOTS_TOTAL": str(at_once),
    }
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    command = [
        sys.executable,
        "-m",
        "det_driver.cli",
        "run",
        str(root / "project" / "c.yaml"),
        "--quiet",
    ]
    with ray_cluster(at_once, env) if on == "ray" else nullcontext():
        start = time.time()
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as process:
            meter = Meter(process.pid)
        whole = time.time() - start
    if process.returncode:
        raise SystemExit(f"det run ended with status {process.returncode}")
    with Store.reader(root / "home") as store:
        times = [report.time for report in store.metrics.read(experiment_id=1, group="validation")]
    first, last = min(times), max(times)
    return Result(
        first - start, last - start, whole, len(times), meter.between(first, last, len(times) - 1)
    )


def new_directory() -> Path:
    """Make a directory on a part of the disk where nothing was deleted lately.

    It is deleted at the end.

    ext4 without a journal makes a file slowly for minutes where many were deleted: it looks at each
    number that was freed.
    """
    place = Path(tempfile.mkdtemp(prefix="det-bench-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    descriptor = os.open(place, os.O_RDONLY)
    with suppress(
        OSError
    ):  # other file systems know no such flag: `chattr +T`, as for what holds home directories
        flags = bytearray(8)
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
        fcntl.ioctl(
            descriptor,
            _SET_FLAGS,
            (int.from_bytes(flags, "little") | _TOP_DIRECTORY).to_bytes(8, "little"),
        )
    os.close(descriptor)
    (root := place / place.name).mkdir()  # which part it is depends on its name
    return root


@contextmanager
def ray_cluster(at_once: int, env: dict[str, str]) -> Iterator[None]:
    """Have a Ray cluster of this machine alone."""
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    how = [
        "--head",
        "--port=6379",
        f"--num-cpus={at_once}",
        "--include-dashboard=false",
        "--disable-usage-stats",
    ]
    try:
        subprocess.run([*ray, "start", *how], env=env, check=True, capture_output=True)
        yield
    finally:
        subprocess.run([*ray, "stop", "--force"], check=False, capture_output=True)


def peer(code: str, trials: int, at_once: int, how: str) -> Result:
    """Search with a peer, in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(code), str(trials), str(at_once), how]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    first, last, whole, count = done.stdout.split()[-4:]
    return Result(float(first), float(last), float(whole), int(count))


def bare_forks(trials: int, at_once: int) -> Result:
    """Fork a process that holds torch, so many times, one by one: what no search can beat."""
    code = textwrap.dedent(f"""
        import os, resource, time
        import torch

        def used():
            both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
            return sum(each.ru_utime + each.ru_stime for each in both)

        begun, before = time.time(), used()
        for _ in range({trials}):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        print(begun, time.time(), used() - before)
    """)
    start = time.time()
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    begun, ended, used = map(float, done.stdout.split())
    return Result(
        begun - start, ended - start, ended - start, trials + 1, {"forks": 1e3 * used / trials}
    )


def write(directory: Path, **modules: str) -> Path:
    directory.mkdir(parents=True)
    for name, text in modules.items():
        (directory / f"{name}.py").write_text(textwrap.dedent(text))
    return directory


def contestants() -> dict[str, Callable[[int, int], Result]]:
    found: dict[str, Callable[[int, int], Result]] = {"det": det, "bare forks": bare_forks}
    if find_spec("ray") is not None and find_spec("det_ray") is not None:
        found["det on Ray"] = lambda trials, at_once: det(trials, at_once, "ray")
    if find_spec("ray") is not None:
        found["Ray Tune"] = lambda trials, at_once: peer(RAY, trials, at_once, "new")
        found["Ray Tune, actors reused"] = lambda trials, at_once: peer(
            RAY, trials, at_once, "reuse"
        )
    if find_spec("optuna") is not None:
        found["Optuna, SQLite"] = lambda trials, at_once: peer(OPTUNA, trials, at_once, "sqlite")
        found["Optuna, in memory"] = lambda trials, at_once: peer(OPTUNA, trials, at_once, "memory")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--record", action="store_true", help="keep the trials a second in results.json"
    )
    parser.add_argument(
        "--tools", nargs="+", metavar="NAME", help="compare these alone, such as: det 'bare forks'"
    )
    options = parser.parse_args()
    tools = {
        name: search for name, search in contestants().items() if name in (options.tools or (name,))
    }
    results: dict[str, list[Result]] = {name: [] for name in tools}
    for _ in range(options.rounds):
        for name, search in tools.items():
            results[name].append(search(options.trials, options.at_once))
    ours = statistics.median(r.rate for r in results["det"])
    print(f"{options.trials} trials, {options.at_once} at once, medians of {options.rounds} rounds")
    for name, found in results.items():
        rates = [r.rate for r in found]
        rate = statistics.median(rates)
        first, whole = (
            statistics.median(getattr(r, at) for r in found) for at in ("first", "whole")
        )
        used = {who: statistics.median(r.cpu.get(who, 0.0) for r in found) for who in found[0].cpu}
        by = ", ".join(f"{who} {milliseconds:.1f}" for who, milliseconds in used.items())
        print(
            f"{name}: {rate:.1f} trials/s ({min(rates):.1f} to {max(rates):.1f}), {whole:.1f} s in"
            f" all, first result after {first:.1f} s, det is {ours / rate:.2f} times as fast"
            + (
                f"; {sum(used.values()):.1f} ms of the processor's time for a trial ({by})"
                if used
                else ""
            )
        )
        if options.record:
            record("search_throughput", {name: round(rate, 1)})


if __name__ == "__main__":
    main()
