"""What a trial is given: its hyperparameters, and the wrapping of its model, optimizers and datasets."""

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
    """What `configure_fit` sets; None leaves Keras's own default, or what the data says itself."""

    verbose: Any = None
    class_weight: dict[int, float] | None = None
    workers: int = 1
    use_multiprocessing: bool = False
    max_queue_size: int = 10
    shuffle: bool = True
    validation_steps: int | None = None


class TFKerasTrialContext(TrialContext):
    """The context of a `TFKerasTrial`. `models` and `optimizers` are what was wrapped, in order.

    With `managed` false (a model that is loaded to be used, not trained) nothing is wrapped.
    """

    def __init__(self, run: RunInfo, *, managed: bool = True, reduction: Reduction | None = None) -> None:
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
        """Register the model; use what it returns, and compile that. Safe to call twice for one model."""
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
        """Return a model as the run needs it: Keras places it by itself."""
        return model

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Register an optimizer, made to aggregate and reduce gradients as the run asks; use what it returns.

        The optimizer that a model is compiled with need not be wrapped: det does that. Those of a `train_step` of your own do.
        """
        if not isinstance(optimizer, keras.optimizers.Optimizer) and not hasattr(optimizer, "apply_gradients"):
            raise TrialError(
                f"wrap_optimizer got {optimizer!r:.60}; give an optimizer, such as keras.optimizers.Adam(0.001)"
            )
        if not self._managed or any(optimizer is known for known in self.optimizers):
            return optimizer
        wrapped = self._run.build.optimizer(self, lambda: optimizer)
        self.optimizers.append(wrapped)
        return wrapped

    def place_optimizer(self, optimizer: Any) -> Any:
        """Return an optimizer as the run needs it."""
        return adapt_optimizer(optimizer, self._reduction)

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Return a `tf.data.Dataset` of this rank's share of its elements. Call it right after creation; twice does no more."""
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
        """Set options of `fit`; those that are not given stay as they are.

        `class_weight` weighs records by their class. `workers`, `use_multiprocessing` and `max_queue_size` say how sequences are
        read. `shuffle` (true at first) draws the order of arrays and sequences anew in each epoch. `validation_steps` bounds
        a validation. `verbose` is taken and not used: det reports progress.
        """
        given = {
            name: value for name, value in locals().items() if name not in ("self", "__class__") and value is not None
        }
        for name in ("workers", "max_queue_size", "validation_steps"):
            value = given.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or value < (name != "workers"):
                raise TrialError(f"configure_fit got {name}={value!r}; give a whole number of 1 or more")
        self.fit_options = replace(self.fit_options, **given)
