"""Determined's commands, which run commands of det."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import click

from det_driver.cli import Settings, main
from det_driver.client import Client, Experiment, Trial

from ._words import Words

_id = click.argument("experiment_id", type=int)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=Words)
def experiment() -> None:
    """Determined's words for experiments; det's own are shorter: see det --help."""


@experiment.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("model_dir", type=click.Path(path_type=Path), required=False)
@click.option(
    "--config",
    "override",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the configuration.",
)
@click.option("--template", type=click.Path(path_type=Path), help="A YAML file of defaults.")
@click.option(
    "--follow-first-trial", "-f", "follow", is_flag=True, help="Stay, and print what happens."
)
@click.option("--paused", is_flag=True, help="Do not start it.")
@click.option("--local", is_flag=True, help="With --test: train one batch here.")
@click.option(
    "--test-mode",
    "--test",
    "-t",
    "test",
    is_flag=True,
    help="Train and validate one batch, save and restore.",
)
@click.option(
    "--project_id",
    "--project-id",
    type=int,
    help="Taken for the sake of old scripts; there are no projects here.",
)
@click.option(
    "--include",
    "-i",
    multiple=True,
    type=click.Path(),
    help="Refused: put the file into MODEL_DIR.",
)
def create(
    config: Path,
    model_dir: Path | None,
    override: tuple[str, ...],
    template: Path | None,
    follow: bool,
    paused: bool,
    local: bool,
    test: bool,
    project_id: int | None,
    include: tuple[str, ...],
) -> None:
    """Make an experiment of CONFIG and the code in MODEL_DIR.

    It runs in the background, unless -f is given.
    """
    if include:
        raise click.UsageError(
            f"--include {include[0]} is not known to det; put the file into MODEL_DIR"
        )
    if local and not test:
        raise click.UsageError(
            "--local goes with --test; to train here, leave both out and give -f"
        )
    if paused and (follow or test):
        raise click.UsageError("--paused contradicts -f and --test; choose one")
    asked = [str(config), *([str(model_dir)] if model_dir else []), *_each("--config", override)]
    asked += ["--template", str(template)] if template else []
    if test:
        _det("check", *asked)
    elif paused:
        if override or template:
            raise click.UsageError(
                "--paused takes no --config and no --template; write them into CONFIG"
            )
        made = _client().create_experiment(
            config, model_dir or config.absolute().parent, start=False
        )
        sys.stdout.write(f"Created experiment {made.id}\n")
    else:
        _det("run", *asked, *([] if follow else ["--detach"]))


@experiment.command("list")
@click.option("--all", "-a", "everything", is_flag=True, help="Archived ones too.")
@_json
def list_(everything: bool, as_json: bool) -> None:
    """List the experiments."""
    _det("list", *_flags({"--all": everything, "--json": as_json}))


def _ids(context: click.Context, parameter: click.Parameter, given: str) -> tuple[int, ...]:
    """Return the numbers of a text such as `1,2`."""
    return tuple(click.INT(each, parameter, context) for each in given.split(","))


@experiment.command()
@click.argument("experiment_ids", metavar="EXPERIMENT_ID[,EXPERIMENT_ID...]", callback=_ids)
@_json
def describe(experiment_ids: tuple[int, ...], as_json: bool) -> None:
    """Show experiments and their trials. Several with --json are a list."""
    if len(experiment_ids) == 1 or not as_json:
        for id in experiment_ids:
            _shown(str(id), *_flags({"--json": as_json}))
        return
    described = []
    for id in experiment_ids:
        with redirect_stdout(StringIO()) as out:
            _shown(str(id), "--json")
        described.append(json.loads(out.getvalue()))
    sys.stdout.write(f"{json.dumps(described, indent=2)}\n")


@experiment.command("list-trials")
@_id
@_json
def list_trials(experiment_id: int, as_json: bool) -> None:
    """Show an experiment and its trials."""
    _det("show", str(experiment_id), *_flags({"--json": as_json}))


@experiment.command("list-checkpoints")
@_id
@_json
def list_checkpoints(experiment_id: int, as_json: bool) -> None:
    """List an experiment's checkpoints."""
    _det("checkpoint", "list", str(experiment_id), *_flags({"--json": as_json}))


@experiment.command()
@_id
def config(experiment_id: int) -> None:
    """Print an experiment's configuration."""
    _det("show", str(experiment_id), "--config")


@experiment.command()
@_id
@click.option("--follow", "-f", is_flag=True, help="Go on printing until the experiment ends.")
@click.option("--tail", type=int, help="Only the last so many lines of each process.")
def logs(experiment_id: int, follow: bool, tail: int | None) -> None:
    """Print what an experiment's processes wrote."""
    _det(
        "logs",
        str(experiment_id),
        *_flags({"--follow": follow}),
        *([] if tail is None else ["--tail", str(tail)]),
    )


@experiment.command()
@_id
def pause(experiment_id: int) -> None:
    """Save and pause an experiment."""
    _det("pause", str(experiment_id))


@experiment.command()
@_id
def activate(experiment_id: int) -> None:
    """Go on with a paused experiment, in the background."""
    _det("resume", str(experiment_id), "--detach")


@experiment.command("continue")
@_id
@click.option("--follow", "-f", is_flag=True, help="Stay, and print what happens.")
def continue_(experiment_id: int, follow: bool) -> None:
    """Go on with an experiment that was paused, killed or failed."""
    _det("resume", str(experiment_id), *_flags({"--detach": not follow}))


@experiment.command()
@_id
def cancel(experiment_id: int) -> None:
    """Save an experiment and end it for good."""
    _det("cancel", str(experiment_id))


@experiment.command()
@_id
def kill(experiment_id: int) -> None:
    """End an experiment at once, without saving."""
    _det("cancel", str(experiment_id), "--now")


@experiment.command()
@_id
def archive(experiment_id: int) -> None:
    """Leave an experiment out of listings."""
    _experiment(experiment_id).archive()
    sys.stdout.write(f"experiment {experiment_id} is archived\n")


@experiment.command()
@_id
def unarchive(experiment_id: int) -> None:
    """Show an experiment in listings again."""
    _experiment(experiment_id).unarchive()
    sys.stdout.write(f"experiment {experiment_id} is no longer archived\n")


@experiment.command()
@_id
@click.option("--polling-interval", type=float, default=1.0, help="Seconds between two looks.")
def wait(experiment_id: int, polling_interval: float) -> None:
    """Wait until an experiment has ended; exit with 1 unless it is complete."""
    state = _experiment(experiment_id).wait(polling_interval)
    sys.stdout.write(f"experiment {experiment_id} is {state.lower()}\n")
    sys.exit(0 if state == "COMPLETED" else 1)


@experiment.command()
@_id
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def delete(experiment_id: int, yes: bool) -> None:
    """Delete an experiment and what came of it."""
    _det("rm", str(experiment_id), *_flags({"--yes": yes}))


@experiment.group("set", cls=Words)
def set_() -> None:
    """Change an experiment's name, its note, or its place in the queue."""


@set_.command("name")
@_id
@click.argument("name")
def set_name(experiment_id: int, name: str) -> None:
    """Call an experiment by another name."""
    _det("rename", str(experiment_id), name)


@set_.command("description")
@_id
@click.argument("description")
def set_description(experiment_id: int, description: str) -> None:
    """Write the note on an experiment."""
    _det("note", str(experiment_id), description)


def _add_setting(name: str) -> None:
    @set_.command(name, help=f"Change the {name} of an experiment in the queue for slots.")
    @_id
    @click.argument("value")
    def set_value(experiment_id: int, value: str) -> None:
        _det("set", str(experiment_id), name, value)


for _name in ("priority", "weight", "max-slots"):
    _add_setting(_name)


@experiment.group("label", cls=Words)
def label() -> None:
    """Give an experiment a label, or take it away."""


@label.command("add")
@_id
@click.argument("text", metavar="LABEL")
def add_label(experiment_id: int, text: str) -> None:
    """Give an experiment a label."""
    _det("label", str(experiment_id), text)


@label.command("remove")
@_id
@click.argument("text", metavar="LABEL")
def remove_label(experiment_id: int, text: str) -> None:
    """Take a label of an experiment away."""
    _det("label", str(experiment_id), text, "--remove")


@experiment.command("download-model-def")
@_id
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(path_type=Path),
    help="Where to. By default experiment-ID.",
)
def download_model_def(experiment_id: int, output_dir: Path | None) -> None:
    """Copy the code that an experiment runs."""
    sys.stdout.write(f"{_experiment(experiment_id).download_code(output_dir)}\n")


@experiment.command()
@_id
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(path_type=Path),
    help="Where to. By default checkpoints/UUID.",
)
def download(experiment_id: int, output_dir: Path | None) -> None:
    """Copy the best checkpoint of an experiment."""
    sys.stdout.write(f"{_experiment(experiment_id).top_checkpoint().download(output_dir)}\n")


@click.group(cls=Words)
def trial() -> None:
    """Determined's words for trials."""


@trial.command("describe")
@click.argument("trial_id", type=int)
@click.option("--metrics", is_flag=True, help="What it reported, too.")
def describe_trial(trial_id: int, metrics: bool) -> None:
    """Show a trial, and with --metrics what it reported."""
    found = _trial(trial_id)
    best = (
        ""
        if found.best_metric is None
        else f", best {found.get_experiment().metric} {found.best_metric:.6g}"
    )
    sys.stdout.write(
        f"trial {found.id} of experiment {found.experiment_id} is {found.state.lower()} at batch"
        f" {found.batches}{best}\nhyperparameters: {found.hparams}\n"
    )
    for checkpoint in found.list_checkpoints():
        sys.stdout.write(f"checkpoint {checkpoint.uuid} at batch {checkpoint.batches}\n")
    for row in found.iter_metrics() if metrics else ():
        sys.stdout.write(f"{row.group} at batch {row.batches}: {row.values}\n")


@trial.command("logs")
@click.argument("trial_id", type=int)
@click.option("--follow", "-f", is_flag=True, help="Go on printing until the experiment ends.")
@click.option("--tail", type=int, help="Only the last so many lines of each process.")
def trial_logs(trial_id: int, follow: bool, tail: int | None) -> None:
    """Print what a trial's processes wrote."""
    found = _trial(trial_id)
    options = [*_flags({"--follow": follow}), *([] if tail is None else ["--tail", str(tail)])]
    _det("logs", str(found.experiment_id), "--trial", str(trial_id), *options)


@trial.command("kill")
@click.argument("trial_id", type=int)
def kill_trial(trial_id: int) -> None:
    """End a trial at once; its search goes on without it."""
    _det("cancel", str(_trial(trial_id).experiment_id), "--trial", str(trial_id), "--now")


@trial.command("download")
@click.argument("trial_id", type=int)
@click.option("--best", is_flag=True, help="The best checkpoint.")
@click.option("--latest", is_flag=True, help="The latest checkpoint.")
@click.option("--uuid", help="The checkpoint with this uuid.")
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(path_type=Path),
    help="Where to. By default checkpoints/UUID.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print the directory only, as is done anyhow.")
def download_trial(
    trial_id: int, best: bool, latest: bool, uuid: str | None, output_dir: Path | None, quiet: bool
) -> None:
    """Copy a checkpoint of a trial: the best, the latest, or that with a uuid."""
    try:
        chosen = _trial(trial_id).select_checkpoint(latest=latest, best=best, uuid=uuid)
    except ValueError:
        raise click.UsageError("give exactly one of --best, --latest and --uuid") from None
    sys.stdout.write(f"{chosen.download(output_dir)}\n")


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
def preview_search(config: Path) -> None:
    """Simulate the search of CONFIG."""
    _det("preview", str(config))


def _shown(*argv: str) -> None:
    """Run `det show`, and return if it succeeded."""
    try:
        _det("show", *argv)
    except SystemExit as end:
        if end.code:
            raise


def _det(*argv: str) -> None:
    """Run a command of det on the same home or server."""
    main(["-m", _settings().server, *argv])


def _settings() -> Settings:
    settings = click.get_current_context().find_object(Settings)
    assert settings is not None
    return settings


def _client() -> Client:
    return _settings().client()


def _experiment(experiment_id: int) -> Experiment:
    return _client().get_experiment(experiment_id)


def _trial(trial_id: int) -> Trial:
    return _client().get_trial(trial_id)


def _flags(asked: dict[str, Any]) -> list[str]:
    return [flag for flag, wanted in asked.items() if wanted]


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]
