"""Starting a run: what a driver knows of its machine, and what it tells an engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from det_core.backend import rank_variables
from det_core.backends.socket import START_SECONDS
from det_core.config import ExperimentConfig, is_trial_entrypoint
from det_core.distributed import LOOPBACK
from det_core.environ import variables_of_all, variables_of_one
from det_core.errors import DetError
from det_core.launch import SSH, Host, hosts_of, ranks_on
from det_core.machine import gpus

from ..engines import Node, RunSpec, machine_of
from ..provenance import commit, read
from ..store import Run
from ._environment import SolvedEnvironment, check_environment, environment_variables, environments_dir, recorded
from ._search import UNITS, unit_of
from ._state import State
from ._trials import ActiveRun, LiveTrial

LEASE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """`slots` is how many GPUs, or CPU workers where there are none, the machine has; `gpus` are their ids.

    `threads_chosen` says that the user has set `OMP_NUM_THREADS`. The ranks of a run must meet within `start_timeout` seconds.
    `agent` is a command that runs what follows it on `{host}`, for `distributed.hosts`. Runs go on for `lease` seconds without a
    driver, then they save and end. Environments of experiments lie in `environments`, or in the home.
    """

    home: Path
    slots: int
    gpus: tuple[str, ...] = field(default=())
    engine: str = "local"
    threads_chosen: bool = False
    start_timeout: float = START_SECONDS
    agent: str = SSH
    lease: float = LEASE_SECONDS
    environments: Path | None = None

    @classmethod
    def detect(cls, environ: Mapping[str, str], *, home: Path, engine: str = "local") -> DriverSettings:
        """Look at the machine: `CUDA_VISIBLE_DEVICES`, the GPUs of the NVIDIA driver, else the CPU's cores.

        `DET_SLOTS_TOTAL` overrides the number of CPU workers, `DET_START_TIMEOUT` the seconds that ranks have to meet,
        `DET_ENVIRONMENTS` where environments lie, `DET_AGENT` the command that reaches other hosts, `DET_LEASE` the seconds for
        which runs go on without a driver.
        """
        found = gpus(environ)
        slots = len(found) or int(environ.get("DET_SLOTS_TOTAL") or len(os.sched_getaffinity(0)))
        return cls(
            home=home,
            slots=slots,
            gpus=found,
            engine=engine,
            threads_chosen="OMP_NUM_THREADS" in environ,
            start_timeout=float(environ.get("DET_START_TIMEOUT") or START_SECONDS),
            agent=environ.get("DET_AGENT") or SSH,
            lease=float(environ.get("DET_LEASE") or LEASE_SECONDS),
            environments=environments_dir(home, environ),
        )

    @property
    def root(self) -> Path:
        """The directory of environments."""
        return self.environments or environments_dir(self.home, {})

    def devices(self) -> tuple[str, ...]:
        """Return the ids of the slots, by which drivers lease them: a device has the same for each of them.

        NVIDIA's tool says which GPU is meant by a number, or by the beginning of a UUID.
        """
        uuids: list[tuple[str, str]] = []
        if self.gpus:
            with suppress(OSError, subprocess.SubprocessError):
                told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
                uuids = re.findall(r"^GPU (\d+): .*\(UUID: (GPU-[^)]+)\)", told.stdout, re.MULTILINE)
        named = [next((uuid for number, uuid in uuids if g == number or _begins(uuid, g)), g) for g in self.gpus]
        return tuple(f"cuda:{gpu}" for gpu in named) or tuple(f"cpu:{k}" for k in range(self.slots))


def _begins(uuid: str, gpu: str) -> bool:
    return gpu.startswith("GPU-") and uuid.startswith(gpu)


def check_startable(config: ExperimentConfig, settings: DriverSettings) -> None:
    """Raise DetError where a trial would wait for ever for its slots, or train for ever without a word of its time."""
    check_environment(config, settings.engine)
    unit = unit_of(config)
    if unit not in UNITS and is_trial_entrypoint(config.entrypoint) and not config.min_validation_period.n:
        raise DetError(
            f"searcher.time_metric is {unit!r}, which validations report, and there is none before the end; "
            "set min_validation_period, such as {batches: 100}"
        )
    wanted, there, most = config.resources.slots_per_trial, settings.slots, config.resources.max_slots
    if most is not None and wanted > most:
        raise DetError(
            f"resources.slots_per_trial is {wanted}, and resources.max_slots is {most}; no trial could ever run"
        )
    elsewhere = config.engine is not None and type(config.engine).__struct_config__.tag not in ("local", "in-process")
    if wanted > max(there, 1) and not hosts_of(config) and not elsewhere:
        kind = "GPUs" if settings.gpus else "CPU slots and no GPU"
        raise DetError(
            f"resources.slots_per_trial is {wanted}, but this machine has {there} {kind}; ask for {there} at most"
        )


def scratch_of(run: Run) -> str:
    """Return the directory for what a run's processes keep while they run."""
    return f"{run.log_dir}/scratch"


def clear_scratch(run: Run) -> None:
    """Delete what a run's processes left, as those that are killed do."""
    if os.access(scratch := scratch_of(run), os.F_OK):
        shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True)
class Starter:
    """Makes of a trial's run what an engine starts; `warm` names the frameworks that its process may have imported before."""

    state: State
    settings: DriverSettings
    warm: tuple[str, ...] | None

    def spec(self, live: LiveTrial, latest: str | None, node: Node) -> RunSpec:
        """Return the run of a trial, which has just begun on a machine, as engines take it; `latest` is its checkpoint."""
        assert live.active is not None
        state, active = self.state, live.active
        places = [machine_of(device) if node.parts else node.name for device in active.lease.devices]
        active.nodes = tuple(dict.fromkeys(places)) or (node.name,)
        entrypoint = state.config.entrypoint or ""
        hosts = hosts_of(state.config) if state.trial_class else []
        gpus = self.settings.gpus if node.devices is None else node.gpus
        return RunSpec(
            run_id=active.run.id,
            entrypoint=entrypoint if isinstance(entrypoint, str) else tuple(entrypoint),
            trial_class=state.trial_class,
            ranks=self._ranks(active.lease.slots, gpus, places) if state.trial_class and not hosts else ({},),
            launcher=self._launcher(hosts),
            slots=active.lease.slots,
            devices=active.lease.devices,
            node=node.name,
            of=len(places) if node.parts else 0,
            environment=self._environment.digest if self._environment else "",
            python="" if self._environment else state.config.environment.python or "",
            code_dir=state.store.code_dir(state.id),
            log_dir=active.run.log_dir,
            variables=self._variables(live, latest, active, gpus),
            warm=None if active.several else self.warm,
        )

    def _launcher(self, hosts: list[Host]) -> tuple[str, ...]:
        if not hosts:
            return ()
        named = ",".join(f"{host.name}:{host.slots}" for host in hosts)
        launch = ("launch", "socket", "--hosts", named, "--agent", self.settings.agent)
        return (sys.executable, "-P", "-m", "det_driver.cli", *launch)

    def _variables(
        self, live: LiveTrial, latest: str | None, active: ActiveRun, gpus: tuple[str, ...]
    ) -> dict[str, str]:
        """Return the variables of the configuration, of the devices and of the run, the later ones winning."""
        state, slots = self.state, active.lease.slots
        own = self._of_all | variables_of_one(
            trial_id=live.id,
            run_id=active.run.id,
            run_number=active.run.number,
            seed=live.plan.seed,
            hparams=live.plan.hparams,
            slot_ids=slots,
            tensorboard_dir=f"{state.view.tensorboard_dir}/trial-{live.id}",
            latest_checkpoint=latest or live.source,
            steps_completed=active.progressed_to,
            slots=max(1, len(slots)),
            scratch=scratch_of(active.run),
            warm=latest is None and live.source is not None,
            target=state.target(live) if state.trial_class else None,
        )
        if hosts_of(state.config):  # each of them knows its devices and cores
            return {**self._user(gpus), **own}
        own |= environment_variables(self._environment, self.settings.root)
        return {**self._threads, **self._user(gpus), **self._devices(slots, gpus), **own}

    @cached_property
    def _of_all(self) -> dict[str, str]:
        """Return what all runs have in common; whoever starts one says where it connects."""
        state = self.state
        return variables_of_all(
            experiment_id=state.id,
            config=state.config,
            driver=("", 0),
            key=b"",
            checkpoint_root=state.store.home / "checkpoints",
            spool=state.view.directory / "spool",
            chief=LOOPBACK,
            start_timeout=self.settings.start_timeout,
            commit=commit(read(state.store.experiment_dir(state.id))),
        )

    @cached_property
    def _environment(self) -> SolvedEnvironment | None:
        return recorded(self.state.view.directory)

    def _ranks(
        self, slots: tuple[int, ...], gpus: tuple[str, ...], places: Sequence[str]
    ) -> tuple[Mapping[str, str], ...]:
        """Return what the environment of each rank has of its own: where it stands, and its device."""
        if len(slots) < 2:
            return ({},)
        on = ranks_on([Host(name=name, slots=n, here=False) for name, n in Counter(places).items()])
        return tuple(
            rank_variables(ranks) | self._devices((slot,), gpus) for ranks, slot in zip(on, slots, strict=True)
        )

    def _user(self, gpus: tuple[str, ...]) -> dict[str, str]:
        listed = self.state.config.environment.environment_variables
        chosen = listed.cuda if gpus else listed.cpu
        return dict(variable.partition("=")[::2] for variable in chosen)

    def _devices(self, slots: tuple[int, ...], gpus: tuple[str, ...]) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[slot] for slot in slots)} if gpus else {}

    @cached_property
    def _threads(self) -> dict[str, str]:
        """Share the cores among the CPU ranks that may run at once; by the configuration alone, as threads change sums."""
        return threads_of(self.settings, self.state.config, self.state.trial_class)


def threads_of(settings: DriverSettings, config: ExperimentConfig, trial_class: bool) -> dict[str, str]:
    """Return the variables that give a rank on a CPU its share of the cores."""
    slots = max(1, config.resources.slots_per_trial)
    ranks = slots if trial_class else 1
    concurrent = getattr(config.searcher, "max_concurrent_trials", None)
    if settings.gpus or settings.threads_chosen or (concurrent is None and ranks == 1):
        return {}
    at_once = 1 if concurrent is None else min(concurrent or settings.slots, max(1, settings.slots // slots))
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // max(1, at_once * ranks)))}
