"""The three fakes keep the contract of adapters, one for each style of loop."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar

import pytest
from tests.det_testing import style_hooks, styles

from det_core import Plugins
from det_testing import AdapterSuite, fake_hooks, fakes


class Fake(AdapterSuite):
    """What the fakes have in common: they are not installed."""

    __test__ = False
    module: ClassVar[ModuleType] = style_hooks

    @pytest.fixture
    def plugins(self) -> Plugins:
        plugins = Plugins(strict=True)
        plugins.register(self.module, "fakes")
        return plugins

    @pytest.fixture
    def hooks(self) -> str:
        return self.module.__name__


class TestOwned(Fake):
    __test__ = True
    label = "fake-owned"
    module = fake_hooks

    @pytest.fixture
    def trial(self) -> type:
        return fakes.OwnedOneVar


class TestCallback(Fake):
    __test__ = True
    label = "fake-callback"

    @pytest.fixture
    def trial(self) -> type:
        return styles.CallbackOneVar


class TestChunked(Fake):
    __test__ = True
    label = "fake-chunked"

    @pytest.fixture
    def trial(self) -> type:
        return styles.ChunkedOneVar
