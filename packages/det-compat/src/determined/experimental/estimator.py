"""The Native API for Estimators, over det-estimator's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from det_driver.native import Mode

from .._names import plugin
from ._native import no_test, told

_lender = plugin("det_estimator", __name__)


def init(
    config: Mapping[str, Any] | None = None,
    mode: Mode | str = Mode.CLUSTER,
    context_dir: str | Path = "",
    command: str | Sequence[str] | None = None,
    master_url: str | None = None,
    *,
    local: bool = False,
    test: bool = False,
) -> Any:
    """Return the context of a script that is its own experiment, as `det_estimator.init` does; `local` stands for `Mode.LOCAL`.

    `master_url` is taken for old scripts' sake: there is no master. Raises DetError for `test`.
    """
    no_test(test)
    return _lender.init(config, told(mode, local), context_dir, command)
