"""The command `det server`."""

from __future__ import annotations

import os
import re
import secrets
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from det_core.errors import DetError
from det_core.ranks.network import is_loopback
from det_core.support.threads import start_thread
from det_web.command import find_home

from .users import FILE, TOKEN_DAYS, Issued, Role, Users, show_bytes

if TYPE_CHECKING:
    from det_driver.cli import Settings

PORT = 8080
LOCK = "server.lock"
"""The file in the home that the server holds a lock on, with its process id."""
_LOCK_SECONDS = 0.3
_AGAIN_SECONDS = 60.0
TRUST = (
    "everything runs with the rights of this account: everybody who may start experiments (editors"
    " and admins) is trusted with them"
)
OF_USERS = (
    "the code of each user runs as the system user of the same name, and det's own code as root"
)
_home = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="The home that is served. Default: $DET_HOME, or ~/.det.",
)


@click.group()
def server() -> None:
    """Serve a home to a team: the page and its API, with users, roles and tokens."""


@server.command()
@_home
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="The port to listen on. With 0, any that is free.",
)
@click.option(
    "--allow-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="A name by which other machines reach this server. May be repeated.",
)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The certificate for TLS, with its chain, as PEM.",
)
@click.option(
    "--key", type=click.Path(path_type=Path, dir_okay=False), help="The certificate's key, as PEM."
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="A proxy in front of this server has TLS, and adds X-Forwarded-For.",
)
@click.option(
    "--run-as-users",
    "as_users",
    is_flag=True,
    help="As root: run the code of each user as the system user of the same name.",
)
@click.pass_obj
def start(
    settings: Settings,
    home: Path | None,
    host: str,
    port: int,
    allowed: tuple[str, ...],
    certificate: Path | None,
    key: Path | None,
    behind_proxy: bool,
    as_users: bool,
) -> None:
    """Serve a home until it is interrupted.

    The first start makes the user admin, and prints a password that is good for one sign-in.
    Everything runs with the rights of this account, so everybody who may start experiments is
    trusted with them. With --run-as-users, their code has the rights of their own accounts.
    """
    from det_driver.accounts import run_as_users
    from det_driver.driver import DRIVERS_HERE, DriverForkServer
    from det_driver.store import Store
    from det_web.guard import LOOPBACK
    from det_web.serve import hold, listening, serve

    from .app import create_app
    from .notebooks import MOST_MESSAGE, missing
    from .quotas import Quotas
    from .submit import routes
    from .supervise import Supervisor

    place = home.absolute() if home else find_home(settings)
    _check_safe(host, allowed, certificate, key, behind_proxy)
    tls = (certificate, key) if certificate and key else None
    if tls:
        _check_certificate(*tls)
    _check_as_users(place, as_users, is_sealed=certificate is not None or behind_proxy)
    users = Users(place)
    try:
        held = hold(place / LOCK, str(os.getpid()), _LOCK_SECONDS)
    except BlockingIOError:
        holder = (place / LOCK).read_text() or "unknown"
        raise DetError(
            f"process {holder} serves {place} already; stop it, or choose another --home"
        ) from None
    if as_users:
        run_as_users(place)
    sock = listening(host, port)
    # SIGTERM before the server runs exits normally, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    number = sock.getsockname()[1]
    if not users.everybody():
        _make_admin(users)
        _say(OF_USERS if as_users else TRUST)
    shown = allowed[0] if not is_loopback(host) else f"[{host}]" if ":" in host else host
    shown = shown if ":" in shown.rpartition("]")[2] else f"{shown}:{number}"
    _say(f"det server: {place} is at {'https' if tls else 'http'}://{shown}/")
    environ = {**settings.environ, DRIVERS_HERE: "1"}
    app = create_app(
        place,
        users,
        hosts={*LOOPBACK, *allowed},
        port=number,
        secure=tls is not None or behind_proxy,
        behind_proxy=behind_proxy,
        routes=routes(place, environ),
    )
    stopped = threading.Event()
    with DriverForkServer(place, environ) as forks, Store(place) as store:
        supervisor = Supervisor(place, users, environ, forks)
        _keep_running(supervisor.run, stopped, name="det-server-supervisor")
        _keep_running(Quotas(place, users).run, stopped, name="det-server-quotas")
        # SQLite writes the log of the index back and syncs it when nobody has it open any more,
        # which would be after most requests.
        store.version()
        serve(app, sock, tls, most_message=0 if missing() else MOST_MESSAGE)
        stopped.set()
    os.close(held)


def _keep_running(
    run: Callable[[threading.Event], None], stopped: threading.Event, name: str
) -> None:
    """Start a thread, and start it again some time after it has failed, until `stopped` is set."""

    def again(error: BaseException) -> None:
        if not stopped.wait(_AGAIN_SECONDS):
            _keep_running(run, stopped, name)

    start_thread(run, stopped, name=name, failed=again)


@server.command(context_settings={"ignore_unknown_options": True})
@_home
@click.option("--user", help="The user that the server runs as. Default: you.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def install(
    settings: object, home: Path | None, user: str | None, options: tuple[str, ...]
) -> None:
    """Print a systemd unit of a server with these OPTIONS, those of det server start.

    The home is that of --user, unless --home names one. Experiments go on while the server is
    restarted, also those that are started by it.
    """
    from .service import home_of, make_unit, own_name

    runs_as = user or own_name()
    other = user is not None and user != own_name()
    place = home.absolute() if home else home_of(runs_as) if other else find_home(settings)
    words = []
    with start.make_context("det server install", [*options]) as given:
        for each in start.params:
            name = each.name or ""
            if given.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
                continue
            values = given.params[name] if each.multiple else (given.params[name],)
            for value in values:
                # A service has another working directory.
                shown = value.absolute() if isinstance(value, Path) else value
                words.append(each.opts[0] if value is True else f"{each.opts[0]}={shown}")
        _check_safe(**{each: given.params[each] for each in _SAFETY})
        if given.params["as_users"] and runs_as != "root":
            raise DetError(
                f"--run-as-users needs root, and the server would run as {runs_as}; give --user"
                " root"
            )
        _check_as_users(
            place,
            given.params["as_users"],
            is_sealed=given.params["certificate"] is not None or given.params["behind_proxy"],
        )
    _say(make_unit(runs_as, place, words).rstrip("\n"))


@server.command()
@_home
@click.option(
    "--checkpoints", is_flag=True, help="With the checkpoints that are in the home, to resume from."
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.pass_obj
def backup(settings: object, home: Path | None, checkpoints: bool, directory: Path) -> None:
    """Write a backup of a home to a new DIRECTORY, also while its server and experiments run."""
    from .backup import back_up

    place = home.absolute() if home else find_home(settings)
    made = back_up(place, directory.absolute(), checkpoints=checkpoints)
    if made.left_out:
        click.echo(
            f"det: links are left out of the backup: {', '.join(made.left_out[:5])}"
            f"{', ...' if len(made.left_out) > 5 else ''}",
            err=True,
        )
    _say(
        f"{directory} is a backup of {place}: {made.files} files, {show_bytes(made.bytes)}"
        f"{'' if checkpoints else ', without checkpoints'}"
    )


@server.command()
@_home
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.pass_obj
def restore(settings: object, home: Path | None, directory: Path) -> None:
    """Write the backup in DIRECTORY to a home that is not there yet, or is empty.

    The whole backup is verified before. Experiments that were running are paused.
    """
    from .backup import restore as restore_backup

    place = home.absolute() if home else find_home(settings)
    paused = restore_backup(directory.absolute(), place)
    _say(f"{directory} is restored to {place}")
    if paused:
        _say(f"paused, as they were running: {', '.join(map(str, paused))}; go on with: det resume")


_SAFETY = ("host", "allowed", "certificate", "key", "behind_proxy")


def _check_safe(
    host: str,
    allowed: tuple[str, ...],
    certificate: Path | None,
    key: Path | None,
    behind_proxy: bool,
) -> None:
    """Raise DetError for options with which passwords could be read by others."""
    if (certificate is None) != (key is None):
        raise DetError("--certificate and --key belong together; give both")
    if not is_loopback(host):
        if certificate is None and not behind_proxy:
            raise DetError(
                f"--host {host} is for other machines too, and passwords would travel in clear"
                " text; give --certificate and --key, or --behind-proxy if a proxy has TLS"
            )
        if not allowed:
            raise DetError(
                f"--host {host} is for other machines too; name the host by which they reach this"
                " one: --allow-host NAME"
            )


def _check_as_users(home: Path, as_users: bool, *, is_sealed: bool) -> None:
    """Raise DetError if code in a home has run in another way than it would now."""
    from det_driver.accounts import FILE as AS_USERS
    from det_driver.accounts import runs_as_users
    from det_driver.store import Store

    if as_users and not is_sealed:
        raise DetError(
            "--run-as-users is for users who do not trust each other, and without TLS another user"
            " of this machine may get a session; give --certificate and --key, or --behind-proxy if"
            " a proxy has TLS"
        )
    if runs_as_users(home):
        if not as_users:
            raise DetError(
                f"code in {home} runs as the users who submitted it ({home / AS_USERS}), and would"
                " run as this account; give --run-as-users, or choose another --home"
            )
    elif as_users and Store.is_at(home):
        with Store.reader(home) as store:
            has_any = bool(store.experiments.list(archived=None, unread={}))
        if has_any:
            raise DetError(
                f"the experiments in {home} ran with the rights of an account, and their files are"
                " not their users'; choose an empty --home for --run-as-users"
            )


def _check_certificate(certificate: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, password=_no_password
        )
    except (OSError, ValueError) as error:
        raise DetError(
            f"cannot use the certificate {certificate} with the key {key}: {error}; give PEM files"
            " that belong together, and a key without a password"
        ) from error


def _no_password() -> str:
    # Otherwise OpenSSL would ask on the terminal.
    raise ValueError("the key has a password")


def _make_admin(users: Users) -> None:
    password = secrets.token_urlsafe(16)
    users.add("admin", Role.ADMIN, password, once=True)
    _say(f"the user admin can sign in once with the password {password}")
    _say("set another one with: det server user password admin")


@server.group()
def user() -> None:
    """Add, list and remove users, and give them passwords and tokens."""


@user.command()
@_home
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([each.value for each in Role]),
    required=True,
    help="viewer sees everything, editor starts experiments and changes their own, admin changes"
    " everything.",
)
@click.pass_obj
def add(settings: object, home: Path | None, name: str, role: str) -> None:
    """Add a user. The password is asked for, or the first line of the standard input."""
    from .users import check_name

    users = _users(settings, home)
    check_name(name)
    users.add(name, Role(role), _read_password(name))
    _say(f"{name} is {'an' if role[0] in 'ae' else 'a'} {role}")


@user.command()
@_home
@click.argument("name")
@click.pass_obj
def remove(settings: object, home: Path | None, name: str) -> None:
    """Remove a user with their sessions and tokens.

    Their experiments remain, and only admins may change them.
    """
    _users(settings, home).remove(name)
    _say(f"{name} is removed")


@user.command("list")
@_home
@click.pass_obj
def list_(settings: object, home: Path | None) -> None:
    """List the users with their roles."""
    for each in _users(settings, home).everybody():
        _say(f"{each.name}\t{each.role}")


@user.command()
@_home
@click.argument("name")
@click.pass_obj
def password(settings: object, home: Path | None, name: str) -> None:
    """Give a user another password, and end their sessions. API tokens remain.

    The password is asked for, or the first line of the standard input.
    """
    users = _users(settings, home)
    users.set_password(name, _read_password(name))
    _say(f"{name} has a new password")


@user.command()
@_home
@click.argument("name")
@click.argument("size", metavar="[SIZE|none]", required=False)
@click.pass_obj
def quota(settings: object, home: Path | None, name: str, size: str | None) -> None:
    """Limit what the experiments of a user may use to SIZE, such as 50GiB, or to none.

    Without SIZE, print what they use and may use. Who uses all of it starts no experiment.
    """
    users = _users(settings, home)
    if size is not None:
        users.set_quota(name, None if size == "none" else _parse_size(size))
    found = [each for each in users.quotas() if each.user == name]
    if not found:
        raise DetError(f"no user is called {name!r}; det server user list shows all")
    most = "no quota" if found[0].most is None else f"a quota of {show_bytes(found[0].most)}"
    at = found[0].measured
    when = "not measured yet" if at is None else f"measured {max(0.0, time.time() - at):.0f} s ago"
    _say(f"{name} has {most}, and uses {show_bytes(found[0].used)} ({when})")


@user.command("token")
@_home
@click.argument("name")
@click.option(
    "--days",
    type=int,
    default=TOKEN_DAYS,
    show_default=True,
    help="The days until the token expires.",
)
@click.pass_obj
def make_token(settings: object, home: Path | None, name: str, days: int) -> None:
    """Print a new API token of a user, for programs. It is shown only now."""
    issued: Issued = _users(settings, home).make_token(name, days)
    _say(issued.text)
    click.echo(
        f"token {issued.id} of {name} expires on {_date(issued.expires)}; end it sooner with:"
        f" det server token revoke {issued.id}",
        err=True,
    )


@user.command()
@_home
@click.argument("name")
@click.argument("values", metavar="[KEY=VALUE]...", nargs=-1)
@click.pass_obj
def defaults(settings: object, home: Path | None, name: str, values: tuple[str, ...]) -> None:
    """Set what the experiments of a user have where their configurations do not say it.

    A KEY is an engine and one of its settings, such as slurm.account, or resources.priority,
    resources.weight or resources.max_slots. KEY= removes a default. Without KEY=VALUE the defaults
    are listed.
    """
    from det_core.hooks import Plugins, extensions_of
    from det_driver.config import Preferences

    users = _users(settings, home)
    chosen = users.preferences(name)
    for each in values:
        key, equals, value = each.partition("=")
        if not equals or (not value and key not in chosen):
            problem = f"{name} has no default {key}" if equals else f"{each!r} is no KEY=VALUE"
            raise DetError(f"{problem}; give one such as slurm.account=vision")
        if value:
            chosen[key] = value
        else:
            del chosen[key]
    if values:
        Preferences(name, chosen).check(extensions_of(Plugins.installed()))
        users.set_preferences(name, chosen)
    for key, value in sorted(chosen.items()):
        _say(f"{key}={value}")


@server.group()
def token() -> None:
    """List and revoke sessions and API tokens."""


@token.command("list")
@_home
@click.pass_obj
def list_tokens(settings: object, home: Path | None) -> None:
    """List the sessions and API tokens that are valid."""
    for each in _users(settings, home).tokens():
        kind = "session" if each.is_session else "token"
        _say(f"{each.id}\t{each.user}\t{kind}\tuntil {_date(each.expires)}")


@token.command()
@_home
@click.argument("id", type=int)
@click.pass_obj
def revoke(settings: object, home: Path | None, id: int) -> None:
    """End a session or an API token by its number."""
    _users(settings, home).revoke(id)
    _say(f"token {id} is revoked")


@server.group()
def workspace() -> None:
    """Make labels workspaces, with members who have rights on their experiments."""


@workspace.command("set")
@_home
@click.argument("name")
@click.option(
    "--private/--open",
    "private",
    default=None,
    help="Whether only members see its experiments. One of both has to be given.",
)
@click.pass_obj
def set_workspace(settings: object, home: Path | None, name: str, private: bool | None) -> None:
    """Make the label NAME a workspace, or change it. Experiments with this label belong to it.

    Their owners and admins see and change them in any case.
    """
    if private is None:
        raise DetError("give --private, so that only members see the experiments, or --open")
    _users(settings, home).set_workspace(name, private=private)
    _say(f"the workspace {name} is {'private' if private else 'open'}")


@workspace.command("remove")
@_home
@click.argument("name")
@click.pass_obj
def remove_workspace(settings: object, home: Path | None, name: str) -> None:
    """Make the workspace NAME a mere label again. Everybody sees its experiments then."""
    _users(settings, home).remove_workspace(name)
    _say(f"{name} is no workspace any more")


@workspace.command("list")
@_home
@click.pass_obj
def list_workspaces(settings: object, home: Path | None) -> None:
    """List the workspaces with their members."""
    for each in _users(settings, home).workspaces():
        members = ", ".join(f"{name} ({role})" for name, role in each.members.items())
        _say(f"{each.name}\t{'private' if each.private else 'open'}\t{members}")


@workspace.command()
@_home
@click.argument("name")
@click.argument("user")
@click.option(
    "--role",
    type=click.Choice([Role.VIEWER.value, Role.EDITOR.value]),
    required=True,
    help="viewer sees the experiments of a private workspace, editor changes those of others, too.",
)
@click.pass_obj
def grant(settings: object, home: Path | None, name: str, user: str, role: str) -> None:
    """Make USER a member of the workspace NAME, or change the member's role."""
    _users(settings, home).set_member(name, user, Role(role))
    _say(f"{user} is {'an' if role[0] == 'e' else 'a'} {role} of {name}")


@workspace.command()
@_home
@click.argument("name")
@click.argument("user")
@click.pass_obj
def withdraw(settings: object, home: Path | None, name: str, user: str) -> None:
    """Make USER no member of the workspace NAME any more."""
    _users(settings, home).set_member(name, user, None)
    _say(f"{user} is no member of {name} any more")


def _parse_size(text: str) -> int:
    """Return the bytes of a size such as 50GiB, 1.5TiB or 100 (bytes)."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGTP]iB|)", text)
    if found is None:
        raise DetError(f"{text!r} is no size; give bytes, or a size such as 50GiB, or none")
    return int(float(found[1]) * 1024 ** " KMGTP".index(found[2][:1] or " "))


def _users(settings: object, home: Path | None) -> Users:
    place = home.absolute() if home else find_home(settings)
    if not (place / FILE).exists():
        raise DetError(f"{place} has no users yet; start its server: det server start")
    return Users(place)


def _read_password(name: str) -> str:
    """Ask for a password on a terminal, or read the first line of the standard input."""
    if sys.stdin.isatty():
        prompt = f"Password of {name}"
        asked: str = click.prompt(prompt, hide_input=True, confirmation_prompt=True, err=True)
        return asked
    return sys.stdin.readline().rstrip("\r\n")


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
