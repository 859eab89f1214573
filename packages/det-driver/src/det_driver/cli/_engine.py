"""`det engine check`: tries everything that an engine needs, without an experiment."""

from __future__ import annotations

import queue
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from ._console import Settings

_POLL_SECONDS = 0.25


@click.group()
def engine() -> None:
    """About engines: whether one works."""


@engine.command()
@click.argument("what", metavar="NAME|FILE")
@click.pass_obj
def check(settings: Settings, what: str) -> None:
    """Try the engine NAME, or that of the configuration FILE.

    It tries the engine's commands, a machine, what is installed there, and the storage. Of a queue,
    it waits for its turn. Ctrl-C gives up.
    """
    from det_core.errors import DetError
    from det_core.hooks import extensions_of
    from det_core.ranks.distributed import LOOPBACK

    from ..config import load
    from ..driver import make_probe
    from ..engines import AgentEngine, EngineContext

    file = Path(what) if Path(what).is_file() else None
    engine, extensions = None if file else what, extensions_of(settings.plugins)
    config = load(
        file or {}, defaults=settings.defaults, engine=engine, extensions=extensions, complete=False
    ).config
    name = str(type(config.engine).__struct_config__.tag) if config.engine else engine or "local"
    made = settings.plugins.engines()[name].load()(queue.SimpleQueue[Any]().put)
    if not isinstance(made, AgentEngine):
        raise DetError(f"the engine {name} starts no agents; there is nothing to try")
    with tempfile.TemporaryDirectory(prefix="det-check-") as place:
        code, agents, token = (
            Path(place, "code"),
            Path(place, "agents"),
            f"det-check-{secrets.token_hex(4)}",
        )
        code.mkdir()
        probe = make_probe(config, settings.plugins, code, agents, settings.home / "checkpoints")
        try:
            made.open(
                EngineContext(
                    name=token,
                    directory=agents,
                    host=LOOPBACK,
                    lease=60.0,
                    settings=config.engine,
                    probe=probe,
                )
            )
            click.echo(
                "{}: it answers; agents are to connect to {}:{}".format(name, *made.links.address)
            )
            why = ""
            while not (nodes := made.nodes()):
                made.want(1, config.resources.slots_per_trial)
                if made.explain_wait() not in ("", why):
                    why = made.explain_wait()
                    click.echo(f"waiting: {why}")
                time.sleep(_POLL_SECONDS)
            here = next(agent.hello for agent in made.links.all() if agent.node == nodes[0].name)
            click.echo(f"{here.machine}: an agent connected, with {', '.join(here.devices)}")
            for each in made.readiness.probes.fit.values() if made.readiness.probes else ():
                listed = ", ".join(f"{what} {version}" for what, version in each.items())
                click.echo(
                    f"{here.machine}: has {listed}; what is written to the storage here is read"
                    " there, and back"
                )
        finally:
            made.close()
    click.echo(f"the engine {name} works")
