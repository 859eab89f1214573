"""What Optuna says of itself."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna's log and its notes on experimental features to itself, and leave its settings as they were."""
    from optuna.exceptions import ExperimentalWarning

    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        logger.setLevel(level)
