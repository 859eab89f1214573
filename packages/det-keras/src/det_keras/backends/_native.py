"""The ranks of a trial over TensorFlow's own collective operations."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Self

import tensorflow as tf
from tensorflow.python.eager import context as eager

from det_core import Communicator, DetError, DistributedContext, Ranks

from ._base import KerasBackend

if TYPE_CHECKING:
    from det_core.config import Optimizations

_GROUP = 7001  # the key of the group of all ranks; strategies count theirs from 1
_FIRST_INSTANCE = 100


class Native(KerasBackend):
    """Rings of TensorFlow's `CollectiveReduce`: NCCL between GPUs, gRPC between CPUs.

    TensorFlow is told of the cluster once in a process, and before it computes anything; the cluster lasts until the process ends.
    Objects travel over the connections on which the ranks have met.
    """

    def __init__(self) -> None:
        self._control: Communicator = DistributedContext()
        self._open = False
        self._instances: dict[tuple[str, int], int] = {}

    @classmethod
    def join(cls, control: Communicator, optimizations: Optimizations | None = None) -> Self:
        backend = cls()
        backend.chief_ip = control.chief_ip
        backend.compress = optimizations is not None and optimizations.gradient_compression
        backend._control = control
        return backend

    def init(self) -> None:
        if self._open:
            return
        control = self._control
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        self.ranks = Ranks(**{name: getattr(control, name) for name in names})
        known = _cluster_size()
        if known == 0:
            _tell_of_cluster(control)
        elif known != control.size:
            raise DetError(
                f"TensorFlow knows a cluster of {known} processes here, but the run has {control.size} ranks; begin it anew in a "
                "process of its own"
            )
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        self._device = f"/job:worker/replica:0/task:{control.rank}/device:{kind}:0"
        with tf.init_scope(), tf.device(self._device):
            self._order = tf.Variable(0.0, trainable=False)
        self._hint = "nccl" if kind == "GPU" else "ring"
        self._open = True

    def shutdown(self) -> None:
        self._open = False

    def barrier(self) -> None:
        self._control.allgather(None)

    def allgather(self, value: Any) -> list[Any]:
        return self._control.allgather(value)

    def broadcast(self, value: Any) -> Any:
        return self._control.broadcast(value)

    def sum(self, tensors: list[Any]) -> list[Any]:
        """Tensors of one type travel as one."""
        done: dict[int, Any] = {}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = [tf.reshape(tensors[i], [-1]) for i in places]
            total = self._reduced(tf.concat(flat, 0))
            parts = tf.split(total, [tf.size(part) for part in flat])
            done |= {i: tf.reshape(part, tf.shape(tensors[i])) for i, part in zip(places, parts, strict=True)}
        return [tf.ensure_shape(done[i], tensor.shape) for i, tensor in enumerate(tensors)]

    def _reduced(self, flat: Any) -> Any:
        if flat.shape[0] is None:
            raise DetError(
                "a gradient has no shape that is known before it is computed; give the model's inputs a shape"
            )
        # one key for one kind of reduction, on all ranks in the same order; those of one key follow one another
        kind = (flat.dtype.name, int(flat.shape[0]))
        instance = self._instances.setdefault(kind, _FIRST_INSTANCE + len(self._instances))
        with tf.device(self._device):
            return tf.raw_ops.CollectiveReduceV2(
                input=flat,
                group_size=self.ranks.size,
                group_key=_GROUP,
                instance_key=instance,
                ordering_token=[self._order.handle],
                merge_op="Add",
                final_op="Id",
                communication_hint=self._hint,
            )


def _cluster_size() -> int:
    """Return how many processes TensorFlow was told of, 0 where of none."""
    definition = getattr(eager.context(), "_collective_ops_server_def", None)
    return len(definition.cluster.job[0].tasks) if definition is not None else 0


def _tell_of_cluster(control: Communicator) -> None:
    """Let every rank open a port, and TensorFlow know of all; the strategy that does so is not needed afterwards."""
    workers = control.allgather(f"{_address(control)}:{_free_port()}")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": workers}), task_type="worker", task_id=control.rank, rpc_layer="grpc"
    )
    try:
        tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except RuntimeError as error:
        raise DetError(
            "TensorFlow has begun to compute before the ranks met, and takes no cluster any more; compute nothing when the "
            "module of the trial is imported, or set distributed.backend to horovod"
        ) from error


def _address(control: Communicator) -> str:
    if control.cross_size == 1:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((control.chief_ip, 9))  # sends nothing, but chooses a route
        address: str = probe.getsockname()[0]
        return address


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
