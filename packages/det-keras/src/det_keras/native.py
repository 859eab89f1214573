"""The Native API for Keras: `init()` makes a script an experiment, and det takes over at `fit`."""

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

_WORKERS = "det_node.launch.tensorflow"


def init(
    config: Mapping[str, Any] | None = None,
    mode: Mode | str = Mode.CLUSTER,
    context_dir: str | Path = "",
    command: str | Sequence[str] | None = None,
) -> TFKerasNativeContext:
    """Make this script an experiment, and return its context.

    `config` is its configuration, without an entrypoint.

    `Mode.LOCAL` trains in this process, with the hyperparameters of the search's first trial.
    `Mode.CLUSTER` submits the code in `context_dir`, follows the experiment, and ends this process
    with its status. Each worker runs the script again up to the `fit` of the wrapped model. It runs
    `command`, which is by default the command of this process, or a notebook's path.

    Global generators are seeded by the trial's seed. Call it before TensorFlow computes anything.
    Raises ConfigError for errors in `config`, and DetError for others.
    """
    check_backend()
    place = begin(
        config, mode, context_dir, command, framework="keras", as_trial=False, launcher=_WORKERS
    )
    if place.local:
        seed_everything(place.run.seed)
        return TFKerasNativeContext(place)
    distributed, strategy = DistributedContext.from_tf_config()
    seed_everything(place.run.seed)
    worker = _Worker(strategy, core.init(distributed=distributed))
    return TFKerasNativeContext(
        replace(place, run=replace(place.run, distributed=distributed)), worker
    )


class TFKerasNativeContext(NativeContext):
    """The context of a script. It describes the run, and wraps the model and the datasets."""

    def __init__(self, place: ScriptPlace, worker: _Worker | None = None) -> None:
        super().__init__(place)
        self._worker = worker
        self._models: list[Any] = []

    def wrap_model(self, model: Any) -> Any:
        """Return the model, whose `fit` then trains under det.

        Compile it before or after this call. `fit` supports all arguments of Keras's. The batch
        size is `batch_size`, or else the hyperparameter `global_batch_size`, over all ranks. In
        `Mode.LOCAL` it returns Keras's History. In a worker, training is reported, saved at the end
        of each epoch, preempted and resumed as by a DeterminedCallback, and the script ends with
        it.
        """
        if not isinstance(model, keras.Model):
            raise TrialError(f"wrap_model got {type(model).__name__}; give a keras.Model")
        if not any(model is known for known in self._models):
            self._models.append(model)
            model.fit = self._wrap_fit(model.fit)
        return model

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Return a `tf.data.Dataset` for several ranks.

        Batch it by `get_global_batch_size()`, because Keras divides the batches. With
        `shard_dataset`, each rank reads its share of the records. Otherwise each reads all of them.
        """
        if not isinstance(dataset, tf.data.Dataset):
            raise TrialError(f"wrap_dataset got {type(dataset).__name__}; give a tf.data.Dataset")
        policy = tf.data.experimental.AutoShardPolicy
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            policy.DATA if shard_dataset else policy.OFF
        )
        return dataset.with_options(options)

    def _wrap_fit(self, fit: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(fit)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            self._batch_size(bound)
            if self._worker is None:
                return fit(*bound.args, **bound.kwargs)
            callbacks = bound.arguments.get("callbacks") or []
            if not isinstance(callbacks, (list, tuple)):
                callbacks = [callbacks]
            bound.arguments["callbacks"] = [*callbacks, self._worker.callback()]
            return self._worker.train(lambda: fit(*bound.args, **bound.kwargs))

        return wrapped

    def _batch_size(self, bound: inspect.BoundArguments) -> None:
        arrays = bound.arguments.get("y") is not None
        if (
            arrays
            and bound.arguments.get("batch_size") is None
            and "global_batch_size" in self.get_hparams()
        ):
            bound.arguments["batch_size"] = self.get_global_batch_size()


class _Worker:
    """A worker that runs the script. From its creation on, models are made under its strategy."""

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
        return DeterminedCallback(
            self._context, checkpoint=info.latest_checkpoint, continue_id=info.trial.trial_id
        )

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
                "det: the script ended and trained nothing; call fit() of the model that"
                " wrap_model() returned\n"
            )
            sys.stderr.flush()
            # An exit handler cannot set the status of the process in another way.
            os._exit(2)
