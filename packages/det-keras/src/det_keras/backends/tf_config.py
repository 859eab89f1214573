"""The ranks of a script that `TF_CONFIG` describes, for `DistributedContext.from_tf_config()`.

TensorFlow's channel between the workers is not authenticated, so no pickled object is sent over it.
Objects are sent over the connections of a `DistributedContext`, with the key of the launch. If
something else than det launched the workers, TensorFlow's channel carries an address and a key
once.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from det_core import Backend, DetError, Ranks, Serial
from det_core.hooks.runtime import runtime
from det_keras.versions import KERAS_3

# The size in bytes of a note: an address and a key, as JSON.
_NOTE = 256


class TFConfig(Backend):
    """Connects the workers that `TF_CONFIG` lists. A process without `TF_CONFIG` has world size 1.

    `strategy` is the `tf.distribute` strategy for these workers. `init` returns when all workers
    are connected. Workers at one address are the ranks of one host.
    """

    def __init__(self) -> None:
        self._workers, self._index = workers_in(os.environ.get("TF_CONFIG", ""))
        self.ranks = ranks_of(self._workers, self._index)
        self._objects: Backend | None = None
        self.strategy: Any = None

    def init(self) -> None:
        if self._objects is not None:
            return
        self.strategy = strategy_of(len(self._workers))
        self._objects = Serial() if self.ranks.size == 1 else self._meet()
        self._objects.init()
        self.chief_ip = _host(self._workers[0]) if self._workers else self.chief_ip

    def shutdown(self) -> None:
        if self._objects is not None:
            self._objects.shutdown()

    def barrier(self) -> None:
        self._met.barrier()

    def allgather(self, value: Any) -> list[Any]:
        return self._met.allgather(value)

    def broadcast(self, value: Any) -> Any:
        return self._met.broadcast(value)

    def gather(self, value: Any) -> list[Any] | None:
        return self._met.gather(value)

    def agree(self, flag: bool) -> bool:
        return self._met.agree(flag)

    def allgather_local(self, value: Any) -> list[Any]:
        return self._met.allgather_local(value)

    def gather_local(self, value: Any) -> list[Any] | None:
        return self._met.gather_local(value)

    def broadcast_local(self, value: Any) -> Any:
        return self._met.broadcast_local(value)

    @property
    def _met(self) -> Backend:
        if self._objects is None:
            raise RuntimeError("the workers have not met; call init() first")
        return self._objects

    def _meet(self) -> Backend:
        """Connect as det's launcher says.

        Without det's launcher, rank 0 opens a socket and sends the others its address with a new
        key.
        """
        if "DET_RANKS_KEY" in os.environ:
            return runtime().Socket()
        host = _host(self._workers[0])
        if self.ranks.rank:
            port, key = json.loads(self._first(b""))
            return runtime().Socket(self.ranks, chief=(host, port), key=bytes.fromhex(key))
        key = secrets.token_hex(32)
        return runtime().Socket(
            self.ranks,
            chief=(host, 0),
            key=bytes.fromhex(key),
            ready=lambda address: self._first(json.dumps([address[1], key]).encode()),
        )

    def _first(self, note: bytes) -> bytes:
        """Return rank 0's note on every rank: the sum over all ranks, where others add zeros."""
        mine = tf.constant(list(note.ljust(_NOTE, b"\0")), dtype=tf.int32)
        per_replica = self.strategy.experimental_distribute_values_from_function(
            lambda context: mine if context.replica_id_in_sync_group == 0 else tf.zeros_like(mine)
        )
        total = self.strategy.reduce("SUM", per_replica, axis=None)
        return bytes(total.numpy().tolist()).rstrip(b"\0")


def workers_in(tf_config: str) -> tuple[list[str], int]:
    """Return the addresses of the workers in `TF_CONFIG` and the index of this one.

    The list is empty if `TF_CONFIG` is. Raises DetError if it is not JSON, or if this process is
    not a worker.
    """
    try:
        config = json.loads(tf_config or "{}")
        cluster, task = config.get("cluster", {}), config.get("task", {})
        workers, index = list(cluster.get("worker", [])), int(task.get("index", 0))
    except (ValueError, AttributeError, TypeError):
        raise DetError(
            f"TF_CONFIG is {tf_config!r}, which TensorFlow could not read; start the script by"
            " det_node.launch.tensorflow"
        ) from None
    kind = task.get("type", "worker")
    others = sorted(set(cluster) - {"worker"})
    if kind != "worker" or others:
        named = kind if kind != "worker" else others[0]
        raise DetError(f"TF_CONFIG names a task of the type {named!r}; every task must be a worker")
    if workers and not 0 <= index < len(workers):
        raise DetError(
            f"TF_CONFIG lists {len(workers)} workers and says that this one is {index}; number them"
            " from 0"
        )
    return workers, index


def ranks_of(workers: list[str], index: int) -> Ranks:
    """Return a worker's rank and sizes. Workers at one address are on one host."""
    if len(workers) < 2:
        return Ranks()
    hosts = [_host(worker) for worker in workers]
    order = list(dict.fromkeys(hosts))
    return Ranks(
        rank=index,
        size=len(workers),
        local_rank=hosts[:index].count(hosts[index]),
        local_size=hosts.count(hosts[index]),
        cross_rank=order.index(hosts[index]),
        cross_size=len(order),
    )


def _host(worker: str) -> str:
    return worker.rpartition(":")[0].strip("[]")


class Workers(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    """TensorFlow's MultiWorkerMirroredStrategy, which also works with Keras 3's `fit`."""

    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        """Reduce as TensorFlow does, with two exceptions under Keras 3.

        A nest becomes this process's values. Scalars are reduced over the replicas even with `axis`
        0.
        """
        if KERAS_3 and axis is None and isinstance(value, (tuple, list, Mapping)):
            return tf.nest.map_structure(
                lambda each: self.experimental_local_results(each)[0], value
            )
        if KERAS_3 and axis == 0 and self._is_scalar(value):
            axis = None
        return super().reduce(reduce_op, value, axis)

    def _is_scalar(self, value: Any) -> bool:
        shape = getattr(self.experimental_local_results(value)[0], "shape", None)
        return shape is not None and shape.rank == 0


def strategy_of(workers: int) -> Any:
    """Return the strategy for a number of workers.

    One worker gets a strategy for its GPUs if it has several.
    """
    if workers > 1:
        return Workers()
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return tf.distribute.MirroredStrategy()
    return tf.distribute.get_strategy()
