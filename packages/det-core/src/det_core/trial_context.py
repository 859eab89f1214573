"""What every framework's trial may ask of its run."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .adapter import RunInfo
from .config import to_builtins
from .errors import TrialError, did_you_mean

if TYPE_CHECKING:
    from .backend import Communicator


class TrialContext:
    """The hyperparameters, batch sizes and ids of a run, and the wish to end it; a plugin's context derives from it."""

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._stop_requested = False
        self._request_stop: Callable[[], None] = lambda: None

    @property
    def run(self) -> RunInfo:
        """The run that this is the context of."""
        return self._run

    @property
    def distributed(self) -> Communicator:
        """Rank, size and collectives of the run."""
        return self._run.distributed

    def get_hparam(self, name: str) -> Any:
        """Return a hyperparameter. Raises ValueError when there is none of that name."""
        if name not in self._run.hparams:
            known = ", ".join(sorted(self._run.hparams)) or "none"
            near = did_you_mean(name, self._run.hparams) or ";"
            raise ValueError(f"no hyperparameter {name!r}{near} there are: {known}")
        if name == "global_batch_size":
            warnings.warn(
                "get_hparam('global_batch_size') is the batch of all ranks; a data loader wants get_per_slot_batch_size()",
                stacklevel=2,
            )
        return copy.deepcopy(self._run.hparams[name])

    def get_hparams(self) -> dict[str, Any]:
        """Return all hyperparameters."""
        return copy.deepcopy(dict(self._run.hparams))

    def get_global_batch_size(self) -> int:
        """Return the records in a batch over all ranks: `global_batch_size`, rounded down to a multiple of the ranks."""
        return self.get_per_slot_batch_size() * self.distributed.size

    def get_per_slot_batch_size(self) -> int:
        """Return the records in a batch of one rank. Raises ValueError without the hyperparameter."""
        size = self._run.hparams.get("global_batch_size")
        if size is None:
            raise ValueError("no hyperparameter 'global_batch_size'; add it to the configuration")
        ranks = self.distributed.size
        if isinstance(size, bool) or not isinstance(size, int) or size < ranks:
            raise TrialError(
                f"global_batch_size is {size!r}; give a whole number of at least {ranks}, one for each rank"
            )
        if size % ranks:
            warnings.warn(
                f"global_batch_size {size} is no multiple of {ranks} ranks; {size // ranks * ranks} is used",
                stacklevel=2,
            )
        return size // ranks

    def get_experiment_config(self) -> dict[str, Any]:
        """Return the experiment's configuration as plain data."""
        config: dict[str, Any] = to_builtins(self._run.config)
        return config

    def get_data_config(self) -> dict[str, Any]:
        """Return `data` of the configuration."""
        return copy.deepcopy(dict(self._run.config.data or {}))

    def get_experiment_id(self) -> int:
        """Return the experiment's id, 0 outside of one."""
        return self._run.experiment_id or 0

    def get_trial_id(self) -> int:
        """Return the trial's id, 0 outside of an experiment."""
        return self._run.trial_id

    def get_trial_seed(self) -> int:
        """Return the trial's seed."""
        return self._run.seed

    def get_initial_batch(self) -> int:
        """Return the number of batches trained before this run."""
        return self._run.first_batch

    def get_tensorboard_path(self) -> Path | None:
        """Return the directory for event files; None where the run has none."""
        return self._run.tensorboard_dir

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Ask to end the trial, as complete, after this batch; a checkpoint is saved."""
        if not isinstance(stop_requested, bool):
            raise TrialError(f"set_stop_requested got {stop_requested!r}; give True or False")
        self._stop_requested = stop_requested
        if stop_requested:
            self._request_stop()

    def get_stop_requested(self) -> bool:
        """Return whether an end was asked for."""
        return self._stop_requested

    def stops(self, request_stop: Callable[[], None]) -> None:
        """Say how to end training; called where the trial has asked for it, even if that was before."""
        self._request_stop = request_stop
        if self._stop_requested:
            request_stop()
