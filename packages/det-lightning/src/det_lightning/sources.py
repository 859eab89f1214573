"""Where Lightning's loops get their data from: det stands between a loop and what the module, its data module or the trial builds.

Lightning offers no way to replace data that a module builds itself behind its `setup`; this is its loops' own place for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities import CombinedLoader
from torch.utils._pytree import tree_map

from .internals import DataSource, replace_source

Build = Callable[[], Any]


class Source(DataSource):
    """A source whose data passes through `wrap`; `build`, where it is given, comes before the module's own."""

    def __init__(self, source: Any, wrap: Callable[[Build], Any], build: Build | None) -> None:
        super().__init__(source.instance, source.name)
        self._wrap, self._build = wrap, build
        self._known: tuple[Any, bool] | None = None

    def dataloader(self) -> Any:
        return self._wrap(self._build or super().dataloader)

    def is_defined(self) -> bool:
        """Tell whether there is data. Lightning asks behind every batch, and looks up overridden methods each time."""
        if self._known is None or self._known[0] is not self.instance:
            self._known = (self.instance, self._build is not None or super().is_defined())
        return self._known[1]


def stand_between(
    trainer: pl.Trainer,
    training: Callable[[Build], Any],
    validation: Callable[[Build], Any] | None,
    build_training: Build | None = None,
    build_validation: Build | None = None,
) -> None:
    """Let the data of a trainer's `fit` pass through functions, each of which is given a function that builds it."""
    replace_source(trainer.fit_loop, lambda source: Source(source, training, build_training))
    if validation is not None:
        wrap = validation
        loop = trainer.fit_loop.epoch_loop.val_loop
        replace_source(loop, lambda source: Source(source, wrap, build_validation))


def each_loader(loaders: Any, wrap: Callable[[Any], Any]) -> Any:
    """Return the same list, dict or CombinedLoader of loaders, each of them wrapped."""
    if isinstance(loaders, CombinedLoader):
        loaders.flattened = [wrap(loader) for loader in loaders.flattened]
        return loaders
    return tree_map(wrap, loaders)
