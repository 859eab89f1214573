"""Core API scripts as Determined's tutorial writes them: metrics, checkpoints, a search."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

METRICS = """
    import logging
    import sys
    import time

    import determined as det


    def main(core_context, increment_by):
        x = 0
        for batch in range(20):
            x += increment_by
            steps_completed = batch + 1
            time.sleep(0.01)
            logging.info(f"x is now {x}")
            if steps_completed % 10 == 0:
                core_context.train.report_training_metrics(steps_completed=steps_completed, metrics={"x": x})
                core_context.train.report_progress(steps_completed / 20.0)
        core_context.train.report_validation_metrics(steps_completed=steps_completed, metrics={"x": x})


    if __name__ == "__main__":
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format=det.LOG_FORMAT)
        info = det.get_cluster_info()
        hparams = info.trial.hparams if info is not None else {"increment_by": 1}
        with det.core.init() as core_context:
            main(core_context=core_context, increment_by=hparams["increment_by"])
"""
CHECKPOINTS = """
    import logging
    import pathlib
    import sys
    import time

    import determined as det


    def save_state(x, steps_completed, trial_id, checkpoint_directory):
        with checkpoint_directory.joinpath("state").open("w") as f:
            f.write(f"{x},{steps_completed},{trial_id}")


    def load_state(trial_id, checkpoint_directory):
        checkpoint_directory = pathlib.Path(checkpoint_directory)
        with checkpoint_directory.joinpath("state").open("r") as f:
            x, steps_completed, ckpt_trial_id = [int(field) for field in f.read().split(",")]
        if ckpt_trial_id == trial_id:
            return x, steps_completed
        return x, 0


    def main(core_context, latest_checkpoint, trial_id, increment_by):
        x = 0
        starting_batch = 0
        if latest_checkpoint is not None:
            with core_context.checkpoint.restore_path(latest_checkpoint) as path:
                x, starting_batch = load_state(trial_id, path)
            logging.info(f"restored at {starting_batch}")
        for batch in range(starting_batch, 100):
            x += increment_by
            steps_completed = batch + 1
            time.sleep(0.05)
            if steps_completed % 10 == 0:
                core_context.train.report_training_metrics(steps_completed=steps_completed, metrics={"x": x})
                checkpoint_metadata = {"steps_completed": steps_completed}
                with core_context.checkpoint.store_path(checkpoint_metadata) as (path, uuid):
                    save_state(x, steps_completed, trial_id, path)
                if core_context.preempt.should_preempt():
                    return
        core_context.train.report_validation_metrics(steps_completed=steps_completed, metrics={"x": x})


    if __name__ == "__main__":
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format=det.LOG_FORMAT)
        info = det.get_cluster_info()
        assert info is not None, "this example only runs on-cluster"
        with det.core.init() as core_context:
            main(core_context, info.latest_checkpoint, info.trial.trial_id, info.trial.hparams["increment_by"])
"""
SEARCH = """
    import logging
    import sys

    import determined as det


    def main(core_context, increment_by):
        x = 0
        batch = 0
        for op in core_context.searcher.operations():
            while batch < op.length:
                x += increment_by
                batch += 1
                if batch % 10 == 0:
                    core_context.train.report_training_metrics(steps_completed=batch, metrics={"x": x})
                    op.report_progress(batch)
                    if core_context.preempt.should_preempt():
                        return
            core_context.train.report_validation_metrics(steps_completed=batch, metrics={"x": x})
            op.report_completed(x)


    if __name__ == "__main__":
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format=det.LOG_FORMAT)
        with det.core.init() as core_context:
            main(core_context, det.get_cluster_info().trial.hparams["increment_by"])
"""
CONFIG = """
    name: core-api
    entrypoint: python3 script.py
    hyperparameters: {increment_by: 2}
    searcher:
      name: single
      metric: x
      max_length: 1
    max_restarts: 0
"""
SEARCH_CONFIG = """
    name: core-api-search
    entrypoint: python3 script.py
    hyperparameters:
      increment_by: {type: int, minval: 1, maxval: 8}
    searcher:
      name: adaptive_asha
      metric: x
      smaller_is_better: true
      max_length: 100
      max_trials: 8
    max_restarts: 0
"""


def test_the_tutorials_metrics(det: Any, write: Any) -> None:
    write(config__yaml=CONFIG, script__py=METRICS)
    det("e", "create", "config.yaml", ".", "-f")
    assert [(row["group"], row["batches"], row["x"]) for row in det.metrics(1)] == [
        ("training", 10, 20),
        ("training", 20, 40),
        ("validation", 20, 40),
    ]
    assert "root: x is now 40" in det("e", "logs", "1").stdout


def test_the_tutorials_checkpoints_survive_a_pause(det: Any, write: Any, wait_until: Any) -> None:
    write(config__yaml=CONFIG, script__py=CHECKPOINTS)
    driver = det.start("e", "create", "config.yaml", ".", "-f")
    wait_until(
        lambda: (
            det.home.joinpath("experiments/1/experiment.db").exists() and len(det.metrics(1)) >= 2
        ),
        "two reports",
    )
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=60)
    det("e", "continue", "1", "-f")
    assert "restored at" in det("e", "logs", "1").stdout
    rows = det.metrics(1)
    assert [row["batches"] for row in rows if row["group"] == "training"] == list(
        range(10, 101, 10)
    )
    assert (rows[-1]["group"], rows[-1]["x"]) == ("validation", 200)


def test_the_tutorials_search(det: Any, write: Any) -> None:
    write(config__yaml=SEARCH_CONFIG, script__py=SEARCH)
    det("e", "create", "config.yaml", ".", "-f")
    shown = det.json("show", "1")
    assert shown["experiment"]["state"] == "COMPLETED"
    assert len(shown["trials"]) == 8
    lengths = {trial["batches"] for trial in shown["trials"]}
    assert lengths <= {25, 100}
    assert 100 in lengths
    for trial in shown["trials"]:
        assert trial["latest_metric"] == trial["hparams"]["increment_by"] * trial["batches"]


RANKS = """
    import os
    import stat
    import sys

    from determined import core


    def main(distributed):
        with core.init(distributed=distributed) as core_context:
            assert isinstance(core_context.distributed, core.DistributedContext)
            ranks = core_context.distributed.allgather(core_context.distributed.get_rank())
            if core_context.distributed.rank == 0:
                core_context.train.report_validation_metrics(steps_completed=1, metrics={"x": sum(ranks)})
                core_context.train.report_training_metrics(steps_completed=1, metrics={"n": len(ranks)})


    if __name__ == "__main__":
        size, port = 3, int(sys.argv[1])
        children = []
        for rank in range(size):
            pid = os.fork()
            if not pid:
                main(
                    core.DistributedContext(
                        rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1,
                        chief_ip="127.0.0.1", pub_port=port, pull_port=port + 1, force_tcp=True,
                    )
                )
                os._exit(0)
            children.append(pid)
        sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""


def test_ranks_that_a_script_starts_in_a_run_need_no_key(det: Any, write: Any) -> None:
    write(config__yaml=CONFIG.replace("script.py", f"script.py {free_port()}"), script__py=RANKS)
    det("e", "create", "config.yaml", ".", "-f")
    assert [row["x"] for row in det.metrics(1, "validation")] == [3]
    assert not (det.home / "ranks.key").exists()


def test_ranks_on_one_host_meet_without_a_key_outside_of_a_run(det: Any, write: Any) -> None:
    write(script__py=RANKS)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "script.py", str(free_port())],
            cwd=det.cwd,
            env=det.env(None),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert '"x": 3' in done.stdout
    key = det.home / "ranks.key"
    assert (key.stat().st_mode & 0o777, len(key.read_bytes())) == (0o600, 32)
    assert [path.name for path in det.home.glob(".ranks*")] == []


def test_ranks_on_several_hosts_outside_a_run_need_a_key() -> None:
    from determined.core import DistributedContext

    with pytest.raises(ValueError, match="key is not given for 2 ranks"):
        DistributedContext(
            rank=0,
            size=2,
            local_rank=0,
            local_size=1,
            cross_rank=0,
            cross_size=2,
            chief_ip="127.0.0.1",
        )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
