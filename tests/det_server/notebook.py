"""A notebook in a home, without its driver: an experiment whose run has a directory for a socket."""

from __future__ import annotations

from pathlib import Path

from det_core.config import to_json
from det_driver.config import load
from det_driver.store import Store
from det_node.task import NOTEBOOK, task_words
from det_server import Users


def add_notebook(home: Path, users: Users, owner: str = "ann") -> tuple[int, Path]:
    """Add a notebook that runs. Return its number and the directory for its socket."""
    entrypoint = task_words(NOTEBOOK, ["unix"], directory=None)
    config = load(
        {
            "name": "notebook",
            "entrypoint": entrypoint,
            "searcher": {"name": "single", "metric": ""},
        }
    ).config
    with Store(home) as store:
        made = store.experiments.create(
            name="notebook", config=to_json(config), metric="", entrypoint=" ".join(entrypoint)
        )
        with store.lock(made.id):
            trial = store.trials.create(made.id, 0, {}, 0)
            run = store.runs.begin(trial.id)
            scratch = run.log_dir / "scratch"
            scratch.mkdir(parents=True)
            store.experiments.update(made.id, state="ACTIVE", started=1.0)
    users.note_owner(owner, made.id, made.created)
    return made.id, scratch
