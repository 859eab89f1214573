"""Validates a trial: runs the evaluation graph with the variables of a checkpoint."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .build import Parts
from .context import EstimatorTrialContext
from .inputs import Batches
from .metrics import CustomMetric

v1: Any = tf.compat.v1


class Evaluation:
    """Evaluates a trial's model.

    The graph is built once. It is built for each validation if there are hooks, which add to it, or
    metrics of Python, which must start empty.
    """

    def __init__(self, context: EstimatorTrialContext, parts: Parts) -> None:
        self._context, self._parts = context, parts
        self._graph: _Graph | None = None

    def __call__(self, checkpoint: str) -> dict[str, Any]:
        """Return the metrics of a checkpoint's variables over the validation sets of all ranks."""
        graph = self._graph or _Graph(self._context, self._parts)
        self._graph = None if graph.once else graph
        return graph.run(checkpoint)


class _Graph:
    def __init__(self, context: EstimatorTrialContext, parts: Parts) -> None:
        self._context, self._parts = context, parts
        before = len(context.metrics)
        self.graph = tf.Graph()
        with self.graph.as_default(), self.graph.device(parts.config.device_fn):
            v1.set_random_seed(parts.config.tf_random_seed)
            self._global_step = v1.train.create_global_step()
            arguments = parts.arguments(tf.estimator.ModeKeys.EVAL)
            self._batches = Batches(context, "validation", parts.evaluate.input_fn, **arguments)
            self._spec = parts.model(
                self._batches.features, self._batches.labels, tf.estimator.ModeKeys.EVAL
            )
            self._metric_ops()
        self._hooks = [*(parts.evaluate.hooks or ()), *(self._spec.evaluation_hooks or ())]
        self._custom: list[CustomMetric] = context.metrics[before:]
        del context.metrics[before:]
        self.once = bool(self._hooks or self._custom)

    def _metric_ops(self) -> None:
        ops = dict(self._spec.eval_metric_ops or {})
        if "loss" not in ops and self._spec.loss is not None:
            ops["loss"] = v1.metrics.mean(self._spec.loss)
        pairs = {
            name: (op.result(), op.updates) if hasattr(op, "result") else op
            for name, op in ops.items()
        }
        self._values = {name: value for name, (value, _) in pairs.items()} | {
            "global_step": self._global_step
        }
        # The batch is fetched in any case, because metrics that do not use it would never reach the
        # end of the data.
        found = [
            each for each in (self._batches.features, self._batches.labels) if each is not None
        ]
        batch = tf.nest.flatten(found, expand_composites=True)
        self._update = tf.group(*(update for _, update in pairs.values()), *batch)
        self._additive = v1.get_collection(v1.GraphKeys.METRIC_VARIABLES)
        self._local = v1.local_variables_initializer()

    def run(self, checkpoint: str) -> dict[str, Any]:
        with self.graph.as_default():
            session = v1.train.SingularMonitoredSession(
                hooks=self._hooks,
                scaffold=self._spec.scaffold,
                config=self._parts.config.session_config,
                checkpoint_filename_with_path=checkpoint,
            )
            try:
                self._batches.start(session.raw_session())
                self._run_batches(session)
                self._reduce(session.raw_session())
                found: dict[str, Any] = session.raw_session().run(self._values)
            finally:
                session.close()
        return found

    def _run_batches(self, session: Any) -> None:
        steps = 1 if self._context.run.quick else self._parts.evaluate.steps
        update = (
            (lambda: session.run(self._update))
            if self._hooks
            else session.raw_session().make_callable(self._update)
        )
        done = 0
        try:
            while (steps is None or done < steps) and not session.should_stop():
                update()
                done += 1
        except tf.errors.OutOfRangeError:
            return

    def _reduce(self, session: Any) -> None:
        """Add up the sums from which metrics are computed over all ranks."""
        ranks = self._context.distributed
        if ranks.size == 1:
            return
        mine = session.run(self._additive), [metric.mine for metric in self._custom]
        gathered = ranks.allgather(mine)
        for variable, *values in zip(self._additive, *(sums for sums, _ in gathered), strict=True):
            session.run(
                variable.initializer,
                {variable.initializer.inputs[1]: sum(values[1:], start=values[0])},
            )
        for metric, *parts in zip(self._custom, *(custom for _, custom in gathered), strict=True):
            metric.of_ranks = parts
