"""Scripts whose processes, storage and checkpoints are struck at random.

In the end nothing shows.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from det_driver.store import Store
from det_node.agent import NOTE, find
from det_node.process import signal_below

FAULTS = ("kill", "term", "away", "full", "flip", "agent", "driver")
CONFIG = {
    "name": "struck",
    "entrypoint": "cd . && python3 train.py",
    "hyperparameters": {"lr": 0.1, "global_batch_size": 8},
    "max_restarts": 50,
    "reproducibility": {"experiment_seed": 7},
}
ENV = {
    "DET_LEASE": "5",
    "DET_OUTAGE_SECONDS": "600",
    "DET_RESTART_SECONDS": "0.2,0.4",
    "DET_SLOTS_TOTAL": "1",
}
SLOW_DATA = """
import time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((4,), index / 64), torch.tensor([index / 32])
"""
"""The beginning of scripts of torch: data that leaves a fault time to strike."""
_SECONDS = 900.0


@contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """Mount a disk of 64 MiB, which holds all checkpoints of a campaign.

    Gives whether that was allowed.
    """
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)]
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(command, capture_output=True, check=False).returncode
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(path)], check=False)


class Struck:
    """One script under `det run`, its driver, and what may happen to both."""

    def __init__(
        self,
        det: Any,
        script: str,
        settings: dict[str, Any],
        disk: Path,
        chance: random.Random,
        outage: float,
    ) -> None:
        self._det, self._chance, self._disk = det, chance, disk
        self._storage = disk / "checkpoints"
        self._pid = det.cwd.parent / "pid"
        beginning = (
            f"import os, pathlib\npathlib.Path({str(self._pid)!r}).write_text(str(os.getpid()))\n"
        )
        det.cwd.joinpath("train.py").write_text(beginning + script)
        storage = {"checkpoint_storage": {"type": "shared_fs", "host_path": str(self._storage)}}
        det.cwd.joinpath("c.yaml").write_text(json.dumps({**CONFIG, **storage, **settings}))
        self._driver: Any = None
        # The first outage is long, the others are short.
        self._outage = outage
        self._mend: list[Callable[[], object]] = []
        self.done: list[str] = []
        # Whether a script is known to train when it loses its driver or agent.
        self.must_save = False
        self._strikes = {
            "kill": self._kill,
            "term": self._term,
            "away": self._away,
            "full": self._full,
            "flip": self._flip,
            "agent": self._lose_agent,
            "driver": self._lose_driver,
        }

    def undisturbed(self) -> Any:
        driver = self._det.start("run", "c.yaml", "--quiet", env=ENV)
        said, _ = driver.communicate(timeout=_SECONDS)
        assert driver.returncode == 0, said
        return self.results(1)

    def disturbed(self, faults: list[str]) -> Any:
        """Strike a run at random moments, as often as there are faults; return its results."""
        self._drive("run", "c.yaml")
        for fault in faults:
            # Some faults strike while the script starts, most once it has trained.
            starts = not self.must_save and self._chance.random() < 0.3
            if not (self._training() if starts else self._saved()):
                break
            time.sleep(self._chance.uniform(0.05, 0.8))
            if self._training():
                self.done.append(fault)
                self._strikes[fault]()
        deadline = time.monotonic() + _SECONDS
        while (state := self._state()) != "COMPLETED":
            assert time.monotonic() < deadline, (state, self.done, self._det("show", "2").stdout)
            self._go_on()
            time.sleep(0.1)
        self._driver.communicate(timeout=60)
        return self.results(2)

    def results(self, experiment: int) -> Any:
        """What was reported of validations, in order."""
        with Store.reader(self._det.home) as store:
            reports = store.metrics.read(experiment_id=experiment, group="validation")
            return [(report.batches, dict(report.values)) for report in reports]

    # Faults

    def _kill(self) -> None:
        os.kill(int(self._pid.read_text()), signal.SIGKILL)

    def _term(self) -> None:
        """SIGTERM to every process, as at the end of a job's time."""
        signal_below(self._driver.pid, signal.SIGTERM)
        self._driver.terminate()
        self._driver.communicate(timeout=120)
        self._go_on()

    def _away(self) -> None:
        if not self._checkpoints():
            return
        elsewhere = self._disk / "away"
        os.rename(self._storage, elsewhere)
        self._kill()
        time.sleep(self._outage)
        self._outage = self._chance.uniform(0.5, 2.0)
        shutil.rmtree(self._storage, ignore_errors=True)
        os.rename(elsewhere, self._storage)

    def _full(self) -> None:
        filler = self._disk / "filler"
        # A checkpoint that is being written may leave no room even for an empty file.
        with suppress(OSError), filler.open("wb") as file:
            while file.write(bytes(1 << 12)):
                file.flush()
        time.sleep(self._chance.uniform(0.2, 1.5))
        filler.unlink(missing_ok=True)

    def _flip(self) -> None:
        """Flip a bit of the newest checkpoint; where it is refused for good, its file is mended."""
        if not (found := self._checkpoints()):
            return
        files = [
            f
            for f in found[-1].rglob("*")
            if f.is_file() and f.suffix not in (".json", ".py", ".yaml")
        ]
        if not files:
            return
        file = max(files, key=lambda each: each.stat().st_size)
        good = file.read_bytes()
        bad = bytearray(good)
        bad[len(bad) // 2] ^= 1
        file.write_bytes(bad)
        self._mend.append(lambda: file.parent.is_dir() and file.write_bytes(good))
        self._kill()

    def _lose_agent(self) -> None:
        """Kill the agent. The script saves at once."""
        with self._saving():
            note = find(self._det.home / "experiments" / "2" / "agents" / NOTE)
            assert note
            os.kill(note["pid"], signal.SIGKILL)

    def _lose_driver(self) -> None:
        """Kill the driver, and let the lease end. The script saves then."""
        with self._saving():
            self._driver.kill()
            self._driver.communicate(timeout=60)
        self._go_on()

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Wait, after the body, until the script has ended, and see that it has saved before."""
        pid = self._pid.read_text()
        with Store.reader(self._det.home) as store:
            recorded = {row.uuid for row in store.checkpoints.list(experiment_id=2)}
        yield
        deadline = time.monotonic() + _SECONDS
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, "the script goes on without its driver or agent"
            time.sleep(0.05)
        if self.must_save:
            saved = {path.name for path in self._checkpoints()}
            assert saved - recorded, f"{self.done[-1]}: the script has not saved"

    # The driver

    def _drive(self, *words: str) -> None:
        self._pid.unlink(missing_ok=True)
        self._driver = self._det.start(*words, "--quiet", env=ENV)

    def _go_on(self) -> None:
        """Resume where the driver has ended, and the experiment has not."""
        if self._driver.poll() is None or self._state() == "COMPLETED":
            return
        while self._mend:
            self._mend.pop()()
        said, _ = self._driver.communicate(timeout=60)
        assert (
            "Traceback (most recent call last):\n  File" not in said
            or "det_" not in said.splitlines()[-1]
        ), said
        self._drive("resume", "2")

    def _state(self) -> str:
        if not self._det.home.joinpath("experiments/2/experiment.db").exists():
            return ""
        with Store.reader(self._det.home) as store:
            return str(store.experiments.get(2).state)

    def _training(self) -> bool:
        """Wait for a process of the script; tell whether there is one before the end."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            if self._state() == "COMPLETED":
                return False
            self._go_on()
            if (
                self._pid.exists()
                and (text := self._pid.read_text())
                and Path(f"/proc/{text}").exists()
            ):
                return True
            time.sleep(0.05)
        raise AssertionError(f"no process of the script came; struck by {self.done}")

    def _saved(self) -> bool:
        """Wait for a new checkpoint; tell whether there is one, and a process, before the end."""
        known = set(self._checkpoints())
        while self._training():
            if set(self._checkpoints()) - known:
                return True
            time.sleep(0.02)
        return False

    def _checkpoints(self) -> list[Path]:
        found = [path.parent for path in self._storage.glob("*/manifest.json")]
        return sorted(found, key=lambda path: path.stat().st_mtime)


@dataclass
class Campaign:
    """Strikes scripts with so many faults.

    See that a script which meets them reports what one reports that met none.
    """

    det: Any
    folder: Path
    faults: int

    def length(self, least: int, each: int) -> int:
        """Return how long a script is to train, in a unit of which `each` give a fault time."""
        return max(least, each * self.faults)

    def check(self, script: str, metric: str, **searcher: Any) -> None:
        """Train the script twice, once with faults, and compare what it reported."""
        self._compare(script, metric, searcher, ())

    def check_losses(self, script: str, metric: str, **searcher: Any) -> None:
        """Do so with an agent and a driver that are killed, and see that the script saves."""
        self._compare(script, metric, searcher, ("agent", "driver"))

    def _compare(
        self, script: str, metric: str, searcher: dict[str, Any], losses: tuple[str, ...]
    ) -> None:
        seed = int(os.environ.get("DET_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
        print(f"DET_CHAOS_SEED={seed}")
        chance = random.Random(seed)
        disk = self.folder / "disk"
        with small_disk(disk) as mounted:
            # A disk that is not its own cannot be filled.
            possible = [fault for fault in FAULTS if mounted or fault != "full"]
            settings = {"searcher": {"name": "single", "metric": metric, **searcher}}
            # A minute in a campaign of twenty faults.
            outage = 3.0 * self.faults
            struck = Struck(self.det, script, settings, disk, chance, outage)
            struck.must_save = bool(losses)
            expected = struck.undisturbed()
            # The other one begins with an empty storage.
            shutil.rmtree(disk / "checkpoints")
            met = [*losses] or [chance.choice(possible) for _ in range(self.faults)]
            print("faults:", *met)
            assert struck.disturbed(met) == expected, struck.done
            assert not losses or struck.done == met
            print("struck:", len(struck.done))
