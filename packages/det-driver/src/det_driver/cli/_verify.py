"""`det verify`: trains a trial again, and compares."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click
import msgspec

from ._console import CHECKPOINTS, EXPERIMENTS, TRIALS, Settings, as_json, print_json


@click.command()
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.option(
    "--trial",
    type=int,
    shell_complete=TRIALS,
    help="This trial. By default the first that has trained.",
)
@click.option(
    "--batches",
    type=click.IntRange(min=1),
    help="Only to this position. By default all that it was trained.",
)
@click.option(
    "--from",
    "checkpoint",
    metavar="UUID",
    shell_complete=CHECKPOINTS,
    help="Begin at this checkpoint.",
)
@click.option(
    "--code",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Train this code instead.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=0.0,
    help="By how much numbers may differ; 0 is bit for bit.",
)
@as_json
@click.pass_obj
def verify(
    settings: Settings,
    experiment: int,
    trial: int | None,
    batches: int | None,
    checkpoint: str | None,
    code: Path | None,
    tolerance: float,
    as_json: bool,
) -> int:
    """Train a trial of EXPERIMENT again, and compare metrics and weights.

    It is trained from its code, configuration and seed. The experiment is not touched. Where all is
    the same, it is trained once more from a checkpoint of the first time. Where something differs,
    it is trained once more from the beginning, to tell what is not reproducible from what has
    changed since. Exit status: 0 the same, 1 different, 2 it cannot be trained again.
    """
    from ..verify import verify as verified

    with tempfile.TemporaryDirectory(prefix="det-verify-") as scratch, settings.reader() as store:
        verdict = verified(
            store,
            settings.driver(),
            settings.plugins,
            settings.environ,
            Path(scratch),
            experiment,
            trial=trial,
            batches=batches,
            checkpoint=checkpoint,
            code=code,
            tolerance=tolerance,
        )
    if as_json:
        print_json(msgspec.to_builtins(verdict))
        return int(not verdict.same)
    of = f"trial {verdict.trial} of experiment {experiment}, to batch {verdict.batches}"
    if verdict.difference is None:
        sys.stdout.write(
            f"{of}: the same, {verdict.reports} reports and {len(verdict.checkpoints)} checkpoints"
            " compared\n"
        )
    else:
        sys.stdout.write(
            f"{of}: {verdict.difference}\n" + "".join(f"  {cause}\n" for cause in verdict.causes)
        )
    return int(not verdict.same)
