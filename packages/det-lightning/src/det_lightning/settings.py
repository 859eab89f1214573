"""What of Lightning's `Trainer` a trial may set: what det decides is refused, with what to set instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from det_core import TrialError
from det_core.config import ExperimentConfig

from .internals import divides_as_told

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
    "num_sanity_val_steps": "det has no sanity check of a few batches: set perform_initial_validation, or try det check",
    "fast_dev_run": "to try a trial out there is: det check CONFIG",
    "overfit_batches": "the order of the data is det's: give limit_train_batches, or a loader without shuffling",
    "enable_checkpointing": "det saves: set min_checkpoint_period and checkpoint_policy",
    "devices": _SLOTS,
    "num_nodes": _SLOTS,
    "use_distributed_sampler": "det deals the batches to the ranks",
    "barebones": "it would take away the callback by which det follows the training",
}
_PRECISIONS = {"fp32": None, "fp16": "16-mixed", "bf16": "bf16-mixed"}
_OLD_PRECISIONS = {16: "16-mixed", 32: None, "16": "16-mixed", "32": None}


def check_given(given: Mapping[str, Any]) -> None:
    """Raise TrialError for an argument of Trainer's that is det's to decide."""
    for name, value in given.items():
        if name in DECIDED and not (name == "enable_checkpointing" and value is False):
            raise TrialError(f"{name}={value!r} is not for a LightningAdapter: {DECIDED[name]}")
    for plugin in _listed(given.get("plugins")):
        if isinstance(plugin, CheckpointIO):
            raise TrialError(
                f"the plugin {type(plugin).__name__} writes checkpoints, which det does itself; leave it out"
            )


def check_callbacks(callbacks: list[Any]) -> None:
    """Raise TrialError for a callback that would do what det does."""
    for each in callbacks:
        if isinstance(each, Checkpoint):
            raise TrialError(
                f"the callback {type(each).__name__} saves checkpoints, which det does itself: leave it out, and set "
                "min_checkpoint_period and checkpoint_policy"
            )


def accumulation(given: Mapping[str, Any], config: ExperimentConfig) -> int:
    """Return how many batches make a step, which the configuration and the trial may say, if they agree."""
    configured, own = config.optimizations.aggregation_frequency, given.get("accumulate_grad_batches")
    if configured > 1 and not config.optimizations.average_aggregated_gradients:
        raise TrialError(
            "optimizations.average_aggregated_gradients is false, but Lightning always averages; leave it out, or multiply the loss"
        )
    if own is not None and configured > 1 and own != configured:
        raise TrialError(
            f"accumulate_grad_batches is {own}, but optimizations.aggregation_frequency is {configured}; leave one of them out"
        )
    return configured if own is None else int(own)


def precision(own: Any, config: ExperimentConfig) -> Any:
    """Return Lightning's name of the precision that the trial or the configuration asks for; None for the usual one."""
    configured = _PRECISIONS[config.optimizations.precision]
    own = _OLD_PRECISIONS.get(own, own) if isinstance(own, (int, str)) else own
    return configured if own is None else own


def check_amp(backend: str, level: str | None) -> None:
    """Raise TrialError for mixed precision as it was before torch had its own."""
    if backend == "apex":
        raise TrialError("amp_backend='apex': apex is no longer developed; leave it out, and give precision='16-mixed'")
    if backend != "native":
        raise TrialError(f"amp_backend is {backend!r}; leave it out: torch's own is used")
    if level is not None and level not in ("O0", "O1", "O2", "O3"):
        raise TrialError(f"amp_level is {level!r}; leave it out: only apex had levels")


def check_strategy(strategy: Any) -> None:
    """Raise TrialError for a strategy that needs more than det gives it."""
    if isinstance(strategy, ModelParallelStrategy):
        if not divides_as_told(strategy):
            raise TrialError(
                "ModelParallelStrategy has a tensor_parallel_size, whose ranks want the same data; det gives each rank its own: "
                "leave it out, and the model is divided among all ranks"
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
            f"strategy {name} is the first FSDP; give ModelParallelStrategy(), which is the second one, with a configure_model()"
        )
    raise TrialError(
        f"strategy {name}: det trains with DDP or Horovod, by distributed.backend; leave it out, or give a kind of 'ddp'"
    )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
