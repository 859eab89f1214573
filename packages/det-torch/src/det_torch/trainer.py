"""Training a trial from a script or a notebook, on its own or under `det run`."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from det_core import TrialError

from .build import complete_trial
from .context import PyTorchTrialContext
from .fit import Fit
from .home import ArgumentError, home_of, init
from .plan import Plan
from .result import FitResult
from .resume import Start, find
from .trial import PyTorchTrial
from .units import Batch, TrainUnit

__all__ = ["ArgumentError", "Trainer", "init"]


class Trainer:
    """Trains one trial. A second `fit` goes on, as lengths are absolute, from the last checkpoint of the first."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        if not isinstance(trial, PyTorchTrial):
            raise TrialError(f"Trainer got {type(trial).__name__}; give an instance of your PyTorchTrial")
        self._home = home_of(context)
        self._trial = complete_trial(trial, context)
        self._context = context
        self._latest: str | None = None

    def configure_profiler(self, **settings: Any) -> None:
        """Accept and do nothing: `fit(profiling_enabled=True)` switches the profiler on."""
        warnings.warn("configure_profiler() has no effect; call fit(profiling_enabled=True)", stacklevel=2)

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
        """Train until `max_length`, counted from the trial's first batch; validate and save at the end.

        A period that is not given is the configuration's, and never where it has none. `max_length` may be missing under
        `det run` only, where the searcher's counts, or the smaller one if there are both. `checkpoint_policy` says after
        which validations to save: `best` (by `searcher.metric`, else by `validation_loss`, `val_loss` or `loss`, whichever is
        there, else after each), `all` or `none`. `latest_checkpoint`, a directory or a uuid, is what to go on from, exactly.
        `test_mode` trains one batch, validates one and saves. Ctrl-C saves and returns; twice ends at once.

        Raises ValueError and TypeError for arguments that cannot be meant, CheckpointError for a checkpoint that is none.
        """
        plan = Plan(
            length=Batch(1) if test_mode else max_length,
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
        alone = self._home.session is None
        if plan.quick and not alone:
            raise ArgumentError("test_mode is for scripts of their own; try an experiment out with: det check CONFIG")
        if plan.length is None and alone:
            raise ArgumentError("max_length is missing; give fit(max_length=Batch(n)) or Epoch(n)")

    def _start(self, latest: str | Path | None) -> Start:
        """Return where to begin: here, or under `det run` where the trial's own latest checkpoint comes first."""
        run, session, storage = self._context.run, self._home.session, self._home.storage
        before = run.distributed.broadcast(self._latest)  # only the chief knows what was saved
        if session is None:
            return find(latest or before, storage)
        own = session.info("torch", run.distributed).checkpoint
        start = find(before or own or latest, storage)
        if start.trial_id == session.info("torch", run.distributed).trial_id and start.uuid:
            return replace(start, seed=run.seed)
        # another trial's checkpoint is a warm start: its weights are taken, and batches are counted from 0
        return replace(start, seed=run.seed, trial_id=run.trial_id, batches=0, history=None, warm=True)
