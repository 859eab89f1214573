"""Trains a trial from a script or a notebook, on its own or under `det run`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from det_core import TrialError
from det_core.train.run import length_of

from .build import complete_trial
from .context import PyTorchTrialContext
from .fit import Fit
from .plan import Plan
from .result import FitResult
from .resume import Start, find
from .script_context import ArgumentError, get_script_context, init
from .trial import PyTorchTrial
from .units import Batch, Epoch, TrainUnit

__all__ = ["ArgumentError", "Trainer", "init"]


class Trainer:
    """Trains one trial.

    A second `fit` continues from the last checkpoint of the first, as lengths are absolute.
    """

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        if not isinstance(trial, PyTorchTrial):
            raise TrialError(
                f"Trainer got {type(trial).__name__}; give an instance of your PyTorchTrial"
            )
        self._script = get_script_context(context)
        self._trial = complete_trial(trial, context)
        self._context = context
        self._latest: str | None = None

    def configure_profiler(self, **settings: Any) -> None:
        """Do nothing but warn. `fit(profiling_enabled=True)` enables the profiler."""
        warnings.warn(
            "configure_profiler() has no effect; call fit(profiling_enabled=True)", stacklevel=2
        )

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit | None = Batch(100),  # noqa: B008 - it is never changed
        checkpoint_policy: str = "best",
        latest_checkpoint: str | Path | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> FitResult:
        """Train until `max_length`, counted from the trial's first batch.

        Validate and save at the end.

        - Periods: a period that is not given is taken from the configuration. If that has none, it
          is never due.
        - `max_length`: may be omitted where the configuration has `searcher.max_length`, which is
          used then. If both are given, the smaller one counts under `det run`, and this one in a
          script on its own.
        - `checkpoint_policy`: the validations after which to save: `best`, `all` or `none`. `best`
          compares `searcher.metric`, else the first of `validation_loss`, `val_loss` and `loss`
          that is reported. Without any of these it saves after each validation.
        - `latest_checkpoint`: a directory or a uuid to resume from exactly.
        - `test_mode`: trains one batch, validates one batch and saves.

        Ctrl-C saves and returns. A second Ctrl-C ends at once.

        Raises ValueError and TypeError for invalid arguments, and CheckpointError for an invalid
        checkpoint.
        """
        plan = Plan(
            length=Batch(1) if test_mode else max_length or self._configured_length(),
            report=reporting_period,
            validate=validation_period,
            checkpoint=checkpoint_period,
            policy=checkpoint_policy,
            validate_first=step_zero_validation,
            quick=test_mode,
            profiling=profiling_enabled,
            config=self._context.run.config,
        )
        self._check(plan)
        fit = Fit(self._trial, self._context, plan, self._start(latest_checkpoint))
        try:
            return fit.run()
        finally:
            if fit.history.checkpoints:
                self._latest = fit.history.checkpoints[-1].path

    def _check(self, plan: Plan) -> None:
        alone = self._script.session is None
        if plan.quick and not alone:
            raise ArgumentError(
                "test_mode is for scripts of their own; try an experiment out with: det check"
                " CONFIG"
            )
        if plan.length is None and alone:
            raise ArgumentError("max_length is missing; give fit(max_length=Batch(n)) or Epoch(n)")

    def _configured_length(self) -> TrainUnit | None:
        """Return the configuration's length in a script on its own.

        Under `det run` the searcher determines the length, step by step.
        """
        length = length_of(self._context.run.config) if self._script.session is None else None
        if length is None or length.unit == "epochs":
            return None if length is None else Epoch(length.n)
        return Batch(self._context.get_max_length("batches") or 0)

    def _start(self, latest: str | Path | None) -> Start:
        """Return the start of the training.

        Under `det run`, the trial's own latest checkpoint comes first.
        """
        run, session, storage = self._context.run, self._script.session, self._script.storage
        # Only the chief knows what was saved.
        before = run.distributed.broadcast(self._latest)
        if session is None:
            return find(latest or before, storage)
        own = session.info("torch", run.distributed).checkpoint
        start = find(before or own or latest, storage)
        if start.trial_id == session.info("torch", run.distributed).trial_id and start.uuid:
            return replace(start, seed=run.seed)
        # Another trial's checkpoint is a warm start: its weights are loaded, and batches are
        # counted from 0.
        return replace(
            start, seed=run.seed, trial_id=run.trial_id, batches=0, history=None, warm=True
        )
