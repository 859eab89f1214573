"""A checkpoint of a fit: Lightning's own file, and a file of what Lightning does not save.

Neither needs unpickling.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch

from det_core import CheckpointError, Communicator
from det_core.support.archives import check_zip
from det_torch.arrays import decode_numpy, encode_numpy
from det_torch.parts import flags
from det_torch.rng import rng_state
from det_torch.sharding import is_sharded, like
from det_torch.state import check_plain

from . import logged, numbers
from .internals import accumulates, checkpoint_of
from .position import Position, loops_state

if TYPE_CHECKING:
    from .feed import Feed

LIGHTNING_FILE = "lightning.ckpt"
DET_FILE = "det.pth"
_OWNERS = {
    "callbacks": "the callback",
    "hyper_parameters": "save_hyperparameters(), which can `ignore` it,",
    "datamodule_hyper_parameters": (
        "the data module's save_hyperparameters(), which can `ignore` it,"
    ),
    "optimizer_states": "an optimizer",
    "lr_schedulers": "a learning rate scheduler",
}


def capture(
    trainer: pl.Trainer,
    feed: Feed,
    at: Position,
    distributed: Communicator,
    more: Mapping[str, Any],
    of_rank: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return Lightning's checkpoint and det's. Every rank must call this.

    Raises TrialError for values that cannot be saved safely.
    """
    module = trainer.lightning_module
    checkpoint = checkpoint_of(trainer)
    saved = checkpoint["loops"]["fit_loop"]
    checkpoint["loops"] = {"fit_loop": loops_state(saved, at)}
    own = {
        "rng_state": rng_state(),
        "sums": logged.sums(trainer),
        "metric_states": logged.metric_states(module),
        "known": logged.known(trainer),
        "data": feed.state(at),
        **of_rank,
    }
    contents = {
        "position": {
            "epoch": at.epoch,
            "batch": at.batch,
            "done": at.done,
            "ended": at.ended,
            "closed": at.closed,
        },
        "batches_per_epoch": feed.batches_per_epoch,
        "data": own["data"],
        "ranks": distributed.allgather(_on_cpu(own)) if distributed.size > 1 else [own],
        "gradients": _gradients(trainer),
        "flags": flags([module]),
        **more,
    }
    _check(checkpoint)
    _check_own(contents)
    return checkpoint, contents


def write(checkpoint: Mapping[str, Any], contents: Mapping[str, Any], directory: Path) -> None:
    """Write both files. Raises OSError if the system refuses, for example on a full disk.

    Lightning's file holds Python's numbers in place of NumPy's, so that Lightning can read it.
    det's file holds NumPy's.
    """
    plain, found = numbers.without_numpy(checkpoint)
    own = encode_numpy({**contents, "numpy": found})
    for name, value in ((LIGHTNING_FILE, plain), (DET_FILE, own)):
        try:
            torch.save(value, directory / name)
        except RuntimeError as error:
            raise OSError(f"{directory / name} could not be written: {error}") from error


def read(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of both files without unpickling.

    Raises CheckpointError if that is not possible.
    """
    return _read(directory / LIGHTNING_FILE), decode_numpy(_read(directory / DET_FILE))


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(
            f"{file.parent} holds no {file.name}; name the directory of a checkpoint of a"
            " LightningAdapter"
        )
    try:
        check_zip(file)
        contents: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{file} cannot be read safely: {reason}; a checkpoint must hold tensors and plain data"
            " only"
        ) from error
    return contents


def set_gradients(module: torch.nn.Module, gradients: Mapping[str, Any]) -> None:
    """Restore gradients that wait for their step."""
    for name, parameter in module.named_parameters():
        if name in gradients:
            gradient = gradients[name].to(parameter.device, parameter.dtype)
            parameter.grad = like(gradient, parameter) if is_sharded(parameter) else gradient


def _gradients(trainer: pl.Trainer) -> dict[str, Any]:
    """Return the gradients of batches whose step is still to come.

    They are the means over the ranks, which the step uses.
    """
    module = trainer.lightning_module
    if module.automatic_optimization and not accumulates(trainer):
        return {}
    found = {name: each.grad for name, each in module.named_parameters() if each.grad is not None}
    if trainer.world_size > 1:
        found = {name: _mean(trainer, each) for name, each in found.items()}
    return found


def _mean(trainer: pl.Trainer, gradient: Any) -> torch.Tensor:
    # The gradients of a sharded parameter are already means.
    if is_sharded(gradient):
        whole: torch.Tensor = gradient.full_tensor()
        return whole
    mean: torch.Tensor = trainer.strategy.reduce(gradient.clone(), reduce_op="mean")
    return mean


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(inner) for inner in value)
    return value


def _check(checkpoint: Mapping[str, Any]) -> None:
    for key, value in checkpoint.items():
        if key == "callbacks":
            for name, state in value.items():
                check_plain(state, "state_dict()", f"the callback {name}", numpy=True)
        else:
            owner = _OWNERS.get(key, "the checkpoint, as on_save_checkpoint() leaves it,")
            check_plain(value, f"[{key!r}]", owner, numpy=True)


def _check_own(contents: Mapping[str, Any]) -> None:
    for own in contents["ranks"]:
        check_plain(own["metric_states"], "the state", "a metric", numpy=True)
        check_plain(own["data"], "state_dict()", "the training data loader", numpy=True)


def data_of(contents: Mapping[str, Any], distributed: Communicator) -> Mapping[str, Any] | None:
    """Return the data position of this rank.

    If another number of ranks saved it, this is the chief's position.
    """
    ranks = contents["ranks"]
    own = ranks[distributed.rank] if len(ranks) == distributed.size else contents
    found: Mapping[str, Any] | None = own.get("data", contents["data"])
    return found


def position_of(contents: Mapping[str, Any], feed: Feed) -> Position:
    """Return the position of a checkpoint.

    It is counted again if an epoch has another length now, for example with other ranks.
    """
    at = Position(**contents["position"])
    length = feed.batches_per_epoch
    if length is not None and length != contents["batches_per_epoch"]:
        return Position.after(at.done, length)
    return at
