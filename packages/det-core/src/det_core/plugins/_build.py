"""The build hooks of one framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy

from .. import hookspecs


class _Once:
    """The function that builds the user's object; remembers what it gave, so that it is not built twice unasked."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build = build
        self.called, self.value = False, None

    def __call__(self) -> Any:
        self.value = self._build()
        self.called = True
        return self.value


class AsBuilt:
    """Answers the build hooks that a framework leaves alone: what the user built is used as it is."""

    @hookspecs.hookimpl(trylast=True)
    def det_build_model(self, build: _Once) -> Any:
        return build.value if build.called else build()

    det_build_optimizer = det_build_lr_scheduler = det_build_data_loader = det_build_model


class BuildHooks:
    """The build hooks, in which some plugins take no part."""

    def __init__(self, pm: pluggy.PluginManager, without: list[object]) -> None:
        self._hooks = {
            name: pm.subset_hook_caller(f"det_build_{name}", without)
            for name in ("model", "optimizer", "lr_scheduler", "data_loader")
        }

    def model(self, context: Any, build: Callable[[], Any]) -> Any:
        return self._hooks["model"](context=context, build=_Once(build))

    def optimizer(self, context: Any, build: Callable[[], Any]) -> Any:
        return self._hooks["optimizer"](context=context, build=_Once(build))

    def lr_scheduler(self, context: Any, build: Callable[[], Any]) -> Any:
        return self._hooks["lr_scheduler"](context=context, build=_Once(build))

    def data_loader(self, context: Any, build: Callable[[], Any], split: str) -> Any:
        return self._hooks["data_loader"](context=context, build=_Once(build), split=split)
