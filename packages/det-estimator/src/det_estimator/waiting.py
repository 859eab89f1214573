"""Saves gradients that wait for their step. Each rank has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import Communicator
from det_core.support.archives import check_zip
from det_keras.bundles import unreadable

from .optimizer import WAITING

FILE = "waiting_gradients.npz"


class Waiting:
    """The aggregated gradients of a training graph. Each rank has its own."""

    def __init__(self, distributed: Communicator) -> None:
        self._distributed = distributed
        self._sums = {v.op.name: v for v in tf.compat.v1.get_collection(WAITING)}

    def variables(self) -> set[str]:
        """Return the names of the variables that the chief's values must not replace."""
        return set(self._sums)

    def save(self, session: Any, path: Path) -> None:
        """Write the gradients of all ranks. Every rank must call it."""
        if not self._sums or self._distributed.size == 1:
            return
        of_ranks = self._distributed.gather(session.run(self._sums))
        if of_ranks is not None:
            arrays = {
                f"{rank}:{name}": value
                for rank, sums in enumerate(of_ranks)
                for name, value in sums.items()
            }
            np.savez(path / FILE, **arrays)

    def load(self, session: Any, path: Path) -> None:
        """Restore this rank's gradients.

        If the number of ranks has changed, they are the mean over the saved ranks.
        """
        file = path / FILE
        if not self._sums or not file.is_file():
            return
        try:
            self._load(session, file)
        # NumPy, zipfile and TensorFlow raise errors of many types for malformed files.
        except Exception as error:
            raise unreadable(file, error) from error

    def _load(self, session: Any, file: Path) -> None:
        check_zip(file)
        with np.load(file, allow_pickle=False) as arrays:
            ranks = 1 + max(int(name.partition(":")[0]) for name in arrays.files)
            mine = [self._distributed.rank] if ranks == self._distributed.size else range(ranks)
            for name, variable in self._sums.items():
                value = sum(arrays[f"{rank}:{name}"] for rank in mine) / len(mine)
                session.run(variable.initializer, {variable.initializer.inputs[1]: value})
