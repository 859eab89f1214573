"""A trial's own TensorBoard writer, and the profiler."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from det_core import DetError
from det_torch.testing import OneVarTrial


def test_a_trial_writes_scalars_of_its_own(lab: Any) -> None:
    """They are in the run's directory, complete once the run has ended."""
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )

    class Trial(OneVarTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.context.get_tensorboard_writer().add_scalar("mine", batch_idx * 2, batch_idx)
            return super().train_batch(batch, epoch_idx, batch_idx)

    lab(Trial, 3)
    events = event_accumulator.EventAccumulator(str(lab.root / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("mine")] == [
        (0, 0),
        (1, 2),
        (2, 4),
    ]


def test_there_is_one_writer(lab: Any) -> None:
    pytest.importorskip("tensorboard")
    context = lab.context()
    assert context.get_tensorboard_writer() is context.get_tensorboard_writer()
    assert context.get_tensorboard_path() == lab.root / "tensorboard"
    context.close()


def test_writer_of_a_run_without_a_directory_is_refused(lab: Any) -> None:
    """Nothing is written to the working directory."""
    with pytest.raises(
        DetError,
        match=(
            r"^this run has no directory for TensorBoard's files; make a SummaryWriter of your own"
        ),
    ):
        lab.context(tensorboard_dir=None).get_tensorboard_writer()


def test_a_trial_that_asks_for_no_writer_has_no_directory(lab: Any) -> None:
    lab(OneVarTrial, 1)
    assert not (lab.root / "tensorboard").exists()


def profiled(**settings: Any) -> type[OneVarTrial]:
    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.set_profiler(activities=[torch.profiler.ProfilerActivity.CPU], **settings)

    return Trial


def test_profiler_steps_with_each_batch_and_writes_a_trace(lab: Any) -> None:
    lab(profiled(schedule=torch.profiler.schedule(wait=1, warmup=0, active=2, repeat=1)), 5)
    (trace,) = (lab.root / "tensorboard").glob("*.pt.trace.json")
    steps = {
        e["name"]
        for e in json.loads(trace.read_text())["traceEvents"]
        if "ProfilerStep" in e.get("name", "")
    }
    assert steps == {"ProfilerStep#1", "ProfilerStep#2"}


def test_profiler_without_a_schedule_traces_even_a_failed_run(lab: Any) -> None:
    class Failing(profiled()):  # type: ignore[misc]
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 2:
                raise ArithmeticError("mine")
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.raises(ArithmeticError):
        lab(Failing, 5)
    assert len(list((lab.root / "tensorboard").glob("*.pt.trace.json"))) == 1


def test_a_handler_of_the_trials_own_is_called(lab: Any) -> None:
    seen: list[Any] = []
    lab(profiled(on_trace_ready=seen.append), 2)
    assert len(seen) == 1
    assert not (lab.root / "tensorboard").exists()
