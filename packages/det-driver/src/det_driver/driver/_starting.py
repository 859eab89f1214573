"""Starting a run: what a driver knows of its host, and what it passes to an engine."""

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

from det_core.config import ExperimentConfig, is_trial_entrypoint
from det_core.errors import DetError
from det_core.ranks.backend import START_SECONDS, rank_variables
from det_core.ranks.distributed import LOOPBACK
from det_core.support.origin import THREADS
from det_core.train.environ import variables_of_all, variables_of_one
from det_node.launch import SSH, Host, hosts_of, ranks_on
from det_node.machine import gpus

from ..engines import Node, RunSpec, machine_of
from ..provenance import change, commit, read
from ..store import Run, checkpoint_root
from ._alerts import check_alerts
from ._environment import (
    SolvedEnvironment,
    check_environment,
    environment_variables,
    environments_dir,
    recorded,
)
from ._search import UNITS, unit_of
from ._state import State
from ._trials import ActiveRun, LiveTrial

LEASE_SECONDS = 60.0
RESTART_SECONDS = (1.0, 4.0, 15.0, 60.0)
"""How long a failed trial waits before its next run, and all trials for an unreachable storage.

The last value repeats.
"""
OUTAGE_SECONDS = 600.0
"""How long trials wait for an unreachable storage."""


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """The settings of a driver.

    - `slots`: the number of GPUs, or of CPU workers on a host without GPUs.
    - `gpus`: the ids of the GPUs.
    - `threads`: the variables with a number of threads that the user has set.
    - `start_timeout`: the seconds within which the ranks of a run must connect.
    - `agent`: a command that runs its arguments on `{host}`, for `distributed.hosts`.
    - `lease`: the seconds for which runs continue without a driver, before they save and end.
    - `environments`: the directory of environments, by default in the home.
    - `restarts`: the seconds between restarts of a trial that makes no progress.
    - `outage`: the seconds for which trials wait for an unreachable storage.
    """

    home: Path
    slots: int
    gpus: tuple[str, ...] = field(default=())
    engine: str = "local"
    threads: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = START_SECONDS
    agent: str = SSH
    lease: float = LEASE_SECONDS
    environments: Path | None = None
    restarts: tuple[float, ...] = RESTART_SECONDS
    outage: float = OUTAGE_SECONDS

    @classmethod
    def detect(
        cls, environ: Mapping[str, str], *, home: Path, engine: str = "local"
    ) -> DriverSettings:
        """Detect the settings from `CUDA_VISIBLE_DEVICES`, NVIDIA's driver, or the CPU's cores.

        These environment variables override the fields:

        - `DET_SLOTS_TOTAL`: the number of CPU workers
        - `DET_START_TIMEOUT`: `start_timeout`
        - `DET_ENVIRONMENTS`: `environments`
        - `DET_AGENT`: `agent`
        - `DET_LEASE`: `lease`
        - `DET_RESTART_SECONDS`: `restarts`
        - `DET_OUTAGE_SECONDS`: `outage`
        """
        found = gpus(environ)
        slots = len(found) or int(environ.get("DET_SLOTS_TOTAL") or len(os.sched_getaffinity(0)))
        return cls(
            home=home,
            slots=slots,
            gpus=found,
            engine=engine,
            threads={variable: environ[variable] for variable in THREADS if environ.get(variable)},
            start_timeout=float(environ.get("DET_START_TIMEOUT") or START_SECONDS),
            agent=environ.get("DET_AGENT") or SSH,
            lease=float(environ.get("DET_LEASE") or LEASE_SECONDS),
            environments=environments_dir(home, environ),
            restarts=_seconds(environ.get("DET_RESTART_SECONDS")) or RESTART_SECONDS,
            outage=float(environ.get("DET_OUTAGE_SECONDS") or OUTAGE_SECONDS),
        )

    @property
    def root(self) -> Path:
        """The directory of environments."""
        return self.environments or environments_dir(self.home, {})

    def devices(self) -> tuple[str, ...]:
        """Return the ids by which drivers lease slots. A device has the same id for every driver.

        NVIDIA's tool maps a number, or the beginning of a UUID, to a GPU.
        """
        uuids: list[tuple[str, str]] = []
        if self.gpus:
            with suppress(OSError, subprocess.SubprocessError):
                # PATH says where it is, as for all who call it.
                listed = subprocess.run(  # nosec B607
                    ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False
                )
                uuids = re.findall(
                    r"^GPU (\d+): .*\(UUID: (GPU-[^)]+)\)", listed.stdout, re.MULTILINE
                )
        named = [
            next((uuid for number, uuid in uuids if g == number or _begins(uuid, g)), g)
            for g in self.gpus
        ]
        return tuple(f"cuda:{gpu}" for gpu in named) or tuple(f"cpu:{k}" for k in range(self.slots))


def _seconds(text: str | None) -> tuple[float, ...]:
    return tuple(float(part) for part in (text or "").split(",") if part)


def _begins(uuid: str, gpu: str) -> bool:
    return gpu.startswith("GPU-") and uuid.startswith(gpu)


def check_startable(config: ExperimentConfig, settings: DriverSettings) -> None:
    """Raise DetError if a trial of this configuration could never run here.

    Also if the alerts that are asked for could not be sent.
    """
    check_environment(config, settings.engine)
    check_alerts(settings.home, config)
    check_runnable(config)
    wanted, there = config.resources.slots_per_trial, settings.slots
    elsewhere = config.engine is not None and type(config.engine).__struct_config__.tag not in (
        "local",
        "in-process",
    )
    if wanted > max(there, 1) and not hosts_of(config) and not elsewhere:
        kind = "GPUs" if settings.gpus else "CPU slots and no GPU"
        raise DetError(
            f"resources.slots_per_trial is {wanted}, but this machine has {there} {kind}; ask for"
            f" {there} at most"
        )


def check_runnable(config: ExperimentConfig) -> None:
    """Raise DetError if on any machine a trial would lack slots or never report its time metric."""
    unit = unit_of(config)
    if (
        unit not in UNITS
        and is_trial_entrypoint(config.entrypoint)
        and not config.min_validation_period.n
    ):
        raise DetError(
            f"searcher.time_metric is {unit!r}, which validations report, and there is none before"
            " the end; set min_validation_period, such as {batches: 100}"
        )
    wanted, most = config.resources.slots_per_trial, config.resources.max_slots
    if most is not None and wanted > most:
        raise DetError(
            f"resources.slots_per_trial is {wanted}, and resources.max_slots is {most}; no trial"
            " could ever run"
        )


def scratch_of(run: Run) -> str:
    """Return the directory for files that a run's processes need only while they run."""
    return f"{run.log_dir}/scratch"


def clear_scratch(run: Run) -> None:
    """Delete the scratch files of a run, which processes that are killed leave."""
    if os.access(scratch := scratch_of(run), os.F_OK):
        shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True)
class Starter:
    """Makes the `RunSpec` of a trial's run. `preload` are the modules that may be preloaded."""

    state: State
    settings: DriverSettings
    preload: tuple[str, ...] | None

    def spec(self, live: LiveTrial, latest: str | None, node: Node) -> RunSpec:
        """Return the `RunSpec` of a trial's run, which has just begun on a node.

        `latest` is the checkpoint from which it continues.
        """
        assert live.active is not None
        state, active = self.state, live.active
        places = [
            machine_of(device) if node.parts else node.name for device in active.lease.devices
        ]
        active.nodes = tuple(dict.fromkeys(places)) or (node.name,)
        entrypoint = state.config.entrypoint or ""
        hosts = hosts_of(state.config) if state.trial_class else []
        gpus = self.settings.gpus if node.devices is None else node.gpus
        return RunSpec(
            run_id=active.run.id,
            entrypoint=entrypoint if isinstance(entrypoint, str) else tuple(entrypoint),
            trial_class=state.trial_class,
            ranks=(
                self._ranks(active.lease.slots, gpus, places)
                if state.trial_class and not hosts
                else ({},)
            ),
            launcher=self._launcher(hosts),
            slots=active.lease.slots,
            devices=active.lease.devices,
            node=node.name,
            world_size=len(places) if node.parts else 0,
            environment=self._environment.digest if self._environment else "",
            python="" if self._environment else state.config.environment.python or "",
            code_dir=state.store.code_dir(state.id),
            log_dir=active.run.log_dir,
            variables=self._variables(live, latest, active, gpus),
            preload=None if active.several else self.preload,
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
        """Return the variables of the configuration, the devices and the run. Later ones win."""
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
            check_first=self._is_first(latest),
        )
        if hosts_of(state.config):
            # Each knows its devices, and its cores unless the configuration sets the threads.
            chosen = self._threads if state.config.resources.threads else {}
            return {**chosen, **self._user(gpus), **own}
        own |= environment_variables(self._environment, self.settings.root)
        return {**self._threads, **self._user(gpus), **self._devices(slots, gpus), **own}

    def _is_first(self, latest: str | None) -> bool:
        """Whether a run is checked before training: it begins at 0, and no trial has validated yet.

        The check finds errors in the code, which all trials share, so only the first ones need it.
        """
        state = self.state
        return state.config.check_first and latest is None and state.best is None

    @cached_property
    def _of_all(self) -> dict[str, str]:
        """Return the variables that all runs share, without the address where workers connect.

        The agent sets that address.
        """
        state = self.state
        return variables_of_all(
            experiment_id=state.id,
            config=state.config,
            driver=("", 0),
            key=b"",
            checkpoint_root=checkpoint_root(state.store, state.id),
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
        """Return the variables of each rank that others do not share: its ranks and its device."""
        if len(slots) < 2:
            return ({},)
        on = ranks_on([Host(name=name, slots=n, here=False) for name, n in Counter(places).items()])
        return tuple(
            rank_variables(ranks) | self._devices((slot,), gpus)
            for ranks, slot in zip(on, slots, strict=True)
        )

    def _user(self, gpus: tuple[str, ...]) -> dict[str, str]:
        listed = self.state.config.environment.environment_variables
        chosen = listed.cuda if gpus else listed.cpu
        return dict(variable.partition("=")[::2] for variable in chosen)

    def _devices(self, slots: tuple[int, ...], gpus: tuple[str, ...]) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[slot] for slot in slots)} if gpus else {}

    @cached_property
    def _threads(self) -> dict[str, str]:
        """Return the number of threads of each worker, wherever it runs."""
        return recorded_threads(
            self.state.store.experiment_dir(self.state.id), self.settings, self.state.config
        )


def recorded_threads(
    directory: Path, settings: DriverSettings, config: ExperimentConfig
) -> dict[str, str]:
    """Return the thread variables that an experiment has recorded, or would begin with."""
    begun = threads_of(settings, config, is_trial_entrypoint(config.entrypoint))
    if config.resources.threads:
        return begun
    recorded = read(directory)
    return {
        variable: str(recorded.get(THREADS[variable]) or threads)
        for variable, threads in begun.items()
    }


def record_threads(directory: Path, settings: DriverSettings, config: ExperimentConfig) -> None:
    """Record the number of threads of an experiment's workers, for drivers on other hosts."""
    chosen = recorded_threads(directory, settings, config)
    known = {THREADS[variable]: threads for variable, threads in chosen.items()}
    # Without the record, the next driver on this host finds the same number.
    with suppress(OSError):
        change(directory, lambda found: {**found, **known})


def threads_of(
    settings: DriverSettings, config: ExperimentConfig, trial_class: bool
) -> dict[str, str]:
    """Return the variables with the number of threads of each worker.

    Threads change the order of summation, so the number is fixed. It is, in order: the configured
    number, the one that the user has set, a share of this host's cores. The share depends on the
    number of ranks that the configuration allows at once.
    """
    slots = max(1, config.resources.slots_per_trial)
    ranks = slots if trial_class else 1
    concurrent = getattr(config.searcher, "max_concurrent_trials", None)
    at_once = (
        1
        if concurrent is None
        else min(concurrent or settings.slots, max(1, settings.slots // slots))
    )
    share = max(1, len(os.sched_getaffinity(0)) // max(1, at_once * ranks))
    chosen = config.resources.threads
    return {
        variable: str(chosen or settings.threads.get(variable) or share) for variable in THREADS
    }
