"""Several processes as one JAX program, by `jax.distributed`."""

from __future__ import annotations

import socket
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from det_core import Backend, DistributedContext, TrialError

RANKS = "ranks"


class JaxBackend(Backend):
    """The ranks that det started, one device each.

    Objects travel over det's own connection, arrays over JAX's.
    """

    def __init__(self, control: DistributedContext | None = None) -> None:
        self._control = control or DistributedContext()
        self.ranks = self._control.ranks

    @classmethod
    def join(cls, control: DistributedContext, optimizations: Any = None) -> Self:
        return cls(control)

    def init(self) -> None:
        if self.ranks.size == 1 or jax.distributed.is_initialized():
            return  # JAX begins once in a process, and ends with it
        port = self._control.broadcast(_free_port() if self.ranks.rank == 0 else None)
        try:
            jax.distributed.initialize(
                f"{self._control.chief_ip}:{port}", self.ranks.size, self.ranks.rank
            )
        except RuntimeError as error:
            why, _, _ = str(error).partition(". ")
            raise TrialError(
                f"jax.distributed cannot begin: {why}; let the trial's module compute nothing while"
                " it is imported"
            ) from error

    def shutdown(self) -> None:
        pass

    def barrier(self) -> None:
        self._control.barrier()

    def allgather(self, value: Any) -> list[Any]:
        return self._control.allgather(value)

    def broadcast(self, value: Any) -> Any:
        return self._control.broadcast(value)

    # Arrays

    def replicated(self, tree: Any) -> Any:
        """Return the arrays of a tree, the same on every rank, as arrays of the whole program."""
        if self.ranks.size == 1:
            return jax.device_put(tree)
        sharding = NamedSharding(self._mesh(), PartitionSpec())
        return jax.tree.map(lambda array: _whole(np.asarray(array), sharding), tree)

    def sharded(self, tree: Any) -> Any:
        """Return batches of which each rank holds its part as batches of the whole program."""
        if self.ranks.size == 1:
            return tree
        sharding = NamedSharding(self._mesh(), PartitionSpec(RANKS))
        return jax.tree.map(
            lambda array: jax.make_array_from_process_local_data(sharding, array), tree
        )

    def local(self, tree: Any) -> Any:
        """Return this rank's copy of replicated arrays."""
        return (
            tree
            if self.ranks.size == 1
            else jax.tree.map(lambda array: array.addressable_data(0), tree)
        )

    def _mesh(self) -> Mesh:
        firsts = {device.process_index: device for device in reversed(jax.devices())}
        return Mesh(np.array([firsts[rank] for rank in range(self.ranks.size)]), (RANKS,))


def _whole(array: np.ndarray[Any, Any], sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        port: int = found.getsockname()[1]
        return port
