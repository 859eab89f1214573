"""A trial class on several slots: its ranks start, train, fail and end together."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from det_driver.store import Store
from det_node.process import noted_processes

CONFIG = """
name: ranks
entrypoint: model_def:Trial
reproducibility: {experiment_seed: 7}
max_restarts: RESTARTS
scheduling_unit: 10
min_checkpoint_period: {batches: 20}
resources: {slots_per_trial: SLOTS}
hyperparameters: {lr: 0.001, noise: 0.5}
searcher: {name: single, metric: val_loss, max_length: {batches: LENGTH}}
"""
MODEL = """
import os
import time
from det_testing.fakes import OwnedOneVar, Weight

RANK = int(os.environ["DET_RANK"])
THREADS = os.environ.get("OMP_NUM_THREADS")
if os.environ.get("HANGS") == str(RANK):
    time.sleep(600)

class Trial(OwnedOneVar):
    def build_data(self):
        print("rank", RANK, "of", os.environ["DET_SIZE"], "threads", THREADS, flush=True)
        return Slow(super().build_data(), self.run.distributed.rank)

class Slow:
    def __init__(self, data, rank):
        self.data, self.rank = data, rank
    def __getattr__(self, name):
        return getattr(self.data, name)
    def records(self, batch):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        if os.environ.get("FAILS") == f"{self.rank}/{batch}":
            raise RuntimeError("a rank's own mistake")
        if os.environ.get("LATE") == f"{self.rank}/{batch}":
            time.sleep(600)
        return self.data.records(batch)
"""


class Ranks:
    """Experiments on two ranks."""

    def __init__(self, det: Any, plugin_path: Path) -> None:
        self.det = det
        self.env = {"PYTHONPATH": str(plugin_path), "DET_SLOTS_TOTAL": "2"}
        det.cwd.joinpath("model_def.py").write_text(MODEL)

    def write(self, length: int = 60, *, restarts: int = 0, slots: int = 2, more: str = "") -> str:
        text = (
            CONFIG.replace("LENGTH", str(length))
            .replace("RESTARTS", str(restarts))
            .replace("SLOTS", str(slots))
        )
        self.det.cwd.joinpath("const.yaml").write_text(text + more)
        return "const.yaml"

    def run(
        self, length: int = 60, *, status: int = 0, restarts: int = 0, more: str = "", **env: str
    ) -> Any:
        config = self.write(length, restarts=restarts, more=more)
        return self.det("run", config, status=status, env={**self.env, **env})

    def start(self, length: int, *, restarts: int = 0, **env: str) -> Any:
        return self.det.start("run", self.write(length, restarts=restarts), env={**self.env, **env})

    def history(self, experiment: int) -> list[tuple[str, int, float]]:
        with Store.reader(self.det.home) as store:
            [trial] = store.trials.list(experiment)
            rows = list(store.metrics.read(trial_id=trial.id))
        return [(m.group, m.batches, m.values.get("loss", m.values.get("val_loss"))) for m in rows]

    def runs(self, experiment: int = 1) -> list[Any]:
        if not self.det.home.joinpath(f"experiments/{experiment}/experiment.db").exists():
            return []
        with Store.reader(self.det.home) as store:
            return [
                run for trial in store.trials.list(experiment) for run in store.runs.list(trial.id)
            ]

    def pids(self, experiment: int = 1) -> list[int]:
        """The processes of the run that is executing, by rank; none until both are noted."""
        runs = self.runs(experiment)
        noted = noted_processes(runs[-1].log_dir) if runs and runs[-1].ended is None else []
        return [pid for pid, _ in noted] if len(noted) == 2 else []

    def batches(self, experiment: int = 1) -> int:
        return (
            max((batches for _, batches, _ in self.history(experiment)), default=0)
            if self.runs(experiment)
            else 0
        )


@pytest.fixture
def ranks(det: Any, plugin_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return Ranks(det, plugin_path)


def test_a_trial_class_trains_on_as_many_ranks_as_it_has_slots(ranks: Ranks) -> None:
    """Each has a log and a share of the cores.

    What reduces the gradients is printed and recorded.
    """
    ranks.run()
    logs = ranks.det("logs", "1").stdout
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert f"[trial 1 run 1 rank-0] rank 0 of 2 threads {threads}" in logs
    assert f"[trial 1 run 1 rank-1] rank 1 of 2 threads {threads}" in logs
    assert "2 ranks; gradients are reduced by together" in logs
    [run] = ranks.runs()
    assert (run.backend, run.outcome) == ("together", "completed")


def test_metrics_are_reported_once_and_are_those_of_all_ranks(ranks: Ranks) -> None:
    """Each rank has noise of its own, so that a report of only one would be another number."""
    ranks.run()
    history = ranks.history(1)
    assert [(group, batches) for group, batches, _ in history if group == "training"] == [
        ("training", 10 * n) for n in range(1, 7)
    ]
    ranks.det("run", ranks.write(slots=1), env=ranks.env)
    assert [loss for _, _, loss in ranks.history(2)] != [loss for _, _, loss in history]


def test_traceback_shown_is_that_of_the_failed_rank(ranks: Ranks) -> None:
    """The other one fails too, as its peer is gone, and says nothing."""
    done = ranks.run(status=1, FAILS="1/33")
    assert "RuntimeError: a rank's own mistake" in done.stderr
    assert "RankLost" not in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert re.search(r"trial 1: RuntimeError: a rank's own mistake", done.stderr)
    [run] = ranks.runs()
    assert run.outcome == "error"


def test_a_failure_of_one_rank_counts_once(ranks: Ranks) -> None:
    """It is tried again, and given up when it repeats itself."""
    ranks.run(status=1, restarts=3, FAILS="1/33")
    assert [run.outcome for run in ranks.runs()] == ["error", "error"]
    assert ranks.det.json("show", "1")["trials"][0]["restarts"] == 1


@pytest.mark.sample
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_ends_all_ranks_and_the_run_resumes_exactly(
    ranks: Ranks, wait_until: Callable[..., None], request: pytest.FixtureRequest, rank: int
) -> None:
    """Within ten seconds nothing is left of it, and the result is that of an undisturbed run."""
    ranks.run(120)
    whole = ranks.history(1)
    for experiment in range(2, 2 + max(1, request.config.getoption("--kills") // 2)):
        driver = ranks.start(120, PAUSE="0.02")
        wait_until(lambda e=experiment: ranks.batches(e) >= 20, "some training")  # type: ignore[misc]
        time.sleep(random.uniform(0, 1))
        pids = ranks.pids(experiment)
        os.kill(pids[rank], signal.SIGKILL)
        wait_until(lambda p=pids: not any(map(running, p)), "the end of both ranks", 10)  # type: ignore[misc]
        output, _ = driver.communicate(timeout=60)
        assert driver.returncode == 1
        assert f"rank {rank} was killed by SIGKILL" in output
        ranks.det("resume", str(experiment), env=ranks.env)
        assert ranks.history(experiment) == whole


@pytest.mark.thorough
def test_a_killed_rank_is_a_failure_that_is_tried_again(
    ranks: Ranks, wait_until: Callable[..., None]
) -> None:
    ranks.run(120)
    driver = ranks.start(120, restarts=1, PAUSE="0.02")
    wait_until(lambda: ranks.batches(2) >= 20, "some training")
    os.kill(ranks.pids(2)[1], signal.SIGKILL)
    driver.communicate(timeout=60)
    assert driver.returncode == 0
    assert len(ranks.runs(2)) == 2
    assert ranks.history(2) == ranks.history(1)


@pytest.mark.thorough
def test_sigterm_to_the_driver_preempts_all_ranks_at_one_batch(
    ranks: Ranks, wait_until: Callable[..., None]
) -> None:
    ranks.run(200)
    driver = ranks.start(200, PAUSE="0.01")
    wait_until(lambda: ranks.batches(2) >= 20, "some training")
    os.kill(driver.pid, signal.SIGTERM)
    driver.communicate(timeout=30)
    assert [run.outcome for run in ranks.runs(2)] == ["preempted"]
    ranks.det("resume", "2", env=ranks.env)
    assert ranks.history(2) == ranks.history(1)


@pytest.mark.thorough
def test_ranks_that_lose_their_driver_save_and_end(
    ranks: Ranks, wait_until: Callable[..., None]
) -> None:
    ranks.run(200)
    driver = ranks.start(200, PAUSE="0.01")
    wait_until(lambda: ranks.batches(2) >= 20, "some training")
    pids = ranks.pids(2)
    driver.kill()
    driver.communicate(timeout=30)
    wait_until(lambda: not any(map(running, pids)), "the end of both ranks", 15)
    ranks.det("resume", "2", env=ranks.env)
    assert ranks.history(2) == ranks.history(1)


@pytest.mark.sample
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs_at_the_start_is_named_and_ended(ranks: Ranks, rank: int) -> None:
    began = time.monotonic()
    done = ranks.run(status=1, HANGS=str(rank), DET_START_TIMEOUT="2")
    assert f"rank {rank}" in done.stderr
    assert "within 2 s" in done.stderr
    assert time.monotonic() - began < 30


@pytest.mark.thorough
def test_late_rank_is_given_up_after_the_configured_timeout(ranks: Ranks) -> None:
    done = ranks.run(status=1, LATE="1/33", more="distributed: {timeout: 2}\n")
    assert re.search(r"rank 1 did not call \w+ within 2 s of rank 0", done.stderr)


def test_a_backend_that_is_not_there_is_a_mistake_with_a_way_out(ranks: Ranks) -> None:
    done = ranks.run(more="distributed: {backend: horovod}\n", status=2)
    assert (
        "distributed.backend is 'horovod', which no plugin registers for 'fake-owned'"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_one_process_cannot_be_two_ranks(ranks: Ranks) -> None:
    done = ranks.det("run", ranks.write(), "--in-process", status=2, env=ranks.env)
    assert "--in-process trains in one process, and resources.slots_per_trial is 2" in done.stderr


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.thorough
def test_what_a_run_left_in_its_scratch_directory_goes_with_it(
    ranks: Ranks, wait_until: Callable[..., None]
) -> None:
    """Also where its processes were killed, or the driver was."""
    model = ranks.det.cwd / "model_def.py"
    model.write_text(
        MODEL.replace(
            "    def build_data(self):\n",
            "    def build_data(self):\n        (self.run.scratch / f'of-{RANK}').touch()\n",
        )
    )
    driver = ranks.start(120, PAUSE="0.02", restarts=1)
    wait_until(lambda: ranks.batches(1) >= 20, "some training")
    first = ranks.runs(1)[0].log_dir / "scratch"
    # A checkpoint that is being written has a directory there, too.
    assert sorted(path.name for path in first.glob("of-*")) == ["of-0", "of-1"]
    os.kill(ranks.pids(1)[1], signal.SIGKILL)
    wait_until(lambda: len(ranks.runs(1)) == 2 and ranks.batches(1) > 60, "the second run", 60)
    assert not first.exists()
    driver.kill()
    driver.communicate(timeout=30)
    ranks.det("resume", "1", env=ranks.env)
    assert [run for run in ranks.runs(1) if (run.log_dir / "scratch").exists()] == []
