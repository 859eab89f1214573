"""The Native API for Keras: `init()` makes a script its own experiment, and `fit` is where det takes over."""

from __future__ import annotations

import atexit
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import DistributedContext, TrialError, core
from det_driver.native import Mode, NativeContext, ScriptPlace, begin

from .determined_callback import DeterminedCallback
from .rng import seed_everything
from .versions import check_backend, keras

_WORKERS = "det_core.launch.tensorflow"


def init(
    config: Mapping[str, Any] | None = None,
    mode: Mode | str = Mode.CLUSTER,
    context_dir: str | Path = "",
    command: str | Sequence[str] | None = None,
) -> TFKerasNativeContext:
    """Return the context of this script, which is an experiment: `config` is its configuration, without an entrypoint.

    `Mode.LOCAL` trains here, with the hyperparameters of the search's first trial. `Mode.CLUSTER` submits the code in
    `context_dir`, follows the experiment, and ends this process with its status; each worker runs the script again, as `command`
    says (by default as it was called here; a notebook by its path), up to the `fit` of the model that the context wrapped.

    Global generators are seeded by the trial's seed. Call it before TensorFlow computes anything.
    Raises ConfigError for what is wrong with `config`, DetError for the rest.
    """
    check_backend()
    place = begin(config, mode, context_dir, command, framework="keras", as_trial=False, launcher=_WORKERS)
    if place.local:
        seed_everything(place.run.seed)
        return TFKerasNativeContext(place)
    distributed, strategy = DistributedContext.from_tf_config()
    seed_everything(place.run.seed)
    worker = _Worker(strategy, core.init(distributed=distributed))
    return TFKerasNativeContext(replace(place, run=replace(place.run, distributed=distributed)), worker)


class TFKerasNativeContext(NativeContext):
    """What a script asks of its run, and what it passes its model and its datasets through."""

    def __init__(self, place: ScriptPlace, worker: _Worker | None = None) -> None:
        super().__init__(place)
        self._worker = worker
        self._models: list[Any] = []

    def wrap_model(self, model: Any) -> Any:
        """Return the model, whose `fit` trains under det; compile it before or after.

        `fit` takes what Keras's takes, and honours it. Batches are of `batch_size`, or else of the hyperparameter
        `global_batch_size`, over all ranks. In `Mode.LOCAL` it returns Keras's History. In a worker training is reported, saved at
        the end of each epoch, paused and resumed as by a DeterminedCallback, and the script ends with it.
        """
        if not isinstance(model, keras.Model):
            raise TrialError(f"wrap_model got {type(model).__name__}; give a keras.Model")
        if not any(model is known for known in self._models):
            self._models.append(model)
            model.fit = self._taken_over(model.fit)
        return model

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Return a `tf.data.Dataset` as several ranks have to read it: batch it by `get_global_batch_size()`, as Keras divides it.

        With `shard_dataset` each rank reads its share of the records, else each all of them.
        """
        if not isinstance(dataset, tf.data.Dataset):
            raise TrialError(f"wrap_dataset got {type(dataset).__name__}; give a tf.data.Dataset")
        policy = tf.data.experimental.AutoShardPolicy
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policy.DATA if shard_dataset else policy.OFF
        return dataset.with_options(options)

    def _taken_over(self, fit: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(fit)

        def taken_over(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            self._batch_size(bound)
            if self._worker is None:
                return fit(*bound.args, **bound.kwargs)
            callbacks = bound.arguments.get("callbacks") or []
            if not isinstance(callbacks, (list, tuple)):
                callbacks = [callbacks]
            bound.arguments["callbacks"] = [*callbacks, self._worker.callback()]
            return self._worker.train(lambda: fit(*bound.args, **bound.kwargs))

        return taken_over

    def _batch_size(self, bound: inspect.BoundArguments) -> None:
        arrays = bound.arguments.get("y") is not None
        if arrays and bound.arguments.get("batch_size") is None and "global_batch_size" in self.get_hparams():
            bound.arguments["batch_size"] = self.get_global_batch_size()


class _Worker:
    """A worker that runs the script; models are made under its strategy from here on."""

    def __init__(self, strategy: Any, context: core.Context) -> None:
        self._context = context
        self._open = ExitStack()
        if context.distributed.size > 1:
            self._open.enter_context(strategy.scope())
        self._trained = False
        atexit.register(self._must_have_trained)

    def callback(self) -> DeterminedCallback:
        """Return the callback that reports, saves and resumes."""
        info = self._context.info
        assert info is not None
        return DeterminedCallback(self._context, checkpoint=info.latest_checkpoint, continue_id=info.trial.trial_id)

    def train(self, fit: Callable[[], Any]) -> None:
        """Train, and end the process."""
        self._trained = True
        with self._context:
            fit()
        if self._context.distributed.rank == 0:
            sys.stdout.write("training has ended; what follows fit() in the script does not run\n")
            sys.stdout.flush()
        raise SystemExit(0)

    def _must_have_trained(self) -> None:
        if not self._trained:
            sys.stderr.write(
                "det: the script ended and trained nothing; call fit() of the model that wrap_model() returned\n"
            )
            sys.stderr.flush()
            os._exit(2)  # the status of a process cannot be changed otherwise from here
