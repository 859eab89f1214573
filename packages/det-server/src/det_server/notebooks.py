"""What the server knows of notebooks: whether it can have any, and where one listens."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from det_core.config import ExperimentConfig
from det_core.errors import DetError, StoreError
from det_core.support.installation import how_to_install
from det_driver.store import Store
from det_node import notebook
from det_node.task import NOTEBOOK, find_kind
from det_web.endpoints import NO_STORE, ROOT, failed
from det_web.openapi import takes

MOST_MESSAGE = 32 << 20
"""The longest message of a WebSocket in either direction. Each is held in memory once."""
_LOCAL = "local"
_PACKAGES = ("httpx2", "websockets")


class State(msgspec.Struct):
    """Where a notebook is.

    - `path`: the path on this server, for its owner.
    - `ready`: whether it answers.
    - `waits`: whether it waits for slots.
    """

    path: str
    state: str
    ready: bool
    waits: bool
    reason: str | None


def missing() -> str:
    """Return a sentence if packages are missing that requests for notebooks need, else nothing."""
    if all(importlib.util.find_spec(each) for each in _PACKAGES):
        return ""
    return (
        "this server has no notebooks; where it runs, run:"
        f" {how_to_install('det-server', 'notebook')}, and start it again"
    )


def check(config: ExperimentConfig, engine: str) -> None:
    """Raise DetError for a notebook that this server could not run, or could not pass on."""
    if find_kind(config.entrypoint) != NOTEBOOK:
        return
    if engine != _LOCAL:
        raise DetError(
            f"a notebook runs on the server's machine, and not by {engine}; leave it out"
        )
    if problem := missing():
        raise DetError(problem)
    if not notebook.is_installed():
        raise DetError(f"on this server, {notebook.missing()}")


def find_scratch(home: Path, id: int, name: str = notebook.SOCKET) -> Path | None:
    """Return the directory with the socket of an experiment's notebook, or with another file."""
    with Store.reader(home) as store:
        for trial in store.trials.list(id):
            for run in store.runs.list(trial.id):
                scratch = run.log_dir / "scratch"
                if (scratch / name).exists():
                    return scratch
    return None


def routes(home: Path) -> list[Route]:
    """Return the endpoints for the command line."""

    @takes(response=State)
    def state(request: Request) -> Response:
        """Say where a notebook is, and whether it answers."""
        id = request.path_params["id"]
        try:
            with Store.reader(home) as store:
                found, waiting = store.experiments.get(id), id in store.slots.waiting()
        except StoreError as error:
            return failed(404, str(error))
        if found.task != NOTEBOOK:
            return failed(409, f"experiment {id} is no notebook; det show {id} shows what it is")
        ready = not found.state.ended and find_scratch(home, id, notebook.INFO) is not None
        shown = State(notebook.base_url(id), found.state, ready, waiting, found.reason)
        return Response(msgspec.json.encode(shown), 200, NO_STORE, "application/json")

    return [Route(f"{ROOT}/experiments/{{id:number}}/notebook", state)]
