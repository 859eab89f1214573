"""The arguments of Lightning's `Trainer` that a trial may set.

Those that det decides are refused, with advice what to set instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.callbacks import BatchSizeFinder, Checkpoint, LearningRateFinder
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from det_core import TrialError
from det_core.config import ExperimentConfig

from .internals import shards_over_all_ranks

NEVER = 10**9

_LENGTH = "how long to train is det's to say: set searcher.max_length"
_VALIDATION = "when to validate is det's to say: set min_validation_period"
_SLOTS = "processes are det's to start: set resources.slots_per_trial"
DECIDED = {
    "max_epochs": _LENGTH,
    "max_steps": _LENGTH,
    "max_time": _LENGTH,
    "min_epochs": _LENGTH,
    "min_steps": _LENGTH,
    "check_val_every_n_epoch": _VALIDATION,
    "val_check_interval": _VALIDATION,
    "num_sanity_val_steps": (
        "det checks a trial before it trains (check_first); perform_initial_validation validates"
        " all data"
    ),
    "fast_dev_run": "to try a trial out there is: det check CONFIG",
    "overfit_batches": (
        "the order of the data is det's: give limit_train_batches, or a loader without shuffling"
    ),
    "enable_checkpointing": "det saves: set min_checkpoint_period and checkpoint_policy",
    "devices": _SLOTS,
    "num_nodes": _SLOTS,
    "use_distributed_sampler": "det deals the batches to the ranks",
    "barebones": "it would take away the callback by which det follows the training",
}
_PRECISIONS = {"fp32": None, "fp16": "16-mixed", "bf16": "bf16-mixed"}
_OLD_PRECISIONS = {16: "16-mixed", 32: None, "16": "16-mixed", "32": None}


def check_given(given: Mapping[str, Any]) -> None:
    """Raise TrialError for an argument of Trainer that det decides."""
    for name, value in given.items():
        if name in DECIDED and not (name == "enable_checkpointing" and value is False):
            raise TrialError(f"{name}={value!r} is not for a LightningAdapter: {DECIDED[name]}")
    if given.get("limit_train_batches") == 0:
        raise TrialError(
            "limit_train_batches=0 trains nothing; leave it out, or give 1 or more batches, or a"
            " fraction"
        )
    for plugin in _listed(given.get("plugins")):
        if isinstance(plugin, CheckpointIO):
            raise TrialError(
                f"the plugin {type(plugin).__name__} writes checkpoints, which det does itself;"
                " leave it out"
            )


def other_lightning(thing: Any) -> str:
    """Return a hint for an object of the distribution `pytorch_lightning`.

    Its classes differ from those of `lightning`.
    """
    if any(cls.__module__.startswith("pytorch_lightning") for cls in type(thing).__mro__):
        return ", but of pytorch_lightning: import lightning.pytorch as pl"
    return ""


def check_callbacks(callbacks: list[Any]) -> None:
    """Raise TrialError for a callback that does what det does itself."""
    for each in callbacks:
        if isinstance(each, Checkpoint):
            raise TrialError(
                f"the callback {type(each).__name__} saves checkpoints, which det does itself:"
                " leave it out, and set min_checkpoint_period and checkpoint_policy"
            )
    check_no_finder(callbacks)


def check_no_finder(callbacks: list[Any]) -> None:
    """Raise TrialError for a callback that trains on its own, as a Tuner adds one, too."""
    for each in callbacks:
        if isinstance(each, (BatchSizeFinder, LearningRateFinder)):
            raise TrialError(
                f"the callback {type(each).__name__} trains on its own before the trial does, which"
                " det cannot resume: leave it out; find the value once, by Lightning's Tuner with a"
                " Trainer of Lightning alone, and set it as a hyperparameter, or let det search for"
                " it"
            )


def accumulation(given: Mapping[str, Any], config: ExperimentConfig) -> int:
    """Return the number of batches in a step.

    The configuration and the trial may both set it if they agree.
    """
    configured, own = (
        config.optimizations.aggregation_frequency,
        given.get("accumulate_grad_batches"),
    )
    if configured > 1 and not config.optimizations.average_aggregated_gradients:
        raise TrialError(
            "optimizations.average_aggregated_gradients is false, but Lightning always averages;"
            " leave it out, or multiply the loss"
        )
    if own is not None and configured > 1 and own != configured:
        raise TrialError(
            f"accumulate_grad_batches is {own}, but optimizations.aggregation_frequency is"
            f" {configured}; leave one of them out"
        )
    return configured if own is None else int(own)


def precision(own: Any, config: ExperimentConfig) -> Any:
    """Return Lightning's name of the precision that the trial or the configuration asks for.

    None stands for the default.
    """
    configured = _PRECISIONS[config.optimizations.precision]
    own = _OLD_PRECISIONS.get(own, own) if isinstance(own, (int, str)) else own
    return configured if own is None else own


def check_amp(backend: str, level: str | None) -> None:
    """Raise TrialError for mixed precision in the form that predates torch's own."""
    if backend == "apex":
        raise TrialError(
            "amp_backend='apex': apex is no longer developed; leave it out, and give"
            " precision='16-mixed'"
        )
    if backend != "native":
        raise TrialError(f"amp_backend is {backend!r}; leave it out: torch's own is used")
    if level is not None and level not in ("O0", "O1", "O2", "O3"):
        raise TrialError(f"amp_level is {level!r}; leave it out: only apex had levels")


def check_strategy(strategy: Any) -> None:
    """Raise TrialError for a strategy that needs more than det provides."""
    if isinstance(strategy, ModelParallelStrategy):
        if not shards_over_all_ranks(strategy):
            raise TrialError(
                "ModelParallelStrategy has a tensor_parallel_size, whose ranks want the same data;"
                " det gives each rank its own: leave it out, and the model is divided among all"
                " ranks"
            )
        return
    if strategy is None or strategy == "auto" or isinstance(strategy, DDPStrategy):
        return
    if (
        isinstance(strategy, str)
        and strategy.startswith("ddp")
        and not any(s in strategy for s in ("spawn", "fork", "notebook"))
    ):
        return
    name = type(strategy).__name__ if isinstance(strategy, Strategy) else repr(strategy)
    if "fsdp" in name.lower():
        raise TrialError(
            f"strategy {name} is the first FSDP; give ModelParallelStrategy(), which is the second"
            " one, with a configure_model()"
        )
    raise TrialError(
        f"strategy {name}: det trains with DDP or Horovod, by distributed.backend; leave it out, or"
        " give a kind of 'ddp'"
    )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
