"""JAX behind core's loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import optax

from det_core import Adapter, Loop, Metrics, RunInfo, TrialContext
from det_core.train.ranks import join_ranks

from . import state
from .backend import JaxBackend
from .data import ArrayData, Batches
from .trial import JaxTrial

_REFUSAL = "det-jax cannot reduce gradients by the backend {name}; set distributed.backend to jax"


class JaxAdapter(Adapter[JaxTrial]):
    """Trains a `JaxTrial` under core's loop.

    One compiled function runs each batch, over all ranks.
    """

    framework_version = str(jax.__version__)

    def __init__(self, trial: JaxTrial, run: RunInfo, ranks: JaxBackend) -> None:
        self.trial, self._ranks = trial, ranks
        context, build = trial.context, run.build
        self._global_batch_size = context.get_global_batch_size()
        optimizer = build.optimizer(context, trial.build_optimizer)
        if run.config.optimizations.aggregation_frequency > 1:
            every = run.config.optimizations.aggregation_frequency
            optimizer = optax.MultiSteps(optimizer, every).gradient_transformation()
        first, key = jax.random.split(jax.random.key(run.seed))
        params = build.model(context, lambda: trial.init_params(first))
        self._state = ranks.replicated(
            {"params": params, "optimizer": optimizer.init(params), "key": jax.random.key_data(key)}
        )
        self._batches = Batches(
            data=build.data_loader(context, lambda: trial.build_data("training"), "training"),
            size=self._global_batch_size,
            seed=run.seed,
            rank=ranks.ranks.rank,
            ranks=ranks.ranks.size,
        )
        self._held_out: ArrayData = build.data_loader(
            context, lambda: trial.build_data("validation"), "validation"
        )
        self._step = _compiled_step(trial, optimizer)
        self._evaluate = jax.jit(trial.evaluate)

    @classmethod
    def create(cls, trial: type[JaxTrial], run: RunInfo) -> JaxAdapter:
        ranks = join_ranks(run, JaxBackend, _REFUSAL) or JaxBackend()
        try:
            return cls(trial(TrialContext(run)), run, ranks)
        except BaseException:
            ranks.shutdown()
            raise

    def train(self, loop: Loop) -> None:
        self.trial.context.stops(loop.request_stop)
        for batch in loop.batches(self._batches.after(loop.done)):
            self._state, metrics = self._step(self._state, self._ranks.sharded(batch))
            loop.step(metrics)

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        return super().numbers(jax.device_get(list(rows)))

    def validate(self) -> Metrics:
        """Each rank takes its share of the batches; their means are weighted by their records."""
        params, data, ranks = (
            self._ranks.local(self._state["params"]),
            self._held_out,
            self._ranks.ranks,
        )
        counts, found = [], []
        for begin in range(
            ranks.rank * self._global_batch_size, data.length, ranks.size * self._global_batch_size
        ):
            counts.append(min(self._global_batch_size, data.length - begin))
            found.append(self._evaluate(params, data.at(slice(begin, begin + counts[-1]))))
        mine = list(zip(counts, super().numbers(jax.device_get(found)), strict=True))
        rows = [row for share in self._ranks.allgather(mine) for row in share]
        names = rows[0][1] if rows else ()
        return {
            name: math.fsum(count * row[name] for count, row in rows) / data.length
            for name in names
        }

    def finish(self) -> None:
        params = self.trial.finish(self._ranks.local(self._state["params"]))
        self._state["params"] = self._ranks.replicated(params)

    def save(self, path: Path) -> None:
        state.save(self._state, path)

    def load(self, path: Path) -> None:
        self._state = self._ranks.replicated(state.load(self._state, path))

    @property
    def batches_per_epoch(self) -> int:
        return len(self._batches)

    @property
    def global_batch_size(self) -> int:
        return self._global_batch_size

    def close(self) -> None:
        self._ranks.shutdown()


def _compiled_step(trial: JaxTrial, optimizer: optax.GradientTransformation) -> Any:
    """Return the function from the state and a batch to the next state and metrics.

    Gradients are those of all ranks' records.
    """

    def loss(params: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        found = trial.loss(params, batch, key)
        value, metrics = found if isinstance(found, tuple) else (found, {})
        return value, {"loss": value, **metrics}

    def step(before: dict[str, Any], batch: Any) -> tuple[dict[str, Any], dict[str, jax.Array]]:
        now, after = jax.random.split(jax.random.wrap_key_data(before["key"]))
        (_, metrics), gradients = jax.value_and_grad(loss, has_aux=True)(
            before["params"], batch, now
        )
        updates, optimizer_state = optimizer.update(
            gradients, before["optimizer"], before["params"]
        )
        params = optax.apply_updates(before["params"], updates)
        return {
            "params": params,
            "optimizer": optimizer_state,
            "key": jax.random.key_data(after),
        }, metrics

    return jax.jit(step, donate_argnums=0)
