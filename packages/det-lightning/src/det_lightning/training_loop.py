"""The callback that lets det control a fit of Lightning.

Lightning owns the loop. det counts a batch when Lightning has finished it. This is before the next
batch is read, or at the end of an epoch, before the hooks that end it.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import BaseFinetuning

from det_core import Communicator, TrialError
from det_torch.optimizer_state import Types, of_unchanged_type, types_kept, types_of
from det_torch.parts import group_names, regroup, set_flags, without_added_groups
from det_torch.rng import set_rng_state, untouched_rng
from det_torch.sharding import is_sharded
from det_torch.structure import Structure, check_structure, make_buffers, structure, unsaved

from . import buffers, internals, logged, numbers, position, snapshot, sources
from .attributes import Attributes
from .feed import Feed
from .internals import unshuffled
from .loop_controller import LoopController
from .position import Position
from .sources import Build
from .validation import Validations

Hooks = Callable[[], None]


class TrainingLoop(Validations):
    """Counts the batches of a trainer's fit and lets the pace decide between them.

    What runs for every batch calls no method and no `super()` that it can do without.
    """

    # Whether Lightning trains its own additional epochs now.
    _extra = False
    # Whether all hooks that end training had been called in the run from which this one continues.
    _was_over = False

    def __init__(
        self,
        pace: LoopController,
        distributed: Communicator,
        *,
        seed: int,
        build: Callable[[Build, str], Any] = lambda build, split: build(),
        build_training: Build | None = None,
        build_validation: Build | None = None,
        check: Callable[[list[Any]], None] = lambda callbacks: None,
        observe: Callable[[int, Any], None] | None = None,
    ) -> None:
        super().__init__(distributed, seed, build)
        self._pace, self._check, self._observe = pace, check, observe
        self._own = (build_training, build_validation)
        self._trainer: Any = None
        self._feed: Feed | None = None
        self._step_metrics = logged.StepMetrics()
        self._reset_fit()
        # The contents of the checkpoint from which this fit continues.
        self._contents: dict[str, Any] = {}
        self._loops: dict[str, Any] = {}
        # The types of its weights.
        self._types: Types = {}
        # Closed once Lightning has loaded the checkpoint.
        self._loading = ExitStack()
        self._epoch_metrics = logged.EpochMetrics()
        self._handler: Any = None
        self._attributes: Attributes | None = None
        # The module, and its structure as a restarted run makes it.
        self._built: tuple[pl.LightningModule, Structure] | None = None
        self._groups = ParameterGroups()

    def _reset_fit(self) -> None:
        self.at = Position()
        # The metrics of a batch that the pace has not got yet.
        self._row: dict[str, Any] | None = None
        # The hooks that end the epoch whose data has ended, until they are called.
        self._hooks: Hooks | None = None
        self._running = self._stopped = self._set_up = False
        self._rng: Mapping[str, Any] | None = None

    # Interface for the pace

    @property
    def trainer(self) -> pl.Trainer:
        """The trainer of the fit."""
        trainer: pl.Trainer = self._trainer
        return trainer

    @property
    def running(self) -> bool:
        """Whether a fit is set up and not yet torn down."""
        return self._running

    @property
    def is_set_up(self) -> bool:
        """Whether a fit has begun, so that its data can be requested."""
        return self._set_up

    @property
    def has_feed(self) -> bool:
        """Whether the training data exists."""
        return self._feed is not None

    @property
    def feed(self) -> Feed:
        """The training data. It exists once a fit is set up."""
        assert self._feed is not None
        return self._feed

    def resume(
        self,
        checkpoint: Mapping[str, Any],
        contents: Mapping[str, Any],
        *,
        from_start: bool = False,
    ) -> None:
        """Make the next fit continue from a checkpoint.

        Lightning loads the weights itself. With `from_start`, batches are counted from 0.
        """
        self._contents = dict(contents)
        self._loops = {} if from_start else dict(checkpoint["loops"]["fit_loop"])
        self._types = types_of(checkpoint["state_dict"])
        if from_start:
            self._contents |= {"position": {}, "data": None, "gradients": {}}
            self._contents.pop("built_in", None)
            self._contents["ranks"] = [{"rng_state": contents["ranks"][0]["rng_state"]}]

    def validate(self) -> dict[str, Any]:
        """Validate and return the metrics: logged values, and the means of returned values that
        were not logged.
        """
        with self._pace.chiefs_buffers():
            found = self._measure(self.trainer, behind_a_batch=self.at.done > 0)
        if self.trainer.should_stop and not self._stopped:
            self._should_stop()
        return found

    def call_hooks(self) -> None:
        """Call the hooks that end the epoch whose data has ended, unless they have been called."""
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks()
            self._epoch_metrics.collect_late(self.trainer)

    def take_epoch_metrics(self) -> dict[str, Any]:
        """Return the values that were logged over epochs since the last call."""
        return self._epoch_metrics.take()

    def capture(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the two parts of a checkpoint. Every rank must call this."""
        more: dict[str, Any] = {}
        # The random numbers that hooks draw must not depend on how often a run is saved.
        with untouched_rng():
            more["groups"] = self._groups.changed(self.trainer)
            if self._rebuilds():
                more["built_in"] = internals.built_in(self.trainer)
            checkpoint, contents = snapshot.capture(
                self.trainer, self.feed, self.at, self._distributed, more, self._of_rank()
            )
        self._check_structure(checkpoint["state_dict"])
        return checkpoint, contents

    def _check_structure(self, saved: Mapping[str, Any]) -> None:
        """Raise TrialError if training has changed the module in a way that a restarted run would
        not.

        A module with `on_load_checkpoint` may change itself again.
        """
        module = self.trainer.lightning_module
        if (
            self._built is not None
            and self._built[0] is module
            and not internals.overrides(module, "on_load_checkpoint")
        ):
            check_structure(module, self._built[1], saved, "its on_load_checkpoint")
            late = [
                name for name, shape in self._built[1].items() if shape is None and name in saved
            ]
            if late and any(map(is_sharded, module.parameters())):
                raise TrialError(
                    f"training has made the buffer {late[0]} of a sharded module, which a"
                    " restarted run could not load; make it in __init__, in its final shape"
                )
            if self._distributed.rank == 0 and (names := unsaved(module, self._built[1], saved)):
                warnings.warn(
                    f"training has given the module {names}, which no checkpoint holds: a run that"
                    " is resumed begins without",
                    stacklevel=1,
                )

    def _of_rank(self) -> dict[str, Any]:
        """Return the state of this rank that a snapshot does not contain by itself."""
        return {
            "attributes": self._attributes.changed() if self._attributes is not None else {},
            "epoch_metrics": {name: float(v) for name, v in self._epoch_metrics.values.items()},
            "buffers": buffers.capture(self.trainer, self._distributed),
        }

    def _restore_of_rank(self, own: dict[str, Any]) -> None:
        """Restore what `_of_rank` returned."""

    def save(self, directory: Path) -> None:
        """Write a checkpoint. Every rank must call this. Only the chief writes."""
        checkpoint, contents = self.capture()
        if self._distributed.rank == 0:
            snapshot.write(checkpoint, contents, directory)

    def close(self) -> None:
        """Close all data that reads ahead."""
        self._close_feeds()
        if self._feed is not None:
            self._feed.close()
        self._feed = None

    # Data

    def attach(self, trainer: pl.Trainer, *, validation: bool = True) -> None:
        """Pass the trainer's training data and, by default, its validation data through this
        object.
        """
        self._trainer = trainer
        sources.stand_between(
            trainer, self._train_on, self._validate_on if validation else None, *self._own
        )

    def _train_on(self, build: Build) -> Feed:
        built_in = self._built_in() if self._feed is None else []
        with (
            untouched_rng(),
            position.in_epoch(self.trainer, built_in[0]) if built_in else nullcontext(),
        ):
            loaders = self._build(build, "training")
        overfits = bool(self.trainer.overfit_batches)  # type: ignore[attr-defined]
        feed = Feed(
            unshuffled(loaders) if overfits else loaders,
            self._distributed,
            self._between,
            seed=self._seed,
            limit=self.trainer.limit_train_batches,
            observe=self._observe,
            hidden=("sampler",) if overfits else (),
        )
        earlier, self._feed = self._feed, feed
        # The data was built again for this epoch.
        if earlier is not None:
            earlier.close()
            feed.restore(self.at, None)
            feed.begin_epoch(self.at)
        elif self._contents:
            self.at = snapshot.position_of(self._contents, feed)
            feed.restore(self.at, snapshot.data_of(self._contents, self._distributed))
            if self.at.done:
                position.move_loops(self.trainer, self._loops, self.at)
            if len(built_in) > 1:
                with position.in_epoch(self.trainer, built_in[1]):
                    position.build_validation_data(self.trainer)
        self._advise(feed.advice)
        return feed

    def _rebuilds(self) -> bool:
        """Return whether Lightning builds the data again every few epochs."""
        return bool(self.trainer.reload_dataloaders_every_n_epochs)  # type: ignore[attr-defined]

    def _built_in(self) -> list[int]:
        """Return the epochs in which a resumed run had last built its data, if it builds the data
        repeatedly.
        """
        found = self._contents.get("built_in", []) if self._rebuilds() else []
        return [int(epoch) for epoch in found if epoch >= 0]

    # Hooks

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit":
            # Those of the module are among them now.
            self._check(list(trainer.callbacks))  # type: ignore[attr-defined]
            self._reset_fit()
            self.close()
            self._set_up = True
            self._attributes = None
            if self._contents:
                _make_buffers_behind_loading(pl_module)
            if found := self._contents.get("numpy"):
                numbers.put_back_behind_loading(trainer, found)
            if threading.current_thread() is threading.main_thread():
                self._handler = signal.getsignal(signal.SIGTERM)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore the parameter groups of optimizers before Lightning loads their states, and keep
        the states' types.
        """
        # A later fit may begin with what an earlier one has changed.
        if self._built is None or self._built[0] is not pl_module:
            self._built = pl_module, structure(pl_module)
        self._groups.note(trainer)
        for optimizer, groups in zip(
            trainer.optimizers, self._contents.get("groups") or [], strict=False
        ):
            regroup([pl_module], optimizer, groups)
        if self._contents:
            unchanged = of_unchanged_type(pl_module, self._types)
            self._loading.enter_context(types_kept(trainer.optimizers, unchanged))

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Lightning's handler would raise an exception in the middle of an epoch.
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
        if self._contents.get("groups") and not self.at.done:
            self._groups.leave_out_added(trainer)
        self._loading.close()
        self._restore(pl_module)

    def begin(self) -> None:
        """Begin training.

        The pace may act before the first batch, and there may be no batch at all.
        """
        self._running = True
        self._restore_settings()
        if self._contents and self.at.done and not self.at.batch:
            position.go_as_any_other(self.trainer)
        if built_in := self._built_in():
            internals.set_built_in(self.trainer, built_in[0])
        self._restore_rng(keep=bool(self.at.done))
        if self._pace.begin(self):
            self._stop()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._epoch_metrics.collect_late(trainer)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # Lightning has read this batch ahead. It is not trained.
        if self._stopped:
            raise StopIteration

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if self._extra:
            return
        # The check of a `Mapping` alone is slow.
        loss = outputs.get("loss") if isinstance(outputs, (dict, Mapping)) else outputs
        self._row = {} if loss is None else {"loss": loss}

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self._running = False

    # Between two batches

    def _between(self) -> bool:
        """Pass the last batch to the pace, if there is one. Returns whether to stop."""
        # Lightning reads ahead while it sets up.
        if not self._running:
            return False
        if self._rng is not None:
            self._restore_rng()
        return self._stopped or (self._row is not None and self._report_batch(self._take_row()))

    def _take_row(self) -> dict[str, Any]:
        """Count the batch that is over and return its metrics."""
        self._was_over = False
        row, self._row = self._row or {}, None
        self.at.batch, self.at.done, self.at.closed = self.at.batch + 1, self.at.done + 1, False
        trainer = self._trainer
        scale = trainer.accumulate_grad_batches
        if scale > 1 and "loss" in row and trainer.lightning_module.automatic_optimization:
            # Lightning has divided the loss.
            row["loss"] = row["loss"] * scale
        return row | self._step_metrics(trainer)

    def _report_batch(self, row: dict[str, Any]) -> bool:
        if self._trainer.should_stop:
            self._should_stop()
        if self._pace.step(self, row):
            self._stop()
        return self._stopped

    # After the last batch of an epoch

    def _end_of_data(self) -> None:
        """Pass the last batch of an epoch to the pace, unless the run that saved the checkpoint
        did.
        """
        self._take_epoch_metrics()
        if self._row is not None:
            self.at.ended = True
            if self._report_batch(self._take_row()):
                position.leave_at_end(self.trainer)
        else:
            self._restore_rng()

    def _go_on(self, *, next_epoch: bool = True) -> None:
        """Make the hooks end a resumed epoch like any other, and move the position to
        the next one.
        """
        if self._stopped:
            return
        position.go_as_any_other(self.trainer)
        self._epoch_metrics.note_end(self.trainer)
        if next_epoch:
            self.at.end_epoch()
            self.feed.begin_epoch(self.at)

    def _take_epoch_metrics(self) -> None:
        # Otherwise the run that saved this checkpoint has reported them.
        if not self.at.ended:
            self._epoch_metrics.collect(self.trainer)

    def _stop(self) -> None:
        self._stopped = self.trainer.should_stop = True

    def _should_stop(self) -> None:
        """Pass a stop request of the module or a callback to the pace, which decides
        when to stop.
        """
        self.trainer.should_stop = False
        self._pace.request_stop()

    # Restoring

    def _restore(self, module: pl.LightningModule) -> None:
        contents = self._contents
        if not contents:
            return
        own = self._own_contents()
        if self.at.done:
            logged.set_sums(self.trainer, own["sums"])
            logged.set_metric_states(
                module, own["metric_states"], self.trainer.strategy.root_device
            )
            logged.set_known(
                self.trainer, own["known"], within_epoch=self.at.batch > 0 and not self.at.ended
            )
            # Earlier versions saved the chief's only.
            self._epoch_metrics.values = dict(
                own.get("epoch_metrics") or contents.get("epoch_metrics", {})
            )
            snapshot.set_gradients(module, contents["gradients"])
            self._restore_of_rank(own)
        self._rng = own["rng_state"]
        self._restore_rng(keep=bool(self.at.done))

    def _restore_settings(self) -> None:
        """Restore what hooks set at the start of an epoch, and this rank's own buffers, after all
        hooks at the start of training.
        """
        self._attributes = Attributes(self.trainer)
        contents = self._contents
        if contents and self.at.done:
            flags = contents.get("flags") or {"evaluating": [contents["evaluating"]]}
            set_flags([self.trainer.lightning_module], flags)
            own = self._own_contents()
            self._attributes.put_back(own.get("attributes", {}))
            # Not earlier, as strategies give each rank the chief's where training starts.
            if "buffers" in own:
                buffers.restore(self.trainer, own["buffers"])

    def _own_contents(self) -> dict[str, Any]:
        ranks = self._contents["ranks"]
        own: dict[str, Any] = ranks[
            self._distributed.rank if len(ranks) == self._distributed.size else 0
        ]
        return own

    def _restore_rng(self, *, keep: bool = False) -> None:
        """Restore the generators.

        With `keep`, they are restored once more before the first batch, as hooks may draw until
        then.
        """
        if self._rng is not None:
            set_rng_state(self._rng)
            if not keep:
                self._rng = None


class ParameterGroups:
    """The parameter groups of a fit's optimizers. Callbacks and hooks may add some."""

    def __init__(self) -> None:
        # Those of each optimizer, as it was made: the ids of their parameters, and themselves.
        self._ids: list[list[list[int]]] = []
        self._made: list[list[dict[str, Any]]] = []

    def note(self, trainer: pl.Trainer) -> None:
        """Note the groups with which the optimizers were made."""
        self._ids = _group_ids(trainer)
        self._made = [[*each.param_groups] for each in trainer.optimizers]

    def changed(self, trainer: pl.Trainer) -> list[list[list[str]]]:
        """Return the names of the parameters in each optimizer's groups if training has changed the
        groups.
        """
        if _group_ids(trainer) == self._ids:
            return []
        way_out = "make it an attribute of the LightningModule in its __init__"
        return [
            group_names([trainer.lightning_module], each, way_out) for each in trainer.optimizers
        ]

    def leave_out_added(self, trainer: pl.Trainer) -> None:
        """After a warm start, restore the groups that optimizers were made with.

        The trial's own hooks add others.

        Lightning's own callbacks for that continue from the groups in their state.
        """
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(each, BaseFinetuning) for each in callbacks):
            return
        models = [trainer.lightning_module]
        for optimizer, made in zip(trainer.optimizers, self._made, strict=True):
            saved, groups = optimizer.state_dict(), group_names(models, optimizer)
            optimizer.param_groups[:] = made
            optimizer.state.clear()
            optimizer.load_state_dict(without_added_groups(models, optimizer, groups, saved))


def _group_ids(trainer: pl.Trainer) -> list[list[list[int]]]:
    return [
        [[id(p) for p in group["params"]] for group in each.param_groups]
        for each in trainer.optimizers
    ]


def _make_buffers_behind_loading(module: pl.LightningModule) -> None:
    """Make the buffers that the module has yet to make when it loads a checkpoint."""

    def make(module: torch.nn.Module, state: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        handle.remove()
        make_buffers(module, state, prefix)

    handle = module.register_load_state_dict_pre_hook(make)  # type: ignore[no-untyped-call]
