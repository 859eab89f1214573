"""The Native API for Keras, implemented by det-keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from det_driver.native import Mode

from .._masters import use_master
from .._names import plugin
from ._native import choose_mode, no_test

_lender = plugin("det_keras", __name__)


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
    """Return the context of a script that is its own experiment, as `det_keras.init` does.

    `local` means `Mode.LOCAL`. `master_url` is a server after a `det login`. Raises DetError for
    `test`.
    """
    no_test(test)
    use_master(master_url)
    return _lender.init(config, choose_mode(mode, local), context_dir, command)
