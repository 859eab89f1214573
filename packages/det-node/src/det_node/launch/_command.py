"""The command line of a launch: `det launch NAME`, or `python3 -m det_node.launch.NAME`.

The second form is for entrypoints. It needs nothing but this package, as it runs where training
runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from det_core.errors import DetError
from det_core.hooks import Plugins
from det_core.train.environ import WorkerEnv

from ..machine import gpus
from ..process import adopt_orphans, kill_below
from ._hosts import SSH, Host, hosts_of, parse_hosts, this_host
from ._launch import Launch, become
from ._plan import Plan


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise DetError(f"{message}; see {self.prog} --help")


def parser(prog: str = "det launch") -> argparse.ArgumentParser:
    """Return the parser of a launch's options.

    The launcher's name precedes them, the command follows.
    """
    made = _Parser(
        prog=prog,
        usage=f"{prog} {'NAME ' if prog == 'det launch' else ''}[OPTIONS] [COMMAND]...",
        description=(
            "Start COMMAND on several ranks, with what the launcher NAME tells them to meet:"
            " horovod, socket, tensorflow or torch."
        ),
        epilog=(
            "When one fails, the others are ended within seconds, and its status is this one's."
            " Ctrl-C is passed on once; a second one kills. In an entrypoint: python3 -m"
            " det_node.launch.torch_distributed COMMAND, and so on."
        ),
        allow_abbrev=False,
    )
    made.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    option = made.add_argument
    option(
        "-np",
        dest="ranks",
        metavar="INTEGER",
        type=_number("a whole number of 1 or more", int, 1),
        help="How many ranks. By default one for each slot or GPU.",
    )
    option(
        "--hosts",
        metavar="H1:N,H2:N",
        help="Hosts, each with its number of ranks; in a run those of distributed.hosts.",
    )
    option(
        "--agent",
        metavar="COMMAND",
        help=(
            "How to run a command on {host}. By default $DET_AGENT, else ssh -o BatchMode=yes"
            " {host}."
        ),
    )
    option(
        "--chief-ip",
        metavar="ADDRESS",
        help="The address of the first host, as the others reach it.",
    )
    option(
        "--port",
        metavar="INTEGER",
        type=_number("a port, 1 to 65535", int, 1, 65535),
        help="The chief's port; rank k of a host may use port + k. By default free ones.",
    )
    option(
        "--start-timeout",
        metavar="SECONDS",
        type=_number("a number of seconds above 0", float, sys.float_info.min),
        help=(
            "In how many seconds from the start the ranks must have met. By default 600 after the"
            " first has come."
        ),
    )
    option(
        "--log-dir",
        metavar="PATH",
        type=Path,
        help="Write what rank K says to DIR/rank-K.log, and not here.",
    )
    option("--no-prefix", action="store_true", help="Leave out the [rank=K] before each line.")
    option(
        "--all-gpus",
        action="store_true",
        help="Let every rank see all GPUs of its host, and not its own alone.",
    )
    option(
        "--trial",
        metavar="MODULE:CLASS",
        help="Train this trial class on the run's slots, in place of a command.",
    )
    return made


def launch(
    name: str | None, argv: Sequence[str], plugins: Plugins, environ: Mapping[str, str], prog: str
) -> int:
    """Launch as the options in `argv` say, and return the exit status.

    Raises DetError for options that are wrong.
    """
    asked = parser(prog).parse_args(list(argv))
    launchers = plugins.launchers()
    if name is None:
        raise DetError(
            f"no launcher is named; write one before the options: {', '.join(sorted(launchers))}"
        )
    launcher = launchers[name].load()
    if int(environ.get("DET_SIZE", "1")) > 1:
        already = f"rank {environ['DET_RANK']} of {environ['DET_SIZE']}"
        raise DetError(f"this process is {already} already; launch once, around the whole command")
    on = _hosts(asked.hosts, asked.ranks, environ)
    plan = Plan(
        argv=_argv(asked.command, asked.trial, environ),
        hosts=on,
        environ=environ,
        cwd=Path.cwd(),
        agent=asked.agent or environ.get("DET_AGENT") or SSH,
        chief_ip=asked.chief_ip,
        port=asked.port,
        start_timeout=asked.start_timeout,
        log_dir=asked.log_dir.absolute() if asked.log_dir else None,
        prefix=not asked.no_prefix,
        all_gpus=asked.all_gpus,
    )
    if asked.ranks not in (None, plan.size):
        raise DetError(
            f"-np is {asked.ranks}, but --hosts has {plan.size} slots; leave -np out, or let them"
            " agree"
        )
    if plan.size == 1 and on[0].here and asked.log_dir is None:
        become(launcher, plan)
    adopt_orphans()
    try:
        return Launch(launcher, plan, sys.stdout.buffer).run()
    finally:
        # Processes that the ranks left, where the process that would have ended them was killed.
        kill_below(os.getpid())


def run_as_module(name: str, module: str) -> NoReturn:
    """Run a launch as `python3 -m MODULE`, and exit with its status.

    A wrong option prints one line and exits with status 2.
    """
    try:
        plugins = Plugins.installed(strict=os.environ.get("DET_STRICT_PLUGINS") == "1")
        status = launch(name, sys.argv[1:], plugins, os.environ, f"python3 -m {module}")
    except DetError as error:
        sys.stderr.write(f"det: {error}\n")
        status = 2
    sys.exit(status)


def _hosts(given: str | None, ranks: int | None, environ: Mapping[str, str]) -> list[Host]:
    """Return the given hosts, else those of the run's configuration, else this host.

    This host gets as many ranks as were asked for, else as the run has slots, else as there are
    GPUs.
    """
    if given:
        return parse_hosts(given)
    run = WorkerEnv.read(environ) if ranks is None else None
    if run is not None and run.config.distributed.hosts:
        return hosts_of(run.config)
    return this_host(ranks or int(environ.get("DET_SLOTS") or 0) or len(gpus(environ)) or 1)


def _argv(command: list[str], trial: str | None, environ: Mapping[str, str]) -> list[str]:
    command = command[1:] if command[:1] == ["--"] else command
    if trial is None:
        if not command:
            raise DetError(
                "there is no command to launch; write it at the end, such as: python3 train.py"
            )
        return command
    if command:
        raise DetError(
            f"--trial is {trial}, and there is a command, too: {command[0]}; give one of them"
        )
    if "DET_DRIVER" not in environ:
        raise DetError(
            "--trial is for the entrypoint of a configuration; run the configuration with: det run"
            " CONFIG"
        )
    return [sys.executable, "-P", "-m", "det_node.worker", trial]


def _number(
    wanted: str, kind: Callable[[str], float], least: float, most: float = sys.float_info.max
) -> Callable[[str], float]:
    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            if least <= (found := kind(text)) <= most:
                return found
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")

    return read
