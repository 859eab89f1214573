"""Scripts that det did not start: what they say of themselves, and the record of their run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..checkpoint.manifest import Manifest
from ..config import ExperimentConfig, from_json
from ..errors import ArgumentError
from ..hooks.recording import OutsideRun, Recording, find_recorder
from ..ranks.distributed import DistributedContext
from ..train import arguments as check
from ..train.host import DriverHost, Outcome, Target
from ..train.local import LocalHost, print_report

_RANKS = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "HOROVOD_RANK",
    "SLURM_PROCID",
)
"""Variables in which launchers give a process its rank."""


@dataclass(frozen=True, kw_only=True)
class DefaultConfig:
    """The configuration of a script that det did not start. `det run` has its own, and ignores it.

    - `name`: the experiment's name, by default that of the script's file.
    - `hparams`: the hyperparameters, for `context.info.trial.hparams` and comparisons.
    - `data`: settings of your own, `context.info.user_data`.
    - `searcher`: names the metric by which checkpoints and experiments are compared:
      `{"metric": "error", "smaller_is_better": True}`.
    """

    name: str | None = None
    description: str | None = None
    labels: Sequence[str] = ()
    hparams: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    searcher: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class UnmanagedConfig:
    """Identifies a script that det did not start, so that a restarted one continues its trial.

    - `external_experiment_id`: runs with the same text belong to the same experiment of the home.
    - `external_trial_id`: runs with both texts the same continue the same trial. Without it, each
      run is another trial.

    Raises ArgumentError for an `external_trial_id` alone.
    """

    external_experiment_id: str | None = None
    external_trial_id: str | None = None
    workspace: str | None = None
    project: str | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                check.text("UnmanagedConfig", name, value)
        if self.external_trial_id is not None and self.external_experiment_id is None:
            raise check.refuse(
                "UnmanagedConfig",
                "external_trial_id",
                self.external_trial_id,
                "external_experiment_id, too, the experiment that the trial belongs to",
            )


class OutsideHost(LocalHost, DriverHost):
    """Replaces the driver: prints reports, records them, and has one operation of length 1."""

    def __init__(self, config: ExperimentConfig, recording: Recording | None) -> None:
        searcher = config.searcher
        super().__init__(
            Target(n=1, unit="epochs"),
            metric=searcher.metric if searcher else None,
            smaller_is_better=searcher.smaller_is_better if searcher else True,
            listener=print_report,
        )
        self._recording = recording

    def completed(self, batches: int, metrics: Any, length: int) -> Target:
        self._target = Target(n=None)
        return self._target

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        super().report(group, batches, metrics)
        if self._recording:
            self._recording.report(group, batches, metrics)

    def checkpointed(self, manifest: Manifest, storage: str) -> None:
        super().checkpointed(manifest, storage)
        if self._recording:
            self._recording.checkpointed(manifest, storage)

    def deleted(self, uuid: str) -> None:
        if self._recording:
            self._recording.deleted(uuid)

    def progress(self, fraction: float) -> None:
        if self._recording:
            self._recording.progress(fraction)

    def notice(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"det: {text}\n")

    def finished(
        self,
        outcome: Outcome,
        message: str = "",
        traceback: str = "",
        *,
        wait: bool = True,
        **facts: Any,
    ) -> None:
        super().finished(outcome, message)
        if self._recording:
            self._recording.finished(outcome, message, traceback)

    def close(self) -> None:
        if self._recording:
            self._recording.close()


def script_run(
    home: Path, defaults: DefaultConfig | None, unmanaged: UnmanagedConfig | None
) -> OutsideRun:
    """Return the run of this process's script. Raises ArgumentError for what JSON cannot hold."""
    for name, value, kind in (
        ("defaults", defaults, DefaultConfig),
        ("unmanaged", unmanaged, UnmanagedConfig),
    ):
        if value is not None and not isinstance(value, kind):
            raise check.refuse("core.init", name, value, f"a core.{kind.__name__}, or None")
    given, ids = defaults or DefaultConfig(), unmanaged or UnmanagedConfig()
    script = Path(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c", "-m") else None
    hparams, searcher = _json("hparams", given.hparams), _json("searcher", given.searcher)
    config = from_json(
        json.dumps(
            {
                "name": given.name or (script.stem if script else "script"),
                "description": given.description,
                "labels": list(given.labels),
                "data": _json("data", given.data),
                "entrypoint": f"python3 {script.name}" if script else "python3",
                "hyperparameters": {name: _constant(each) for name, each in hparams.items()},
                **({"searcher": {**searcher, "name": "single"}} if searcher else {}),
                "workspace": ids.workspace or "",
                "project": ids.project or "",
            }
        )
    )
    return OutsideRun(
        home=home,
        config=config,
        hparams=hparams,
        script=script if script and script.is_file() else None,
        experiment=ids.external_experiment_id,
        trial=ids.external_trial_id,
    )


def _json(name: str, value: Any) -> dict[str, Any]:
    """Return a dict as JSON holds it, which is how it is read again."""
    given = check.mapping("DefaultConfig", name, value)
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(given), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise check.refuse("DefaultConfig", name, value, f"what JSON can hold ({error})") from None
    return plain


def _constant(value: Any) -> Any:
    """Return a value of a script as a configuration has it, where a dict may be a range."""
    return {"type": "const", "val": value} if isinstance(value, dict) else value


def begin_recording(run: OutsideRun, distributed: DistributedContext | None) -> Recording | None:
    """Begin the record of a run, unless it is switched off or this is not its chief.

    Without `distributed`, the variables of a launcher say whether it is the chief.
    """
    switch = os.environ.get("DET_RECORD", "1")
    if os.path.isabs(switch):
        # A directory that is copied to where det sync can send it.
        run = replace(run, home=Path(switch), offline=True)
    elif switch == "offline":
        run = replace(run, offline=True)
    elif switch not in ("0", "1"):
        raise ArgumentError(
            f"DET_RECORD is {switch!r}; give 0, 1, offline, or the absolute path of a directory"
        )
    is_chief = (
        distributed.rank == 0
        if distributed is not None
        else all(os.environ.get(name, "0") == "0" for name in _RANKS)
    )
    if switch == "0" or not is_chief:
        return None
    try:
        recorder = find_recorder()
    except Exception as error:
        # Such as a Python without SQLite. The script needs no record.
        with suppress(OSError, ValueError):
            sys.stderr.write(f"det: this run is not recorded: {error}; it goes on\n")
        return None
    return recorder.record(run) if recorder else None
