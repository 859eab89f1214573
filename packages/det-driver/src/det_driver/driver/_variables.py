"""What an engine is told of a run: above all the environment of its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from det_core.backend import Ranks, rank_variables
from det_core.distributed import LOOPBACK
from det_core.environ import WorkerEnv
from det_core.launch import hosts_of

from ..engines import RunSpec
from ..store import TrialRow
from ._recover import scratch_of
from ._settings import DriverSettings
from ._state import State
from ._trials import Active, Live


def run_variables(
    state: State, settings: DriverSettings, live: Live, row: TrialRow, address: tuple[str, int], key: bytes
) -> dict[str, str]:
    """Return the variables of the configuration, of the devices and of the run, the later ones winning."""
    assert live.active is not None
    slots = live.active.lease.slots
    env = WorkerEnv(
        experiment_id=state.id,
        trial_id=live.id,
        run_id=live.active.run.id,
        run_number=live.active.run.number,
        seed=live.plan.seed,
        hparams=live.plan.hparams,
        config=state.config,
        slot_ids=slots,
        driver=address,
        key=key,
        checkpoint_root=state.checkpoint_root,
        tensorboard_dir=state.view.tensorboard_dir / f"trial-{live.id}",
        spool=state.spool,
        latest_checkpoint=row.latest_checkpoint or row.source_checkpoint,
        steps_completed=live.active.progressed_to,
        slots=max(1, len(slots)),
        chief=LOOPBACK,
        scratch=scratch_of(live.active.run),
        start_timeout=settings.start_timeout,
        warm=row.latest_checkpoint is None and row.source_checkpoint is not None,
    )
    return {**_threads(state, settings), **_user(state, settings), **_devices(settings, slots), **env.variables()}


def run_spec(
    state: State, settings: DriverSettings, active: Active, variables: Mapping[str, str], warm: tuple[str, ...] | None
) -> RunSpec:
    """Return a run as engines take it."""
    entrypoint = state.config.entrypoint or ""
    hosts = hosts_of(state.config) if state.trial_class else []
    return RunSpec(
        run_id=active.run.id,
        entrypoint=entrypoint if isinstance(entrypoint, str) else tuple(entrypoint),
        trial_class=state.trial_class,
        ranks=_ranks(settings, active.lease.slots) if state.trial_class and not hosts else ({},),
        hosts=",".join(f"{host.name}:{host.slots}" for host in hosts),
        agent=settings.agent,
        code_dir=state.store.code_dir(state.id),
        log_dir=active.run.log_dir,
        variables=variables,
        warm=None if active.several else warm,
    )


def _ranks(settings: DriverSettings, slots: tuple[int, ...]) -> tuple[Mapping[str, str], ...]:
    """Return what the environment of each rank has of its own: where it stands, and its device."""
    if len(slots) < 2:
        return ({},)
    size = len(slots)
    return tuple(
        rank_variables(Ranks(rank=rank, size=size, local_rank=rank, local_size=size)) | _devices(settings, (slot,))
        for rank, slot in enumerate(slots)
    )


def _user(state: State, settings: DriverSettings) -> dict[str, str]:
    listed = state.config.environment.environment_variables
    chosen = listed.cuda if settings.gpus else listed.cpu
    return dict(variable.partition("=")[::2] for variable in chosen)


def _devices(settings: DriverSettings, slots: tuple[int, ...]) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ",".join(settings.gpus[s] for s in slots)} if settings.gpus else {}


def _threads(state: State, settings: DriverSettings) -> dict[str, str]:
    """Share the cores among the CPU ranks that may run at once; by the configuration alone, as threads change sums."""
    searcher = state.config.searcher
    slots = max(1, state.config.resources.slots_per_trial)
    ranks = slots if state.trial_class else 1
    concurrent = getattr(searcher, "max_concurrent_trials", None)
    if settings.gpus or settings.threads_chosen or (concurrent is None and ranks == 1):
        return {}
    at_once = 1 if concurrent is None else min(concurrent or settings.slots, max(1, settings.slots // slots))
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // max(1, at_once * ranks)))}
