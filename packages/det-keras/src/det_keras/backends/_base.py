"""The operations that det-keras needs in addition to those of every backend.

They reduce gradients inside a compiled step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any

import tensorflow as tf

from det_core import Backend


class KerasBackend(Backend):
    """A backend that averages gradients over the ranks by operations of a graph."""

    compress = False

    @abstractmethod
    def sum(self, tensors: list[Any]) -> list[Any]:
        """Return the sums of tensors over the ranks, reduced in one operation.

        Every rank makes the same calls in the same order.
        """

    @abstractmethod
    def concat(self, tensors: list[Any]) -> list[Any]:
        """Return the rows of each tensor on all ranks, in the order of ranks.

        Ranks may have different numbers of rows, or none. Every rank makes the same calls in the
        same order.
        """

    def mean(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the means of gradients over the ranks.

        The mean of `tf.IndexedSlices` consists of the slices of all ranks. Several slices of one
        row stay apart, because optimizers treat them in different ways, and one process with the
        whole batch has them too. Slices that one process has only once, such as those of the
        positions in a text, are added. With `compress`, 32-bit gradients are sent as 16 bits.
        """
        values = [
            each.values if _is_sparse(each) else tf.convert_to_tensor(each) for each in gradients
        ]
        parts = [each / tf.cast(self.ranks.size, each.dtype) for each in values]
        sent = [
            tf.cast(part, tf.float16) if self.compress and part.dtype == tf.float32 else part
            for part in parts
        ]
        rows = [_find_rows(each) if _is_sparse(each) else None for each in gradients]
        apart = [i for i, kind in enumerate(rows) if kind in (Rows.OF_RECORDS, Rows.OF_PLACES)]
        alike = [i for i in range(len(parts)) if i not in apart]
        sums = self.sum([sent[i] for i in alike]) if alike else []
        found = dict(zip(alike, sums, strict=True))
        indices = dict[int, Any]()
        if apart:
            places = [i for i in apart if rows[i] is Rows.OF_PLACES]
            gathered = self.concat(
                [
                    *(sent[i] for i in apart),
                    *(gradients[i].indices for i in apart),
                    *(_count_repeats(gradients[i].indices) for i in places),
                ]
            )
            found |= zip(apart, gathered, strict=False)
            indices |= zip(apart, gathered[len(apart) :], strict=False)
            for i, repeats in zip(places, gathered[2 * len(apart) :], strict=True):
                found[i], indices[i] = _add_alike(found[i], indices[i], repeats)
        means = [tf.cast(found[i], part.dtype) for i, part in enumerate(parts)]
        return [
            (
                tf.IndexedSlices(mean, indices.get(i, each.indices), each.dense_shape)
                if _is_sparse(each)
                else mean
            )
            for i, (each, mean) in enumerate(zip(gradients, means, strict=True))
        ]


class Rows(Enum):
    """How the rows of a `tf.IndexedSlices` on several ranks relate to those of one process.

    - `OF_RECORDS`: each record has its own, as the words of a text. One process has all of them.
    - `EQUAL`: all ranks have the same ones, and so has one process, as the positions in texts of
      one length.
    - `OF_PLACES`: the same, but ranks have different numbers of them, as the positions in texts
      whose length differs from batch to batch.
    """

    OF_RECORDS, EQUAL, OF_PLACES = range(3)


def _is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def _find_rows(slices: Any) -> Rows:
    """Return what the rows of a gradient are rows of, which the graph of the step shows.

    A gradient that is computed eagerly has no graph, and its rows count as those of records.
    """
    if not tf.is_symbolic_tensor(slices.indices):
        return Rows.OF_RECORDS
    if _depends_on_records(slices.indices) or _has_a_row_for_each_record(slices.indices):
        return Rows.OF_RECORDS
    return Rows.EQUAL if slices.values.shape.is_fully_defined() else Rows.OF_PLACES


def _depends_on_records(tensor: Any) -> bool:
    """Return whether a tensor is computed from the records of a batch, or from their number.

    Constants are not, and lengths of records are not: the dimensions of a batch after the first.
    """
    waiting, seen = [tensor], set[Any]()
    while waiting:
        found = _follow_captures(waiting.pop())
        if not tf.is_symbolic_tensor(found):
            if found.dtype == tf.resource:
                return True
            continue
        op = found.op
        if op in seen or _is_length(op):
            continue
        seen.add(op)
        # A placeholder that captures nothing is an argument of the step.
        if op.type == "Placeholder" or op.op_def.is_stateful:
            return True
        waiting += op.inputs
    return False


def _follow_captures(tensor: Any) -> Any:
    """Return the tensor outside of a function that a placeholder in it stands for, if any."""
    while tf.is_symbolic_tensor(tensor) and tensor.op.type == "Placeholder":
        captures = getattr(tensor.graph, "captures", ())
        outer = [outer for outer, inner in captures if inner is tensor]
        if not outer:
            break
        tensor = outer[0]
    return tensor


def _is_length(op: Any) -> bool:
    """Return whether an operation takes dimensions after the first from the shape of a tensor."""
    if op.type != "StridedSlice" or op.get_attr("begin_mask"):
        return False
    shape, (begin, _, strides) = (
        _follow_captures(op.inputs[0]),
        map(tf.get_static_value, op.inputs[1:]),
    )
    if not tf.is_symbolic_tensor(shape) or shape.op.type != "Shape" or begin is None:
        return False
    rank = shape.op.inputs[0].shape.rank
    first = int(begin[0])
    return bool(strides is not None and strides[0] > 0) and (
        first > 0 or (first < 0 and rank is not None and first + rank > 0)
    )


def _has_a_row_for_each_record(indices: Any) -> bool:
    """Return whether constant indices have the shape of a batch of a known number of records.

    An example is `tf.zeros(tf.shape(texts))`. One process has such rows for the records of all
    ranks. With one record, the shape `[1, length]` is taken for that of positions.
    """
    sizes, graph = set[Any](), indices.graph
    while graph is not None:
        captured = {id(inner) for _, inner in getattr(graph, "captures", ())}
        arguments = [each for each in getattr(graph, "inputs", ()) if id(each) not in captured]
        read = [op for op in graph.get_operations() if op.type == "IteratorGetNext"]
        batches = [*arguments, *(each for op in read for each in op.outputs)]
        sizes |= {each.shape[0] for each in batches if each.shape.rank}
        graph = getattr(graph, "outer_graph", None)
    waiting = [indices]
    while waiting:
        found = _follow_captures(waiting.pop())
        if (found.shape.rank or 0) > 1 and found.shape[0] in sizes - {None, 1}:
            return True
        if tf.is_symbolic_tensor(found) and found.op.type in ("Reshape", "Identity", "Cast"):
            waiting.append(found.op.inputs[0])
        elif tf.is_symbolic_tensor(found) and found.op.type == "ConcatV2":
            waiting += found.op.inputs[:-1]
    return False


def _count_repeats(indices: Any) -> Any:
    """Return for each index how many equal ones are before it."""
    order = tf.argsort(indices, stable=True)
    ordered = tf.gather(indices, order)
    first = tf.searchsorted(ordered, ordered, out_type=indices.dtype)
    repeats = tf.range(tf.size(indices, indices.dtype), dtype=indices.dtype) - first
    return tf.scatter_nd(order[:, None], repeats, tf.shape(indices))


def _add_alike(values: Any, indices: Any, repeats: Any) -> tuple[Any, Any]:
    """Return the sums of slices with the same index and repeat number, and their indices."""
    most = tf.reduce_max(repeats) + 1
    keys, places = tf.unique(indices * most + repeats)
    return tf.math.unsorted_segment_sum(values, places, tf.size(keys)), keys // most
