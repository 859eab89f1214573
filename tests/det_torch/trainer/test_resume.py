"""Going on where a run of the Trainer ended, with the numbers of one that was never interrupted."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from det_core import CheckpointError, Stop
from det_torch import Batch, Epoch, PyTorchTrial


def assert_same(resumed, whole):
    assert resumed.reports == whole.reports
    assert all(torch.equal(a, b) for a, b in zip(resumed.weights, whole.weights, strict=True))


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_saves_within_an_epoch_and_resumes_exactly(train, workers):
    plan = {"max_length": Batch(15), "validation_period": Batch(5)}
    whole = train(hparams={"workers": workers}, **plan)
    first = train(hparams={"workers": workers, "interrupt": 8}, **plan)
    assert (first.result.stop, first.result.batches) == (Stop.PREEMPTED, 9)
    second = train(hparams={"workers": workers}, latest_checkpoint=first.result.latest.path, **plan)
    assert second.trial.seen == [9, 10, 11, 12, 13, 14]
    assert_same(second, whole)
    assert second.result.best.batches == whole.result.best.batches


def test_seed_of_the_checkpoint_overrides_that_of_the_script(train):
    """The order of the data would be another one."""
    whole = train(max_length=Batch(10))
    first = train(hparams={"interrupt": 3}, max_length=Batch(10))
    other = {"reproducibility": {"experiment_seed": 99}}
    second = train(exp_conf=other, max_length=Batch(10), latest_checkpoint=first.result.latest.path)
    assert_same(second, whole)


def test_defect_1_a_checkpoint_is_read_by_torch_as_it_is_today(train):
    """`torch.load` reads weights only since 2.6.

    The harness that went before could not resume its own checkpoints.
    """
    first = train(max_length=Batch(3))
    torch.load(Path(first.result.latest.path, "state_dict.pth"), weights_only=True)
    assert (
        train(max_length=Batch(4), latest_checkpoint=first.result.latest.path).result.batches == 4
    )


def test_defect_3_a_local_run_that_is_resumed_counts_on(train):
    """It began again at batch 0 and trained 7 batches more, to 12."""
    first = train(max_length=Batch(5))
    second = train(max_length=Batch(7), latest_checkpoint=first.result.latest.path)
    assert (second.trial.seen, second.result.batches) == ([5, 6], 7)


def test_a_run_that_is_complete_already_trains_nothing(train):
    first = train(max_length=Batch(5))
    second = train(max_length=Batch(5), latest_checkpoint=first.result.latest.path)
    assert (second.trial.seen, second.result.stop, second.result.batches) == ([], Stop.COMPLETED, 5)
    assert second.reports == first.reports


def test_a_uuid_is_looked_up_where_checkpoints_go(train):
    first = train(max_length=Batch(5))
    assert train(max_length=Batch(6), latest_checkpoint=first.result.latest.uuid).trial.seen == [5]


def test_a_checkpoint_elsewhere_is_named_by_its_path(train, tmp_path):
    first = train(max_length=Batch(5))
    moved = tmp_path / "elsewhere" / first.result.latest.uuid
    moved.parent.mkdir()
    Path(first.result.latest.path).rename(moved)
    assert train(max_length=Batch(6), latest_checkpoint=moved).trial.seen == [5]


def test_an_unknown_checkpoint_is_named_with_those_there_are(train):
    first = train(max_length=Batch(1))
    with pytest.raises(
        CheckpointError,
        match=rf"neither the directory .* nor the uuid .*{first.result.latest.uuid}",
    ):
        train(max_length=Batch(2), latest_checkpoint="gone")


def test_an_altered_checkpoint_is_refused(train):
    first = train(max_length=Batch(1))
    file = Path(first.result.latest.path, "state_dict.pth")
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match=r"state_dict\.pth has the SHA-256"):
        train(max_length=Batch(2), latest_checkpoint=first.result.latest.path)


def test_a_second_fit_goes_on_where_the_first_ended(train, line, monkeypatch):
    """Lengths are absolute, so that training in two parts is training in one."""
    import det_torch

    whole = train(max_length=Epoch(3), validation_period=Epoch(1))
    torch.manual_seed(1)
    with det_torch.init() as context:
        trial = line(context)
        trainer = det_torch.Trainer(trial, context)
        trainer.fit(max_length=Epoch(1), validation_period=Epoch(1), reporting_period=Batch(4))
        torch.rand(3)  # what happens in between does not matter
        result = trainer.fit(
            max_length=Epoch(3), validation_period=Epoch(1), reporting_period=Batch(4)
        )
    assert trial.seen == list(range(18))
    assert [tuple(report) for report in result.reports] == whole.reports


@pytest.mark.parametrize("by", ["a second fit", "another process"])
def test_the_best_checkpoint_may_be_one_of_an_earlier_fit(train, line, by):
    """The weights are good at first, and what comes after is worse."""
    import det_torch

    class Worsening(line):
        def evaluate_batch(self, batch):
            return {"validation_loss": 0.1 * self.seen[-1] if self.seen else 0.5}

    if by == "a second fit":
        with det_torch.init() as context:
            trainer = det_torch.Trainer(Worsening(context), context)
            first = trainer.fit(max_length=Batch(8), validation_period=Batch(6))
            second = trainer.fit(max_length=Batch(12))
            third = trainer.fit(max_length=Batch(18))
    else:
        first = train(Worsening, max_length=Batch(8), validation_period=Batch(6)).result
        second = train(Worsening, max_length=Batch(12), latest_checkpoint=first.latest.path).result
        third = train(Worsening, max_length=Batch(18), latest_checkpoint=second.latest.path).result
    assert first.best.batches == 6
    assert (
        (second.best, second.best_value)
        == (third.best, third.best_value)
        == (first.best, first.best_value)
    )
    assert [checkpoint.batches for checkpoint in third.checkpoints] == [6, 8, 12, 18]


def test_a_trial_that_raises_leaves_the_checkpoints_before_it(train, line):
    class Failing(line):
        def train_batch(self, batch, epoch_idx, batch_idx):
            if batch_idx == 7:
                raise ZeroDivisionError
            return super().train_batch(batch, epoch_idx, batch_idx)

    whole = train(max_length=Batch(10), checkpoint_period=Batch(3))
    with pytest.raises(ZeroDivisionError):
        train(Failing, max_length=Batch(10), checkpoint_period=Batch(3))
    newest = max(Path("checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    assert_same(
        train(max_length=Batch(10), checkpoint_period=Batch(3), latest_checkpoint=newest), whole
    )


def determined(directory: Path, trial: PyTorchTrial, steps: str = "steps_completed") -> Path:
    """Write a checkpoint as Determined did."""
    directory.mkdir()
    context = trial.context
    state = {
        "models_state_dict": [model.state_dict() for model in context.models],
        "optimizers_state_dict": [optimizer.state_dict() for optimizer in context.optimizers],
        "lr_schedulers_state_dict": [scheduler.state_dict() for scheduler in context.lr_schedulers],
        "callbacks": {},
        "rng_state": {"cpu_rng_state": torch.random.get_rng_state()},
    }
    torch.save(state, directory / "state_dict.pth")
    (directory / "metadata.json").write_text(f'{{"{steps}": 9, "framework": "torch-2.1"}}')
    (directory / "trial_state.pkl").write_bytes(pickle.dumps({"trial_id": 1, "batches_trained": 9}))
    return directory


@pytest.mark.parametrize("steps", ["steps_completed", "latest_batch"])
def test_a_checkpoint_of_determined_is_gone_on_with(train, tmp_path, steps):
    first = train(max_length=Batch(9))
    theirs = determined(tmp_path / "theirs", first.trial, steps)
    second = train(max_length=Batch(11), latest_checkpoint=theirs)
    assert second.trial.seen == [9, 10]


SCRIPT = """
    import sys, time
    sys.path.insert(0, {tests!r})
    import det_torch
    from det_torch import Batch
    from conftest import LineTrial

    class Slow(LineTrial):
        def train_batch(self, batch, epoch_idx, batch_idx):
            print("training", batch_idx, flush=True)
            time.sleep(0.05)
            return super().train_batch(batch, epoch_idx, batch_idx)

    if __name__ == "__main__":
        with det_torch.init(hparams={{"workers": 2}}) as context:
            result = det_torch.Trainer(Slow(context), context).fit(max_length=Batch(1000))
            print("after fit:", result.stop, flush=True)
"""


def interrupted(number: signal.Signals) -> tuple[int, str]:
    """Start the script, and send a signal to all of its processes as a terminal does.

    Return its status and output.
    """
    Path("train.py").write_text(textwrap.dedent(SCRIPT.format(tests=str(Path(__file__).parent))))
    process = subprocess.Popen(
        [sys.executable, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    seen = ""
    for text in process.stdout:
        seen += text
        if text == "training 3\n":
            os.killpg(process.pid, number)
            break
    rest, _ = process.communicate(timeout=60)
    return process.returncode, seen + rest


@pytest.mark.process
def test_ctrl_c_in_a_terminal_is_safe_with_loader_processes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, output = interrupted(signal.SIGINT)
    assert status == 0, output
    assert "after fit: Stop.PREEMPTED" in output
    assert "press Ctrl-C again to end at once" in output
    assert "go on with: trainer.fit(..., latest_checkpoint='checkpoints/" in output
    assert "Traceback" not in output


@pytest.mark.process
def test_sigterm_saves_and_then_takes_its_course(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, output = interrupted(signal.SIGTERM)
    assert status == -signal.SIGTERM, output
    assert len(list(Path("checkpoints").iterdir())) == 1
    assert "after fit" not in output
