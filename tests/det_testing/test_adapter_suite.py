"""The three fakes keep the contract of adapters, one for each style of loop."""

from __future__ import annotations

import pytest

from det_core import Plugins
from det_testing import AdapterSuite, fake_hooks, fakes


class Fake(AdapterSuite):
    """What the fakes have in common: they are not installed."""

    __test__ = False

    @pytest.fixture
    def plugins(self) -> Plugins:
        plugins = Plugins(strict=True)
        plugins.register(fake_hooks, "fakes")
        return plugins

    @pytest.fixture
    def hooks(self) -> str:
        return fake_hooks.__name__


class TestOwned(Fake):
    __test__ = True
    label = "fake-owned"

    @pytest.fixture
    def trial(self) -> type:
        return fakes.OwnedOneVar


class TestCallback(Fake):
    __test__ = True
    label = "fake-callback"

    @pytest.fixture
    def trial(self) -> type:
        return fakes.CallbackOneVar


class TestChunked(Fake):
    __test__ = True
    label = "fake-chunked"

    @pytest.fixture
    def trial(self) -> type:
        return fakes.ChunkedOneVar
