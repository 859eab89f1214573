"""Starting a run: what a driver knows of its machine, and what it tells an engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from det_core.backend import Ranks, rank_variables
from det_core.backends.socket import START_SECONDS
from det_core.config import ExperimentConfig, is_trial_entrypoint
from det_core.distributed import LOOPBACK
from det_core.environ import WorkerEnv, shortened
from det_core.errors import DetError
from det_core.launch import SSH, Host, address_of_this, addresses, hosts_of
from det_core.machine import gpus

from ..engines import RunSpec
from ..store import Run, TrialRow
from ._search import UNITS, unit_of
from ._state import State
from ._trials import ActiveRun, LiveTrial


@dataclass(frozen=True, kw_only=True)
class DriverSettings:
    """`slots` is how many GPUs, or CPU workers where there are none, the machine has; `gpus` are their ids.

    `threads_chosen` says that the user has set `OMP_NUM_THREADS`. The ranks of a run must meet within `start_timeout` seconds.
    `agent` is a command that runs what follows it on `{host}`, for `distributed.hosts`.
    """

    home: Path
    slots: int
    gpus: tuple[str, ...] = field(default=())
    engine: str = "local"
    threads_chosen: bool = False
    start_timeout: float = START_SECONDS
    agent: str = SSH

    @classmethod
    def detect(cls, environ: Mapping[str, str], *, home: Path, engine: str = "local") -> DriverSettings:
        """Look at the machine: `CUDA_VISIBLE_DEVICES`, the GPUs of the NVIDIA driver, else the CPU's cores.

        `DET_SLOTS_TOTAL` overrides the number of CPU workers, `DET_START_TIMEOUT` the seconds that ranks have to meet,
        `DET_AGENT` the command that reaches other hosts.
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
        )

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
    if wanted > max(there, 1) and not hosts_of(config):
        kind = "GPUs" if settings.gpus else "CPU slots and no GPU"
        raise DetError(
            f"resources.slots_per_trial is {wanted}, but this machine has {there} {kind}; ask for {there} at most"
        )


def driver_address(hosts: list[Host]) -> str:
    """Return the address at which the workers of a run reach its driver."""
    return address_of_this(hosts, addresses(hosts, None)) if hosts else LOOPBACK


def scratch_of(run: Run) -> Path:
    """Return the directory for what a run's processes keep while they run."""
    return run.log_dir / "scratch"


def clear_scratch(run: Run) -> None:
    """Delete what a run's processes left, as those that are killed do."""
    shutil.rmtree(scratch_of(run), ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Starter:
    """Makes of a trial's run what an engine starts; `warm` names the frameworks that its process may have imported before."""

    state: State
    settings: DriverSettings
    address: tuple[str, int]
    key: bytes
    warm: tuple[str, ...] | None

    def spec(self, live: LiveTrial, row: TrialRow) -> RunSpec:
        """Return the run of a trial, which has just begun, as engines take it."""
        assert live.active is not None
        state, active = self.state, live.active
        entrypoint = state.config.entrypoint or ""
        hosts = hosts_of(state.config) if state.trial_class else []
        return RunSpec(
            run_id=active.run.id,
            entrypoint=entrypoint if isinstance(entrypoint, str) else tuple(entrypoint),
            trial_class=state.trial_class,
            ranks=self._ranks(active.lease.slots) if state.trial_class and not hosts else ({},),
            hosts=",".join(f"{host.name}:{host.slots}" for host in hosts),
            agent=self.settings.agent,
            code_dir=state.store.code_dir(state.id),
            log_dir=active.run.log_dir,
            variables=self._variables(live, row, active),
            warm=None if active.several else self.warm,
        )

    def _variables(self, live: LiveTrial, row: TrialRow, active: ActiveRun) -> dict[str, str]:
        """Return the variables of the configuration, of the devices and of the run, the later ones winning."""
        state, slots = self.state, active.lease.slots
        env = WorkerEnv(
            experiment_id=state.id,
            trial_id=live.id,
            run_id=active.run.id,
            run_number=active.run.number,
            seed=live.plan.seed,
            hparams=live.plan.hparams,
            config=state.config,
            slot_ids=slots,
            driver=self.address,
            key=self.key,
            checkpoint_root=state.store.home / "checkpoints",
            tensorboard_dir=state.view.tensorboard_dir / f"trial-{live.id}",
            spool=state.view.directory / "spool",
            latest_checkpoint=row.latest_checkpoint or row.source_checkpoint,
            steps_completed=active.progressed_to,
            slots=max(1, len(slots)),
            chief=LOOPBACK,
            scratch=scratch_of(active.run),
            start_timeout=self.settings.start_timeout,
            warm=row.latest_checkpoint is None and row.source_checkpoint is not None,
        )
        own = shortened(env.variables(), active.run.log_dir)
        return {**self._threads(), **self._user(), **self._devices(slots), **own}

    def _ranks(self, slots: tuple[int, ...]) -> tuple[Mapping[str, str], ...]:
        """Return what the environment of each rank has of its own: where it stands, and its device."""
        if len(slots) < 2:
            return ({},)
        size = len(slots)
        return tuple(
            rank_variables(Ranks(rank=rank, size=size, local_rank=rank, local_size=size)) | self._devices((slot,))
            for rank, slot in enumerate(slots)
        )

    def _user(self) -> dict[str, str]:
        listed = self.state.config.environment.environment_variables
        chosen = listed.cuda if self.settings.gpus else listed.cpu
        return dict(variable.partition("=")[::2] for variable in chosen)

    def _devices(self, slots: tuple[int, ...]) -> dict[str, str]:
        gpus = self.settings.gpus
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[slot] for slot in slots)} if gpus else {}

    def _threads(self) -> dict[str, str]:
        """Share the cores among the CPU ranks that may run at once; by the configuration alone, as threads change sums."""
        settings, config = self.settings, self.state.config
        slots = max(1, config.resources.slots_per_trial)
        ranks = slots if self.state.trial_class else 1
        concurrent = getattr(config.searcher, "max_concurrent_trials", None)
        if settings.gpus or settings.threads_chosen or (concurrent is None and ranks == 1):
            return {}
        at_once = 1 if concurrent is None else min(concurrent or settings.slots, max(1, settings.slots // slots))
        return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // max(1, at_once * ranks)))}
