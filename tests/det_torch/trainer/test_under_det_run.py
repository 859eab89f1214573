"""The same script under `det run`, as `entrypoint: python3 train.py`."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
    import os, sys, time
    sys.path.insert(0, {tests!r})
    import det_torch
    from det_core import InvalidHP
    from det_torch import Batch, Epoch
    from conftest import LineTrial

    class Slow(LineTrial):
        def train_batch(self, batch, epoch_idx, batch_idx):
            time.sleep(float(os.environ.get("PAUSE", "0")))
            return super().train_batch(batch, epoch_idx, batch_idx)

    def main():
        with det_torch.init(hparams={{"width": 3, "workers": 0}}) as context:
            {before}
            trainer = det_torch.Trainer(Slow(context), context)
            result = trainer.fit({fit})
            print("after fit:", result.stop, result.batches, context.get_hparams()["width"], flush=True)

    main()
"""
CONFIG = """
    entrypoint: python3 train.py
    hyperparameters: {width: 8}
    searcher: {name: single, metric: validation_loss, max_length: {batches: 30}}
    reproducibility: {experiment_seed: 1}
    max_restarts: 0
"""
FIT = "validation_period=Batch(10), reporting_period=Batch(4)"


@pytest.fixture
def project(det):
    def write(fit: str = FIT, config: str = CONFIG, before: str = "pass") -> None:
        tests = str(Path(__file__).parent)
        (det.cwd / "train.py").write_text(
            textwrap.dedent(SCRIPT.format(tests=tests, fit=fit, before=before))
        )
        (det.cwd / "const.yaml").write_text(textwrap.dedent(config))

    return write


def history(det, experiment: int) -> list[tuple]:
    return [
        (m["group"], m["batches"], m.get("loss"), m.get("validation_loss"))
        for m in det.metrics(experiment)
    ]


def test_searcher_length_and_hyperparameters_are_used(det, project):
    project()
    result = det.json("run", "const.yaml")
    assert (result["state"], result["trials"]) == ("COMPLETED", {"COMPLETED": 1})
    assert "after fit: Stop.COMPLETED 30 8" in det("logs", "1").stdout
    assert [row[1] for row in history(det, 1) if row[0] == "validation"] == [10, 20, 30]
    det("run", "const.yaml", "--config", "check_first=false")
    assert history(det, 2) == history(det, 1)


def test_state_that_cannot_be_saved_is_found_before_training(det, project):
    before = (
        "LineTrial.build_callbacks = lambda self: {'bad': type('Bad', (det_torch.PyTorchCallback,),"
        " {'state_dict': lambda self: {'open': open(os.devnull)}})()}"
    )
    project(before=before)
    assert "cannot" in det("run", "const.yaml", status=2).stderr
    assert history(det, 1) == []


def test_shorter_length_of_the_script_is_used(det, project):
    project(fit="max_length=Batch(12), " + FIT)
    assert det.json("run", "const.yaml")["state"] == "COMPLETED"
    assert "after fit: Stop.COMPLETED 12" in det("logs", "1").stdout


def test_length_of_the_script_is_used_if_the_searcher_has_none(det, project):
    project(
        fit="max_length=Batch(12), " + FIT, config=CONFIG.replace(", max_length: {batches: 30}", "")
    )
    assert det.json("run", "const.yaml")["state"] == "COMPLETED"
    assert "after fit: Stop.COMPLETED 12" in det("logs", "1").stdout


def test_without_any_length_it_is_a_mistake_in_one_line(det, project):
    project(config=CONFIG.replace(", max_length: {batches: 30}", ""))
    done = det("run", "const.yaml", status=2)
    assert (
        "max_length is missing, and the searcher has none either; give fit(max_length=Batch(n))"
        in done.stderr
    )
    assert "Traceback" not in det("logs", "1").stdout


def test_several_slots_need_ranks_that_know_of_one_another(det, project):
    project(config=CONFIG + "    resources: {slots_per_trial: 2}\n")
    assert (
        "this run has 2 slots; give init() a DistributedContext"
        in det("run", "const.yaml", status=2).stderr
    )


def test_test_mode_is_for_scripts_of_their_own(det, project):
    project(fit="test_mode=True")
    assert (
        "try an experiment out with: det check CONFIG" in det("run", "const.yaml", status=2).stderr
    )


def test_invalid_hyperparameters_are_told_to_the_searcher(det, project):
    project(before="raise InvalidHP('width 8 is too wide')")
    det("run", "const.yaml", status=None)
    assert [trial["state"] for trial in det.json("show", "1")["trials"]] == ["INVALID_HP"]


def test_paused_and_killed_script_has_no_gap_and_no_repeat(det, project, wait_until):
    """Its driver is killed after the pause."""

    def reports() -> int:
        return len(det("metrics", "2", "--json", status=None).stdout.splitlines())

    project()
    det("run", "const.yaml")
    slow = {"PAUSE": "0.15"}
    driver = det.start("run", "const.yaml", env=slow)
    wait_until(lambda: reports() > 1, "some training")
    assert "experiment 2 is paused" in det("pause", "2").stdout
    assert driver.wait(timeout=30) == 130
    before = reports()
    driver = det.start("resume", "2", env=slow)
    wait_until(lambda: reports() > before, "more training")
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    det("resume", "2")
    assert history(det, 2) == history(det, 1)
    assert "going on with Slow from batch" in det("logs", "2").stdout


def test_a_search_stops_trials_of_scripts_early(det, project):
    searcher = (
        "{name: adaptive_asha, metric: validation_loss, max_length: {batches: 32}, max_trials: 4,"
        " divisor: 2}"
    )
    config = CONFIG.replace(
        "{name: single, metric: validation_loss, max_length: {batches: 30}}", searcher
    )
    project(config=config.replace("{width: 8}", "{width: {type: int, minval: 1, maxval: 9}}"))
    result = det.json("run", "const.yaml")
    assert (result["state"], result["trials"]) == ("COMPLETED", {"COMPLETED": 4})
