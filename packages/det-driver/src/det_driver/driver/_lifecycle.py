"""An experiment between its drivers: made, asked of, taken up again; none of it is done by the driver itself."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Unpack

import msgspec

from det_core.code import copy_code
from det_core.config import ExperimentConfig, Single, from_json, to_json
from det_core.distributed import LOOPBACK
from det_core.errors import ExperimentBusy, StoreError
from det_core.launch import address_of_this, addresses, hosts_of
from det_core.plugins import Plugins, extensions_of

from ..config import check_entrypoint
from ..engines import Probe, RunSpec, Site
from ..provenance import gather, write
from ..store import Description, ExperimentState, Store, TrialState, is_shared
from ._environment import DIRECTORY, environments_dir, placed, preparation, solving
from ._garbage import expect_garbage
from ._search import TrialReopened, encode_event
from ._starting import DriverSettings

_POLL_SECONDS = 0.05
_HEARS_SECONDS = 10.0
DESCRIBE, GIVE_UP = "describe", "give up"
_BECOMES = {"pause": ExperimentState.PAUSED, "cancel": ExperimentState.CANCELED, "kill": ExperimentState.CANCELED}


def create(
    store: Store,
    config: ExperimentConfig,
    code_dir: Path | None,
    *,
    default_name: str = "experiment",
    engine: str = "local",
    plugins: Plugins | None = None,
    environments: Path | None = None,
) -> int:
    """Record an experiment and copy the user's code into the store; return its id.

    The environment that it asks for is solved first; `environments` is where those lie. What must be fixed from here on is
    fixed: the seed (the time, where none is given) and the name. When the code cannot be copied, nothing is left behind.
    Raises EntrypointError for an entrypoint that the code shows to be a slip, and ConfigError for an interpreter that is none.
    """
    if code_dir is not None:
        check_entrypoint(config.entrypoint, code_dir)
    fixed = config.reproducibility
    if fixed.experiment_seed is None:
        fixed = msgspec.structs.replace(fixed, experiment_seed=int(time.time()) % 2**32)
    name = config.name or default_name
    config = msgspec.structs.replace(config, reproducibility=fixed, name=name)
    config = placed(config, code_dir, engine)
    root = environments or environments_dir(store.home, {})
    with solving(config, code_dir or Path.cwd(), plugins, root) as solved:
        return _record(store, config, code_dir, solved, engine)


def _record(store: Store, config: ExperimentConfig, code_dir: Path | None, solved: Path | None, engine: str) -> int:
    searcher, entrypoint, origin = config.searcher, config.entrypoint or "", gather(code_dir, config)

    def fill(id: int) -> None:
        copy_code(code_dir, store.code_dir(id)) if code_dir else store.code_dir(id).mkdir()
        write(store.experiment_dir(id), origin)
        if solved:
            shutil.copytree(solved, store.experiment_dir(id) / DIRECTORY)

    return store.experiments.create(
        name=config.name or "",
        config=to_json(config),
        entrypoint=entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint),
        metric=(searcher.metric or "") if searcher else "",
        smaller_is_better=searcher.smaller_is_better if searcher else True,
        description=config.description or "",
        labels=tuple(config.labels),
        engine=engine,
        fill=fill,
    ).id


def reopen(store: Store, experiment_id: int) -> None:
    """Check that an experiment can go on; the failed trial of a single search is taken up again.

    The trials of a search that failed stay as they are, as it went on without them; those that had not ended go on.
    Raises StoreError for an experiment that is completed or canceled, and for a search whose trials have all ended.
    """
    experiment = store.experiments.get(experiment_id)
    if not experiment.state.ended or experiment.state is ExperimentState.ERROR:
        _check_code(store, experiment_id)
    if experiment.state in (ExperimentState.ACTIVE, ExperimentState.PAUSED):
        return
    if experiment.state is not ExperimentState.ERROR:
        raise StoreError(
            f"experiment {experiment_id} is {experiment.state.lower()}; start another from its checkpoints with "
            "searcher.source_trial_id"
        )
    with store.lock(experiment_id), store.transaction():
        trials = store.trials.list(experiment_id)
        single = isinstance(from_json(experiment.config).searcher, Single)
        if trials and not single and all(trial.state.ended for trial in trials):
            raise StoreError(
                f"experiment {experiment_id} is a search whose trials have all ended; mend them and start it again with det run"
            )
        for trial in trials if single else ():
            if trial.state is TrialState.ERROR:
                store.journal.append(experiment_id, encode_event(TrialReopened(trial.request)))
                store.snapshots.forget(experiment_id)  # they have seen its exit
                store.trials.update(trial.id, state=TrialState.PAUSED, restarts=0, ended=None, exit_reason=None)


def _check_code(store: Store, experiment_id: int) -> None:
    place = store.code_dir(experiment_id)
    if not place.is_dir():
        raise StoreError(
            f"the code of experiment {experiment_id} is gone: restore {place}, which it runs, or start it anew"
        )


def ask(store: Store, experiment_id: int, kind: str) -> None:
    """Ask an experiment's driver to `pause`, `cancel` or `kill`; where it has none, it becomes that at once.

    Returns when its driver has heard of it, or has had some seconds to. Raises StoreError for an experiment that has ended.
    """
    deadline = time.monotonic() + _HEARS_SECONDS
    sent = False
    while True:
        try:
            with store.lock(experiment_id):
                _become(store, experiment_id, kind, asked=sent)
                dismiss(store, experiment_id, at_once=kind == "kill")
                return
        except ExperimentBusy:
            pass
        if not sent:
            _check_not_ended(store, experiment_id, kind)
            store.commands.send(experiment_id, kind)
            sent = True
        elif not store.commands.names(experiment_id) or time.monotonic() > deadline:
            return
        time.sleep(_POLL_SECONDS)


def give_up(store: Store, trial_id: int, *, now: bool) -> None:
    """Have a trial's driver end it for good, with a checkpoint or `now`; its search goes on without it.

    Returns when that is decided. Raises StoreError for a trial that has ended, and where nobody drives its experiment.
    """
    trial = store.trials.get(trial_id)
    experiment = trial.experiment_id
    if trial.state.ended:
        raise StoreError(f"trial {trial_id} is {trial.state.lower()} already; nothing is left to cancel")
    if not store.experiments.driven(experiment):
        raise StoreError(
            f"nobody drives experiment {experiment}, which would tell its search of trial {trial_id}; go on with it "
            f"(det resume {experiment}), or end all of it (det cancel {experiment})"
        )
    deadline = time.monotonic() + _HEARS_SECONDS
    store.commands.send(experiment, GIVE_UP, {"trial": trial_id, "now": now})
    while not store.trials.get(trial_id).state.ended:
        if time.monotonic() > deadline:
            raise StoreError(f"the driver of experiment {experiment} does not answer; try again")
        time.sleep(_POLL_SECONDS)


def probe_of(config: ExperimentConfig, plugins: Plugins, code_dir: Path, log_dir: Path, root: Path) -> Probe:
    """Return what other machines are tried for: the storage of a configuration, which is `root` where it names none."""
    names = dict(text.partition("=")[::2] for text in config.environment.environment_variables.cpu)
    variables = {**names, "DET_EXPERIMENT_CONFIG": to_json(config), "DET_CHECKPOINT_ROOT": str(root)}
    spec = RunSpec(run_id=0, entrypoint="", trial_class=False, code_dir=code_dir, log_dir=log_dir, variables=variables)
    return Probe(spec, partial(plugins.storage_of, config, root))


def site_of(store: Store, experiment_id: int, plugins: Plugins, settings: DriverSettings | None = None) -> Site:
    """Return where an experiment's engine works; for a driver, with what its runs need."""
    seen = is_shared(store.home)  # the next driver may be on another machine
    home = hashlib.sha256(f"{'' if seen else os.uname().nodename}:{store.home.resolve()}".encode()).hexdigest()[:8]
    extensions = replace(extensions_of(plugins), open=True)
    config = from_json(store.experiments.get(experiment_id).config, extensions=extensions)
    directory, code, hosts = store.agents_dir(experiment_id), store.code_dir(experiment_id), hosts_of(config)
    return Site(
        name=f"det-{home}-{experiment_id}",
        directory=directory,
        host=address_of_this(hosts, addresses(hosts, None)) if hosts else LOOPBACK,
        lease=settings.lease if settings else 0.0,
        seen=seen,
        settings=config.engine,
        probe=probe_of(config, plugins, code, directory, store.home / "checkpoints"),
        preparation=preparation(store, experiment_id, settings.root) if settings else None,
    )


def dismiss(store: Store, experiment_id: int, *, at_once: bool) -> None:
    """Have what trains for an experiment that has no driver save and end, or end at once."""
    plugins = Plugins.installed()
    engine = plugins.engines().get(store.experiments.get(experiment_id).engine)
    if engine is not None:
        engine.load()(lambda event: None).dismiss(site_of(store, experiment_id, plugins), at_once=at_once)


def _become(store: Store, experiment_id: int, kind: str, *, asked: bool) -> None:
    """Nobody drives the experiment, as this process holds its lock: let it be what was asked for.

    `asked` says that it had a driver, which has been asked.
    """
    with store.transaction():
        heard = asked and not store.commands.take(experiment_id)
        if heard or (asked and store.experiments.get(experiment_id).state.ended):
            return  # it came to an end of its own while it was asked
        _check_not_ended(store, experiment_id, kind)
        state = _BECOMES[kind]
        if state.ended:
            expect_garbage(store, experiment_id)
            for trial in store.trials.list(experiment_id):
                if not trial.state.ended:
                    store.trials.update(trial.id, state=TrialState.CANCELED)
        store.experiments.update(experiment_id, state=state, pid=None, ended=time.time() if state.ended else None)


def _check_not_ended(store: Store, experiment_id: int, kind: str) -> None:
    state = store.experiments.get(experiment_id).state
    if state.ended:
        raise StoreError(f"experiment {experiment_id} is {state.lower()} already; nothing is left to {kind}")


def waits_for(store: Store, experiment_id: int, slots: int) -> str:
    """Say for what an experiment waits whose trials need so many slots each: who holds them, and who asked before.

    Nothing where nobody does either.
    """
    held = {id: len(devices) for id, devices in store.slots.holders().items() if id != experiment_id}
    said = [f"{_named(store, id)} holds {count}" for id, count in held.items()]
    before = takewhile(lambda id: id != experiment_id, store.slots.waiting())
    said += [f"{_named(store, id)} asked before" for id in before if id not in held]
    return f"for {slots} slot{'s' * (slots != 1)}: {', '.join(said)}" if said else ""


def _named(store: Store, experiment_id: int) -> str:
    with suppress(StoreError):
        return f"experiment {experiment_id} ({store.experiments.get(experiment_id).name})"
    return f"experiment {experiment_id}"


def describe(store: Store, experiment_id: int, **changes: Unpack[Description]) -> None:
    """Change what an experiment is called and what is said of it; where it is driven, its driver does it."""
    deadline = time.monotonic() + _HEARS_SECONDS
    try:
        store.experiments.update(experiment_id, **changes)
    except ExperimentBusy:
        store.commands.send(experiment_id, DESCRIBE, {**changes})
        while store.commands.names(experiment_id):
            if time.monotonic() > deadline:
                raise StoreError(f"the driver of experiment {experiment_id} does not answer; try again") from None
            time.sleep(_POLL_SECONDS)
