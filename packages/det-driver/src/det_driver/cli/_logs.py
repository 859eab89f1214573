"""What training wrote besides its metrics: `det logs` and `det tensorboard`."""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import click

from det_core.errors import DetError, StoreError

from ..store import Store
from ._settings import Settings


@click.command()
@click.argument("experiment", type=int)
@click.option("--trial", type=int, help="Of this trial only (its id, as det show prints it).")
@click.option("--rank", type=int, help="Of this rank only.")
@click.option("--follow", "-f", is_flag=True, help="Go on printing until the experiment ends.")
@click.option("--tail", type=click.IntRange(min=0), help="Only the last so many lines of each process.")
@click.pass_obj
def logs(
    settings: Settings, experiment: int, trial: int | None, rank: int | None, follow: bool, tail: int | None
) -> None:
    """Print what the processes of EXPERIMENT's trials wrote."""
    with settings.reader() as store:
        store.experiments.get(experiment)
        if trial is not None and store.trials.get(trial).experiment_id != experiment:
            raise StoreError(f"trial {trial} is not of experiment {experiment}; det show {experiment} lists its trials")
        printers: dict[Path, _Printer] = {}
        while True:
            over = store.experiments.get(experiment).state != "ACTIVE"
            for label, file in _files(store, experiment, trial, rank):
                printers.setdefault(file, _Printer(file, label, tail)).print_new()
            if not follow or over:
                return
            time.sleep(0.2)


def _files(store: Store, experiment: int, trial: int | None, rank: int | None) -> list[tuple[str, Path]]:
    """Return the log files there are now, in order of trials, runs and ranks."""
    pattern = "rank-*.log" if rank is None else f"rank-{rank}.log"
    trials = [row.id for row in store.trials.list(experiment) if trial in (None, row.id)]
    return [
        (f"trial {id} run {run.number} {file.stem}", file)
        for id in trials
        for run in store.runs.list(id)
        for file in sorted(run.log_dir.glob(pattern))
    ]


class _Printer:
    """Prints a file's new lines, each behind its label."""

    def __init__(self, file: Path, label: str, tail: int | None) -> None:
        self._file: TextIO = file.open(errors="replace")
        self._label = label
        self._rest = ""
        if tail is not None:
            lines = self._file.readlines()
            self._write(lines[len(lines) - tail :] if tail else [])

    def print_new(self) -> None:
        lines = self._file.readlines()
        if lines and not lines[-1].endswith("\n"):
            self._rest, lines = lines[-1], [self._rest + lines[0], *lines[1:]][:-1]
        elif lines:
            lines[0], self._rest = self._rest + lines[0], ""
        self._write(lines)

    def _write(self, lines: list[str]) -> None:
        sys.stdout.writelines(f"[{self._label}] {line.rstrip()}\n" for line in lines)
        sys.stdout.flush()


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
