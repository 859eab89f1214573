"""TensorBoard for scripts: Keras's own, writing where `det tensorboard` looks."""

from __future__ import annotations

import sys
from typing import Any

from det_core.core import Context

from .versions import KERAS_3, keras


class TensorBoard(keras.callbacks.TensorBoard):  # type: ignore[misc]
    """Keras's TensorBoard, with all of its arguments, for a script under `det run`.

    Its files go to the trial's place in det's store, which `det tensorboard` reads, and a `log_dir` is ignored. Outside of `det
    run` they go to `log_dir`. Of several workers those that are not the chief write into a folder of their own.
    """

    def __init__(self, core_context: Context, *args: Any, **kwargs: Any) -> None:
        place = core_context.train.get_tensorboard_path()
        given = kwargs.pop("log_dir", None) or (args[0] if args else None)
        if place is not None and given is not None:
            sys.stderr.write(f"det: log_dir {str(given)!r} of TensorBoard is not used; the files go to {place}\n")
        directory = str(place or given or "logs")
        if core_context.distributed.rank and KERAS_3:  # Keras 2 does so by itself
            directory = f"{directory}/rank-{core_context.distributed.rank}"
        super().__init__(directory, *args[1:], **kwargs)
