"""The complete configuration of an experiment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ._engines import EngineConfig
from ._resources import BindMount, Environment, Pbs, Resources, Slurm
from ._searchers import Hyperparameter, Length, SearcherConfig
from ._storage import StorageConfig
from .fields import (
    CLUSTER,
    CONTAINED,
    NAMED_SECRETS,
    RETIRED,
    SECRETS,
    expects,
    joined,
    kind,
    needed,
    partly,
)

Period = Annotated[Length, kind("period")]
NEVER = Length("batches", 0)
PREEMPTION_SECONDS = 600.0
_TRIAL = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Reproducibility(Struct, frozen=True, kw_only=True):
    """Where randomness comes from."""

    experiment_seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] | None = None
    """The searcher's seed, from which those of the trials derive.

    Without one, the time at submission.
    """


class Optimizations(Struct, frozen=True, kw_only=True):
    """How gradients are computed, gathered and applied."""

    aggregation_frequency: Annotated[int, Meta(ge=1)] = 1
    """Batches whose gradients are added up before the optimizer steps."""
    average_aggregated_gradients: bool = True
    """Whether those gradients are divided by their number."""
    average_training_metrics: bool = True
    """Whether training metrics are averaged over all ranks."""
    gradient_compression: Annotated[bool, partly("with Horovod")] = False
    """Whether gradients travel as 16-bit numbers."""
    mixed_precision: Annotated[Literal["O0", "O1", "O2", "O3"], RETIRED] = "O0"
    """The level of apex, which is gone. Use `precision`."""
    auto_tune_tensor_fusion: Annotated[bool, partly("with Horovod")] = False
    """Whether Horovod tunes its fusion itself."""
    tensor_fusion_threshold: Annotated[int, Meta(ge=0), partly("with Horovod")] = 64
    """Megabytes of gradients that travel together."""
    tensor_fusion_cycle_time: Annotated[float, Meta(ge=0), partly("with Horovod")] = 1.0
    """Milliseconds between two rounds of gathering."""
    grad_updates_size_file: Annotated[str, RETIRED] | None = None
    """Where the sizes of gradients were once written."""
    precision: Literal["fp32", "fp16", "bf16"] = "fp32"
    """What the model computes in: fp32, fp16 (with a gradient scaler) or bf16."""
    compile: bool = False
    """Whether the framework compiles the model (`torch.compile`, `jit_compile`)."""
    asynchronous_checkpoints: Annotated[bool, partly("with PyTorch and Lightning")] = True
    """Whether a copy of the state is taken, in host memory, and written while training goes on."""
    sharding: Annotated[Literal["none", "fsdp"], partly("with PyTorch and Lightning")] = "none"
    """`none`: each rank has a copy of the model.

    `fsdp`: each has a part of its parameters and of the optimizer's state.
    """


class Profiling(Struct, frozen=True, kw_only=True):
    """Measuring the time of each part of a step and the load of the machine."""

    enabled: bool = False
    """Whether to measure."""
    begin_on_batch: Annotated[int, Meta(ge=0)] = 0
    """The first batch to measure."""
    end_after_batch: Annotated[int, Meta(ge=0)] | None = None
    """The last batch to measure."""
    sync_timings: bool = True
    """Whether to wait for the device before each reading."""


class LogPolicy(Struct, frozen=True, kw_only=True):
    """What to do when a line of a trial's output matches a pattern."""

    name: str | None = None
    """The policy's name. `CUDA OOM` and `ECC Error` exist already and can be changed by name."""
    pattern: Annotated[
        str | None, needed("give a regular expression, or null to switch the policy off")
    ]
    """A regular expression, searched for in each line. Null switches the policy off."""
    action: (
        Annotated[Literal["cancel_retries", "exclude_node"], partly("`cancel_retries` only")] | None
    ) = None
    """`cancel_retries` (a trial that fails is not restarted), `exclude_node`, or nothing."""


DEFAULT_LOG_POLICIES = (
    LogPolicy(name="CUDA OOM", pattern=".*CUDA out of memory.*"),
    LogPolicy(name="ECC Error", pattern=".*uncorrectable ECC error encountered.*"),
)


class RetentionPolicy(Struct, frozen=True, kw_only=True):
    """How long logs are kept."""

    log_retention_days: Annotated[int, Meta(ge=-1, le=32767)] | None = None
    """Days. -1 means for ever."""


class Pachyderm(Struct, frozen=True, kw_only=True):
    """Where data comes from in Pachyderm."""

    pachd: dict[str, Any] | None = None
    """The server and its token."""
    proxy: dict[str, Any] | None = None
    """The proxy."""
    dataset: dict[str, Any] | None = None
    """The project, repository, branch and commit."""


class Webhooks(Struct, frozen=True, kw_only=True):
    """The webhooks that get alerts of the experiment."""

    webhook_id: Annotated[tuple[int, ...], CLUSTER] = ()
    """By number."""
    webhook_name: tuple[str, ...] = ()
    """By name, in `alerts.yaml` of the home, in addition to those for all experiments."""
    exclude: bool = False
    """Whether no webhook gets alerts of it."""


class Integrations(Struct, frozen=True, kw_only=True):
    """Services that det works with."""

    pachyderm: Annotated[Pachyderm, CLUSTER] | None = None
    """Where data comes from in Pachyderm."""
    webhooks: Webhooks | None = None
    """The webhooks that get alerts of the experiment."""


class Kerberos(Struct, frozen=True, kw_only=True):
    """Kerberos of a cluster of old."""

    config_file: str | None = None
    """Its configuration file."""


class Security(Struct, frozen=True, kw_only=True):
    """Security of a cluster of old."""

    kerberos: Kerberos | None = None
    """Kerberos."""


class Distributed(Struct, frozen=True, kw_only=True):
    """How the ranks of a trial talk to one another."""

    backend: str = "auto"
    """`auto`, `horovod`, `native`, or a backend that a plugin registers.

    `auto` is Horovod where it is importable, else native.
    """
    hosts: tuple[str, ...] = ()
    """The machines, each as `host` or `host:slots`. None means this one."""
    timeout: Annotated[float, Meta(gt=0)] | None = None
    """How many seconds a rank waits for the others in a collective.

    By default 1800, for tensors what the framework has.
    """


class ExperimentConfig(Struct, frozen=True, kw_only=True):
    """The configuration of an experiment. Attributes are the keys of the YAML."""

    name: str | None = None
    """The experiment's name. Without one, a made-up one."""
    description: str | None = None
    """What the experiment is about."""
    labels: Annotated[tuple[str, ...], joined()] = ()
    """Words to find the experiment by."""
    project: Annotated[str, CLUSTER] = ""
    """The project that the experiment belongs to."""
    workspace: Annotated[str, CLUSTER] = ""
    """The workspace that the project belongs to."""
    data: Annotated[dict[str, Any], NAMED_SECRETS] = {}
    """Settings of your own, handed to the trial as they are."""
    debug: Annotated[bool, CLUSTER] = False
    """Whether to log in detail."""
    entrypoint: (
        Annotated[
            str | tuple[str, ...],
            expects("a trial class as module:Class, or a command such as python3 train.py"),
            needed("name your trial class as module:Class, or a command such as python3 train.py"),
        ]
        | None
    ) = None
    """A trial class as `module:Class`, or a command, as text or as a list of its words."""
    hyperparameters: Annotated[
        dict[str, Hyperparameter], kind("hyperparameters"), NAMED_SECRETS
    ] = {}
    """The values that a trial reads: constants, ranges, and maps of these."""
    searcher: (
        Annotated[
            SearcherConfig,
            kind("searcher"),
            needed(
                "give at least {name: single, metric: validation_loss, max_length: {epochs: 1}}"
            ),
        ]
        | None
    ) = None
    """How trials are made and compared."""
    reproducibility: Reproducibility = Reproducibility()
    """Where randomness comes from."""
    max_restarts: Annotated[int, Meta(ge=0)] = 5
    """How often a trial that fails is started again from its latest checkpoint."""
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    """After which validations to checkpoint: those that are the best so far, all, or none."""
    checkpoint_storage: Annotated[StorageConfig, kind("checkpoint_storage")] | None = None
    """Where checkpoints are kept. Without it, in the store's own directory."""
    min_checkpoint_period: Period = NEVER
    """Checkpoint at least this often. 0 means only where something else asks for it."""
    min_validation_period: Period = NEVER
    """Validate at least this often. 0 means only at the end of training."""
    check_first: bool = True
    """Whether a trial class is tried before it trains.

    The trial does two steps, a validation batch, a save and a restore, in a fork. Of a script, the
    checkpoint storage and the first checkpoint are tried.
    """
    perform_initial_validation: bool = False
    """Whether to validate before the first batch."""
    records_per_epoch: Annotated[
        int, Meta(ge=0), partly("where the training data does not know its length")
    ] = 0
    """Records in an epoch."""
    scheduling_unit: Annotated[int, Meta(ge=1)] = 100
    """Report training metrics every so many batches."""
    optimizations: Optimizations = Optimizations()
    """How gradients are computed, gathered and applied."""
    profiling: Annotated[Profiling, CLUSTER] = Profiling()
    """Measuring the time of each part of a step and the load of the machine."""
    resources: Resources = Resources()
    """How many slots the experiment takes."""
    environment: Environment = Environment()
    """What surrounds the worker processes."""
    bind_mounts: Annotated[tuple[BindMount, ...], CONTAINED, joined("container_path")] = ()
    """Directories of the host that a container would see."""
    log_policies: Annotated[tuple[LogPolicy, ...], kind("log_policies")] = DEFAULT_LOG_POLICIES
    """What to do when a line of a trial's output matches a pattern."""
    retention_policy: Annotated[RetentionPolicy, CLUSTER] = RetentionPolicy()
    """How long logs are kept."""
    preemption_timeout: Annotated[int, Meta(ge=0)] | None = None
    """Seconds between asking a trial to stop, so that it may save, and killing it.

    600 where nothing is given.
    """
    integrations: Integrations | None = None
    """Services that det works with."""
    pbs: Annotated[Pbs, CLUSTER] = Pbs()
    """Settings of a PBS cluster."""
    slurm: Annotated[Slurm, CLUSTER] = Slurm()
    """Settings of a Slurm cluster.

    Where `engine.name` is `slurm`, they are read as the engine's.
    """
    security: Annotated[Security, RETIRED] | None = None
    """Security of a cluster of old."""
    data_layer: Annotated[dict[str, Any], SECRETS] | None = None
    """Where cached data sets lie, up to what size, and where machines share them."""
    internal: Annotated[dict[str, Any], RETIRED] | None = None
    """What tools of old noted for themselves."""
    tensorboard_storage: Annotated[dict[str, Any], RETIRED, SECRETS] | None = None
    """Where event files once went. They are kept with the experiment."""
    distributed: Distributed = Distributed()
    """How the ranks of a trial talk to one another."""
    engine: Annotated[EngineConfig, kind("engine")] | None = None
    """Where runs are executed. On this machine where nothing is given."""
    plugins: Annotated[dict[str, Any], kind("plugins")] = {}
    """Settings of plugins, by the plugin's name. Each plugin checks its own."""

    @property
    def patience(self) -> float:
        """Seconds that a run has to save and end after a preemption or after its driver is lost."""
        return (
            PREEMPTION_SECONDS
            if self.preemption_timeout is None
            else float(self.preemption_timeout)
        )


def is_trial_entrypoint(entrypoint: str | Sequence[str] | None) -> bool:
    """Return whether this is `module:Class`, and not a command.

    `package.module:Outer.Inner` is, too.
    """
    return isinstance(entrypoint, str) and _TRIAL.fullmatch(entrypoint) is not None
