"""A model's weights in Keras's own formats, which need no unpickling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from det_core import CheckpointError, DetError, TrialError

from .old_weights import find_old_weights, read_old_weights
from .sizes import check_weights
from .versions import KERAS_3, keras

MODEL, WEIGHTS = "model.keras", "model.weights.h5"


def write_weights(model: Any, directory: Path) -> None:
    """Write `model.keras`, or `model.weights.h5` if Keras cannot describe the model.

    The files leave out the state of optimizers, which the checkpoint holds elsewhere.
    """
    see_built(model)
    with _without_optimizers(model):
        try:
            model.save(str(directory / MODEL))
        # A model's get_config may raise anything. Then only its code describes it.
        except Exception:
            (directory / MODEL).unlink(missing_ok=True)
            model.save_weights(str(directory / WEIGHTS))


def read_weights(model: Any, directory: Path) -> None:
    """Load a checkpoint's weights into a model that is built. Determined's checkpoints work too.

    Raises TrialError if they are another model's.
    """
    file = weights_file(directory)
    check_weights(file)
    see_built(model)
    try:
        with _without_optimizers(model):
            if file.name in (MODEL, WEIGHTS):
                model.load_weights(str(file))
            else:
                read_old_weights(model, file)
    except DetError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise TrialError(
            "the checkpoint does not fit the trial's model:"
            f" {lines[0] if lines else type(error).__name__}"
        ) from error
    # Keras, h5py and TensorFlow raise errors of many types for malformed files.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{file} cannot be read: {reason}; the checkpoint is damaged"
        ) from error


def see_built(model: Any) -> None:
    """Mark a model as built if its own `train_step` has made its variables without a call.

    Otherwise Keras 3 neither saves nor loads it.
    """
    # In Keras 2 such a model has no weights yet.
    if KERAS_3 and not model.built and model.weights:
        model.built = True


@contextmanager
def _without_optimizers(model: Any) -> Iterator[None]:
    """Make Keras leave out the optimizers in a model's attributes when it writes or reads files."""

    def nothing(store: Any) -> None:
        pass

    methods = ("save_own_variables", "load_own_variables")
    found = [each for each in vars(model).values() if isinstance(each, keras.optimizers.Optimizer)]
    found += [each.inner_optimizer for each in found if hasattr(each, "inner_optimizer")]
    for each in found:
        for method in methods:
            object.__setattr__(each, method, nothing)
    try:
        yield
    finally:
        for each in found:
            for method in methods:
                object.__delattr__(each, method)


def weights_file(directory: Path) -> Path:
    """Return the file of the weights. Raises CheckpointError if there is none."""
    file = next(
        (directory / name for name in (MODEL, WEIGHTS) if (directory / name).exists()), None
    )
    file = file or find_old_weights(directory)
    if file is None:
        raise CheckpointError(
            f"{directory} holds neither {MODEL} nor {WEIGHTS}; name the directory of a checkpoint"
            " of a TFKerasTrial"
        )
    return file
