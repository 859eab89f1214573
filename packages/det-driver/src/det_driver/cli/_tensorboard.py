"""`det tensorboard`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import click

from det_core.errors import DetError

from ._settings import Settings


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("experiment", type=int, nargs=-1, required=True)
@click.option("--port", type=int, help="The port to listen on; TensorBoard's default otherwise.")
@click.option("--logdir", "print_only", is_flag=True, help="Print the directories only.")
@click.pass_obj
def tensorboard(settings: Settings, experiment: tuple[int, ...], port: int | None, print_only: bool) -> None:
    """Open TensorBoard on EXPERIMENTs."""
    with settings.reader() as store:
        places = {store.experiments.get(id).id: store.experiment_dir(id) / "tensorboard" for id in experiment}
    spec = ",".join(f"experiment-{id}:{path}" for id, path in places.items())
    if print_only:
        sys.stdout.write("".join(f"{path}\n" for path in places.values()))
        return
    if find_spec("tensorboard") is None:
        raise DetError("tensorboard is not installed; pip install tensorboard")
    arguments = ["--logdir_spec", spec] if len(places) > 1 else ["--logdir", str(next(iter(places.values())))]
    if port is not None:
        arguments += ["--port", str(port)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tensorboard.main", *arguments])
