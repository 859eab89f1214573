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
from .data import BatchError, Feed
from .drift import Drift, checksum
from .feeds import feed_of
from .listeners import Listeners, Tests, tensorboard_dir
from .measures import Measures
from .metrics import MetricObjects, flat
from .optim import Reduction, variables_of
from .parts import build_as_saved, optimizer_state, restore_optimizer
from .ranks import join_ranks, spread, tell_of_local_statistics, without_xla
from .rng import Generators, seed_everything
from .state import read_state, write_state
from .trial import TFKerasTrial
from .versions import KERAS_VERSION, VERBOSE, check_backend
from .weights import read_weights, write_weights

_ENDLESS = 2**62  # batches in Keras's one epoch


class KerasAdapter(Adapter[TFKerasTrial]):
    """Trains a `TFKerasTrial` under core's loop."""

    framework_version = f"{tf.__version__} (Keras {KERAS_VERSION})"

    def __init__(
        self, trial: TFKerasTrial, context: TFKerasTrialContext, run: RunInfo, group: KerasBackend | None = None
    ) -> None:
        self.trial, self.context, self._run = trial, context, run
        self._group = group
        self._open = ExitStack()
        if group is not None:
            self._open.callback(group.shutdown)
        try:
            self.model = build_model(trial, context)
            if group is not None:
                without_xla(self.model)
                tell_of_local_statistics(self.model)
            self._generators = Generators(self.model, context.distributed)
            self._generators.part()
            self._training = self._feed("training")
            self._validation = self._feed("validation")
            self._validated = self._validation.validation()
        except BaseException:
            self.close()
            raise
        distributed = context.distributed
        self._batches_per_epoch = distributed.broadcast(self._training.batches_per_epoch)
        average = run.config.optimizations.average_training_metrics
        self._measures = Measures(self.model, MetricObjects(self.model, distributed), run.first_batch, average)
        self._drift = Drift(self._unreduced, self._set_unreduced, distributed)
        self._drifted: list[Any] = []
        self._listeners = Listeners(trial.keras_callbacks(), self.model, self._params(), tensorboard_dir(run))
        self._callback_states: list[Any] = []
        self._objects: list[Any] | None = None
        self._bridge: Bridge | None = None
        self._started = self._built = self._ended = False
        self._validated_at = -1
        self._known: dict[str, Any] | None = None  # of the validation that is to come

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
            self._fit(self._training.training(loop.done))
        finally:
            self.model.train_function = None
        if not loop.stop:
            raise TrialError(
                f"the training data ended at batch {self._measures.position}; let it have a batch at least, and repeat nothing "
                "that random numbers make shorter"
            )
        self._end()

    def finish(self) -> None:
        """Let callbacks hear of what training left, and then Keras and them do what they do at the end of `fit`.

        Keras's own evaluates an epoch before that, and so is done here where there are callbacks; where nothing changes weights
        afterwards, this was the last validation.
        """
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
            self._known = dict(told)

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
            self._raise_what_the_data_raised(self._training)
            ranks = self.context.distributed
            raise lost(error, ranks.rank, ranks.size, "while gradients were exchanged") from error
        self._raise_what_the_data_raised(self._training)

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

    def _unreduced(self) -> dict[str, Any]:
        metrics = {id(each) for each in self._measures.objects.variables()}
        weights = self.model.non_trainable_weights
        return {str(i): each.numpy() for i, each in enumerate(weights) if id(each) not in metrics}

    def _set_unreduced(self, values: Mapping[str, Any]) -> None:
        variables = self.model.non_trainable_weights
        for place, value in values.items():
            variables[int(place)].assign(value)

    def _take_up_metrics(self) -> None:
        if self._objects is not None:
            self._measures.objects.take_up(self._objects)
            self._objects = None

    def _raise_what_the_data_raised(self, feed: Feed) -> None:
        failure = feed.failure()
        if failure is not None:
            raise failure from None if isinstance(failure, BatchError) else failure

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
            logs = self._evaluate()
            self._listeners.validated(logs, ended=self._ended)
        self._validated_at = self._measures.position
        self._measures.validation = {name: value for name, value in logs.items() if isinstance(value, float)}
        if self._bridge is not None:
            self._bridge.look_for_stop()
            self._finish_epoch()
        return logs

    def _evaluate(self) -> dict[str, Any]:
        objects = self._measures.objects
        before = objects.state()
        own = self._evaluated(self._validated) if self._validated is not None else {}
        together = objects.values()
        raw = [each for each in self.context.distributed.allgather(own) if each]
        values = {name: sum(each[name] for each in raw) / len(raw) for name in raw[0]}
        values |= {name: value for name, value in together.items() if name in values}
        objects.reset()
        objects.restore(before)
        return {name if name.startswith("val_") else f"val_{name}": value for name, value in values.items()}

    def _evaluated(self, data: Any, *, quiet: bool = False) -> dict[str, float]:
        callbacks = [] if quiet or self._ended else [Tests(self._listeners)]
        try:
            logs = self.model.evaluate(data, verbose=0, return_dict=True, callbacks=callbacks)
        except tf.errors.OpError:
            self._raise_what_the_data_raised(self._validation)
            raise
        self._raise_what_the_data_raised(self._validation)
        return flat(logs)

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
        """Let Keras make every variable of the model and its metrics: by tracing its step, where it has parts without, and by
        evaluating a batch."""
        data = self._validation.validation()
        if data is not None and not self._built:
            self._built = True
            with self._generators.untouched():
                trace(self.model, self._training.training(0).element_spec)
                self._evaluated(data.take(1), quiet=True)
            self._measures.objects.reset()

    # Facts

    def _params(self) -> dict[str, Any]:
        """Return what Keras's own `fit` of the trial's length would tell callbacks; `epochs` is None where nobody knows that."""
        length, epoch, verbose = self._run.length, self._batches_per_epoch, self.context.fit_options.verbose
        batches = None if length is None else to_batches(length.n, length.unit, self)
        epochs = None if batches is None or not epoch else -(-batches // epoch)
        return {"verbose": VERBOSE if verbose is None else verbose, "epochs": epochs, "steps": epoch}

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
