"""A new experiment: its configuration made complete, its code copied, nothing started."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from det_core.code import copy_code
from det_core.config import ExperimentConfig, to_json

from ..store import Store


def create(store: Store, config: ExperimentConfig, code_dir: Path | None, *, default_name: str = "experiment") -> int:
    """Record an experiment and copy the user's code into the store; return its id.

    What must be fixed from here on is fixed: the seed (the time, where none is given) and the name. When the code cannot
    be copied, nothing is left behind.
    """
    config = _complete(config, default_name)
    searcher = config.searcher
    experiment = store.experiments.create(
        name=config.name or default_name,
        config=to_json(config),
        entrypoint=_shown(config),
        metric=(searcher.metric or "") if searcher else "",
        smaller_is_better=searcher.smaller_is_better if searcher else True,
        description=config.description or "",
        labels=tuple(config.labels),
    )
    try:
        if code_dir is not None:
            copy_code(code_dir, store.code_dir(experiment.id))
        else:
            store.code_dir(experiment.id).mkdir(parents=True, exist_ok=True)
    except BaseException:
        store.experiments.delete(experiment.id)
        raise
    return experiment.id


def _complete(config: ExperimentConfig, default_name: str) -> ExperimentConfig:
    seed = config.reproducibility.experiment_seed
    if seed is None:
        reproducibility = msgspec.structs.replace(config.reproducibility, experiment_seed=int(time.time()) % 2**32)
        config = msgspec.structs.replace(config, reproducibility=reproducibility)
    return config if config.name else msgspec.structs.replace(config, name=default_name)


def _shown(config: ExperimentConfig) -> str:
    entrypoint = config.entrypoint
    return entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint or ())
