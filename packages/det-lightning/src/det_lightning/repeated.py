"""A validation batch that is run for the other ranks' sake alone, and leaves no trace."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
import torch

_FILLED = (list, dict, set, deque)
_PLAIN = (*_FILLED, torch.Tensor, bool, int, float, str, type(None))


class Aside:
    """What things hold in plain attributes, as it is now: numbers, tensors and containers, those of a module's buffers too."""

    def __init__(self, things: Iterable[Any]) -> None:
        self._held = [
            (held, name, value, _copied(value))
            for thing in things
            for held in (vars(thing), vars(thing).get("_buffers", {}))
            for name, value in held.items()
            if isinstance(value, _PLAIN) and name not in ("_parameters", "_buffers", "_modules")
        ]

    def put_back(self) -> None:
        """Give everything its value back; containers are the same objects as before."""
        for held, name, value, copy in self._held:
            if isinstance(value, (list, deque)):
                value.clear()
                value.extend(copy)
            elif isinstance(value, (dict, set)):
                value.clear()
                value.update(copy)
            held[name] = value if isinstance(value, _FILLED) else copy


def leave_no_trace(trainer: pl.Trainer, results: dict[str, Any]) -> None:
    """Let the validation batch that begins change nothing of the module, the callbacks and what is logged.

    What was not logged before counts for nothing, but is there, as the ranks reduce it together. The module's own hook for the
    end of a batch is the last, behind which all is put back.
    """
    module = trainer.lightning_module
    logged = dict(results)
    aside = Aside([*module.modules(), *trainer.callbacks, *logged.values()])  # type: ignore[attr-defined]
    ends = module.on_validation_batch_end

    def end(*args: Any, **kwargs: Any) -> None:
        del module.on_validation_batch_end
        ends(*args, **kwargs)
        aside.put_back()
        for key, metric in results.items():
            if key not in logged:
                metric.reset()
                metric.has_reset = False

    module.on_validation_batch_end = end  # type: ignore[method-assign]


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if type(value) in (list, tuple, deque):
        return type(value)(_copied(inner) for inner in value)
    return set(value) if isinstance(value, set) else value
