"""Makes random numbers of a graph continue in a resumed run.

The kernels of `tf.random.uniform`, dropout and similar ops hide their position, so that a new
session starts their numbers again. Here each such op of a training graph is replaced by a stateless
op. Its seed is made of the trial's seed, the rank, the op's own seeds and the number of times that
the op has run. That number is a variable, which checkpoints contain. So the numbers depend only on
how often each op has run, and not on when the run was saved, evaluated or interrupted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import config

v1: Any = tf.compat.v1
raw: Any = tf.raw_ops


def _shaped(name: str, dtype: str = "dtype") -> Callable[[Any, Any], Any]:
    def make(op: Any, seed: Any) -> Any:
        return getattr(raw, name)(shape=op.inputs[0], seed=seed, dtype=op.get_attr(dtype))

    return make


def _int(op: Any, seed: Any) -> Any:
    shape, low, high = op.inputs
    return raw.StatelessRandomUniformInt(shape=shape, seed=seed, minval=low, maxval=high)


def _multinomial(op: Any, seed: Any) -> Any:
    logits, samples = op.inputs
    dtype = op.get_attr("output_dtype")
    return raw.StatelessMultinomial(
        logits=logits, num_samples=samples, seed=seed, output_dtype=dtype
    )


def _shuffle(op: Any, seed: Any) -> Any:
    return tf.random.experimental.stateless_shuffle(op.inputs[0], seed)


def _gamma(op: Any, seed: Any) -> Any:
    shape, alpha = op.inputs
    full = tf.concat([tf.cast(shape, tf.int32), tf.shape(alpha)], 0)
    return raw.StatelessRandomGammaV2(shape=full, seed=seed, alpha=alpha)


def _poisson(op: Any, seed: Any) -> Any:
    shape, rate = op.inputs
    full = tf.concat([tf.cast(shape, tf.int32), tf.shape(rate)], 0)
    return raw.StatelessRandomPoisson(shape=full, seed=seed, lam=rate, dtype=op.get_attr("dtype"))


STATELESS: Mapping[str, Callable[[Any, Any], Any]] = {
    "RandomUniform": _shaped("StatelessRandomUniform"),
    "RandomStandardNormal": _shaped("StatelessRandomNormal"),
    "TruncatedNormal": _shaped("StatelessTruncatedNormal"),
    "RandomUniformInt": _int,
    "Multinomial": _multinomial,
    "RandomShuffle": _shuffle,
    "RandomGamma": _gamma,
    "RandomPoissonV2": _poisson,
}
"""Makes the stateless op for each kind of op.

Candidate samplers, and ops inside functions, have none.
"""

_SAMPLERS = (
    "Uniform",
    "LogUniform",
    "LearnedUnigram",
    "ThreadUnsafeUnigram",
    "FixedUnigram",
    "All",
)
_OTHERS = (
    "FractionalAvgPool FractionalMaxPool ParameterizedTruncatedNormal RandomCrop"
    " SampleDistortedBoundingBoxV2"
)
STUCK = {*(f"{kind}CandidateSampler" for kind in _SAMPLERS), *_OTHERS.split()}
_CONTROL = {"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase"}
_CALLS = {*_CONTROL, "PartitionedCall", "StatefulPartitionedCall"}
_PARALLEL = (
    "ParallelMapDataset",
    "ParallelFilterDataset",
    "ParallelInterleaveDataset",
    "MapAndBatchDataset",
)


class RandomOps:
    """The random ops of a training graph.

    Make it when the graph is complete, before its first step. `stuck` names the ops whose numbers
    start again with each session. `counts` are further variables that count.
    """

    def __init__(self, graph: Any, seed: str, counts: Mapping[str, Any] | None = None) -> None:
        self._counts: dict[str, Any] = dict(counts or {})
        before = _ancestors(_initializers(graph))
        ops = [op for op in graph.get_operations() if op not in before]
        self.stuck = [op.name for op in ops if op.type in STUCK] + _in_functions(graph, ops)
        for op in ops:
            if op.type in STATELESS:
                if op._get_control_flow_context() is None:
                    self._counts[op.name] = _replace(op, seed)
                else:
                    self.stuck.append(op.name)

    def begin(self, session: Any, state: Mapping[str, int] | None = None) -> None:
        """Set how often each op has run: 0 times, or as `state` says."""
        known = state or {}
        for name, count in self._counts.items():
            session.run(count.initializer, {count.initializer.inputs[1]: known.get(name, 0)})

    def state(self, session: Any) -> dict[str, int]:
        """Return how often each op has run, by its name."""
        return {name: int(count) for name, count in session.run(self._counts).items()}


def _replace(op: Any, seed: str) -> Any:
    """Make the consumers of a random op use its stateless op.

    Return the variable that counts its runs.
    """
    with v1.name_scope(None, "det_random"):
        count, times = counter()
        output = op.outputs[0]
        consumers = output.consumers()
        counterpart = STATELESS[op.type](
            op, tf.stack([tf.constant(key(seed, op), tf.int64), times])
        )
        counterpart.set_shape(output.shape)
    for consumer in consumers:
        for index, tensor in enumerate(consumer.inputs):
            if tensor is output:
                consumer._update_input(index, counterpart)
    return count


def counter() -> tuple[Any, Any]:
    """Return a variable, and a tensor that increments it each time it is computed."""
    count = v1.Variable(
        tf.constant(0, tf.int64),
        trainable=False,
        use_resource=True,
        collections=["det_random"],
        name="det_random_count",
    )
    return count, count.assign_add(1, read_value=True)


def key(seed: str, op: Any) -> int:
    """Return the seed of an op as one number.

    Ops with equal seeds draw equal numbers, as in TensorFlow.
    """
    text = f"{seed}/{op.get_attr('seed')}/{op.get_attr('seed2')}"
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True
    )


def _initializers(graph: Any) -> list[Any]:
    with graph.as_default():
        variables = [*v1.global_variables(), *v1.local_variables()]
        return [
            *(variable.initializer for variable in variables),
            *v1.get_collection(v1.GraphKeys.TABLE_INITIALIZERS),
        ]


def _ancestors(ops: Iterable[Any]) -> set[Any]:
    """Return these ops and the ops that only they need."""
    found: set[Any] = set()
    waiting = list(ops)
    while waiting:
        op = waiting.pop()
        if op not in found and all(
            consumer in found for tensor in op.outputs for consumer in tensor.consumers()
        ):
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs]
    return found


def drawn_in_parallel(graph: Any) -> list[str]:
    """Return the steps of a pipeline that draw for several records at a time, in any order."""
    # TensorFlow then processes one record after the other.
    if config.is_op_determinism_enabled():
        return []
    ops = [op for op in graph.get_operations() if op.type.startswith(_PARALLEL)]
    return [
        f"{op.name} (with {found[0]})"
        for op in ops
        if (found := _in_functions(graph, [op], {op.type}))
    ]


def _in_functions(graph: Any, ops: Iterable[Any], kinds: Collection[str] = _CALLS) -> list[str]:
    """Return the random ops in functions that ops of some kinds call.

    Random ops of datasets are left out by default, because they are replayed with their data.
    """
    library = {
        function.signature.name: function for function in graph.as_graph_def().library.function
    }
    waiting = [name for op in ops if op.type in kinds for name in _called(op.node_def, library)]
    seen: set[str] = set()
    stuck: list[str] = []
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for node in library[name].node_def:
            if node.op in STATELESS or node.op in STUCK:
                stuck.append(f"{node.name} (in {name})")
            waiting += _called(node, library)
    return stuck


def _called(node: Any, library: Mapping[str, Any]) -> list[str]:
    functions = [value.func.name for value in node.attr.values() if value.HasField("func")]
    functions += [each.name for value in node.attr.values() for each in value.list.func]
    return [name for name in functions if name in library]
