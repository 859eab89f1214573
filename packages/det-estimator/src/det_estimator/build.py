"""Builds a trial's estimator and specs, and refuses settings that conflict with det."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import TrialError
from det_core.train.entrypoint import make_trial

from .context import EstimatorTrialContext
from .trial import EstimatorTrial

_Estimator: Any = tf.compat.v1.estimator.Estimator


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts that a trial builds.

    `given` is the trial's estimator. `estimator` is the same model with det's `RunConfig`, in
    `model_dir`.
    """

    given: Any
    estimator: Any
    config: Any
    train: Any
    evaluate: Any
    receivers: dict[str, Any]

    @property
    def model_dir(self) -> Path:
        return Path(self.config.model_dir)

    def model(self, features: Any, labels: Any, mode: str) -> Any:
        """Return the `EstimatorSpec` of the model in the current graph."""
        return _restored_by_name(self.given.model_fn(features, labels, mode, self.config))

    def arguments(self, mode: str) -> dict[str, Any]:
        """Return the arguments that an `input_fn` may have."""
        return {"mode": mode, "params": self.given.params, "config": self.config}

    def hooks(self) -> list[Any]:
        """Return the hooks of the train spec."""
        return list(self.train.hooks or ())


def build_trial(
    trial_class: type[EstimatorTrial], context: EstimatorTrialContext
) -> EstimatorTrial:
    """Make a trial. Raises TrialError for a class that lacks a required method."""
    return make_trial(trial_class, EstimatorTrial, context)


def build_parts(trial: EstimatorTrial, context: EstimatorTrialContext, model_dir: Path) -> Parts:
    """Build a trial's parts, which work in `model_dir`.

    Raises TrialError if det cannot train them.
    """
    given = context.run.build.model(context, trial.build_estimator)
    _check_estimator(given)
    remove_empty(given.model_dir)
    # Hooks that the specs make with this estimator look for evaluations there.
    given._model_dir = str(model_dir)
    train, evaluate = trial.build_train_spec(), trial.build_validation_spec()
    _check(train, tf.estimator.TrainSpec, "build_train_spec")
    _check(evaluate, tf.estimator.EvalSpec, "build_validation_spec")
    _check_hooks(train)
    receivers = trial.build_serving_input_receiver_fns()
    if not isinstance(receivers, dict) or not all(callable(each) for each in receivers.values()):
        raise TrialError("build_serving_input_receiver_fns must return a dict of functions by name")
    config = given.config.replace(
        model_dir=str(model_dir),
        tf_random_seed=graph_seed(context.run.seed),
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
    )

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        return _restored_by_name(given.model_fn(features, labels, mode, config))

    estimator = _Estimator(model_fn=model_fn, config=config)
    return Parts(
        given=given,
        estimator=estimator,
        config=config,
        train=train,
        evaluate=evaluate,
        receivers=receivers,
    )


def _restored_by_name(spec: Any) -> Any:
    """Make a spec restore variables by their names, as det saves them.

    The spec of a Keras model would restore them by its objects.
    """
    scaffold = spec.scaffold
    if scaffold is None or getattr(scaffold.saver, "_object_restore_saver", None) is None:
        return spec
    v1 = tf.compat.v1
    return spec._replace(
        scaffold=v1.train.Scaffold(saver=v1.train.Saver(), copy_from_scaffold=scaffold)
    )


def graph_seed(seed: int) -> int:
    """Return a trial's seed in the range of a graph's seed. It is never 0, which means no seed."""
    return seed % (2**31 - 1) + 1


def _check(spec: Any, kind: Any, method: str) -> None:
    if not isinstance(spec, kind):
        raise TrialError(
            f"{method} returned {type(spec).__name__}; return a tf.estimator.{kind.__name__}"
        )


def _check_estimator(estimator: Any) -> None:
    if not isinstance(estimator, _Estimator):
        raise TrialError(
            f"build_estimator returned {type(estimator).__name__}; return a tf.estimator.Estimator"
        )
    config = estimator.config
    for name in ("train_distribute", "eval_distribute"):
        if getattr(config, name) is not None:
            strategy = type(getattr(config, name)).__name__
            raise TrialError(
                f"RunConfig.{name} is a {strategy}, but det starts the ranks itself; leave it out"
                " and set resources.slots_per_trial"
            )
    if config.num_worker_replicas > 1 or config.num_ps_replicas:
        raise TrialError(
            "RunConfig has a cluster (from TF_CONFIG), but det starts the ranks itself; unset"
            " TF_CONFIG and set resources.slots_per_trial"
        )
    _warn_about_ignored(config)


def _warn_about_ignored(config: Any) -> None:
    default = tf.estimator.RunConfig()
    own = {
        "save_checkpoints_steps": "min_checkpoint_period",
        "save_checkpoints_secs": "min_checkpoint_period",
        "tf_random_seed": "reproducibility.experiment_seed",
    }
    for name, key in own.items():
        value = getattr(config, name)
        if value is not None and value != getattr(default, name):
            warnings.warn(
                f"RunConfig.{name} is {value}, which det does not look at; set {key}", stacklevel=2
            )


def _check_hooks(train: Any) -> None:
    for hook in train.hooks or ():
        if isinstance(hook, tf.compat.v1.train.StopAtStepHook):
            raise TrialError(
                "TrainSpec has a StopAtStepHook, but the searcher says how long a trial is; leave"
                " it out and set searcher.max_length"
            )
    if getattr(train, "saving_listeners", None):
        raise TrialError(
            "TrainSpec has saving_listeners; use a det_estimator.RunHook with on_checkpoint_end"
            " instead"
        )


def remove_empty(directory: str) -> None:
    """Remove the temporary directory of an estimator without a `model_dir`, if it is empty."""
    if Path(directory).parent == Path(tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
