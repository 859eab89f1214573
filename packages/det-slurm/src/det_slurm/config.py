"""The settings of the engine `slurm`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

_NAME = Meta(pattern=r"^[^\s]+$")


class SlurmSettings(Struct, frozen=True, kw_only=True):
    """Each trial in a job of a Slurm cluster.

    The cluster's defaults apply to settings that are left out.
    """

    partition: Annotated[str, _NAME] | None = None
    """The partition, or several with commas between."""
    account: Annotated[str, _NAME] | None = None
    """The account that is charged."""
    qos: Annotated[str, _NAME] | None = None
    """The quality of service."""
    nice: Annotated[int, Meta(ge=0)] | None = None
    """How far jobs stand back behind others of the same priority."""
    constraint: Annotated[str, _NAME] | None = None
    """Features that the nodes must have, as Slurm writes them: `a100&nvlink`."""
    gres: Annotated[str, Meta(pattern=r"^[\w.-]+(:[\w.-]*[A-Za-z_][\w.-]*)?$")] | None = None
    """What a slot is, without a number: `gpu` or `gpu:a100`. By default it is a CPU."""
    cpus_per_slot: Annotated[int, Meta(ge=1)] = 1
    """Cores for each slot."""
    memory: Annotated[str, Meta(pattern=r"^\d+[KMGT]?$")] | None = None
    """The memory of each job, such as `32G`; a number alone is in megabytes."""
    time_limit: Annotated[str, Meta(pattern=r"^(\d+-)?\d+(:\d\d){0,2}$")] | None = None
    """When Slurm ends a job, whose trials go on in the next.

    Minutes, `hours:minutes:seconds` or `days-hours`.
    """
    slots_per_node: Annotated[int, Meta(ge=1)] | None = None
    """Slots of each node, which trials share, or which a trial has several of.

    By default what a trial needs.
    """
    sbatch_args: tuple[str, ...] = ()
    """Further options of `sbatch`, such as `--reservation=course`."""
    driver_args: tuple[str, ...] = ()
    """Options of `sbatch` for the job of a driver (`--detach`).

    Such as `--partition=cpu` and `--time=7-0`.
    """
    python: str | None = None
    """The Python of the nodes that has det. By default the path of this one."""
    setup: tuple[str, ...] = ()
    """Lines of bash that each job begins with, such as `module load cuda`."""
    directory: str = "~/.cache/det/agents"
    """Where code and logs are kept on a node while a job is there."""
