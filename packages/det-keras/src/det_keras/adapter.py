"""Runs Keras's training under det-core's loop.

Keras owns the `for` statement. A callback connects it with det-core's loop.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import Adapter, Loop, Metrics, RunInfo, TrialError
from det_core.train.ranks import global_batch_size, lost, of_all_ranks
from det_core.train.schedule import to_batches

from .attributes import counters_of, find_variables, only_variables, read_variables, write_variables
from .backends import KerasBackend
from .bridge import Bridge
from .build import build_model, build_trial, reset_states, trace, training_step
from .changes import Changes
from .chunks import Chunks, steps_of
from .context import TFKerasTrialContext
from .data import Feed, Reading, Shown, make_feed
from .evaluation import Evaluation, raise_what_it_raised
from .listeners import Listeners, params_of_fit, tensorboard_dir
from .measures import Measures
from .metrics import MetricObjects
from .old_weights import find_old_weights
from .optim import Reduction, computed_by, trained_by, variables_of, waiting_of
from .parts import build_as_saved, optimizer_state, restore_optimizer
from .ranks import (
    find_unreduced_variables,
    join_ranks,
    spread,
    warn_about_local_statistics,
    without_xla,
)
from .rng import Generators, seed_everything
from .state import STATE, read_state, write_state
from .trial import TFKerasTrial
from .unreduced import checksum
from .unsaved import find_unsaved
from .versions import KERAS_VERSION, check_backend, keras
from .weights import read_weights, write_weights

# The number of batches in Keras's only epoch.
_ENDLESS = 2**62


class KerasAdapter(Adapter[TFKerasTrial]):
    """Trains a `TFKerasTrial` under det-core's loop."""

    framework_version = f"{tf.__version__} (Keras {KERAS_VERSION})"

    def __init__(
        self,
        trial: TFKerasTrial,
        context: TFKerasTrialContext,
        run: RunInfo,
        group: KerasBackend | None = None,
    ) -> None:
        self.trial, self.context, self._run = trial, context, run
        self._group, self._open = group, ExitStack()
        if group is not None:
            self._open.callback(group.shutdown)
        try:
            self._make(group)
        except BaseException:
            self.close()
            raise
        self._callback_states: list[Any] = []
        self._changes: Changes | None = None
        self._saved_changes: dict[str, Any] = {}
        self._objects: list[Any] | None = None
        self._resumed = False
        self._bridge: Bridge | None = None
        self._started = self._built = self._ended = False
        # Whether the training step was searched for what no checkpoint holds.
        self._looked = False
        self._validated_at = -1
        # Whether a callback replaced the weights for the last validation.
        self._swapped = False
        # The metrics of the next validation, if they are known already.
        self._known: dict[str, Any] | None = None

    def _make(self, group: KerasBackend | None) -> None:
        trial, context, run = self.trial, self.context, self._run
        distributed, average = (
            context.distributed,
            run.config.optimizations.average_training_metrics,
        )
        model = self.model = build_model(trial, context)
        if group is not None:
            without_xla(model)
            warn_about_local_statistics(model)
        self._generators = Generators(model, distributed)
        self._generators.part()
        self._training, self._validation = self._feed("training"), self._feed("validation")
        self._generators.warn_of_shared(self._training.pipeline)
        epoch = self._batches_per_epoch = distributed.broadcast(self._training.batches_per_epoch)
        objects = MetricObjects(model, distributed)
        self._unreduced, self._saved_unreduced = (
            find_unreduced_variables(model, objects, distributed),
            list[Any](),
        )
        length = None if run.length is None else to_batches(run.length.n, run.length.unit, self)
        params = params_of_fit(length, epoch, context.fit_options.verbose)
        self._listeners = Listeners(trial.keras_callbacks(), model, params, tensorboard_dir(run))
        if not epoch:
            self._listeners.refuse_epochs("build_training_data_loader")
        epochs = bool(self._listeners.callbacks and epoch)
        self._measures = Measures(model, objects, run.first_batch, average, epochs=epochs)
        # Whether values are made of several states of metrics.
        self._pieces = epochs or distributed.size > 1
        self._evaluation = Evaluation(model, self._validation, objects, distributed)

    @classmethod
    def create(cls, trial: type[TFKerasTrial], run: RunInfo) -> KerasAdapter:
        check_backend()
        # The ranks must be joined before TensorFlow computes anything.
        group = join_ranks(run)
        seed_everything(run.seed)
        reduction = Reduction.of(run.config.optimizations, group.mean if group else None)
        context = TFKerasTrialContext(run, reduction=reduction)
        try:
            return cls(build_trial(trial, context), context, run, group)
        except BaseException:
            if group is not None:
                group.shutdown()
            raise

    # Training

    def train(self, loop: Loop) -> None:
        self._start()
        self.context.stops(loop.request_stop)
        steps = steps_of(self.model)
        self._bridge = Bridge(
            loop,
            self._listeners,
            self._measures,
            steps,
            self._batches_per_epoch,
            begin=self._restore_metrics,
            finish_epoch=self._finish_epoch,
            go_on=self._unreduced.desynchronize,
        )
        self._bridge.set_model(self.model)
        # An interrupted run may have left an epoch to finish.
        self._finish_epoch()
        # A callback may have ended training at that epoch.
        if loop.conclude():
            self._end()
            return
        self._bridge.chunks = self._new_chunks() if steps > 1 else None
        self.model.train_function = self._bridge.chunks
        self._unreduced.desynchronize()
        try:
            batches, observe = self._training.training(loop.done), self._run.observe
            self._fit(Shown(observe, loop.done).of(batches) if observe else batches)
        finally:
            self.model.train_function = None
        if not loop.stop:
            raise TrialError(
                f"the training data ended at batch {self._measures.position}; let it have a batch"
                " at least, and repeat nothing that random numbers make shorter"
            )
        self._end()

    def finish(self) -> None:
        """End training as `fit` does.

        If there are callbacks and the model was trained after the last validation, it is validated
        first. Then Keras's averages and the callbacks' `on_train_end` may change the weights.
        """
        self._start()
        metrics = before = None
        if self._listeners.callbacks and self._validated_at != self._measures.position:
            if self._group is not None:
                self.synchronize()
            metrics, before = self.validate(), self._weights_checksum()
        self._finish_epoch()
        _finalize(self.model)
        self._end()
        self._unreduced.reset()
        if metrics is not None and not self._swapped and self._weights_checksum() == before:
            # No weight has changed since the validation.
            self._known = dict(metrics)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._listeners("on_train_end")

    def _finish_epoch(self) -> None:
        """Notify callbacks once of an epoch's end, after a validation that is due there."""
        if self._measures.epoch_ended:
            logs = self._measures.take_epoch()
            self._listeners(
                "on_epoch_end", self._measures.position // (self._batches_per_epoch or 1) - 1, logs
            )
            if self._bridge is not None:
                self._bridge.look_for_stop()

    def _fit(self, dataset: Any) -> None:
        try:
            with _left_as_trained(self.model.optimizer):
                self.model.fit(
                    dataset,
                    epochs=1,
                    steps_per_epoch=_ENDLESS,
                    verbose=0,
                    shuffle=False,
                    class_weight=self.context.fit_options.class_weight,
                    callbacks=[self._bridge],
                )
        except tf.errors.OpError as error:
            raise_what_it_raised(self._training)
            ranks = self.context.distributed
            raise lost(error, ranks.rank, ranks.size, "while gradients were exchanged") from error
        raise_what_it_raised(self._training)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self.model.stop_training = False
            # All checkpoints must hold the same variables.
            self._build()
            if self._group is not None:
                self._begin_alike()
            self._unreduced.restore(self._saved_unreduced)
            changes = Changes(self.model, self.context.optimizers)
            # The hook is called again in a resumed run, and must not change the state.
            with self._generators.untouched(), self._as_loaded():
                self._listeners("on_train_begin")
            self._listeners.restore(self._callback_states)
            changes.begin()
            if self._run.first_batch:
                changes.restore(self._saved_changes)
            self._changes, self._listeners.after = changes, self._look
            self._measures.check = changes.check_compiled

    def _new_chunks(self) -> Chunks:
        assert self._bridge is not None
        return Chunks(self.model, self._bridge.chunk, means=not self._measures.objects_only)

    def _look(self) -> None:
        """Note what callbacks have changed, and keep to the loop's boundaries in a new step."""
        bridge, function = self._bridge, self.model.train_function
        if bridge is not None and bridge.chunks and function not in (None, bridge.chunks):
            self.model.train_function = bridge.chunks = self._new_chunks()
        if self._changes is not None:
            self._changes.look(self._measures.position)

    @contextmanager
    def _as_loaded(self) -> Iterator[None]:
        """Restore the model and its optimizers after the body if the run is resumed."""
        if not self._run.first_batch:
            yield
            return
        weights, distributed = self.model.trainable_variables, self.context.distributed
        variables = [*only_variables(self.model.weights), *self._outside().values()]
        values = [variable.numpy() for variable in variables]
        states = [optimizer_state(each, weights, distributed) for each in self.context.optimizers]
        yield
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        for optimizer, state in zip(self.context.optimizers, states, strict=True):
            restore_optimizer(optimizer, state, self.context.distributed)

    def _outside(self) -> dict[str, Any]:
        """Return the variables in the model's attributes that a checkpoint must hold separately."""
        held = [variable for each in self.context.optimizers for variable in variables_of(each)]
        return find_variables(
            self.model, [*held, *self._measures.objects.variables(), *self._generators.variables()]
        )

    def _begin_alike(self) -> None:
        """Give every rank the chief's weights, even if the trial's code set different ones."""
        optimizers = [
            variable for each in self.context.optimizers for variable in variables_of(each)
        ]
        spread([*only_variables(self.model.weights), *optimizers], self.context.distributed)

    # Several ranks

    def synchronize(self) -> None:
        """Give every rank the means of statistics such as BatchNorm's, until it trains again."""
        self._start()
        self._unreduced.synchronize_variables()

    def fingerprint(self) -> str:
        # A model may get its weights only now.
        self._start()
        return checksum(variable.numpy() for variable in self.model.trainable_variables)

    def _weights_checksum(self) -> str:
        return checksum(variable.numpy() for variable in only_variables(self.model.weights))

    def _restore_metrics(self) -> None:
        if self._resumed:
            self._measures.objects.restore_state(self._objects)
            self._objects, self._resumed = None, False

    # Metrics

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        if self._measures.objects_only:
            return [{} for _ in rows]
        return of_all_ranks([self._measures.objects.numbers(row) for row in rows], self._run)

    def reported(
        self, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, float]]
    ) -> Mapping[str, Any]:
        complete = {**metrics, **self._measures.take_period()}
        self._listeners.directly("on_train_workload_end", self._measures.position, dict(complete))
        return complete

    def validate(self) -> Metrics:
        self._start()
        if self._known is not None:
            return self._known
        callbacks = self._listeners.of_tests(ended=self._ended)
        swaps = self._listeners.begin_tests
        before = [variable.numpy() for variable in self._changeable()] if swaps else []
        with self._generators.untouched():
            for callback in callbacks:
                callback.on_test_begin()
            self._swapped = swaps and checksum(before) != checksum(
                each.numpy() for each in self._changeable()
            )
            if self._ended:
                # Validate the weights that are saved.
                self._put_back(before)
            logs = self._evaluation(callbacks)
            for callback in callbacks:
                callback.on_test_end(logs)
            if self._ended:
                self._put_back(before)
        self._validated_at = self._measures.position
        self._measures.validation = {
            name: value for name, value in logs.items() if isinstance(value, float)
        }
        if self._bridge is not None:
            self._bridge.look_for_stop()
            self._finish_epoch()
        return logs

    def _changeable(self) -> list[Any]:
        return [
            *only_variables(self.model.weights),
            *(each for optimizer in self.context.optimizers for each in variables_of(optimizer)),
        ]

    def _put_back(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._changeable(), values, strict=False):
            variable.assign(value)

    # Checkpoints

    def save(self, path: Path) -> None:
        distributed, weights = self.context.distributed, self.model.trainable_variables
        if self._changes is not None:
            self._changes.check()
        self._name_unsaved()
        contents = {
            "optimizers": [
                optimizer_state(each, weights, distributed) for each in self.context.optimizers
            ],
            "measures": self._measures.state(),
            "rng": self._generators.together(),
            "callbacks": self._listeners.state(),
            "drift": self._unreduced.state(),
            "attributes": distributed.allgather(read_variables(self._outside())),
            "changes": self._changes.state(self._measures.position) if self._changes else {},
        }
        if distributed.rank != 0:
            return
        write_weights(self.model, path)
        write_state(contents, path)

    def _name_unsaved(self) -> None:
        """Warn once of what the training step changes and no checkpoint holds."""
        model, chunks = self.model, self._bridge.chunks if self._bridge is not None else None
        function = chunks.step if chunks is not None else model.train_function
        if self._looked or function is None or self.context.distributed.rank:
            return
        self._looked = True
        # The backend has a variable of its own on several ranks.
        alone = self.context.distributed.size == 1
        saved = [
            *self._changeable(),
            *self._measures.objects.variables(),
            *self._generators.variables(),
            *self._outside().values(),
            *counters_of(model),
            *(
                variable
                for each in self.context.optimizers
                for variable in (*getattr(waiting_of(each), "variables", ()), *computed_by(each))
            ),
        ]
        for problem in find_unsaved(function, saved if alone else None):
            warnings.warn(problem, stacklevel=2)

    def written(self, path: Path) -> None:
        self._listeners.directly("on_checkpoint_end", str(path))

    def load(self, path: Path) -> None:
        if (
            not self._run.first_batch
            and not (path / STATE).is_file()
            and find_old_weights(path) is not None
        ):
            # A new trial takes the weights of a checkpoint that Determined wrote, as the rest is
            # pickled.
            self._build()
            read_weights(self.model, path)
            return
        contents = read_state(path)
        self._build()
        optimizers, states = self.context.optimizers, contents["optimizers"]
        # Old checkpoints do not hold the optimizers in attributes.
        old = "attributes" not in contents
        if len(optimizers) < len(states) or (len(optimizers) > len(states) and not old):
            raise TrialError(
                f"the trial has {len(optimizers)} optimizers, but the checkpoint holds"
                f" {len(states)}; it is of another trial"
            )
        for optimizer, state in zip(optimizers, states, strict=not old):
            build_as_saved(optimizer, state, self.model.trainable_variables)
        read_weights(self.model, path)
        for optimizer, state in zip(optimizers, states, strict=not old):
            restore_optimizer(optimizer, state, self.context.distributed)
        self._restore_outside(contents.get("attributes", []))
        self._callback_states = contents["callbacks"]
        self._saved_changes = contents.get("changes", {})
        if self._run.first_batch:
            ranks = self.context.distributed
            self._objects = self._measures.restore(contents["measures"], ranks.rank, ranks.size)
            self._measures.objects.restore_state(self._objects)
            self._resumed = True
            self._saved_unreduced = contents.get("drift", [])
        self._generators.restore_state(contents["rng"])

    def _restore_outside(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Restore this rank's variables in attributes.

        If the number of ranks has changed, they are the chief's. Raises TrialError if a resumed
        run's model has no such attribute.
        """
        if not ranks:
            return
        distributed = self.context.distributed
        same = len(ranks) == distributed.size
        left = write_variables(self._outside(), ranks[distributed.rank if same else 0])
        if left and same and self._run.first_batch:
            raise TrialError(
                f"the checkpoint holds {left[0]} of the model, which the trial's model has not, or"
                " in another shape; resume with the code of the checkpoint"
            )

    def _build(self) -> None:
        """Make Keras create every variable of the model and its metrics.

        It traces a training step if needed and evaluates a batch. Afterwards it restores the states
        of recurrent layers and all other variables that an evaluation changes.
        """
        if self._built:
            return
        self._built = True
        batches, model = self._training.training(0), self.model
        with self._generators.untouched():
            # A rank without records to validate must trace to make all variables. Then every rank
            # must, as they exchange the same ones.
            lacks = any(self.context.distributed.allgather(self._evaluation.data is None))
            trace(model, batches.element_spec, always=lacks)
            variables = [*only_variables(model.non_trainable_weights), *self._outside().values()]
            values = [variable.numpy() for variable in variables]
            data = self._evaluation.data
            if data is not None:
                self._evaluation.build(data)
            elif model.run_eagerly:
                self._evaluation.build(batches)
            self._measures.objects.find_unknown(
                None if data is None else partial(self._evaluation.build, data),
                partial(training_step, model, batches, self._measures.objects),
                pieces=self._pieces,
            )
            reset_states(model)
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        self._measures.objects.reset()

    # Facts

    @property
    def batches_per_epoch(self) -> int | None:
        return self._batches_per_epoch  # type: ignore[no-any-return]

    @property
    def global_batch_size(self) -> int | None:
        return global_batch_size(self._run, lambda: self._training.batch_size)

    def close(self) -> None:
        self._open.close()

    def _feed(self, split: str) -> Feed:
        feed = feed_of(split, self.trial, self.context, self.model)
        self._open.callback(feed.close)
        return feed


_FINALIZE = "finalize_variable_values"


@contextmanager
def _left_as_trained(optimizer: Any) -> Iterator[None]:
    """Keep `fit` from putting averages into the weights at its end. `finish` does that."""
    if not hasattr(optimizer, _FINALIZE):
        yield
        return
    object.__setattr__(optimizer, _FINALIZE, lambda variables: None)
    try:
        yield
    finally:
        object.__delattr__(optimizer, _FINALIZE)


def _finalize(model: Any) -> None:
    """Put averages into the weights that the optimizer trains, as `fit` does at its end.

    `fit` passes all weights of the model, and raises if the optimizer trains only some of them.
    """
    optimizer, weights = model.optimizer, model.trainable_variables
    finalize = getattr(type(optimizer), _FINALIZE, None)
    if finalize is not None:
        finalize(optimizer, [weights[place] for place in trained_by(optimizer, weights)] or weights)


def feed_of(split: str, trial: TFKerasTrial, context: TFKerasTrialContext, model: Any) -> Feed:
    """Return the feed of the data that the trial's method for `training` or `validation` returns.

    The method is called through the build hook.
    """
    name = f"build_{split}_data_loader"
    data = context.run.build.data_loader(context, getattr(trial, name), split)
    reading = _reading(split, context, model)
    return make_feed(
        data, name, reading, training=split == "training", wrapped=context.datasets.__contains__
    )


def _reading(split: str, context: TFKerasTrialContext, model: Any) -> Reading:
    run, options, distributed = context.run, context.fit_options, context.distributed
    size = context.get_per_slot_batch_size() if "global_batch_size" in run.hparams else None
    records = run.config.records_per_epoch
    return Reading(
        batch_size=size,
        seed=run.seed,
        shuffle=options.shuffle and split == "training",
        rank=distributed.rank,
        size=distributed.size,
        workers=options.workers,
        use_multiprocessing=options.use_multiprocessing,
        max_queue_size=options.max_queue_size,
        validation_steps=1 if run.quick and split == "validation" else options.validation_steps,
        batches_per_epoch=records // (size * distributed.size) if records and size else None,
        any_structure=type(model).train_step is not keras.Model.train_step,
    )
