"""TensorBoard for scripts: Keras's own, writing where `det tensorboard` reads."""

from __future__ import annotations

import sys
from typing import Any

from det_core.core import Context

from .versions import KERAS_3, keras


class TensorBoard(keras.callbacks.TensorBoard):  # type: ignore[misc]
    """Keras's TensorBoard, with all of its arguments, for a script under `det run`.

    Its files go to the trial's directory in det's store, which `det tensorboard` reads. `log_dir`
    is ignored then, and is used outside of `det run`. Each worker except the chief writes into a
    separate folder.
    """

    def __init__(self, core_context: Context, *args: Any, **kwargs: Any) -> None:
        place = core_context.train.get_tensorboard_path()
        given = kwargs.pop("log_dir", None) or (args[0] if args else None)
        if place is not None and given is not None:
            sys.stderr.write(
                f"det: log_dir {str(given)!r} of TensorBoard is not used; the files go to {place}\n"
            )
        directory = str(place or given or "logs")
        # Keras 2 adds such a directory itself.
        if core_context.distributed.rank and KERAS_3:
            directory = f"{directory}/rank-{core_context.distributed.rank}"
        super().__init__(directory, *args[1:], **kwargs)
