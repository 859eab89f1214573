"""The endpoints of the command line: archives of code, submissions, and commands."""

from __future__ import annotations

import asyncio
import codecs
import errno
import hashlib
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import Any

import msgspec
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from det_core.errors import ConfigError, DetError, ExperimentBusy
from det_core.hooks import Plugins, extensions_of
from det_driver.accounts import runs_as_users
from det_driver.cli import VISIBLE, parse_remote, write_numbers
from det_driver.client import Calls
from det_driver.config import Preferences, load
from det_driver.driver import (
    DriverSettings,
    check_startable,
    create,
    replace_code,
    start_driver,
)
from det_driver.provenance import read, user_of
from det_driver.recording import PATH as RECORDINGS
from det_driver.remote import ERROR_KIND, MAX_ARCHIVE, unpack
from det_driver.store import Store, Visible
from det_web.endpoints import NO_STORE, ROOT, STARTS, failed
from det_web.openapi import takes
from det_web.shapes import Made

from . import notebooks, terminals
from .recordings import Recordings
from .rights import refuse_call, refuse_command

FOLDER = "uploads"
KEPT_SECONDS = 7 * 86400.0
"""How long an archive is kept after its last use."""
MOST_BYTES = 2 << 30
"""The most bytes that one user's archives may have together."""
_DIGEST = re.compile("[0-9a-f]{64}")
_BLOCK = 1 << 20
_AT_ONCE, _AT_ONCE_OF_ONE = 64, 16
"""The most commands that are executed at the same time, of all users and of one."""
_SILENT_SECONDS = 10.0
"""A blank line is sent after so much silence, so that a broken connection is noticed."""
_PACKED = "application/x-msgpack"
_FULL = {errno.ENOSPC, errno.EDQUOT}


class Git(msgspec.Struct):
    """The commit of submitted code, and its changes since then."""

    commit: str
    dirty: bool
    diff: str = ""


class Submission(msgspec.Struct, forbid_unknown_fields=True):
    """A configuration with the digest of its code.

    - `config`, `template`: YAML texts; `overrides`: `KEY=VALUE` of `det run --config`.
    - `name`: the experiment's name where the configuration has none.
    - `paused`: whether it is not started.
    - `key`: two submissions of one user with the same key make one experiment.
    """

    config: str
    name: str
    code: str
    key: str
    template: str | None = None
    overrides: tuple[str, ...] = ()
    engine: str | None = None
    git: Git | None = None
    paused: bool = False


class Command(msgspec.Struct, forbid_unknown_fields=True):
    """The words of a command of det, without the word `det`."""

    argv: tuple[str, ...]


class Code(msgspec.Struct, forbid_unknown_fields=True):
    """The digest of an archive of code."""

    code: str


class Part(msgspec.Struct):
    """A part of an archive: its first byte, and the bytes of the whole archive."""

    offset: int
    size: int


class Words(msgspec.Struct):
    """The words of a command as a list in JSON."""

    argv: str


class Arguments(msgspec.Struct):
    """The arguments of a query as a list in JSON."""

    args: str


class Held(msgspec.Struct):
    """How many bytes of an archive are here, and whether it is complete."""

    offset: int
    complete: bool


_submission = msgspec.json.Decoder(Submission).decode
_code = msgspec.json.Decoder(Code).decode
_command = msgspec.json.Decoder(Command).decode
_words = msgspec.json.Decoder(tuple[str, ...]).decode


class Uploads:
    """The archives of code that users have sent, complete or in part."""

    def __init__(self, home: Path) -> None:
        self.root = home / FOLDER
        self._lock = threading.Lock()

    def held(self, user: str, digest: str) -> tuple[int, bool]:
        """Return how many bytes of an archive are here, and whether it is complete."""
        whole, part = self._places(user, digest)
        if whole.is_file():
            os.utime(whole)
            return whole.stat().st_size, True
        return part.stat().st_size if part.is_file() else 0, False

    def write(self, user: str, digest: str, offset: int, size: int, data: bytes) -> int:
        """Write the next bytes of an archive of `size` bytes. Return how many are here.

        Raises DetError for bytes that are not the next ones, and for an archive that is too long
        or has another digest. Where the disk is full, nothing of `data` is kept.
        """
        if size > MAX_ARCHIVE or offset + len(data) > size:
            raise DetError(f"the archive is longer than {min(size, MAX_ARCHIVE)} bytes")
        with self._lock:
            here, complete = self.held(user, digest)
            if complete:
                return here
            if here != offset:
                raise DetError(f"byte {here} of the archive is next, and not {offset}")
            whole, part = self._places(user, digest)
            if not offset:
                self._make_room(part.parent, size)
            try:
                with part.open("ab") as file:
                    file.write(data)
            except OSError:
                with suppress(OSError):
                    os.truncate(part, offset)
                raise
            if offset + len(data) == size:
                if _digest(part) != digest:
                    part.unlink()
                    raise DetError("the archive has another digest than its name; send it again")
                part.rename(whole)
        return offset + len(data)

    def unpack(self, user: str, digest: str, target: Path) -> None:
        """Write the files of a complete archive to an empty directory."""
        whole, part = self._places(user, digest)
        with self._lock:
            # The server may have been killed after it had got the last byte.
            if not whole.is_file() and part.is_file() and _digest(part) == digest:
                part.rename(whole)
        try:
            file = whole.open("rb")
        except FileNotFoundError:
            raise DetError("the code of this submission is not here; send it again") from None
        with file:
            unpack(file, target)

    def _places(self, user: str, digest: str) -> tuple[Path, Path]:
        # The names of users may be special to a file system.
        folder = self.root / hashlib.sha256(user.encode()).hexdigest()
        return folder / f"{digest}.tar.gz", folder / f"{digest}.part"

    def _make_room(self, folder: Path, size: int) -> None:
        """Delete what nobody has used for days, and the oldest of a user who has too much."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        oldest = time.time() - KEPT_SECONDS
        for each in self.root.glob("code-*"):
            # Directories of code that is being unpacked come and go.
            with suppress(FileNotFoundError):
                if each.stat().st_mtime < oldest:
                    shutil.rmtree(each, ignore_errors=True)
        users = [each for each in self.root.iterdir() if not each.name.startswith("code-")]
        kept = sorted((each.stat().st_mtime, each) for user in users for each in user.iterdir())
        for modified, each in kept:
            total = size + sum(other.stat().st_size for other in folder.iterdir())
            if modified < oldest or (each.parent == folder and total > MOST_BYTES):
                each.unlink(missing_ok=True)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class Submissions:
    """Creates the experiments that users submit, and starts their drivers."""

    def __init__(self, home: Path, uploads: Uploads, environ: Mapping[str, str]) -> None:
        self._home = home
        self._uploads = uploads
        self._environ = environ
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._made: dict[tuple[str, str], int] | None = None

    def submit(
        self,
        user: str,
        given: Submission,
        note_owner: Callable[[int], object],
        visible: Visible | None,
        preferences: Mapping[str, str],
        check_quota: Callable[[], object],
    ) -> int:
        """Create an experiment, start its driver, and return its number.

        If `user` has submitted `given.key` before, that experiment is used, and started if it
        should run and no driver runs it. A `given.paused` one is created and not started.

        - `note_owner` is called with the number before the driver starts.
        - `visible` are the experiments whose results and checkpoints the new one may begin with.
          None means all.
        - `preferences` are the user's values for keys that the configuration does not have.
        - `check_quota` raises DetError if the user may not create an experiment now.

        Raises DetError also for a configuration or code that cannot be used.
        """
        key = user, given.key
        with self._lock:
            if self._made is None:
                self._made = self._read_made()
            lock = self._locks.setdefault(key, threading.Lock())
        with lock, Store(self._home, visible=visible) as store:
            if key not in self._made:
                check_quota()
                self._made[key] = self._create(store, user, given, preferences)
            id = self._made[key]
            note_owner(id)
            found = store.experiments.get(id)
            if found.state == "ACTIVE" and not store.experiments.driven(id):
                with suppress(ExperimentBusy):
                    start_driver(store, self._home, id, self._environ)
        return id

    def _create(
        self, store: Store, user: str, given: Submission, preferences: Mapping[str, str]
    ) -> int:
        plugins = self._plugins
        defaults = self._home / "config.yaml"
        loaded = load(
            f"{given.config}\n",
            name="the configuration",
            template=None if given.template is None else f"{given.template}\n",
            defaults=defaults if defaults.is_file() else None,
            preferences=Preferences(user, preferences),
            engine=given.engine,
            overrides=given.overrides,
            extensions=extensions_of(plugins),
        )
        config = loaded.config
        tagged = str(type(config.engine).__struct_config__.tag) if config.engine else "local"
        engine = plugins.engines()[given.engine or tagged].name
        if engine == "in-process":
            raise DetError("the engine in-process is for training in a terminal; leave it out")
        settings = DriverSettings.detect(self._environ, home=self._home, engine=engine)
        check_startable(config, settings)
        notebooks.check(config, engine)
        self._uploads.root.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="code-", dir=self._uploads.root) as code:
            self._uploads.unpack(user, given.code, Path(code))
            id = create(
                store,
                config,
                Path(code),
                default_name=given.name,
                engine=engine,
                plugins=plugins,
                environments=settings.root,
                origin={
                    "git": given.git and msgspec.to_builtins(given.git),
                    "submitted": {"by": user, "key": given.key},
                    "written": loaded.written,
                },
                paused=given.paused,
            )
        return id

    @cached_property
    def _plugins(self) -> Plugins:
        # To find them takes longer than everything else that a submission needs.
        return Plugins.installed()

    def replace_code(self, user: str, id: int, digest: str) -> None:
        """Replace the code of an experiment that no driver holds by that of an archive."""
        self._uploads.root.mkdir(mode=0o700, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="code-", dir=self._uploads.root) as code,
            Store(self._home) as store,
        ):
            if runs_as_users(self._home) and user_of(store.experiment_dir(id)) != user:
                raise DetError(
                    f"the code of experiment {id} runs as its owner, who alone may replace it; fork"
                    " the experiment, to run other code"
                )
            self._uploads.unpack(user, digest, Path(code))
            replace_code(store, store.experiments.get(id).id, Path(code))

    def _read_made(self) -> dict[tuple[str, str], int]:
        """Return the experiments that were made by submissions to earlier servers."""
        made = {}
        with Store(self._home) as store:
            for summary in store.experiments.list(archived=None, unread={}):
                id = summary.experiment.id
                if found := read(store.experiment_dir(id)).get("submitted"):
                    made[found["by"], found["key"]] = id
        return made


class Commands:
    """Executes commands of det in the home, each in a process of its own."""

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self._environ = {
            **environ,
            "DET_HOME": str(home),
            "DET_MASTER": "",
            "PYTHONIOENCODING": "utf-8",
        }
        self._running: Counter[str] = Counter()

    async def start(
        self, request: Request, argv: Sequence[str], *, reads: bool, narrow: bool = True
    ) -> Response:
        """Start a command, and return a reply that yields its output and its status as lines.

        With `narrow`, it finds only the experiments that exist for the user of the request. A
        driver that it starts needs all.
        """
        user = request.state.user.name
        if self._running.total() >= _AT_ONCE or self._running[user] >= _AT_ONCE_OF_ONE:
            return failed(503, "too many commands are executed at the moment; try again later")
        self._running[user] += 1
        try:
            view = await run_in_threadpool(request.state.look) if narrow else None
            numbers = None if view is None else await run_in_threadpool(view.numbers)
            process = await self._execute(argv, numbers)
        except BaseException:
            self._running[user] -= 1
            raise
        lines = self._lines(user, process, reads=reads)
        return StreamingResponse(lines, headers=NO_STORE, media_type="application/x-ndjson")

    async def _execute(
        self, argv: Sequence[str], visible: Iterable[int] | None
    ) -> asyncio.subprocess.Process:
        with ExitStack() as leaving:
            environ, files = self._environ, tuple[int, ...]()
            if visible is not None:
                # It has no name: nobody else opens it, and it is gone with the process.
                file = leaving.enter_context(tempfile.TemporaryFile())
                file.write(write_numbers(visible).encode())
                file.flush()
                environ, files = {**environ, VISIBLE: str(file.fileno())}, (file.fileno(),)
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "det_driver.cli", *argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environ,
                pass_fds=files,
            )

    async def _lines(
        self, user: str, process: asyncio.subprocess.Process, *, reads: bool
    ) -> AsyncIterator[bytes]:
        frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue(16)
        pumping = asyncio.create_task(_pump(process, frames))
        try:
            while True:
                try:
                    frame = await asyncio.wait_for(frames.get(), _SILENT_SECONDS)
                except TimeoutError:
                    yield b"\n"
                    continue
                yield msgspec.json.encode(frame) + b"\n"
                if "status" in frame:
                    break
        finally:
            self._running[user] -= 1
            pumping.cancel()
            # What changes something ends by itself, even if nobody hears of it.
            if reads and process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()


async def _pump(process: asyncio.subprocess.Process, frames: asyncio.Queue[dict[str, Any]]) -> None:
    """Put the output of a process, and then its status, into a queue."""

    async def pump(name: str, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := await stream.read(_BLOCK // 16):
            await frames.put({name: decoder.decode(data)})

    await asyncio.gather(pump("out", process.stdout), pump("err", process.stderr))
    await frames.put({"status": await process.wait()})


class _Endpoints:
    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self._home = home
        self._starts = CapacityLimiter(STARTS)
        self._uploads = Uploads(home)
        self._submissions = Submissions(home, self._uploads, environ)
        self._commands = Commands(home, environ)
        self._calls = Calls(home, {**environ, "DET_HOME": str(home), "DET_MASTER": ""})

    @takes(response=Held)
    async def held(self, request: Request) -> Response:
        """Say how much of an archive of this user is here."""
        offset, complete = await run_in_threadpool(
            self._uploads.held, request.state.user.name, _digest_in(request)
        )
        return _reply({"offset": offset, "complete": complete})

    @takes(query=Part, response=Held)
    async def upload(self, request: Request) -> Response:
        """Take the next bytes of an archive."""
        try:
            offset, size = (int(request.query_params[each]) for each in ("offset", "size"))
        except (KeyError, ValueError):
            return failed(400, "give offset and size, in bytes")
        if offset < 0 or size < 1:
            return failed(400, "offset is at least 0, and size at least 1")
        digest, data = _digest_in(request), await request.body()
        offset = await run_in_threadpool(
            self._uploads.write, request.state.user.name, digest, offset, size, data
        )
        return _reply({"offset": offset, "complete": offset == size})

    @takes(body=Submission, response=Made, status=201)
    async def submit(self, request: Request) -> Response:
        """Create an experiment from a configuration and an archive, and start it."""
        given = _submission(await request.body())
        if not _DIGEST.fullmatch(given.code):
            return failed(400, "code is the SHA-256 of an archive, in hexadecimal")
        state = request.state

        def submit() -> int:
            return self._submissions.submit(
                state.user.name,
                given,
                state.note_owner,
                state.look(),
                state.read_preferences(),
                state.check_quota,
            )

        return _reply({"id": await run_sync(submit, limiter=self._starts)}, 201)

    @takes(body=Code)
    async def replace_code(self, request: Request) -> Response:
        """Replace the code of an experiment that is paused or has ended by an archive."""
        digest = _code(await request.body()).code
        if not _DIGEST.fullmatch(digest):
            return failed(400, "code is the SHA-256 of an archive, in hexadecimal")
        user, id = request.state.user.name, request.path_params["id"]
        await run_in_threadpool(self._submissions.replace_code, user, id, digest)
        return _reply({"code": digest})

    @takes(query=Words, response="application/x-ndjson")
    async def execute(self, request: Request) -> Response:
        """Execute a command that changes nothing."""
        argv = _words(request.query_params.get("argv", ""))
        call = parse_remote(argv)
        if not call.reads:
            return failed(400, f"det {argv[0]} changes something; send it to its experiment")
        if problem := refuse_command(request.state.user, call.name, reads=True):
            return failed(403, problem)
        view = await run_in_threadpool(request.state.look)
        # The reply about one that the user does not see is like that about none, however slow.
        request.state.named |= {
            id
            for id in call.experiments
            if view is None or await run_in_threadpool(view.find, id) is not None
        }
        return await self._commands.start(request, argv, reads=True)

    @takes(body=Command, response="application/x-ndjson")
    async def change_shared(self, request: Request) -> Response:
        """Execute a command that changes what no experiment owns."""
        argv = _command(await request.body()).argv
        call = parse_remote(argv)
        if not call.is_shared:
            return failed(400, f"det {call.name} is not about what editors share")
        if problem := refuse_command(request.state.user, call.name, reads=False):
            return failed(403, problem)
        return await self._commands.start(request, argv, reads=False)

    @takes(query=Arguments, response=_PACKED)
    async def query(self, request: Request) -> Response:
        """Answer a client of det on another machine."""
        arguments = request.query_params.get("args", "[]").encode()
        visible = await run_in_threadpool(request.state.look)
        query = partial(self._calls.query, visible=visible)
        return await self._called(query, request.path_params["name"], arguments)

    @takes(response=_PACKED)
    async def call_shared(self, request: Request) -> Response:
        """Change what no experiment owns, for a client of det."""
        name, arguments = request.path_params["name"], await request.body()
        if problem := refuse_call(request.state.user, name):
            return failed(403, problem)
        visible = await run_in_threadpool(request.state.look)
        change = partial(self._calls.change_shared, visible=visible)
        return await self._called(change, name, arguments)

    @takes(response=_PACKED)
    async def call_experiment(self, request: Request) -> Response:
        """Change this experiment, and no other, for a client of det."""
        name, arguments = request.path_params["name"], await request.body()
        if name == "activate":
            await run_in_threadpool(request.state.check_quota, request.path_params["id"])
        change = partial(self._calls.change, experiment_id=request.path_params["id"])
        return await self._called(change, name, arguments, starts=name == "activate")

    @takes(response=_PACKED)
    async def call_trial(self, request: Request) -> Response:
        """Change this trial, and no other, for a client of det."""
        name, arguments = request.path_params["name"], await request.body()
        change = partial(self._calls.change, trial_id=request.path_params["id"])
        return await self._called(change, name, arguments)

    async def _called(
        self,
        call: Callable[[str, bytes], bytes],
        name: str,
        arguments: bytes,
        *,
        starts: bool = False,
    ) -> Response:
        try:
            data = await run_sync(call, name, arguments, limiter=self._starts if starts else None)
        except DetError as error:
            reply = failed(400 if isinstance(error, ConfigError) else 409, str(error))
            reply.headers[ERROR_KIND] = type(error).__name__
            return reply
        return Response(data, 200, NO_STORE, _PACKED)

    @takes(body=Command, response="application/x-ndjson")
    async def change(self, request: Request) -> Response:
        """Execute a command that changes this experiment, and no other."""
        argv = _command(await request.body()).argv
        call, id = parse_remote(argv), request.path_params["id"]
        if call.reads or call.is_shared or call.experiments != {id}:
            return failed(400, f"det {argv[0]} does not change experiment {id}")
        if call.name == "resume" and not call.params["in_background"]:
            # Its driver would end with this request, or with this server.
            return failed(400, "det resume on a server is with --detach")
        if call.name == "resume":
            await run_in_threadpool(request.state.check_quota, id)
        if call.name == "resume" and (uuid := call.params["uuid"]):
            # The command finds all, and would tell of checkpoints that this user does not see.
            view = await run_in_threadpool(request.state.look)
            argv = (*argv, f"--checkpoint={await run_in_threadpool(self._whole, uuid, view)}")
        return await self._commands.start(request, argv, reads=False, narrow=False)

    def _whole(self, uuid: str, visible: Visible | None) -> str:
        """Return the uuid of a visible checkpoint, which may be given by its beginning."""
        with Store.reader(self._home, visible) as store:
            return store.checkpoints.get(uuid).uuid


def _digest_in(request: Request) -> str:
    digest = str(request.path_params["digest"])
    if not _DIGEST.fullmatch(digest):
        raise DetError(f"{digest!r} is no SHA-256 in hexadecimal")
    return digest


def _reply(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, NO_STORE, "application/json")


Handler = Callable[[Request], Awaitable[Response]]


def _with_errors(handle: Handler) -> Handler:
    @wraps(handle)
    async def respond(request: Request) -> Response:
        try:
            return await handle(request)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigError) as error:
            return failed(400, str(error))
        except DetError as error:
            return failed(409, str(error))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return failed(507, "the server's disk is full; nothing was kept of this")

    return respond


def routes(home: Path, environ: Mapping[str, str]) -> list[Route]:
    """Return the endpoints that the command line needs besides those of det-web.

    Drivers and commands get `environ`. The endpoints find the user in `request.state.user`, call
    `request.state.note_owner(number)`, and find in `request.state.look()` what exists for the user,
    and in `request.state.read_preferences()` what their configurations need not repeat.
    """
    endpoints = _Endpoints(home, environ)
    return [
        *terminals.routes(home),
        *notebooks.routes(home),
        Route(f"{ROOT}/code/{{digest}}", _with_errors(endpoints.held)),
        Route(f"{ROOT}/code/{{digest}}", _with_errors(endpoints.upload), methods=["PUT"]),
        Route(f"{ROOT}/submissions", _with_errors(endpoints.submit), methods=["POST"]),
        Route(f"{ROOT}{RECORDINGS}", _with_errors(Recordings(home).take), methods=["POST"]),
        Route(f"{ROOT}/commands", _with_errors(endpoints.execute)),
        Route(f"{ROOT}/queries/{{name}}", _with_errors(endpoints.query)),
        Route(f"{ROOT}/changes/{{name}}", _with_errors(endpoints.call_shared), methods=["POST"]),
        Route(
            f"{ROOT}/experiments/{{id:number}}/changes/{{name}}",
            _with_errors(endpoints.call_experiment),
            methods=["POST"],
        ),
        Route(
            f"{ROOT}/experiments/{{id:number}}/replace-code",
            _with_errors(endpoints.replace_code),
            methods=["POST"],
        ),
        Route(
            f"{ROOT}/trials/{{id:number}}/changes/{{name}}",
            _with_errors(endpoints.call_trial),
            methods=["POST"],
        ),
        Route(f"{ROOT}/commands", _with_errors(endpoints.change_shared), methods=["POST"]),
        Route(
            f"{ROOT}/experiments/{{id:number}}/command",
            _with_errors(endpoints.change),
            methods=["POST"],
        ),
    ]
