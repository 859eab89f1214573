"""A writer of TensorBoard's event files for a PyTorchTrial, implemented by det-torch."""

from __future__ import annotations

import atexit
import os
from typing import Any

from det_core.train.environ import WorkerEnv

from ..._names import plugin

_lender = plugin("det_torch.tensorboard", __name__)


class TorchWriter:
    """Writes to the run's directory of event files. Outside of a run it writes nothing.

    `writer` is a `torch.utils.tensorboard.SummaryWriter`. In det, use
    `context.get_tensorboard_writer()`.
    """

    def __init__(self) -> None:
        env = WorkerEnv.read(os.environ)
        lent = _lender.Writer(env.tensorboard_dir if env else None, recorded=env is not None)
        self.writer: Any = lent.writer()
        atexit.register(lent.close)

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        """Write one number."""
        self.writer.add_scalar(name, value, step)

    def reset(self) -> None:
        """Flush to disk."""
        self.writer.flush()
