"""Makes random numbers in a graph's loops and branches continue in a resumed run.

TensorFlow computes several iterations of a loop at a time, and the numbers must not depend on their
order. So the ops in loops are made as stateless ones while the model is built. Their seed is made
of:

- the trial's seed
- the op's position among those in loops
- the number of times that the graph has run
- the number of the iteration in each of the loops around the op
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import gen_random_ops
from tensorflow.python.ops.control_flow_v2_func_graphs import (
    CondBranchFuncGraph,
    WhileBodyFuncGraph,
    WhileCondFuncGraph,
)

from .randomness import STATELESS, counter, key

MAKERS = {
    "RandomUniform": "random_uniform",
    "RandomStandardNormal": "random_standard_normal",
    "TruncatedNormal": "truncated_normal",
    "RandomUniformInt": "random_uniform_int",
    "Multinomial": "multinomial",
    "RandomShuffle": "random_shuffle",
    "RandomGamma": "random_gamma",
    "RandomPoissonV2": "random_poisson_v2",
}
"""The function by which TensorFlow 2.15 makes each kind of op."""
_LOOPS = (WhileBodyFuncGraph, WhileCondFuncGraph)


class LoopedOps:
    """The random ops in loops and branches of a training graph that is being built.

    `counts` holds the variables that checkpoints must contain.
    """

    def __init__(self, graph: Any, seed: str) -> None:
        self._graph, self._seed = graph, seed
        self._made = 0
        self._times: Any = None
        self.counts: dict[str, Any] = {}

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Make the loops that the body builds use stateless ops. Other ops stay unchanged."""
        theirs = {name: getattr(gen_random_ops, name) for name in MAKERS.values()}
        try:
            for kind, name in MAKERS.items():
                setattr(gen_random_ops, name, self._instead(kind, theirs[name]))
            yield
        finally:
            for name, made in theirs.items():
                setattr(gen_random_ops, name, made)

    def _instead(self, kind: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
        definition, signature = op_def_registry.get(kind), inspect.signature(theirs)

        def make(*args: Any, **kwargs: Any) -> Any:
            iterations = self._iterations(tf.compat.v1.get_default_graph())
            if iterations is None:
                return theirs(*args, **kwargs)
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            op = SimpleNamespace(
                inputs=[
                    tf.convert_to_tensor(given.arguments[each.name])
                    for each in definition.input_arg
                ],
                get_attr=given.arguments.__getitem__,
            )
            return STATELESS[kind](op, self._seeded(op, iterations))

        return make

    def _iterations(self, graph: Any) -> list[Any] | None:
        """Return the counters of the loops around a graph.

        Return None if the graph is in no loop or branch, or in another function too.
        """
        if graph is self._graph:
            return None
        counters = []
        while graph is not self._graph:
            if isinstance(graph, _LOOPS):
                counters.append(graph.inputs[0])
            elif not isinstance(graph, CondBranchFuncGraph):
                return None
            graph = graph.outer_graph
        return counters

    def _seeded(self, op: Any, iterations: list[Any]) -> Any:
        self._made += 1
        if self._times is None:
            with self._graph.as_default(), tf.control_dependencies(None):
                self.counts["in loops"], self._times = counter()
        seed = tf.stack(
            [tf.constant(key(f"{self._seed}/in loops/{self._made}", op), tf.int64), self._times]
        )
        for number in iterations:
            seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int64))
        return seed
