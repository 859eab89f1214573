"""A writer of TensorBoard's files for a PyTorchTrial, over det-torch's."""

from __future__ import annotations

import atexit
import os
from typing import Any

from det_core.environ import WorkerEnv

from ..._names import plugin

_lender = plugin("det_torch.tensorboard", __name__)


class TorchWriter:
    """`writer` is a `torch.utils.tensorboard.SummaryWriter` in the run's directory for TensorBoard's files.

    Outside of a run it takes everything and writes nothing. `context.get_tensorboard_writer()` is det's own.
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
        """Write what is waiting to the disk."""
        self.writer.flush()
