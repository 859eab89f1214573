"""A trial out of a checkpoint, to be used rather than trained."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from det_core import CheckpointError, DistributedContext, Plugins, RunInfo, import_from_path, load_trial
from det_core.config import ExperimentConfig

from . import snapshot
from .adapter import build_trial
from .context import LightningTrialContext
from .trial import LightningAdapter

_FACTS = "load_data.json"


def load_trial_from_checkpoint_path(
    path: str | Path, trial_class: type[LightningAdapter] | None = None, **kwargs: Any
) -> LightningAdapter:
    """Return the trial of the checkpoint in the directory `path`, its module with the weights, on the CPU.

    The class is imported from the checkpoint's own `code/`, unless `trial_class` gives it; keywords go to its constructor.
    Nothing is unpickled. Raises CheckpointError for a directory that holds no checkpoint, or one of another trial.
    """
    directory = Path(path)
    checkpoint, _ = snapshot.read(directory)
    facts = _facts(directory)
    code = directory / "code"
    with import_from_path(code) if trial_class is None and code.is_dir() else nullcontext():
        chosen = trial_class or load_trial(str(facts.get("trial_cls_spec", "")), code)
        if not issubclass(chosen, LightningAdapter):
            raise CheckpointError(
                f"{chosen.__qualname__} is no LightningAdapter; give the trial_class of the checkpoint"
            )
        trial = build_trial(chosen, _context(facts), **kwargs)
    try:
        trial.lightning_module.load_state_dict(checkpoint["state_dict"])
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{directory} does not fit {chosen.__name__}: {reason}; give the trial_class that the checkpoint is of"
        ) from error
    return trial


def _facts(directory: Path) -> dict[str, Any]:
    file = directory / _FACTS
    try:
        facts: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}; name the directory of a checkpoint") from error
    return facts


def _context(facts: dict[str, Any]) -> LightningTrialContext:
    run = RunInfo(
        config=ExperimentConfig(),
        hparams=facts.get("hparams") or {},
        seed=facts.get("trial_seed") or 0,
        build=Plugins().build("lightning"),
        distributed=DistributedContext(),
    )
    return LightningTrialContext(run, managed=False)
