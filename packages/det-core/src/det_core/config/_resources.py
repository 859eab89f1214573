"""The resources and the environment of an experiment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from .fields import CLUSTER, CONTAINED, RETIRED, SECRET, expects, joined, kind, needed

SIZE = r"^([0-9]*[.])?[0-9]+ ?(([kmgtpKMGTP]([iI]?[bB])?)|[bB])?$"
Size = Annotated[str, Meta(pattern=SIZE), expects("a number of bytes, or a size such as 4GiB")]
HostPath = Annotated[
    str, Meta(pattern="^/"), expects("an absolute path"), needed("give an absolute path")
]
ContainerPath = Annotated[
    str,
    Meta(pattern=r"^(?!\.$)"),
    expects("a path other than '.'"),
    needed("give the path in the container"),
]
Variable = Annotated[str, Meta(pattern=r"^[^=\0]+(=|$)"), expects("NAME=VALUE")]


DEVICE = expects("a map, or host_path:container_path[:mode]")


class Device(Struct, frozen=True, kw_only=True):
    """A device of the host that a container would see."""

    host_path: HostPath
    """The device on the host."""
    container_path: ContainerPath
    """The device in the container."""
    mode: str = "mrw"
    """What the container may do with it."""


class Resources(Struct, frozen=True, kw_only=True):
    """How many slots an experiment takes."""

    slots_per_trial: Annotated[int, Meta(ge=0)] = 1
    """GPUs, or CPU workers where there is none, for each trial."""
    threads: Annotated[int, Meta(ge=1)] | None = None
    """Compute threads of each worker process, on any engine.

    By default its share of the cores where det runs.
    """
    max_slots: Annotated[int, Meta(ge=0)] | None = None
    """The most slots that all of the experiment's trials may hold at once."""
    weight: Annotated[float, Meta(gt=0)] = 1.0
    """The experiment's share of the slots among others of the same priority and user.

    It counts where the weights of waiting experiments differ.
    """
    priority: Annotated[int, Meta(ge=1, le=99)] | None = None
    """The experiment's place in the queue for slots, 1 before 99, by default 42.

    An experiment preempts the runs of others with a greater number. Slurm's `nice` where that is
    the engine.
    """
    resource_pool: Annotated[str, CLUSTER] = ""
    """The pool of machines to use: Slurm's partition or Kueue's queue where that is the engine."""
    shm_size: (
        Annotated[int | Size, CLUSTER, expects("a number of bytes, or a size such as 4GiB")] | None
    ) = None
    """The shared memory of a container."""
    devices: Annotated[
        tuple[Annotated[Device, kind("device"), DEVICE], ...], CLUSTER, joined("container_path")
    ] = ()
    """Devices of the host that a container would see.

    Each is a map, or text such as `/dev/nvme0:/dev/nvme0:rw`.
    """
    native_parallel: Annotated[bool, RETIRED] = False
    """Whether the user's code once brought its own parallelism."""
    is_single_node: Annotated[bool, CLUSTER] | None = None
    """Whether all slots must be on one machine."""
    slots: Annotated[int, Meta(ge=0), CLUSTER] | None = None
    """Slots of a notebook or shell."""
    agent_label: Annotated[str, RETIRED] | None = None
    """The label of the machines to use."""


class Image(Struct, frozen=True, kw_only=True):
    """A container image for each kind of slot."""

    cpu: str | None = None
    """The image for CPU slots."""
    cuda: str | None = None
    """The image for CUDA slots."""
    rocm: str | None = None
    """The image for ROCm slots."""


class EnvironmentVariables(Struct, frozen=True, kw_only=True):
    """Environment variables, `NAME=VALUE`, for each kind of slot. Later ones win."""

    cpu: Annotated[tuple[Variable, ...], joined()] = ()
    """Variables of CPU workers."""
    cuda: Annotated[tuple[Variable, ...], joined()] = ()
    """Variables of CUDA workers."""
    rocm: Annotated[tuple[Variable, ...], joined()] = ()
    """Variables of ROCm workers."""


class ProxyPort(Struct, frozen=True, kw_only=True):
    """A port that the master would forward."""

    proxy_port: Annotated[int, Meta(ge=0, le=65535), needed("give the port")]
    """The port."""
    proxy_tcp: bool = False
    """Whether it is not HTTP."""
    unauthenticated: bool = False
    """Whether no login is asked for."""
    default_service_id: bool = False
    """Whether it answers under the task's own id."""


class RegistryAuth(Struct, frozen=True, kw_only=True):
    """The login for a private registry of container images."""

    username: str | None = None
    """The user."""
    password: Annotated[str, SECRET] | None = None
    """The password."""
    auth: Annotated[str, SECRET] | None = None
    """User and password in one, base64."""
    email: str | None = None
    """The user's address."""
    serveraddress: str | None = None
    """The registry."""
    identitytoken: Annotated[str, SECRET] | None = None
    """A token instead of a password."""
    registrytoken: Annotated[str, SECRET] | None = None
    """A token for the registry."""


class Environment(Struct, frozen=True, kw_only=True):
    """What surrounds the worker processes."""

    image: Annotated[Image, kind("image"), CONTAINED] = Image()
    """The container image, or a map of `cpu`, `cuda` and `rocm`.

    Where `engine.name` is `kubernetes`, it is the engine's.
    """
    container: Literal["auto", "podman", "docker", "apptainer"] | None = None
    """The program that runs the image: `podman`, `docker`, `apptainer` or `auto`.

    `auto` takes the first one that is installed. A container needs det-env.
    """
    python: str | None = None
    """The Python of the workers: a version, such as "3.11", or the path of an interpreter.

    An interpreter is used as it is.
    """
    requirements: tuple[str, ...] | str | None = None
    """The packages that the workers import: a list of requirements, or a file.

    The file is requirements.txt, pylock.toml, uv.lock, or a script that says it.
    """
    environment_variables: Annotated[EnvironmentVariables, kind("environment_variables")] = (
        EnvironmentVariables()
    )
    """`NAME=VALUE` for the workers.

    It is a list, or a map of such lists under `cpu`, `cuda` and `rocm`.
    """
    proxy_ports: Annotated[tuple[ProxyPort, ...], CLUSTER, joined()] = ()
    """Ports that the master would forward."""
    ports: Annotated[dict[str, Annotated[int, Meta(ge=0, le=65535)]], CLUSTER] = {}
    """Ports of the container, by name."""
    force_pull_image: Annotated[bool, CONTAINED] = False
    """Whether the image is fetched even if it is there."""
    registry_auth: Annotated[RegistryAuth, CLUSTER] | None = None
    """The login for a private registry of images."""
    add_capabilities: Annotated[tuple[str, ...], CLUSTER] = ()
    """Linux capabilities that a container would gain."""
    drop_capabilities: Annotated[tuple[str, ...], CLUSTER] = ()
    """Linux capabilities that a container would lose."""
    pod_spec: Annotated[dict[str, Any], CLUSTER] | None = None
    """A Kubernetes pod to start from.

    Where `engine.name` is `kubernetes`, it is read as the engine's.
    """


class BindMount(Struct, frozen=True, kw_only=True):
    """A directory of the host that a container would see."""

    host_path: HostPath
    """The directory on the host."""
    container_path: ContainerPath
    """The directory in the container."""
    read_only: bool = False
    """Whether the container may only read it."""
    propagation: str = "rprivate"
    """How the mount behaves."""


class Pbs(Struct, frozen=True, kw_only=True):
    """Settings of a PBS cluster."""

    slots_per_node: Annotated[int, Meta(ge=1)] | None = None
    """Slots of each node."""
    pbsbatch_args: tuple[str, ...] = ()
    """Arguments of the submission."""


class Slurm(Struct, frozen=True, kw_only=True):
    """Settings of a Slurm cluster."""

    slots_per_node: Annotated[int, Meta(ge=1)] | None = None
    """Slots of each node."""
    gpu_type: str | None = None
    """The kind of GPU."""
    sbatch_args: tuple[str, ...] = ()
    """Arguments of the submission."""
