"""The context that the trials of every framework share."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..config import to_builtins
from ..errors import DetError, TrialError, did_you_mean
from .adapter import RunInfo
from .loop import RUNNING
from .media import Media

if TYPE_CHECKING:
    from ..ranks.backend import Communicator


class TrialContext:
    """The hyperparameters, batch sizes and ids of a run, and the request to end it.

    A plugin's context derives from it.
    """

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._stop_requested = False
        self._request_stop: Callable[[], None] = lambda: None
        self._media: Media | None = None

    @property
    def run(self) -> RunInfo:
        """The run of this context."""
        return self._run

    @property
    def env(self) -> NoReturn:
        """Raise DetError, as det does not have this attribute of Determined."""
        raise DetError(
            "context.env is not in det; use the context's get_hparams(), get_experiment_config(),"
            " get_trial_seed() and distributed"
        )

    @property
    def distributed(self) -> Communicator:
        """Rank, size and collectives of the run."""
        return self._run.distributed

    def get_hparam(self, name: str) -> Any:
        """Return a hyperparameter. Raises ValueError if there is none of that name."""
        if name not in self._run.hparams:
            known = ", ".join(sorted(self._run.hparams)) or "none"
            near = did_you_mean(name, self._run.hparams) or ";"
            raise ValueError(f"no hyperparameter {name!r}{near} there are: {known}")
        if name == "global_batch_size":
            warnings.warn(
                "get_hparam('global_batch_size') is the batch of all ranks; a data loader wants"
                " get_per_slot_batch_size()",
                stacklevel=2,
            )
        return copy.deepcopy(self._run.hparams[name])

    def get_hparams(self) -> dict[str, Any]:
        """Return all hyperparameters."""
        return copy.deepcopy(dict(self._run.hparams))

    def get_global_batch_size(self) -> int:
        """Return the records in a batch over all ranks.

        That is `global_batch_size`, rounded down to a multiple of the ranks.
        """
        return self.get_per_slot_batch_size() * self.distributed.size

    def get_per_slot_batch_size(self) -> int:
        """Return the records in a batch of one rank.

        Raises ValueError without the hyperparameter.
        """
        size = self._run.hparams.get("global_batch_size")
        if size is None:
            raise ValueError("no hyperparameter 'global_batch_size'; add it to the configuration")
        ranks = self.distributed.size
        if isinstance(size, bool) or not isinstance(size, int) or size < ranks:
            raise TrialError(
                f"global_batch_size is {size!r}; give a whole number of at least {ranks}, one for"
                " each rank"
            )
        if size % ranks:
            warnings.warn(
                f"global_batch_size {size} is no multiple of {ranks} ranks; {size // ranks * ranks}"
                " is used",
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
        """Return the experiment's id, or 0 outside of one."""
        return self._run.experiment_id or 0

    def get_trial_id(self) -> int:
        """Return the trial's id, or 0 outside of an experiment."""
        return self._run.trial_id

    def get_trial_seed(self) -> int:
        """Return the trial's seed."""
        return self._run.seed

    def get_initial_batch(self) -> int:
        """Return the number of batches trained before this run."""
        return self._run.first_batch

    def get_tensorboard_path(self) -> Path | None:
        """Return the directory for event files, or None where the run has none."""
        return self._run.tensorboard_dir

    def log_image(self, name: str, image: Any, batches: int | None = None) -> None:
        """Keep an image of the trial, for the page of `det ui`.

        - `name`: such as `samples` or `validation/masks`. At the same name and position the last
          one is kept.
        - `image`: an array of height x width, or height x width x 1, 3 or 4 channels, of uint8 or
          of floats from 0 to 1. A torch tensor has its channels first or last. Or a PIL image, a
          matplotlib figure, a path or the bytes of a PNG or JPEG file.
        - `batches`: the position. By default the number of batches trained so far. Give it if you
          log in a thread of your own.

        Every rank may call it, but only rank 0 reads the image and writes. Images, tables and texts
        of a trial have 256 MiB and 10,000 files together, each one 16 MiB. What exceeds this is not
        kept, and the log says so.

        Raises ArgumentError, with your line, for another shape, for values that are NaN or out of
        range, and for a name with other characters than letters, digits, spaces and `_.+=,()-/`.
        """
        if self.distributed.rank == 0:
            self._kept().log_image(name, image, self._trained() if batches is None else batches)

    def log_table(self, name: str, data: Any, batches: int | None = None) -> None:
        """Keep a table of the trial, for the page of `det ui`.

        `data` is a dict of columns of one length, a list of rows that are dicts, or a DataFrame.
        Each cell is a number, a text, a bool or None. `name`, `batches`, ranks and limits are as
        for `log_image`.

        Raises ArgumentError, with your line, for columns of several lengths and for cells that hold
        more than one value.
        """
        if self.distributed.rank == 0:
            self._kept().log_table(name, data, self._trained() if batches is None else batches)

    def log_text(self, name: str, text: str, batches: int | None = None) -> None:
        """Keep a text of the trial, for the page of `det ui`.

        `name`, `batches`, ranks and limits are as for `log_image`.
        """
        if self.distributed.rank == 0:
            self._kept().log_text(name, text, self._trained() if batches is None else batches)

    def _kept(self) -> Media:
        if self._media is None or self._media.directory != self._run.tensorboard_dir:
            self._media = Media(self._run.tensorboard_dir)
        return self._media

    def _trained(self) -> int:
        loop = RUNNING.get()
        return self._run.first_batch if loop is None else loop.batches_trained

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Ask to end the trial, as complete, after this batch. A checkpoint is saved."""
        if not isinstance(stop_requested, bool):
            raise TrialError(f"set_stop_requested got {stop_requested!r}; give True or False")
        self._stop_requested = stop_requested
        if stop_requested:
            self._request_stop()

    def get_stop_requested(self) -> bool:
        """Return whether an end was requested."""
        return self._stop_requested

    def stops(self, request_stop: Callable[[], None]) -> None:
        """Set the function that ends training.

        It is called at once if the trial requested its end before.
        """
        self._request_stop = request_stop
        if self._stop_requested:
            request_stop()
