"""`det launch`: start the ranks of a script."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..devices import gpus
from ..errors import DetError
from ._settings import Settings

if TYPE_CHECKING:
    from ..launchers import Host, Launcher

_NAME = "det_core.launcher"


class _NameFirst(click.Command):
    """Takes the launcher's name before the options, and leaves all after the command's first word to the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = bool(args) and not args[0].startswith("-")
        ctx.meta[_NAME] = args[0] if named else None
        return super().parse_args(ctx, args[1:] if named else args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["NAME", *super().collect_usage_pieces(ctx)]


@click.command(cls=_NameFirst, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-np", "ranks", type=click.IntRange(min=1), help="How many ranks; by default one for each slot or GPU.")
@click.option(
    "--hosts", metavar="H1:N,H2:N", help="Hosts, each with its number of ranks; in a run those of distributed.hosts."
)
@click.option(
    "--agent",
    metavar="COMMAND",
    help="How to run a command on {host}; by default $DET_AGENT, else ssh -o BatchMode=yes {host}.",
)
@click.option("--chief-ip", metavar="ADDRESS", help="The address of the first host, as the others reach it.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="The chief's port; rank k of a host may use port + k. By default free ones.",
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="In how many seconds from the start the ranks must have met; by default 600 after the first has come.",
)
@click.option(
    "--log-dir", type=click.Path(path_type=Path), help="Write what rank K says to DIR/rank-K.log, and not here."
)
@click.option("--no-prefix", is_flag=True, help="Leave out the [rank=K] before each line.")
@click.option("--all-gpus", is_flag=True, help="Let every rank see all GPUs of its host, and not its own alone.")
@click.option(
    "--trial", metavar="MODULE:CLASS", help="Train this trial class on the run's slots, in place of a command."
)
@click.pass_context
def launch(
    context: click.Context,
    command: tuple[str, ...],
    ranks: int | None,
    hosts: str | None,
    agent: str | None,
    chief_ip: str | None,
    port: int | None,
    start_timeout: float | None,
    log_dir: Path | None,
    no_prefix: bool,
    all_gpus: bool,
    trial: str | None,
) -> None:
    """Start COMMAND on several ranks, with what the launcher NAME tells them to meet: horovod, socket, tensorflow or torch.

    When one fails, the others are ended within seconds, and its status is this one's. Ctrl-C is passed on once; a second one
    kills. In an entrypoint: python3 -m det_core.launch.torch_distributed COMMAND, and so on.
    """
    from ..launchers._hosts import SSH
    from ..launchers._job import Job, become
    from ..launchers._plan import Plan

    settings: Settings = context.obj
    environ = settings.environ
    launcher = _launcher(settings, context.meta[_NAME])
    _must_not_be_a_rank(environ)
    on = _hosts(hosts, ranks, environ)
    plan = Plan(
        argv=_argv(command, trial, environ),
        hosts=on,
        environ=environ,
        cwd=Path.cwd(),
        agent=agent or environ.get("DET_AGENT") or SSH,
        chief_ip=chief_ip,
        port=port,
        start_timeout=start_timeout,
        log_dir=log_dir.absolute() if log_dir else None,
        prefix=not no_prefix,
        all_gpus=all_gpus,
    )
    if ranks not in (None, plan.size):
        raise DetError(f"-np is {ranks}, but --hosts has {plan.size} slots; leave -np out, or let them agree")
    if plan.size == 1 and on[0].here and log_dir is None:
        become(launcher, plan)
    raise SystemExit(Job(launcher, plan, sys.stdout.buffer).run())


def _launcher(settings: Settings, name: str | None) -> Launcher:
    known = settings.plugins.launchers()
    if name is None:
        raise DetError(f"no launcher is named; write one before the options: {', '.join(sorted(known))}")
    launcher: Launcher = known[name].load()
    return launcher


def _must_not_be_a_rank(environ: Mapping[str, str]) -> None:
    if int(environ.get("DET_SIZE", "1")) > 1:
        raise DetError(
            f"this process is rank {environ['DET_RANK']} of {environ['DET_SIZE']} already; launch once, around the whole command"
        )


def _hosts(given: str | None, ranks: int | None, environ: Mapping[str, str]) -> list[Host]:
    """Return the hosts that are given, else those of the run's configuration, else this one with as many ranks as asked for."""
    from ..environ import WorkerEnv
    from ..launchers._hosts import parse_hosts, this_host

    if given:
        return parse_hosts(given)
    run = WorkerEnv.read(environ) if ranks is None else None
    if run is not None and run.config.distributed.hosts:
        from ..experiment._hosts import hosts_of

        return hosts_of(run.config)
    return this_host(ranks or _slots(environ))


def _slots(environ: Mapping[str, str]) -> int:
    """Return the slots of the run, else the GPUs of the machine, else 1."""
    return int(environ.get("DET_SLOTS") or 0) or len(gpus(environ)) or 1


def _argv(command: tuple[str, ...], trial: str | None, environ: Mapping[str, str]) -> list[str]:
    if trial is None:
        if not command:
            raise DetError("there is no command to launch; write it at the end, such as: python3 train.py")
        return list(command)
    if command:
        raise DetError(f"--trial is {trial}, and there is a command, too: {command[0]}; give one of them")
    if "DET_DRIVER" not in environ:
        raise DetError("--trial is for the entrypoint of a configuration; run the configuration with: det run CONFIG")
    return [sys.executable, "-P", "-m", "det_core.worker", trial]
