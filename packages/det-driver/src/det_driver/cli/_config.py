"""Configurations: loads them for commands, `det config` and `det check`."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ._console import Settings
from ._output import unescaped

if TYPE_CHECKING:
    from ..config import Loaded


_overrides = click.option(
    "--config",
    "-c",
    "override",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of the configuration, such as hyperparameters.lr=0.1. May be repeated.",
)
_template = click.option(
    "--template",
    type=click.Path(path_type=Path),
    help="A YAML file of defaults, which CONFIG is merged over.",
)


def of_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options of a configuration to a command.

    The command is called with the settings, the path of CONFIG, the loaded configuration and the
    directory of its code, and then with its own options.
    """

    @click.argument("config", type=click.Path(path_type=Path))
    @click.argument("directory", type=click.Path(path_type=Path), required=False)
    @_overrides
    @_template
    @functools.wraps(command)
    @click.pass_obj
    def reading(
        settings: Settings,
        /,
        config: Path,
        directory: Path | None,
        override: tuple[str, ...],
        template: Path | None,
        **options: Any,
    ) -> Any:
        loaded = _load(settings, config, override, template, options.get("engine"))
        return command(settings, config, loaded, directory or config.absolute().parent, **options)

    return reading


def _load(
    settings: Settings,
    path: Path,
    override: tuple[str, ...],
    template: Path | None,
    engine: str | None = None,
) -> Loaded:
    """Read and validate a configuration, with the home's as defaults.

    Notices are printed on stderr.
    """
    from det_core.hooks import extensions_of

    from ..config import load

    loaded = load(
        path,
        template=template,
        # A server has defaults and plugins of its own, and validates with them.
        defaults=None if settings.server else settings.defaults,
        engine=engine,
        overrides=override,
        extensions=replace(extensions_of(settings.plugins), open=bool(settings.server)),
    )
    for notice in loaded.notices:
        sys.stderr.write(f"det: {notice}\n")
    return loaded


@click.group()
def config() -> None:
    """About configurations: a first one, the schema, the complete form."""


SCHEMA_FILE = "det.schema.json"
NEW = f"""\
# yaml-language-server: $schema={SCHEMA_FILE}
entrypoint: {{entrypoint}}
hyperparameters:
  global_batch_size: 32
  lr: 0.01  # one value; in a search also a range, such as \
{{{{type: log, minval: -4, maxval: -1}}}}: powers of 10
searcher:
  name: single  # or random, grid, adaptive_asha, ..., which need max_trials
  metric: validation_loss  # as the validation reports it
  smaller_is_better: true
  max_length: {{{{epochs: 1}}}}
"""


@config.command()
@click.option("--indent", type=int, default=2, show_default=True, help="Spaces for each level.")
@click.pass_obj
def schema(settings: Settings, indent: int) -> None:
    """Print the JSON Schema of configurations, for editors; with what the installed plugins add."""
    sys.stdout.write(_schema(settings, indent))


def _schema(settings: Settings, indent: int = 2) -> str:
    from det_core.hooks import extensions_of

    from ..config import schema as make

    return json.dumps(make(extensions_of(settings.plugins)), indent=indent) + "\n"


@config.command()
@click.argument("path", type=click.Path(path_type=Path), default="const.yaml")
@click.pass_obj
def new(settings: Settings, path: Path) -> None:
    """Write a configuration to start from into PATH, const.yaml.

    It is for the trial class or the train.py in the same directory. The schema of configurations is
    written there as well, and named in its first line, so that editors complete and check keys.
    """
    from det_core.errors import ConfigError

    from ..config import likely_entrypoint

    place = path.absolute().parent
    text = NEW.format(
        entrypoint=likely_entrypoint(place) or "model_def:MyTrial  # module:Class, or a command"
    )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
        (place / SCHEMA_FILE).write_text(_schema(settings), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; name a new file in a directory that is there"
        ) from None
    sys.stdout.write(
        f"wrote {path}, and {SCHEMA_FILE} next to it for editors; fill it in, then: det check"
        f" {path}\n"
    )


@config.command("show")
@click.argument("path", type=click.Path(path_type=Path))
@_overrides
@_template
@click.pass_obj
def show_(settings: Settings, path: Path, override: tuple[str, ...], template: Path | None) -> None:
    """Print the configuration PATH in its complete form, defaults filled in, secrets masked."""
    from ..config import to_yaml

    sys.stdout.write(to_yaml(_load(settings, path, override, template).config, masked=True))


def _explain(context: click.Context, parameter: click.Parameter, word: str | None) -> None:
    if word is not None and not context.resilient_parsing:
        from ..lint import explained

        rule = explained(word)
        sys.stdout.write(
            f"{rule.code} {rule.name}\n\n{rule.why}\n\nSilence a line by: # noqa: {rule.code}\n"
        )
        context.exit()


@click.command()
@of_config
@click.option("--config-only", is_flag=True, help="Do not import or train the trial.")
@click.option(
    "--select",
    multiple=True,
    metavar="CODES",
    help="Look for these rules only, such as DET101,DET3.",
)
@click.option("--ignore", multiple=True, metavar="CODES", help="Do not look for these rules.")
@click.option("--strict", is_flag=True, help="Exit with status 1 where a rule is broken.")
@click.option(
    "--explain",
    metavar="CODE",
    is_eager=True,
    expose_value=False,
    callback=_explain,
    help="Explain a rule.",
)
@click.option(
    "--determinism",
    is_flag=True,
    help="Train a few batches twice, and once through a checkpoint, and compare.",
)
def check(
    settings: Settings,
    config: Path,
    loaded: Loaded,
    code: Path,
    config_only: bool,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    strict: bool,
    determinism: bool,
) -> None:
    """Validate CONFIG, look for broken rules in its code, then try its trial.

    The trial trains one batch, validates one, saves and restores. The store is not touched. A
    broken rule is a line with its place. A comment there, such as # noqa: DET101, silences it.
    """
    from det_core.errors import DetError
    from det_core.train.failure import user_traceback

    from ..check import check_trial
    from ..config import check_entrypoint
    from ..driver import CHECKED, check_runnable, interpreter_for
    from ..lint import chosen, lint

    codes = chosen(select, ignore)
    check_entrypoint(loaded.config.entrypoint, code)
    check_runnable(loaded.config)
    # This is the experiment's own interpreter. The results of the static checks have been printed.
    within = CHECKED in settings.environ
    if not within:
        sys.stdout.write(f"{config} is valid\n")
    findings = [] if within else lint(loaded.config, code.absolute(), codes)
    for each in findings:
        place = os.path.relpath(code / each.path)
        sys.stdout.write(f"{place}:{each.line}:{each.column}: {each.code} {each.message}\n")
    sys.stdout.flush()
    if config_only:
        python = None
    else:
        python = interpreter_for(
            loaded.config, code, settings.plugins, settings.driver().root, settings.environ
        )
    if python:
        words = [python, "-P", "-m", "det_driver.cli", *sys.argv[1:]]
        status = subprocess.run(
            words, env={**settings.environ, CHECKED: "1"}, check=False
        ).returncode
        if status:
            raise SystemExit(status)
    elif not config_only:
        with tempfile.TemporaryDirectory(prefix="det-check-") as scratch:
            try:
                with unescaped():
                    for line in check_trial(
                        loaded.config, code.absolute(), settings.plugins, Path(scratch)
                    ):
                        sys.stdout.write(line + "\n")
            except DetError:
                raise
            except Exception as error:
                sys.stderr.write(user_traceback(error))
                raise SystemExit(1) from error
            if determinism:
                _check_determinism(settings, loaded, code, Path(scratch))
    if strict and findings:
        raise SystemExit(1)


def _check_determinism(settings: Settings, loaded: Loaded, code: Path, scratch: Path) -> None:
    """Train a few batches again and print whether they are the same. Exit with 1 if not."""
    from det_core.config import is_trial_entrypoint

    from ..verify import check_determinism

    if not is_trial_entrypoint(loaded.config.entrypoint or ""):
        return
    if found := check_determinism(
        loaded.config, code.absolute(), settings.plugins, scratch, settings.environ
    ):
        sys.stdout.write(f"not deterministic: {found[0]}\n  {found[1]}\n")
        raise SystemExit(1)
    sys.stdout.write("trained the same twice, and through a checkpoint\n")
