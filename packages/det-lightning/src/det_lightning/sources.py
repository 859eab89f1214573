"""The sources of data of Lightning's loops. det's source wraps the data that the module, its data
module or the trial builds.

Lightning has no public way to replace data that a module builds itself after its `setup`. Its
loops' own attribute is used instead.
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
    """A source whose data passes through `wrap`.

    If `build` is given, it replaces the module's own method.
    """

    def __init__(self, source: Any, wrap: Callable[[Build], Any], build: Build | None) -> None:
        super().__init__(source.instance, source.name)
        self._wrap, self._build = wrap, build
        self._known: tuple[Any, bool] | None = None

    def dataloader(self) -> Any:
        return self._wrap(self._build or super().dataloader)

    def is_defined(self) -> bool:
        """Return whether there is data.

        The result is cached, as Lightning asks after every batch and looks up overridden methods.
        """
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
    """Pass the data of a trainer's `fit` through functions.

    Each gets a function that builds the data.
    """
    replace_source(trainer.fit_loop, lambda source: Source(source, training, build_training))
    if validation is not None:
        wrap = validation
        loop = trainer.fit_loop.epoch_loop.val_loop
        replace_source(loop, lambda source: Source(source, wrap, build_validation))


def each_loader(loaders: Any, wrap: Callable[[Any], Any]) -> Any:
    """Return the same list, dict or CombinedLoader of loaders, with each loader wrapped."""
    if isinstance(loaders, CombinedLoader):
        loaders.flattened = [wrap(loader) for loader in loaders.flattened]
        return loaders
    return tree_map(wrap, loaders)
