"""Keras behind core's loop: Keras owns the `for`, a callback tells core of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import Adapter, Loop, Metrics, RunInfo, TrialError
from det_core.ranks import global_batch_size, lost, of_all_ranks
from det_core.schedule import to_batches

from .backends import KerasBackend
from .bridge import Bridge
from .build import build_model, build_trial, trace
from .chunks import Chunks, steps_of
from .context import TFKerasTrialContext
from .data import Feed, Shown
from .drift import checksum
from .evaluation import Evaluation, raise_what_it_raised
from .feeds import feed_of
from .listeners import Listeners, params_of_fit, tensorboard_dir
from .measures import Measures
from .metrics import MetricObjects, flat
from .optim import Reduction, variables_of
from .parts import build_as_saved, optimizer_state, restore_optimizer
from .ranks import drift_of, join_ranks, spread, tell_of_local_statistics, without_xla
from .rng import Generators, seed_everything
from .state import read_state, write_state
from .trial import TFKerasTrial
from .versions import KERAS_VERSION, check_backend
from .weights import read_weights, write_weights

_ENDLESS = 2**62  # batches in Keras's one epoch


class KerasAdapter(Adapter[TFKerasTrial]):
    """Trains a `TFKerasTrial` under core's loop."""

    framework_version = f"{tf.__version__} (Keras {KERAS_VERSION})"

    def __init__(
        self, trial: TFKerasTrial, context: TFKerasTrialContext, run: RunInfo, group: KerasBackend | None = None
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
        self._objects: list[Any] | None = None
        self._bridge: Bridge | None = None
        self._started = self._built = self._ended = False
        self._validated_at = -1
        self._known: dict[str, Any] | None = None  # of the validation that is to come

    def _make(self, group: KerasBackend | None) -> None:
        trial, context, run = self.trial, self.context, self._run
        distributed, average = context.distributed, run.config.optimizations.average_training_metrics
        model = self.model = build_model(trial, context)
        if group is not None:
            without_xla(model)
            tell_of_local_statistics(model)
        self._generators = Generators(model, distributed)
        self._generators.part()
        self._training, self._validation = self._feed("training"), self._feed("validation")
        epoch = self._batches_per_epoch = distributed.broadcast(self._training.batches_per_epoch)
        objects = MetricObjects(model, distributed)
        self._measures = Measures(model, objects, run.first_batch, average)
        self._drift, self._drifted = drift_of(model, objects, distributed), list[Any]()
        length = None if run.length is None else to_batches(run.length.n, run.length.unit, self)
        params = params_of_fit(length, epoch, context.fit_options.verbose)
        self._listeners = Listeners(trial.keras_callbacks(), model, params, tensorboard_dir(run))
        self._evaluation = Evaluation(model, self._validation, objects, self._listeners, distributed)

    @classmethod
    def create(cls, trial: type[TFKerasTrial], run: RunInfo) -> KerasAdapter:
        check_backend()
        group = join_ranks(run)  # first, as TensorFlow must not have computed before
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
            begin=self._take_up_metrics,
            finish_epoch=self._finish_epoch,
            go_on=self._drift.part,
        )
        self._bridge.set_model(self.model)
        self._finish_epoch()  # of an interrupted run
        if steps > 1:
            self._bridge.chunks = Chunks(self.model, self._bridge.chunk, means=not self._measures.objects_only)
        self.model.train_function = self._bridge.chunks
        self._drift.part()
        try:
            batches, observe = self._training.training(loop.done), self._run.observe
            self._fit(Shown(observe, loop.done).of(batches) if observe else batches)
        finally:
            self.model.train_function = None
        if not loop.stop:
            raise TrialError(
                f"the training data ended at batch {self._measures.position}; let it have a batch at least, and repeat nothing "
                "that random numbers make shorter"
            )
        self._end()

    def finish(self) -> None:
        """Let callbacks hear of a validation of what training left, as `fit` does, and then Keras and them have the last word."""
        self._start()
        told = before = None
        if self._listeners.callbacks and self._validated_at != self._measures.position:
            if self._group is not None:
                self.synchronize()
            told, before = self.validate(), checksum(self.model.get_weights())
        self._finish_epoch()
        finalize = getattr(self.model.optimizer, "finalize_variable_values", None)
        if finalize is not None:
            finalize(self.model.trainable_variables)
        self._end()
        self._drift.forget()
        if told is not None and checksum(self.model.get_weights()) == before:
            self._known = dict(told)  # nothing has changed a weight

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._listeners("on_train_end")

    def _finish_epoch(self) -> None:
        """Tell callbacks of an epoch's end, once, behind the validation that lies there."""
        if self._measures.epoch_ended:
            logs = self._measures.take_epoch()
            self._listeners("on_epoch_end", self._measures.position // (self._batches_per_epoch or 1) - 1, logs)
            if self._bridge is not None:
                self._bridge.look_for_stop()

    def _fit(self, dataset: Any) -> None:
        try:
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
            self._build()  # as every checkpoint must hold the same variables
            if self._group is not None:
                self._begin_alike()
            self._drift.restore(self._drifted)
            with self._generators.untouched():  # it is called once more where a run is resumed
                self._listeners("on_train_begin")
            self._listeners.restore(self._callback_states)

    def _begin_alike(self) -> None:
        """Give every rank the chief's weights, whatever the trial's own code did on each."""
        optimizers = [variable for each in self.context.optimizers for variable in variables_of(each)]
        spread([*self.model.weights, *optimizers], self.context.distributed)

    # Several ranks

    def synchronize(self) -> None:
        """Give every rank the means of BatchNorm's statistics and the like, until it trains on."""
        self._start()
        self._drift.meet()

    def fingerprint(self) -> str:
        return checksum(variable.numpy() for variable in self.model.trainable_variables)

    def _take_up_metrics(self) -> None:
        if self._objects is not None:
            self._measures.objects.take_up(self._objects)
            self._objects = None

    # Metrics

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        if self._measures.objects_only:
            return [{} for _ in rows]
        return of_all_ranks([flat(row) for row in rows], self._run)

    def reported(self, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, float]]) -> Mapping[str, Any]:
        complete = {**metrics, **self._measures.take_period()}
        self._listeners.directly("on_train_workload_end", self._measures.position, dict(complete))
        return complete

    def validate(self) -> Metrics:
        self._start()
        if self._known is not None:
            return self._known
        with self._generators.untouched():
            logs = self._evaluation(quiet=self._ended)
            self._listeners.validated(logs, ended=self._ended)
        self._validated_at = self._measures.position
        self._measures.validation = {name: value for name, value in logs.items() if isinstance(value, float)}
        if self._bridge is not None:
            self._bridge.look_for_stop()
            self._finish_epoch()
        return logs

    # Checkpoints

    def save(self, path: Path) -> None:
        distributed, weights = self.context.distributed, self.model.trainable_variables
        contents = {
            "optimizers": [optimizer_state(each, weights, distributed) for each in self.context.optimizers],
            "measures": self._measures.state(),
            "rng": self._generators.together(),
            "callbacks": self._listeners.state(),
            "drift": self._drift.state(),
        }
        if distributed.rank != 0:
            return
        write_weights(self.model, path)
        write_state(contents, path)
        self._listeners.directly("on_checkpoint_end", str(path))

    def load(self, path: Path) -> None:
        contents = read_state(path)
        self._build()
        optimizers, states = self.context.optimizers, contents["optimizers"]
        if len(optimizers) != len(states):
            raise TrialError(
                f"the trial has {len(optimizers)} optimizers, but the checkpoint holds {len(states)}; it is of another trial"
            )
        for optimizer, state in zip(optimizers, states, strict=True):
            build_as_saved(optimizer, state, self.model.trainable_variables)
        read_weights(self.model, path)
        for optimizer, state in zip(optimizers, states, strict=True):
            restore_optimizer(optimizer, state)
        self._callback_states = contents["callbacks"]
        if self._run.first_batch:
            self._measures.restore(contents["measures"])
            self._objects = contents["measures"]["objects"]
            self._measures.objects.take_up(self._objects)
            self._drifted = contents.get("drift", [])
        self._generators.take_up(contents["rng"])

    def _build(self) -> None:
        """Let Keras make every variable of the model and its metrics, by tracing a step, if need be, and evaluating a batch."""
        if not self._built and self._evaluation.data is not None:
            self._built = True
            with self._generators.untouched():
                trace(self.model, self._training.training(0).element_spec)
                self._evaluation.build()
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
