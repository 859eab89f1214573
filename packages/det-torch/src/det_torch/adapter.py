"""The adapter that trains a `PyTorchTrial` under det-core's training loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from det_core import Adapter, Loop, Metrics, RunInfo, TrialError
from det_core.train.ranks import global_batch_size, of_all_ranks

from . import parts, sharding, state
from .build import build_loader, build_trial, check_trial, overrides, training_step
from .callbacks import Callbacks
from .context import PyTorchTrialContext
from .copies import Copies
from .data import (
    TrainingStream,
    clean_shared_memory,
    find_datasets,
    seed_everything,
    validation_batches,
)
from .device import Moving, choose_device
from .live import callback_state, fingerprint, live_state
from .lr import LRScheduler
from .metrics import Numbers, kept
from .ranks import Replicas, join_ranks
from .rng import rng_state, set_rng_state, untouched_rng
from .sharding import is_sharded
from .structure import check_structure, structure
from .trial import PyTorchTrial
from .validation import Validation


class TorchAdapter(Adapter[PyTorchTrial]):
    """Trains a `PyTorchTrial` under det-core's training loop."""

    framework_version = str(torch.__version__)

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext, run: RunInfo) -> None:
        check_trial(trial, context)
        self.trial, self.context, self._run = trial, context, run
        self._callbacks = Callbacks(trial.build_callbacks())
        context.before_optimizer_step(self._callbacks.overriding("on_before_optimizer_step"))
        self._numbers = Numbers()
        self._started = False
        self._validated_at = -1
        self._loaders: list[Any] = []
        self._resume: dict[str, Any] = {}
        self._position = self._reported_at = run.first_batch
        if run.first_batch:
            # A validation that is due here sees the batch that it would see without a restart.
            context.current_batch = run.first_batch - 1
        self._copies = Copies()
        # Another run may have used them before.
        context.reducers.reset()
        # Closed last: the trial's own shutdown hooks may still need the other ranks.
        self._last = ExitStack()
        self._replicas: Replicas | None = None
        if context.backend is not None:
            self._replicas = Replicas(context.backend, context.models, context.optimizers)
        self._open = ExitStack()
        self._open.callback(context.close)
        try:
            self._callbacks("on_trial_startup", run.first_batch, run.checkpoint)
            self._stream = self._build_stream()
            self._validation = self._build_validation()
            # A restarted run loads its checkpoint into these.
            self._built = [structure(model) for model in context.models]
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, trial: type[PyTorchTrial], run: RunInfo) -> TorchAdapter:
        device = choose_device(run)
        with ExitStack() as stack:
            backend = join_ranks(run)
            if backend is not None:
                stack.callback(backend.shutdown)
            seed_everything(run.seed)
            context = PyTorchTrialContext(run, device, backend=backend)
            adapter = cls(build_trial(trial, context), context, run)
            adapter._last.push(stack.pop_all())
            return adapter

    # Training

    def train(self, loop: Loop) -> None:
        context, callbacks = self.context, self._callbacks
        self._start()
        context.stops(loop.request_stop)
        if loop.done:
            self._stream.restore(
                data_of(self._resume, context.distributed.rank, context.distributed.size)
            )
        per_epoch = self.batches_per_epoch or 0
        batches = iter(
            loop.batches(self._run.observed(self._read(loop.done, per_epoch), loop.done))
        )
        if self._stream.warning:
            warnings.warn(self._stream.warning, stacklevel=1)
        for advice in (self._stream.advice, self._validation.advice):
            if advice and context.distributed.rank == 0:
                warnings.warn(advice, stacklevel=1)
        step = self._step()
        ends = callbacks.overriding("on_training_epoch_end") and per_epoch
        number_of = self._position = loop.done
        with context.profiler or nullcontext():
            for batch in batches:
                context.current_batch = number_of
                epoch = number_of // per_epoch if per_epoch else 0
                metrics = step(batch, epoch, number_of)
                number_of += 1
                self._position = number_of
                if ends and number_of % per_epoch == 0:
                    callbacks("on_training_epoch_end", epoch)
                loop.step(metrics)

    def _read(self, done: int, per_epoch: int) -> Iterator[Any]:
        """Return the batches after the first `done`.

        If a callback has `on_training_epoch_start`, the first batch of an epoch is read after that
        hook has returned.
        """
        if not (per_epoch and self._callbacks.overriding("on_training_epoch_start")):
            return self._stream.batches(done)
        return self._read_epochs(self._stream.batches(done, per_epoch), done, per_epoch)

    def _read_epochs(self, batches: Iterator[Any], done: int, per_epoch: int) -> Iterator[Any]:
        while True:
            epoch, offset = divmod(done, per_epoch)
            if not offset:
                self.context.current_batch = done
                self._callbacks("on_training_epoch_start", epoch)
            yield from islice(batches, per_epoch - offset)
            done += per_epoch - offset

    def _start(self) -> None:
        if not self._started:
            self._started = True
            for model in self.context.models:
                model.train()
            if self._run.first_batch:
                parts.set_flags(self.context.models, self._resume)
            if self._replicas is not None:
                self._replicas.align()
            # A resumed run calls this hook once more than an uninterrupted one.
            with untouched_rng():
                self._callbacks("on_training_start")
            # The hook may have frozen parameters that a later epoch had unfrozen.
            if self._run.first_batch:
                parts.set_flags(self.context.models, self._resume)

    def _step(self) -> Callable[[Any, int, int], dict[str, Any]]:
        """Return the function that trains one batch.

        It calls the trial's own step and does only what this run needs besides.
        """
        context = self.context
        train = context.precision.around(training_step(self.trial, context))
        schedulers = self._stepped_schedulers()
        bare = not schedulers and context.precision.auto_scaler is None and context.profiler is None
        moving = Moving(context)

        if self._replicas is not None:
            train = self._replicas.aligned(train)

        def step(batch: Any, epoch: int, index: int) -> dict[str, Any]:
            return kept(train(moving(batch) if moving.needed else batch, epoch, index))

        def full_step(batch: Any, epoch: int, index: int) -> dict[str, Any]:
            metrics = step(batch, epoch, index)
            if (index + 1) % context.aggregation_frequency == 0:
                context.precision.after_batch()
                for scheduler in schedulers:
                    scheduler.after_batch(
                        index, context.aggregation_frequency, context.batches_per_epoch
                    )
            if context.profiler is not None:
                context.profiler.step()
            return metrics

        return step if bare else full_step

    def _stepped_schedulers(self) -> list[LRScheduler]:
        modes = LRScheduler.StepMode
        by_themselves = (modes.MANUAL_STEP, modes.STEP_EVERY_OPTIMIZER_STEP)
        found = [s for s in self.context.lr_schedulers if s.step_mode not in by_themselves]
        if not self.batches_per_epoch and any(s.step_mode is modes.STEP_EVERY_EPOCH for s in found):
            warnings.warn(
                "an LR scheduler is to be stepped every epoch, but the training data has no length,"
                " so that no epoch ends; step it every so many batches",
                stacklevel=1,
            )
        return found

    # Metrics

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        return of_all_ranks(self._numbers(rows), self._run)

    def reported(
        self, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, float]]
    ) -> Mapping[str, Any]:
        reducers = self.context.reducers
        complete = dict(metrics) | reducers.metrics(
            self.context.distributed.allgather, training=True
        )
        reducers.reset()
        self._reported_at = self._position
        if self._callbacks.overriding("on_training_workload_end"):
            timed: dict[str, Any] = {"batches": self._position}
            if self.batches_per_epoch:
                timed["epochs"] = self._position / self.batches_per_epoch
            self._callbacks(
                "on_training_workload_end", timed | complete, [dict(row) for row in rows]
            )
        return complete

    def validate(self) -> Metrics:
        self._start()
        self._validated_at = self._position
        return self._validation()

    def finish(self) -> None:
        # A run may begin where no batch is left to train.
        self._start()
        self._callbacks("on_training_end")

    def synchronize(self) -> None:
        """Copy the chief's buffers to this rank before a validation or a checkpoint.

        Before training has begun, parameters and optimizer states are copied too.
        """
        if self._replicas is not None and self._started:
            self._replicas.align_buffers()
        elif self._replicas is not None:
            self._replicas.align()

    def fingerprint(self) -> str:
        return (
            self._replicas.fingerprint()
            if self._replicas is not None
            else fingerprint(self.context.models)
        )

    def live_state(self) -> Mapping[str, str]:
        # Training begins with what `on_training_start` sets.
        self._start()
        context, callbacks = self.context, self._callbacks.named
        saved = [*context.optimizers, *context.reducers, context.precision.scaler]
        saved += [each for by in context.lr_schedulers for each in (by, by.scheduler)]
        for loader in self._loaders:
            saved += find_datasets(loader).values()
            samplers = (getattr(loader, name, None) for name in ("sampler", "batch_sampler"))
            for part in (loader, *samplers):
                saved += getattr(part, "__dict__", {}).values()
        # Many trials count something in a validation, and begin it with 0 in the next one.
        if self._validated_at == self._position:
            return callback_state(callbacks, [self.trial, *context.models, *saved])
        return live_state(self.trial, context.models, callbacks, saved)

    # State

    def save(self, path: Path) -> None:
        # The random numbers that hooks draw must not depend on how often a run is saved.
        with untouched_rng():
            contents = self._contents(path)
            if self.context.distributed.rank == 0:
                state.save(contents, path)

    def _contents(self, path: Path | None = None) -> dict[str, Any]:
        """Return the contents of a checkpoint.

        Only the chief's are complete. Every rank must call this.
        """
        context = self.context
        contents = parts.collect(context)
        contents |= {"rng_state": rng_state(), "data": self._stream.state(self._position)}
        contents |= of_ranks(context, contents)
        if context.reducers and self._position != self._reported_at:
            contents["reducers"] = context.reducers.state(context.distributed.allgather)
        contents = sharding.write(contents, path)
        if context.distributed.rank == 0:
            contents["callbacks"] = self._callbacks.state()
            self._callbacks("on_checkpoint_save_start", contents)
            state.check(contents)
            self._check_models(contents)
        return contents

    def _check_models(self, contents: Mapping[str, Any]) -> None:
        """Raise TrialError if training has changed a model in a way that a restarted run would not.

        A callback with `on_checkpoint_load_start` may change it again.
        """
        if self._callbacks.overriding("on_checkpoint_load_start"):
            return
        models = self.context.models
        if len(models) > len(self._built):
            raise TrialError(
                f"wrap_model() got {type(models[len(self._built)]).__name__} in training, so that a"
                " restarted run could not load this checkpoint; wrap all models in the trial's"
                " __init__"
            )
        for model, built, saved in zip(
            models, self._built, contents.get("models_state_dict", []), strict=False
        ):
            check_structure(
                model, built, saved, "on_checkpoint_load_start of one of the trial's callbacks"
            )

    def snapshot(self) -> Callable[[Path], None] | None:
        """Copy the state and return the function that writes the copy.

        Returns None if the checkpoint must be written while training waits. This is so if a
        callback reads its directory while it is written, or if the model is sharded.
        """
        looking = any(
            map(self._callbacks.overriding, ("on_checkpoint_end", "on_checkpoint_write_end"))
        )
        # All ranks write the parts of a sharded model together.
        if looking or self.context.sharding.used:
            return None
        with untouched_rng():
            contents = self._contents()
        return (
            self._copies.writing(contents, state.save)
            if self.context.distributed.rank == 0
            else lambda path: None
        )

    def written(self, path: Path) -> None:
        with untouched_rng():
            self._callbacks("on_checkpoint_end", str(path))
            self._callbacks("on_checkpoint_write_end", path)

    def saved(self, uuid: str) -> None:
        with untouched_rng():
            self._callbacks("on_checkpoint_upload_end", uuid)

    def load(self, path: Path) -> None:
        sharding.reshard(self.context.models)
        contents = state.load(path, parts.like(self.context))
        self._callbacks("on_checkpoint_load_start", contents)
        parts.restore(self.context, contents, warm=not self._run.first_batch)
        self._callbacks.restore(contents.get("callbacks", {}))
        self._resume = {
            key: contents[key]
            for key in (
                "data",
                "rank_data",
                "gradients",
                "rank_gradients",
                "reducers",
                "evaluating",
                "frozen",
            )
            if key in contents
        }
        parts.set_gradients(self.context.models, {})
        aggregation = self.context.aggregation_frequency
        steps = contents.get(
            "optimizer_steps",
            [self._run.first_batch // aggregation] * len(self.context.lr_schedulers),
        )
        for scheduler, count in zip(self.context.lr_schedulers, steps, strict=False):
            scheduler.optimizer_steps = count if self._run.first_batch else 0
        if self._run.first_batch:
            self._restore_accumulated()
        set_rng_state(rng_of(contents, self.context.distributed.rank))

    def _restore_accumulated(self) -> None:
        """Restore the gradients that wait for a step and the values that reducers gathered.

        A warm start skips this, as they belong to the other trial.
        """
        distributed = self.context.distributed
        gradients = gradients_of(self._resume, distributed.rank, distributed.size)
        parts.set_gradients(self.context.models, gradients)
        # Drop this reference, so that the gradients are in memory once.
        self._resume = {key: value for key, value in self._resume.items() if "gradients" not in key}
        # Those of a sharded model are averaged already.
        own = any(not sharding.is_sharded(each) for each in gradients.values())
        if own and self.context.steps.gradients is not None:
            self.context.steps.gradients.resume()
        if gathered := self._resume.pop("reducers", None):
            self.context.reducers.restore(gathered, distributed.rank, distributed.size)
            self._reported_at = -1

    # Facts

    @property
    def batches(self) -> int:
        """Batches trained since the trial's first batch."""
        return self._position

    @property
    def batches_per_epoch(self) -> int | None:
        return self.context.batches_per_epoch

    @property
    def global_batch_size(self) -> int | None:
        return global_batch_size(self._run, lambda: self._loader_batch_size)

    @property
    def sharded(self) -> bool:
        """Whether each rank holds only a part of the model, and writes only that part to a
        checkpoint.
        """
        return self.context.sharding.used and self._run.distributed.size > 1

    def close(self) -> None:
        with self._last, self._open:
            self._callbacks.shut_down()

    # Data

    def _build_stream(self) -> TrainingStream:
        distributed = self.context.distributed
        clean_shared_memory()
        loader = build_loader(self.context, self.trial.build_training_data_loader, "training")
        self._loaders.append(loader)
        self._loader_batch_size: int | None = getattr(loader, "batch_size", None)
        stream = TrainingStream(
            loader, seed=self._run.seed, rank=distributed.rank, size=distributed.size
        )
        self._open.callback(stream.close)
        self.context.batches_per_epoch = distributed.broadcast(stream.batches_per_epoch)
        return stream

    def _build_validation(self) -> Validation:
        distributed = self.context.distributed
        loader = build_loader(self.context, self.trial.build_validation_data_loader, "validation")
        self._loaders.append(loader)
        whole = overrides(self.trial, "evaluate_full_dataset")
        rank, size = (0, 1) if whole else (distributed.rank, distributed.size)
        data = validation_batches(loader, rank=rank, size=size, seed=self._run.seed)
        self._open.callback(data.close)
        return Validation(self.trial, self.context, self._callbacks, data, self._run.quick)


def of_ranks(context: PyTorchTrialContext, contents: Mapping[str, Any]) -> dict[str, Any]:
    """Return the own states of all ranks, by rank.

    Every rank must call this with its contents. Only the chief's result is complete.
    """
    distributed, gradients = context.distributed, context.steps.gradients
    if distributed.size == 1:
        return {}
    everyone = distributed.gather((contents["rng_state"], contents["data"])) or []
    found: dict[str, Any] = {
        "rank_rng_states": [rng for rng, _ in everyone],
        "rank_data": [data for _, data in everyone],
    }
    if distributed.agree(gradients is not None and gradients.pending):
        own = {
            name: value
            for name, value in contents.get("gradients", {}).items()
            if not is_sharded(value)
        }
        found["rank_gradients"] = distributed.gather(own)
    return found


def rng_of(contents: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """Return the state of a rank's generators.

    If the checkpoint does not know the rank, this is the chief's state.
    """
    states = contents.get("rank_rng_states", [])
    state: Mapping[str, Any] = states[rank] if rank < len(states) else contents.get("rng_state", {})
    return state


def data_of(contents: Mapping[str, Any], rank: int, size: int) -> Any:
    """Return the data position of a rank.

    If the checkpoint was saved by another number of ranks, this is the chief's position.
    """
    states = contents.get("rank_data", [])
    return states[rank] if len(states) == size else contents.get("data")


def gradients_of(contents: Mapping[str, Any], rank: int, size: int) -> Mapping[str, Any]:
    """Return the gradients that wait on a rank.

    If another number of ranks saved them, this is their mean.
    """
    states = contents.get("rank_gradients")
    if states is None:
        waiting: Mapping[str, Any] = contents.get("gradients", {})
        return waiting
    names = dict.fromkeys(name for state in states for name in state)
    divided = {
        name: value for name, value in contents.get("gradients", {}).items() if name not in names
    }
    if len(states) == size:
        return {**divided, **states[rank]}
    return divided | {
        name: sum(state[name] for state in states if name in state) / len(states) for name in names
    }
