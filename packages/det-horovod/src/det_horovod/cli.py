"""`det horovod`: builds Horovod's newest release for the installed frameworks, and checks it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from det_driver.cli import Settings, print_table

if TYPE_CHECKING:
    from ._recipe import Recipe
    from ._wheels import Cache


@click.group(invoke_without_command=True)
@click.pass_context
def horovod(ctx: click.Context) -> None:
    """Build Horovod for this environment, and check that it works."""
    if ctx.invoked_subcommand is None:
        sys.stdout.write(f"{ctx.get_help()}\n")


@horovod.command()
@click.option(
    "--with",
    "frameworks",
    metavar="NAMES",
    help="torch, tensorflow or both (torch,tensorflow); default: those installed.",
)
@click.option(
    "--wheel-dir",
    type=click.Path(path_type=Path),
    help="Keep wheels here, not in ~/.cache/det/horovod.",
)
@click.option(
    "--print", "show", is_flag=True, help="Print the commands, for a shell, and run none of them."
)
@click.option(
    "--gpu",
    type=click.Choice(["nccl"]),
    help="Let GPUs talk over NCCL; needs CUDA's toolkit and NCCL.",
)
@click.option("--rocm", is_flag=True, help="Let AMD's GPUs talk over RCCL; needs ROCm.")
@click.option("--mpi", is_flag=True, help="With MPI as well as Gloo; needs an MPI with mpicxx.")
@click.option("--force", is_flag=True, help="Build, though there is a wheel.")
@click.pass_obj
def install(
    settings: Settings,
    frameworks: str | None,
    wheel_dir: Path | None,
    show: bool,
    gpu: str | None,
    rocm: bool,
    mpi: bool,
    force: bool,
) -> None:
    """Build Horovod against the frameworks of this environment and install it.

    That takes minutes, once: the wheel is kept for other environments with the same Python and
    versions. Ranks talk over Gloo unless more is asked for. Of the environment nothing else is
    changed.
    """
    from ._frameworks import chosen, installed
    from ._recipe import Recipe
    from ._wheels import Cache

    if gpu and rocm:
        raise click.UsageError(
            "--gpu nccl is for NVIDIA's GPUs and --rocm for AMD's; give one of them"
        )
    recipe = Recipe(
        frameworks=chosen(frameworks, installed()),
        gpu="rocm" if rocm else gpu or "",
        mpi=mpi,
        arch=settings.environ.get("HOROVOD_BUILD_ARCH_FLAGS", ""),
    )
    cache = Cache(wheel_dir.absolute()) if wheel_dir else Cache.usual(settings.environ)
    if show:
        _print(settings, recipe, cache)
    else:
        _install(settings, recipe, cache, force)


@horovod.command()
@click.option(
    "--timeout",
    default=120,
    show_default=True,
    type=click.IntRange(1),
    help="Seconds for each framework.",
)
@click.pass_obj
def check(settings: Settings, timeout: int) -> int:
    """Let two processes add numbers over Horovod, for each framework of this environment.

    Exit status: 0 where they can for all, 1 where they cannot for one.
    """
    from ._check import check as tried
    from ._frameworks import chosen, installed

    findings = [
        tried(framework, settings.environ, timeout) for framework in chosen(None, installed())
    ]
    print_table(
        ("framework", "version", "two ranks add", "seconds", "operations", "problem"),
        [
            (
                f.framework.distribution,
                f.framework.version,
                not f.problem,
                f.seconds,
                " ".join(f.operations),
                f.problem,
            )
            for f in findings
        ],
    )
    for finding in findings:
        if finding.output:
            sys.stderr.write(f"\n{finding.framework}, {finding.problem}:\n{finding.output}\n")
    return int(any(finding.problem for finding in findings))


def _install(settings: Settings, recipe: Recipe, cache: Cache, force: bool) -> None:
    from . import _wheels as pip

    wheel = None if force else cache.wheel(recipe.key)
    if wheel:
        click.echo(f"built before: {wheel}")
    else:
        wheel = _build(settings, recipe, cache, force)
    if pip.install(wheel):
        click.echo(f"installed Horovod for {recipe.named}; try it with: det horovod check")
    else:
        click.echo(f"Horovod for {recipe.named} is installed")


def _build(settings: Settings, recipe: Recipe, cache: Cache, force: bool) -> Path:
    from ._build import Progress, build
    from ._recipe import check as check_requirements

    check_requirements(recipe, settings.environ)
    with cache.lock(
        recipe.key, lambda: click.echo("another process builds the same; waiting for it")
    ) as lock:
        # Another process may have built the wheel meanwhile.
        wheel = None if force else cache.wheel(recipe.key)
        if wheel is None:
            progress = Progress(f"building Horovod for {recipe.named} over {recipe.operations}")
            wheel = build(recipe, cache, settings.environ, lock, progress.line)
            click.echo(f"built in {progress.passed} minutes: {wheel}")
    return wheel


def _print(settings: Settings, recipe: Recipe, cache: Cache) -> None:
    from ._build import Plan
    from ._wheels import commands

    wheel = cache.wheel(recipe.key)
    if wheel is None:
        plan = Plan.of(recipe, cache.root / f"{recipe.key}.building", settings.environ)
        click.echo(plan.script())
        wheel = plan.wheel
    for command in commands(wheel):
        click.echo(shlex.join(command))
