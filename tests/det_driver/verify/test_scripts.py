"""`det verify` on scripts, sound ones and others.

Each runs again, with a driver that answers as its own one did.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CONFIG = """\
name: tried
entrypoint: python3 train.py
hyperparameters: {lr: {type: log, minval: -3, maxval: -1}}
searcher: SEARCHER
checkpoint_storage: {type: shared_fs, host_path: CHECKPOINTS, save_trial_best: 9, save_trial_latest: 9}
reproducibility: {experiment_seed: 7}
"""
SINGLE = "{name: single, metric: loss, max_length: {batches: 12}}"
HALVING = (
    "{name: async_halving, metric: loss, max_length: {batches: 16}, num_rungs: 3, divisor: 2,"
    " max_trials: 4}"
)
SCRIPT = """\
import json, random, sys
import det_core.core

with det_core.core.init() as context:
    info = context.info
    chance = random.Random(SEED)
    step, weight, pace = 0, 1.0, 0.0
    if info.latest_checkpoint:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            step, weight, pace, state = json.loads((path / "state.json").read_text())
            chance.setstate((state[0], tuple(state[1]), state[2]))

    def save():
        state = [step, weight, KEPT, chance.getstate()]
        with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            (path / "state.json").write_text(json.dumps(state))

    for op in context.searcher.operations():
        while step < op.length:
            pace = 0.9 * pace + chance.random() * weight
            weight -= info.trial.hparams["lr"] * pace
            step += 1
            context.train.report_training_metrics(steps_completed=step, metrics={"loss": weight})
            if context.preempt.should_preempt():
                save()
                sys.exit(0)
            if step % 4 == 0 and step < op.length:
                save()
        context.train.report_validation_metrics(steps_completed=step, metrics={"loss": abs(weight) + chance.random()})
        op.report_completed(abs(weight))
        save()
"""
SOUND = {"SEED": "info.trial.trial_seed", "KEPT": "pace"}


def train(det: Any, searcher: str = SINGLE, status: int = 0, **parts: str) -> None:
    code = SCRIPT
    for name, text in (SOUND | parts).items():
        code = code.replace(name, text)
    det.cwd.joinpath("train.py").write_text(code)
    config = CONFIG.replace("SEARCHER", searcher).replace("CHECKPOINTS", str(det.cwd / "saved"))
    det.cwd.joinpath("const.yaml").write_text(config)
    det("run", "const.yaml", "--quiet", status=status)


def test_a_sound_script_is_verified_and_left_as_it_was(det: Any) -> None:
    train(det)
    before = sorted(str(path) for path in det.cwd.rglob("*") if path.is_file())

    said = det.json("verify", "1")

    assert (said["same"], said["difference"], said["batches"]) == (True, None, 12)
    assert (said["reports"], said["checkpoints"]) == (13, [4, 8, 12])
    assert sorted(str(path) for path in det.cwd.rglob("*") if path.is_file()) == before


@pytest.mark.thorough
def test_verified_promoted_trial_gets_the_same_lengths(det: Any) -> None:
    """Its evaluations draw from the generator of its training.

    With one more or less, all that follows would be another.
    """
    train(det, HALVING)
    trials = det.json("show", "1")["trials"]
    far = max(trials, key=lambda trial: trial["batches"])
    assert far["batches"] == 16

    said = det.json("verify", "1", "--trial", str(far["id"]))

    assert (said["same"], said["batches"], said["reports"]) == (True, 16, 16 + 3)
    short = next(trial for trial in trials if trial["batches"] == 4)
    assert det.json("verify", "1", "--trial", str(short["id"]))["same"]


def test_what_nothing_seeds_is_found_at_its_first_report(det: Any) -> None:
    train(det, SEED="None")
    said = det.json("verify", "1", status=1)
    assert (said["difference"]["what"], said["difference"]["batches"]) == ("training", 1)
    assert "not reproducible at all" in said["causes"][0]


def test_state_missing_from_a_checkpoint_is_found_by_resuming(det: Any) -> None:
    train(det, KEPT="0.0")
    said = det.json("verify", "1", status=1)
    assert said["difference"]["batches"] > 4
    assert "a checkpoint does not carry" in said["causes"][0]


def test_changed_code_is_told_with_its_line(det: Any, tmp_path: Path) -> None:
    train(det)
    other = tmp_path / "other"
    other.mkdir()
    whole = det.cwd.joinpath("train.py").read_text()
    (other / "train.py").write_text(whole.replace("0.9 * pace", "0.8 * pace"))
    line = next(n for n, text in enumerate(whole.splitlines(), 1) if "0.9 * pace" in text)
    said = det.json("verify", "1", "--code", str(other), status=1)
    assert (said["difference"]["what"], said["difference"]["batches"]) == ("training", 2)
    assert f"train.py differs from line {line} on" in said["causes"]


def test_only_so_many_batches_are_trained_again(det: Any) -> None:
    train(det)
    said = det.json("verify", "1", "--batches", "6")
    assert (said["same"], said["batches"], said["reports"], said["checkpoints"]) == (
        True,
        6,
        6,
        [4],
    )


def test_it_begins_at_a_checkpoint_that_is_named(det: Any) -> None:
    train(det)
    (saved,) = [each for each in det.json("checkpoint", "list", "1") if each["batches"] == 8]
    said = det.json("verify", "1", "--from", saved["uuid"])
    assert (said["same"], said["reports"]) == (True, 5)


def test_a_script_that_fails_now_is_one_line(det: Any) -> None:
    train(det)
    det.cwd.joinpath("broken").mkdir()
    det.cwd.joinpath("broken/train.py").write_text("raise ValueError('no data')\n")
    done = det("verify", "1", "--code", "broken", status=2)
    assert done.stderr.splitlines() == ["det: training again failed: ValueError: no data"]


RANKS = """\
import det_core.core

with det_core.DistributedContext.from_socket() as ranks, det_core.core.init(distributed=ranks) as context:
    for op in context.searcher.operations():
        for step in range(1, op.length + 1):
            total = sum(ranks.allgather(step * (ranks.rank + 1)))
            if ranks.rank == 0:
                context.train.report_training_metrics(steps_completed=step, metrics={"loss": total WRONG})
        if ranks.rank == 0:
            context.train.report_validation_metrics(steps_completed=step, metrics={"loss": total})
            op.report_completed(total)
"""


@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_the_ranks_that_a_script_starts_have_one_driver_again(det: Any) -> None:
    config = CONFIG.replace("SEARCHER", SINGLE).replace("CHECKPOINTS", str(det.cwd / "saved"))
    start = "python3 -m det_node.launch.socket python3 train.py\nresources: {slots_per_trial: 2}"
    det.cwd.joinpath("const.yaml").write_text(config.replace("python3 train.py", start))
    for wrong, status in (("", 0), ("+ __import__('time').time()", 1)):
        det.cwd.joinpath("train.py").write_text(RANKS.replace("WRONG", wrong))
        det("run", "const.yaml", "--quiet")
        said = det.json("verify", str(status + 1), status=status)
        assert (said["same"], said["reports"]) == (not status, 1 if status else 13)
