"""Connects the ranks of a trial over TensorFlow's own collective operations."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, ClassVar, Self

import tensorflow as tf
from tensorflow.python.eager import context as eager

from det_core import Communicator, DetError, DistributedContext

from ._base import KerasBackend

if TYPE_CHECKING:
    from det_core.config import Optimizations

# The key of the group of all ranks. TensorFlow's strategies count theirs from 1.
_GROUP = 7001
_FIRST_INSTANCE = 100
_FIRST_GATHER = 1 << 24
# The numbers of rows that ranks send each other. Others are padded to the next one.
_LENGTHS = sorted(
    {(4 + quarter) << doublings >> 2 for doublings in range(40) for quarter in range(4)}
)


class Native(KerasBackend):
    """Rings of TensorFlow's collective operations: NCCL between GPUs, gRPC between CPUs.

    A process sets up TensorFlow's cluster once, before it computes anything. The cluster lasts
    until the process ends. Objects are sent over the ranks' own connections.
    """

    # TensorFlow keeps the size of each instance until the process ends. Another model in the same
    # process must not use the number of one with another size.
    _instances: ClassVar[dict[tuple[str, int], int]] = {}
    _gathers: ClassVar[dict[tuple[str, tuple[int, ...]], int]] = {}

    def __init__(self) -> None:
        self._control: Communicator = DistributedContext()
        self._open = False

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
        self.ranks = control.ranks
        known = _cluster_size()
        if known == 0:
            _form_cluster(control)
        elif known != control.size:
            raise DetError(
                f"TensorFlow knows a cluster of {known} processes here, but the run has"
                f" {control.size} ranks; begin it again in a process of its own"
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
        """Return the sums over the ranks. Tensors of one type are sent as one."""
        done: dict[int, Any] = {}
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = [tf.reshape(tensors[i], [-1]) for i in places]
            total = self._reduced(tf.concat(flat, 0))
            parts = tf.split(total, [tf.size(part) for part in flat])
            done |= {
                i: tf.reshape(part, tf.shape(tensors[i]))
                for i, part in zip(places, parts, strict=True)
            }
        return [tf.ensure_shape(done[i], tensor.shape) for i, tensor in enumerate(tensors)]

    def _reduced(self, flat: Any) -> Any:
        _check_shape(flat.shape)
        # Each type and size has one key, which all ranks choose in the same order. Reductions with
        # the same key run one after the other.
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

    def concat(self, tensors: list[Any]) -> list[Any]:
        """Return the rows of all ranks. The ranks first tell each other how many they have."""
        number = len(tensors)
        mine = tf.stack([tf.shape(tensor, tf.int64)[0] for tensor in tensors])
        counts = self._gathered(mine, tf.constant(number, tf.int64))[:, :number]
        done = []
        for i, tensor in enumerate(tensors):
            padded = self._gathered(tensor, tf.reduce_max(counts[:, i]))
            done.append(
                tf.boolean_mask(padded, tf.sequence_mask(counts[:, i], tf.shape(padded)[1]))
            )
        return done

    def _gathered(self, rows: Any, longest: Any) -> Any:
        """Return the rows of each rank, padded to one length: `[ranks, length, ...]`.

        `longest` is the largest number of rows of any rank.
        """
        _check_shape(rows.shape[1:])
        kind = (rows.dtype.name, tuple(rows.shape[1:]))
        number = self._gathers.setdefault(kind, len(self._gathers))
        # Each type, width and length has one key, for the same reason as in a reduction.
        place = tf.searchsorted(tf.constant(_LENGTHS, tf.int64), longest[None])[0]
        length = tf.gather(tf.constant(_LENGTHS, tf.int64), place)
        filling = [[0, length - tf.shape(rows, tf.int64)[0]], *([[0, 0]] * len(kind[1]))]
        with tf.device(self._device):
            found = tf.raw_ops.CollectiveGatherV2(
                input=tf.pad(rows, filling),
                group_size=self.ranks.size,
                group_key=_GROUP,
                instance_key=_FIRST_GATHER + number * len(_LENGTHS) + place,
                ordering_token=[self._order.handle],
                communication_hint=self._hint,
            )
        return tf.reshape(found, tf.stack([self.ranks.size, length, *kind[1]]))


def _check_shape(shape: Any) -> None:
    if not shape.is_fully_defined():
        raise DetError(
            "a gradient has no shape that is known before it is computed; give the model's inputs a"
            " shape"
        )


def _cluster_size() -> int:
    """Return the number of processes in TensorFlow's cluster, or 0 if there is none."""
    definition = getattr(eager.context(), "_collective_ops_server_def", None)
    return len(definition.cluster.job[0].tasks) if definition is not None else 0


def _form_cluster(control: Communicator) -> None:
    """Open a port on every rank, and give TensorFlow the addresses of all.

    A strategy does that when it is made. It is not needed afterwards.
    """
    workers = control.allgather(f"{_address(control)}:{_free_port()}")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": workers}),
        task_type="worker",
        task_id=control.rank,
        rpc_layer="grpc",
    )
    try:
        tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    except RuntimeError as error:
        raise DetError(
            "TensorFlow has begun to compute before the ranks met, and takes no cluster any more;"
            " compute nothing when the module of the trial is imported, or set distributed.backend"
            " to horovod"
        ) from error


def _address(control: Communicator) -> str:
    if control.cross_size == 1:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # This sends nothing. It only chooses a route.
        probe.connect((control.chief_ip, 9))
        address: str = probe.getsockname()[0]
        return address


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
