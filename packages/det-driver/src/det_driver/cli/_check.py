"""`det check`: is this configuration right, and does its trial train?"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from ._load import load_config, overrides, template
from ._settings import Settings


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@overrides
@template
@click.option("--config-only", is_flag=True, help="Do not import or train the trial.")
@click.pass_obj
def check(
    settings: Settings,
    config: Path,
    directory: Path | None,
    override: tuple[str, ...],
    template: Path | None,
    config_only: bool,
) -> None:
    """Validate CONFIG, then train one batch of its trial, validate one, save and restore; the store is not touched."""
    from det_core.errors import DetError
    from det_core.failure import user_traceback

    from ..check import check_trial

    loaded = load_config(settings, config, override, template)
    sys.stdout.write(f"{config} is valid\n")
    code = (directory or config.absolute().parent).absolute()
    if config_only:
        return
    with tempfile.TemporaryDirectory(prefix="det-check-") as scratch:
        try:
            lines = check_trial(loaded.config, code, settings.plugins, Path(scratch))
            for line in lines:
                sys.stdout.write(line + "\n")
        except DetError:
            raise
        except Exception as error:
            sys.stderr.write(user_traceback(error))
            raise SystemExit(1) from error
