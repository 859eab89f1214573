"""The context of a trial: its hyperparameters, and functions that wrap its parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from det_core import RunInfo, TrialContext, TrialError

from .experimental import Experimental
from .optim import Reduction, adapt_optimizer
from .sources import Wrapped
from .versions import keras


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The options that `configure_fit` sets.

    None stands for Keras's default, or for the data's own setting.
    """

    verbose: Any = None
    class_weight: dict[int, float] | None = None
    workers: int = 1
    use_multiprocessing: bool = False
    max_queue_size: int = 10
    shuffle: bool = True
    validation_steps: int | None = None


class TFKerasTrialContext(TrialContext):
    """The context of a `TFKerasTrial`. `models` and `optimizers` hold what was wrapped, in order.

    Nothing is wrapped if `managed` is false, for a model that is loaded for use and not trained.
    """

    def __init__(
        self, run: RunInfo, *, managed: bool = True, reduction: Reduction | None = None
    ) -> None:
        super().__init__(run)
        self._managed = managed
        self._reduction = reduction or Reduction.of(run.config.optimizations)
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.fit_options = FitOptions()
        self.datasets = Wrapped(run.distributed.rank, run.distributed.size)
        self.experimental = Experimental(self, self.datasets)

    # Parts

    def wrap_model(self, model: Any) -> Any:
        """Register the model and return the one to compile and use.

        It may be called twice for one model.
        """
        if not isinstance(model, keras.Model):
            raise TrialError(f"wrap_model got {type(model).__name__}; give a keras.Model")
        if any(model is known for known in self.models):
            return model
        if not self._managed:
            self.models.append(model)
            return model
        placed = self._run.build.model(self, lambda: model)
        self.models.append(placed)
        return placed

    def place_model(self, model: Any) -> Any:
        """Return the model unchanged, because Keras places it on devices by itself."""
        return model

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Register an optimizer, and return the one to use.

        It aggregates and reduces gradients as the run needs it. det wraps the optimizer that a
        model is compiled with. Wrap only the optimizers of your own `train_step`.
        """
        if not isinstance(optimizer, keras.optimizers.Optimizer) and not hasattr(
            optimizer, "apply_gradients"
        ):
            raise TrialError(
                f"wrap_optimizer got {optimizer!r:.60}; give an optimizer, such as"
                " keras.optimizers.Adam(0.001)"
            )
        if not self._managed or any(optimizer is known for known in self.optimizers):
            return optimizer
        wrapped = self._run.build.optimizer(self, lambda: optimizer)
        self.optimizers.append(wrapped)
        return wrapped

    def place_optimizer(self, optimizer: Any) -> Any:
        """Return an optimizer that aggregates and reduces gradients as the run needs it."""
        return adapt_optimizer(optimizer, self._reduction)

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Return this rank's share of a `tf.data.Dataset`.

        Call it right after the dataset is created. A dataset that is already wrapped is returned
        unchanged.
        """
        return self.datasets.wrap(dataset, shard=shard_dataset and self._managed)

    def configure_fit(
        self,
        verbose: Any = None,
        class_weight: dict[int, float] | None = None,
        workers: int | None = None,
        use_multiprocessing: bool | None = None,
        max_queue_size: int | None = None,
        shuffle: bool | None = None,
        validation_steps: int | None = None,
    ) -> None:
        """Set options of `fit`. Options that are not given stay unchanged.

        - `class_weight` weighs records by their class.
        - `workers`, `use_multiprocessing` and `max_queue_size` set how sequences are read.
        - `shuffle` (true by default) shuffles arrays and sequences differently in each epoch.
        - `validation_steps` limits a validation.
        - `verbose` sets only what callbacks see, because det reports progress itself.
        """
        given = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "__class__") and value is not None
        }
        for name in ("workers", "max_queue_size", "validation_steps"):
            value = given.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < (name != "workers"):
                raise TrialError(
                    f"configure_fit got {name}={value!r}; give a whole number of 1 or more"
                )
        self.fit_options = replace(self.fit_options, **given)
