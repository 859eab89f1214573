"""What other processes do with an experiment: create, command, describe and resume it.

The driver itself uses none of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

import msgspec

from det_core.checkpoint.code import copy_code
from det_core.config import (
    ExperimentConfig,
    Single,
    find_secrets,
    from_json,
    masked,
    masked_hparams,
    to_json,
)
from det_core.errors import (
    ConfigError,
    DetError,
    ExperimentBusy,
    StoreError,
    StoreUnwritable,
    did_you_mean,
)
from det_core.hooks import Plugins, extensions_of
from det_core.ranks.distributed import LOOPBACK
from det_node.launch import address_of_this, addresses, hosts_of, say

from ..accounts import AccountMissing, check_allowed, check_owner, runs_as_users
from ..config import check_entrypoint, check_syntax
from ..engines import (
    AccountEngine,
    Engine,
    EngineContext,
    Probe,
    RunSpec,
    make_own,
    write_own,
)
from ..provenance import gather, read, replaced, user_in, write
from ..search import Exit
from ..space import Expression
from ..store import (
    DESCRIBE_COMMAND,
    JOURNAL,
    NO_JOURNAL,
    CheckpointState,
    Description,
    ExperimentState,
    QueueView,
    Store,
    TrialState,
    account_in,
    check_trusted,
    dump,
    is_shared,
    is_trusted,
    missing_secrets,
    trust,
)
from ._earlier import begin_search, check_earlier
from ._environment import DIRECTORY, environments_dir, placed, preparation, solving
from ._garbage import expect_garbage
from ._search import (
    JournaledSearch,
    SearchEvent,
    SearchStarted,
    SearchSteered,
    TrialExited,
    TrialReopened,
    decode_event,
    encode_event,
    read_steering,
    searcher_of,
)
from ._starting import DriverSettings
from ._state import State

_POLL_SECONDS = 0.05
_MOST_REASONS = 3
_READ_SECONDS = 10.0
_MOST_REPORTS = 1000
_SITE_NAME = re.compile(r"det-[0-9a-f]{8}-\d+")
CANCEL_TRIAL, STEER = "give up", "steer"
_BECOMES = {
    "pause": ExperimentState.PAUSED,
    "cancel": ExperimentState.CANCELED,
    "kill": ExperimentState.CANCELED,
}


def create(
    store: Store,
    config: ExperimentConfig,
    code_dir: Path | None,
    *,
    default_name: str = "experiment",
    engine: str = "local",
    plugins: Plugins | None = None,
    environments: Path | None = None,
    origin: Mapping[str, Any] = MappingProxyType({}),
    paused: bool = False,
) -> int:
    """Record an experiment, and copy the user's code into the store. Return its id.

    Its state is PAUSED or ACTIVE. No driver is started.

    The environment that the configuration asks for is solved first. `environments` is the directory
    of environments. `origin` replaces what is known here of the experiment's origin. The seed (the
    time, where none is given) and the name are fixed. If the code cannot be copied, nothing is left
    behind.

    - EntrypointError: the code shows that the entrypoint is wrong.
    - ConfigError: the interpreter cannot be used.
    """
    if runs_as_users(store.home):
        # Nothing that the configuration names has been executed yet.
        check_allowed(config, engine)
        check_owner(store.home, user_in(origin))
    if code_dir is not None:
        check_entrypoint(config.entrypoint, code_dir)
    fixed = config.reproducibility
    if fixed.experiment_seed is None:
        fixed = msgspec.structs.replace(fixed, experiment_seed=int(time.time()) % 2**32)
    name = config.name or default_name
    config = msgspec.structs.replace(config, reproducibility=fixed, name=name)
    check_earlier(store, config)
    config = placed(config, code_dir, engine)
    root = environments or environments_dir(store.home, {})
    with solving(config, code_dir or Path.cwd(), plugins, root) as solved:
        return _record(store, config, code_dir, solved, engine, origin, paused=paused)


def _record(
    store: Store,
    config: ExperimentConfig,
    code_dir: Path | None,
    solved: Path | None,
    engine: str,
    known: Mapping[str, Any],
    *,
    paused: bool,
) -> int:
    searcher, shown = config.searcher, masked(config)
    entrypoint = shown["entrypoint"] or ""
    # git runs what the .git of code names. Code of someone else comes with its `git`.
    origin = {**gather(None if "git" in known else code_dir, config), **known}

    def fill(id: int) -> None:
        copy_code(code_dir, store.code_dir(id)) if code_dir else store.code_dir(id).mkdir()
        write(store.experiment_dir(id), origin)
        if solved:
            shutil.copytree(solved, store.experiment_dir(id) / DIRECTORY)

    return store.experiments.create(
        name=shown["name"] or "",
        config=json.dumps(shown, allow_nan=False),
        secrets=find_secrets(config),
        entrypoint=entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint),
        metric=(searcher.metric or "") if searcher else "",
        smaller_is_better=searcher.smaller_is_better if searcher else True,
        description=shown["description"] or "",
        labels=shown["labels"],
        engine=engine,
        state=ExperimentState.PAUSED if paused else ExperimentState.ACTIVE,
        fill=fill,
    ).id


def reopen(store: Store, experiment_id: int) -> None:
    """Check that an experiment can continue, and reopen the failed trial of a single search.

    Failed trials of other searches stay as they are, because the search continued without them.
    Trials that had not ended continue. The code of an import may run from here on.

    StoreError: the experiment is completed or canceled, or all trials of its search have ended.
    """
    _reopen(store, experiment_id)
    trust(store, experiment_id)


def _reopen(store: Store, experiment_id: int) -> None:
    experiment = store.experiments.get(experiment_id)
    if experiment.state is ExperimentState.COMPLETED and store.commands.names(experiment_id):
        _take_late_changes(store, experiment_id)
        experiment = store.experiments.get(experiment_id)
    if not experiment.state.ended or experiment.state is ExperimentState.ERROR:
        if experiment.journal == NO_JOURNAL:
            if experiment.outside:
                raise StoreError(
                    f"det did not start the script of experiment {experiment_id}, and cannot resume"
                    " it; run the script again, with the same core.UnmanagedConfig where it"
                    " continues its trial"
                )
            raise StoreError(
                f"experiment {experiment_id} is the history of another system, without the"
                " decisions of its search, and cannot go on; copy its checkpoints (det migrate"
                f" checkpoints {experiment_id}), and start another from them with"
                " searcher.source_trial_id"
            )
        _check_code(store, experiment_id)
        lacking = [
            name
            for name in missing_secrets(store.experiments.config(experiment_id))
            if not os.environ.get(name)
        ]
        if lacking:
            raise StoreError(
                f"experiment {experiment_id} came without its secrets, as every export does: set"
                f" {', '.join(lacking)} in the environment where they are variables; with other"
                " keys, run its configuration again: det run"
            )
    if experiment.state in (ExperimentState.ACTIVE, ExperimentState.PAUSED):
        return
    if experiment.state is not ExperimentState.ERROR:
        raise StoreError(
            f"experiment {experiment_id} is {experiment.state.lower()}; start another from its"
            " checkpoints with searcher.source_trial_id"
        )
    with store.lock(experiment_id), store.transaction():
        trials = store.trials.list(experiment_id)
        single = isinstance(from_json(experiment.config).searcher, Single)
        if trials and not single and all(trial.state.ended for trial in trials):
            raise StoreError(
                f"experiment {experiment_id} is a search whose trials have all ended; mend them and"
                " start it again with det run"
            )
        for trial in trials if single else ():
            if trial.state is TrialState.ERROR:
                store.journal.append(experiment_id, encode_event(TrialReopened(trial.request)))
                # The snapshots include its exit.
                store.snapshots.forget(experiment_id)
                store.trials.update(
                    trial.id, state=TrialState.PAUSED, restarts=0, ended=None, exit_reason=None
                )


def begin_journal(
    store: Store, experiment_id: int, config: ExperimentConfig, plugins: Plugins
) -> None:
    """Give an experiment that was trained elsewhere a journal, so that its only trial can go on.

    The caller holds the experiment's lock. The trial gets the seed that the searcher gives it.
    Raises StoreError for an experiment that
    has ended well, that has several trials, or whose searcher would not make this trial.
    """
    experiment, trials = store.experiments.get(experiment_id), store.trials.list(experiment_id)
    if experiment.state not in (ExperimentState.PAUSED, ExperimentState.ERROR):
        raise StoreError(f"experiment {experiment_id} is {experiment.state.lower()}")
    if len(trials) != 1 or not isinstance(config.searcher, Single):
        raise StoreError(f"experiment {experiment_id} is a search, whose decisions nobody knows")
    [trial] = trials
    if trial.state not in (TrialState.PAUSED, TrialState.ERROR):
        raise StoreError(f"trial {trial.id} is {trial.state.lower()}")
    search = JournaledSearch(searcher_of(config, plugins, store.code_dir(experiment_id)))
    search.apply(SearchStarted())
    plan = search.plans[0]
    hparams = masked_hparams(plan.hparams, config)
    if hparams != masked_hparams(trial.hparams, config):
        raise StoreError(f"trial {trial.id} has other hyperparameters than its configuration gives")
    events: list[SearchEvent] = [SearchStarted()]
    if trial.state is TrialState.ERROR:
        events.append(TrialExited(0, Exit.ERRORED))
    with store.transaction():
        for event in events:
            store.journal.append(experiment_id, encode_event(event))
        # The replay compares the text, so the order of the keys counts.
        store.trials.update(trial.id, seed=plan.seed, hparams=dump(hparams))
        store.experiments.update(experiment_id, journal=JOURNAL)


def replace_code(store: Store, experiment_id: int, code_dir: Path) -> None:
    """Replace the code of an experiment that no driver holds.

    The digest of the new code and the changes are recorded.

    - EntrypointError: the code shows that the entrypoint is wrong, or a file does not compile.
    - ExperimentBusy: a driver holds the experiment.
    """
    config = store.experiments.config(experiment_id)
    check_entrypoint(config.entrypoint, code_dir)
    directory, place = store.experiment_dir(experiment_id), store.code_dir(experiment_id)
    # Another Python may have another syntax.
    if not (config.environment.python or config.environment.container):
        check_syntax(code_dir, place)
    with store.lock(experiment_id):
        new, old = directory / ".code-new", directory / ".code-old"
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
        new.mkdir()
        copy_code(code_dir, new)
        origin = replaced(read(directory), place, new, config)
        place.rename(old)
        new.rename(place)
        write(directory, origin)
        shutil.rmtree(old, ignore_errors=True)


def resume_from_checkpoint(
    store: Store, experiment_id: int, uuid: str, trial_id: int | None = None
) -> None:
    """Continue a trial from one of its checkpoints, and not from its latest one.

    `uuid` may be the beginning of a uuid.

    StoreError: the checkpoint belongs to another trial or experiment or is deleted, or the trial
    has ended.
    """
    found = store.checkpoints.get(uuid)
    trial = store.trials.get(found.trial_id)
    where = f"checkpoint {found.uuid} is of trial {trial.id} of experiment {trial.experiment_id}"
    if trial.experiment_id != experiment_id or trial_id not in (None, trial.id):
        raise StoreError(
            f"{where}; det checkpoint list {experiment_id} shows those of experiment"
            f" {experiment_id}"
        )
    if found.state not in (CheckpointState.COMPLETED, CheckpointState.DAMAGED):
        raise StoreError(
            f"{where}, and its files are deleted; det checkpoint list {experiment_id} shows those"
            " that are left"
        )
    with store.lock(experiment_id):
        if store.trials.get(trial.id).state.ended:
            raise StoreError(
                f"{where}, which is {trial.state.lower()}, and its search went on without it; start"
                " another one from it with searcher.source_checkpoint_uuid"
            )
        store.checkpoints.make_latest(found.uuid)


def _check_code(store: Store, experiment_id: int) -> None:
    place = store.code_dir(experiment_id)
    if not place.is_dir():
        raise StoreError(
            f"the code of experiment {experiment_id} is gone: restore {place}, which it runs, or"
            " start it again"
        )


def send_command(store: Store, experiment_id: int, kind: str) -> None:
    """Send `pause`, `cancel` or `kill` to an experiment's driver, or apply it where there is none.

    Returns when the driver has read it, or after some seconds. StoreError: the experiment has
    ended.
    """
    deadline = time.monotonic() + _READ_SECONDS
    sent = False
    _check_managed(store, experiment_id, kind)
    while True:
        try:
            with store.lock(experiment_id):
                _apply_command(store, experiment_id, kind, asked=sent)
                stop_detached(store, experiment_id, at_once=kind == "kill")
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


def cancel_trial(store: Store, trial_id: int, *, now: bool) -> None:
    """Have a trial's driver cancel it, with a checkpoint or `now`. Its search continues without it.

    Returns when that is decided. StoreError: the trial has ended, or its experiment has no driver.
    """
    trial = store.trials.get(trial_id)
    experiment = trial.experiment_id
    if trial.state.ended:
        raise StoreError(
            f"trial {trial_id} is {trial.state.lower()} already; nothing is left to cancel"
        )
    _check_managed(store, experiment, "cancel")
    if not store.experiments.driven(experiment):
        raise StoreError(
            f"nobody drives experiment {experiment}, which would tell its search of trial"
            f" {trial_id}; go on with it (det resume {experiment}), or end all of it (det cancel"
            f" {experiment})"
        )
    deadline = time.monotonic() + _READ_SECONDS
    store.commands.send(experiment, CANCEL_TRIAL, {"trial": trial_id, "now": now})
    while not store.trials.get(trial_id).state.ended:
        if time.monotonic() > deadline:
            raise StoreError(f"the driver of experiment {experiment} does not answer; try again")
        time.sleep(_POLL_SECONDS)


def steer(store: Store, experiment_id: int, event: SearchSteered, plugins: Plugins) -> None:
    """Change a search, through its driver if it has one, and return when that is in the journal.

    A completed search that gets more trials becomes paused, so that it can be resumed.

    - ConfigError: the search cannot do that.
    - StoreError: the experiment was canceled, is no search, has ended meanwhile, or is an import
      that is not trusted, or its driver refuses. If the driver does not answer, the change waits
      for it, or for the next one.
    """
    check_trusted(store, experiment_id)
    _check_steerable(store, experiment_id, event)
    deadline, sent = time.monotonic() + _READ_SECONDS, False
    before = _count_events(store, experiment_id, event)
    while True:
        try:
            with store.lock(experiment_id), store.transaction():
                # The driver may have ended before it took the command.
                left = store.commands.take(experiment_id, STEER) if sent else ()
                asked = [read_steering(each.args) for each in left]
                for each in asked if sent else [event]:
                    _check_steerable(store, experiment_id, each)
                    _steer(store, experiment_id, each, plugins)
        except ExperimentBusy:
            pass
        else:
            break
        if not sent:
            # What the search refuses is reported here, and not where the driver runs.
            with store.transaction():
                search = State(store, experiment_id, plugins).search
                if not search.plans:
                    search.apply(SearchStarted())
                search.apply(event)
            store.commands.send(experiment_id, STEER, msgspec.to_builtins(event))
            sent = True
        elif not store.commands.names(experiment_id):
            break
        elif time.monotonic() > deadline:
            raise StoreError(
                f"the driver of experiment {experiment_id} does not answer; the change waits for"
                f" it, or for the next det resume {experiment_id}"
            )
        time.sleep(_POLL_SECONDS)
    if _count_events(store, experiment_id, event) == before:
        raise StoreError(
            f"the driver of experiment {experiment_id} refuses the change, and says why in its"
            " output; nothing has changed"
        )


def _count_events(store: Store, experiment_id: int, event: SearchSteered) -> int:
    steered = store.journal.read(experiment_id, having='"steered"')
    return sum(decode_event(each.data) == event for each in steered)


def _take_late_changes(store: Store, experiment_id: int) -> None:
    """Apply what `det search` asked of a search that completed before its driver read that."""
    plugins = Plugins.installed()
    with store.lock(experiment_id), store.transaction():
        for command in store.commands.take(experiment_id, STEER):
            try:
                _steer(store, experiment_id, read_steering(command.args), plugins)
            except StoreUnwritable:
                raise
            except DetError as error:
                say(f"experiment {experiment_id} refuses a change by det search: {error}")


def _check_steerable(store: Store, experiment_id: int, event: SearchSteered) -> None:
    experiment = store.experiments.get(experiment_id)
    config = store.experiments.config(experiment_id)
    if isinstance(config.searcher, Single) and event.changes_search:
        raise StoreError(
            f"experiment {experiment_id} has one trial and is no search; start one with det run"
        )
    if experiment.state is ExperimentState.CANCELED or experiment.journal == NO_JOURNAL:
        what = (
            "was canceled"
            if experiment.journal != NO_JOURNAL
            else "is a script that det did not start"
            if experiment.outside
            else "is the history of another system"
        )
        raise StoreError(
            f"experiment {experiment_id} {what} and cannot go on; start another with det run"
        )
    if experiment.state is ExperimentState.COMPLETED and not (event.add_trials or event.enqueue):
        way_out = "; give it more trials, with --add-trials or --enqueue"
        if isinstance(config.searcher, Single):
            way_out = " and needs no slots any more"
        raise StoreError(f"experiment {experiment_id} is completed{way_out}")
    if event.stop_when is not None:
        _check_metrics(store, experiment_id, event.stop_when)
    each = config.resources.slots_per_trial
    if event.max_slots and event.max_slots < each:
        raise StoreError(
            f"resources.slots_per_trial is {each}, and max-slots is {event.max_slots}; no trial"
            " could ever run"
        )


def _check_metrics(store: Store, experiment_id: int, condition: str) -> None:
    """Raise ConfigError if a condition names a metric that no validation has reported so far."""
    reports = store.metrics.read(experiment_id=experiment_id, group="validation")
    known = {name for report in islice(reports, _MOST_REPORTS) for name in report.values}
    # The search itself says what else is wrong with the condition.
    with suppress(ValueError):
        unknown = {
            name for name in Expression(condition).names if name.partition(".")[0] not in known
        }
        if known and unknown:
            name = min(unknown)
            way_out = did_you_mean(name, known) or f"; known: {', '.join(sorted(known))}"
            raise ConfigError(
                f"the condition to stop is {condition!r}: no validation reports {name!r}{way_out}"
            )


def _steer(store: Store, experiment_id: int, event: SearchSteered, plugins: Plugins) -> None:
    state = State(store, experiment_id, plugins)
    with state.transaction():
        begin_search(state)
        state.append_event(event)
        for live in state.open.values():
            if not live.begun and not live.plan.closed:
                state.set_waiting(live, TrialState.PAUSED)
        if state.open and store.experiments.get(experiment_id).state is ExperimentState.COMPLETED:
            store.experiments.update(
                experiment_id, state=ExperimentState.PAUSED, progress=state.progress
            )


def make_probe(
    config: ExperimentConfig, plugins: Plugins, code_dir: Path, log_dir: Path, root: Path
) -> Probe:
    """Return what other nodes are checked for: the configured storage, by default `root`."""
    names = dict(text.partition("=")[::2] for text in config.environment.environment_variables.cpu)
    variables = {
        **names,
        "DET_EXPERIMENT_CONFIG": to_json(config),
        "DET_CHECKPOINT_ROOT": str(root),
    }
    spec = RunSpec(
        run_id=0,
        entrypoint="",
        trial_class=False,
        code_dir=code_dir,
        log_dir=log_dir,
        variables=variables,
    )
    return Probe(spec, partial(plugins.storage_of, config, root))


def engine_context(
    store: Store, experiment_id: int, plugins: Plugins, settings: DriverSettings | None = None
) -> EngineContext:
    """Return the context of an experiment's engine. A driver's `settings` add what runs need."""
    # The next driver may be on another host.
    seen = is_shared(store.home)
    extensions = replace(extensions_of(plugins), open=True)
    config = store.experiments.config(experiment_id, extensions)
    account = account_in(store, experiment_id)
    directory, code, hosts = (
        store.agents_dir(experiment_id),
        store.code_dir(experiment_id),
        hosts_of(config),
    )
    # A command or a shell has no checkpoints, so its nodes need not see their storage.
    probe = (
        None
        if store.experiments.get(experiment_id).task
        else make_probe(config, plugins, code, directory, store.home / "checkpoints")
    )
    return EngineContext(
        name=_site_name(store, experiment_id, seen=seen, note=settings is not None),
        directory=directory,
        host=address_of_this(hosts, addresses(hosts, None)) if hosts else LOOPBACK,
        lease=settings.lease if settings else 0.0,
        seen=seen,
        settings=config.engine,
        # The user's own rights tell what is wrong with a storage, when a run begins.
        probe=None if account else probe,
        preparation=preparation(store, experiment_id, settings.root)
        if settings and not account
        else None,
        account=account,
        runs=_open_runs(store, experiment_id) if account else {},
        devices=settings.devices() if settings and account else (),
    )


def _open_runs(store: Store, experiment_id: int) -> dict[int, tuple[Path, Path]]:
    """Return the directories of logs and of event files of the runs without a recorded end."""
    events = store.experiment_dir(experiment_id) / "tensorboard"
    return {
        run.id: (run.log_dir, events / f"trial-{run.trial_id}")
        for run in store.runs.open(experiment_id)
    }


def engine_named(home: Path, name: str, plugins: Plugins) -> Callable[[Any], Engine]:
    """Return what makes an engine, for a home whose code may run as the users of this machine.

    Raises DetError for an engine that such a home cannot have.
    """
    if not runs_as_users(home):
        found: Callable[[Any], Engine] = plugins.engines()[name].load()
        return found
    if name != "local":
        raise DetError(
            f"code in {home} runs as the users of this machine, which the engine {name} does not do"
        )
    return AccountEngine


def _site_name(store: Store, experiment_id: int, *, seen: bool, note: bool) -> str:
    """Return the name in an experiment's allocation requests, which its first driver has recorded.

    It lets a driver on another host find the allocations of an earlier one, where det does not know
    that several hosts use the home. The directory's inode is recorded too, because a copy of the
    experiment is another experiment.
    """
    directory = store.agents_dir(experiment_id)
    file = directory / "site"
    with suppress(OSError, ValueError):
        inode, name = file.read_text(encoding="utf-8").split()
        if int(inode) == directory.stat().st_ino and _SITE_NAME.fullmatch(name):
            return name
    machine = "" if seen else os.uname().nodename
    home = hashlib.sha256(f"{machine}:{store.home.resolve()}".encode()).hexdigest()[:8]
    name = f"det-{home}-{experiment_id}"
    if note:
        make_own(directory)
        write_own(file, f"{directory.stat().st_ino} {name}")
    return name


def stop_detached(store: Store, experiment_id: int, *, at_once: bool) -> None:
    """End the runs of an experiment that has no driver, after they have saved or at once."""
    if not is_trusted(store, experiment_id):
        # It has no runs here, and its engine may be anything.
        return
    plugins = Plugins.installed()
    name = store.experiments.get(experiment_id).engine
    if name in plugins.engines():
        try:
            context = engine_context(store, experiment_id, plugins)
        except AccountMissing:
            # Nobody can reach its runs any more. They end with the lease of their agent.
            return
        stopped = engine_named(store.home, name, plugins)(lambda event: None).stop_detached(
            context, at_once=at_once
        )
        if stopped:
            store.slots.end_fenced(experiment_id)


def _apply_command(store: Store, experiment_id: int, kind: str, *, asked: bool) -> None:
    """Apply a command to an experiment that has no driver, as this process holds its lock.

    `asked`: it had a driver, to which the command was sent.
    """
    with store.transaction():
        handled = asked and not store.commands.take(experiment_id)
        if handled or (asked and store.experiments.get(experiment_id).state.ended):
            # The driver has read the command, or the experiment has ended meanwhile.
            return
        _check_not_ended(store, experiment_id, kind)
        state = _BECOMES[kind]
        if state.ended:
            expect_garbage(store, experiment_id)
            for trial in store.trials.list(experiment_id):
                if not trial.state.ended:
                    store.trials.update(trial.id, state=TrialState.CANCELED)
        store.experiments.update(
            experiment_id, state=state, pid=None, ended=time.time() if state.ended else None
        )


def _check_managed(store: Store, experiment_id: int, kind: str) -> None:
    """Raise StoreError for a script that det did not start. A killed one can be canceled."""
    experiment = store.experiments.get(experiment_id)
    if not experiment.outside or experiment.state.ended:
        return
    if store.experiments.driven(experiment_id):
        open_runs = store.runs.open(experiment_id)
        hosts = sorted({each.host for each in open_runs if each.host} - {os.uname().nodename})
        raise StoreError(
            f"det did not start the script of experiment {experiment_id}, and cannot {kind} it; end"
            f" its process yourself: {f'on {hosts[0]}' if hosts else experiment.pid}"
        )
    if kind == "pause":
        raise StoreError(experiment.abandoned)


def _check_not_ended(store: Store, experiment_id: int, kind: str) -> None:
    state = store.experiments.get(experiment_id).state
    if state.ended:
        raise StoreError(
            f"experiment {experiment_id} is {state.lower()} already; nothing is left to {kind}"
        )


def waits_for(store: Store, experiment_id: int, slots: int, queue: QueueView | None = None) -> str:
    """Return what an experiment waits for whose trials need `slots` slots each, or "".

    The text gives the numbers of the experiments that hold slots, and of those that go before it,
    three at most. Not everybody who reads it may know their names. `queue` is what
    `store.slots.queue()` has returned, for callers that ask for many experiments.
    """
    queue = store.slots.queue() if queue is None else queue
    mine = next((each for each in queue.waiting if each.experiment == experiment_id), None)
    usable = None if mine is None else {*mine.devices}
    held = Counter[int]()
    for holding in queue.holding:
        if holding.experiment != experiment_id:
            held[holding.experiment] += sum(
                usable is None or device in usable for device in holding.devices
            )
    reasons = [(id, f"holds {count}") for id, count in sorted(held.items()) if count]
    for each in takewhile(lambda each: each is not mine, queue.waiting):
        if not held[each.experiment] and (usable is None or not usable.isdisjoint(each.devices)):
            better = mine is not None and each.priority < mine.priority
            why = f"has priority {each.priority}" if better else "asked before"
            reasons.append((each.experiment, why))
    # Of hundreds the text would be too long to read, and each change a long line in a log.
    named = [f"experiment {id} {why}" for id, why in reasons[:_MOST_REASONS]]
    if left := len(reasons) - len(named):
        named.append(f"and {left} more experiment{'s' * (left > 1)}")
    return f"for {slots} slot{'s' * (slots != 1)}: {', '.join(named)}" if named else ""


def describe(store: Store, experiment_id: int, **changes: Unpack[Description]) -> None:
    """Change an experiment's name and description, through its driver if it has one."""
    deadline = time.monotonic() + _READ_SECONDS
    try:
        store.experiments.update(experiment_id, **changes)
    except ExperimentBusy:
        store.commands.send(experiment_id, DESCRIBE_COMMAND, {**changes})
        while store.commands.names(experiment_id):
            if time.monotonic() > deadline:
                raise StoreError(
                    f"the driver of experiment {experiment_id} does not answer; try again"
                ) from None
            time.sleep(_POLL_SECONDS)
