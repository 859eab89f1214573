"""The conformance kit: test suites that plugins inherit, and a fake plugin as an example."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from ._adapter_suite import AdapterSuite as AdapterSuite
    from ._engine_suite import EngineSuite as EngineSuite
    from ._onevar import OneVar as OneVar
    from ._runs import Run as Run
    from ._runs import Runs as Runs
    from ._searcher_suite import SearcherSuite as SearcherSuite
    from ._storage_suite import StorageSuite as StorageSuite
    from ._stream_contract import StreamCase as StreamCase
    from ._stream_contract import StreamContract as StreamContract
    from ._suite import Suite as Suite
    from ._whole_state import SAVES_EACH as SAVES_EACH
    from ._whole_state import differences as differences
    from ._whole_state import resumed_differences as resumed_differences

__version__ = "0.1.0"
lazy(__name__)
