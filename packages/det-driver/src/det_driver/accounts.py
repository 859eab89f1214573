"""The system users as whom the code of experiments runs, on a server started for that by root.

Drivers are det's own code, and stay with root. What users wrote is run as the system user with the
name of the experiment's owner, and so is all that touches their files: root never opens a path that
a user can change. Nothing here trusts what such a process says.
"""

from __future__ import annotations

import io
import os
import pwd
import select
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any, NoReturn

from det_core.config import Combined, Custom, ExperimentConfig, to_json
from det_core.errors import DetError, StorageError, StorageUnreachable
from det_core.storage import Selector, Storage
from det_core.support.threads import start_thread
from det_node.checkpoints import Wish, decode_reply, encode_wish
from det_node.launch import hosts_of
from det_node.task import NOTEBOOK, find_kind

from .provenance import user_of

FILE = "run-as-users"
"""The file in a home whose server runs code as its users. It stays when the server ends."""
CHECKPOINTS = ".det-server/checkpoints"
"""Where a user's checkpoints are by default, in the user's home directory."""
_LOGIN = Path("/etc/login.defs")
_FIRST_UID = 1000
_PASSED = ("LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH")
_PASSED_BEGINNINGS = ("LC_", "CUDA_", "NCCL_", "NVIDIA_")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECONDS, _COPY_SECONDS = 120.0, 600.0
"""How long an operation on a storage may take, and be silent while it copies a checkpoint."""
_LONGEST_REPLY = 64 << 20


class AccountMissing(DetError):
    """A user of the server has no account as which code may run."""


@dataclass(frozen=True)
class Account:
    """A system user of this machine, and the groups and the home directory of that user."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    directory: Path

    @property
    def checkpoints(self) -> Path:
        """Where this user's checkpoints are, if their configurations do not say."""
        return self.directory / CHECKPOINTS

    def options(self) -> dict[str, Any]:
        """Return the arguments of `subprocess.Popen` for a process of this user.

        It has no variable of this process that could be a secret. Its files are for the user only.
        """
        return {
            "user": self.uid,
            "group": self.gid,
            "extra_groups": self.groups,
            "umask": 0o077,
            # Root would enter another directory before it becomes the user.
            "cwd": "/",
            "env": {
                **{name: text for name, text in os.environ.items() if _is_passed(name)},
                "HOME": str(self.directory),
                "USER": self.name,
                "LOGNAME": self.name,
                "PATH": f"{Path(sys.executable).parent}:{_PATH}",
            },
        }


def _is_passed(name: str) -> bool:
    return name in _PASSED or name.startswith(_PASSED_BEGINNINGS)


def runs_as_users(home: Path) -> bool:
    """Return whether code of experiments in this home runs as the users of this machine."""
    return os.path.lexists(home / FILE)


def run_as_users(home: Path) -> None:
    """Have code of experiments in this home run as the users of this machine, from now on.

    Raises DetError where this process or the users cannot do that.
    """
    if os.geteuid() != 0:
        raise DetError(
            "--run-as-users needs root, who may start processes of other users; start the server"
            " as root, or leave it out"
        )
    # A user who cannot read det's own code could run nothing.
    command = [sys.executable, "-P", "-m", "det_node.agent", "--find", "/nonexistent"]
    nobody: dict[str, Any] = {
        "user": 65534,
        "group": 65534,
        "extra_groups": (),
        "cwd": "/",
        "env": {},
    }
    try:
        tried = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, **nobody
        )
        problem = tried.stderr.strip().rpartition("\n")[2] if tried.returncode else ""
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(error)
    if problem:
        raise DetError(
            f"users cannot run {sys.executable} with det ({problem}); install det where everybody"
            " may read it, such as below /opt"
        )
    for place in (home.resolve(), *home.resolve().parents):
        status = place.stat()
        shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid != 0 or (shared and place != home.resolve()):
            raise DetError(
                f"others than root can change {place}, and so replace {home}; choose another"
                " --home, such as /var/lib/det"
            )
    home.chmod(0o700)
    (home / FILE).touch(0o600)


def find_account(name: str) -> Account:
    """Return the account of a user of the server.

    Raises AccountMissing if there is none, or none as which code of users may run.
    """
    way_out = "an administrator of the machine can add one"
    try:
        found = pwd.getpwnam(name)
        if found.pw_name != name:
            # Some directories of users take several names for one.
            raise KeyError(name)
    except (KeyError, ValueError):
        raise AccountMissing(
            f"code runs as the system user of its owner, and this machine has no user {name!r};"
            f" {way_out}"
        ) from None
    directory = Path(found.pw_dir)
    if found.pw_uid < (first := _first_uid()):
        raise AccountMissing(
            f"code runs as the system user of its owner, and {name!r} is one of the system (user id"
            f" {found.pw_uid}, those of people begin at {first}); use another name on this server"
        )
    try:
        owner = directory.stat().st_uid
    except OSError as error:
        raise AccountMissing(
            f"code runs as the system user of its owner, and the home directory of {name!r},"
            f" {directory}, cannot be used: {error.strerror}; an administrator can make it"
        ) from error
    if owner != found.pw_uid or not directory.is_absolute():
        raise AccountMissing(
            f"code runs as the system user of its owner, and the home directory of {name!r},"
            f" {directory}, is not theirs; an administrator can change that"
        )
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return Account(name, found.pw_uid, found.pw_gid, groups, directory)


def _first_uid() -> int:
    with suppress(OSError, ValueError):
        for line in _LOGIN.read_text().splitlines():
            words = line.split()
            if len(words) > 1 and words[0] == "UID_MIN":
                # However it is set, root and the system's own users are no accounts of people.
                return max(int(words[1]), 100)
    return _FIRST_UID


def check_owner(home: Path, name: str) -> Account:
    """Return the account of the owner of an experiment that is to run in a home.

    Raises DetError if it has no owner, or the owner has no account.
    """
    if not name:
        raise DetError(
            f"code in {home} runs as the system user who submitted it ({FILE} in it), and nobody"
            " did; submit it to the server: det login URL"
        )
    return find_account(name)


def account_of(home: Path, directory: Path) -> Account | None:
    """Return the account as which the code of an experiment runs, by the experiment's directory.

    None where all code runs as whoever starts it. Raises DetError if the account is missing.
    """
    if not runs_as_users(home):
        return None
    return check_owner(home, user_of(directory))


def check_allowed(config: ExperimentConfig, engine: str) -> None:
    """Raise DetError for what root would have to run, or another machine, and not the user."""
    environment = config.environment
    asked = next(
        (
            f"environment.{key}"
            for key in ("container", "requirements", "python")
            if getattr(environment, key) is not None
        ),
        "",
    )
    searcher = config.searcher
    if engine != "local":
        asked = f"the engine {engine}"
    elif config.engine is not None and type(config.engine).__struct_config__.tag != "local":
        asked = f"engine.name {type(config.engine).__struct_config__.tag}"
    elif hosts_of(config):
        asked = "distributed.hosts"
    elif find_kind(config.entrypoint) == NOTEBOOK:
        # The server would pass requests on to what listens in a directory of the user.
        asked = "a notebook"
    elif isinstance(searcher, Custom):
        asked = "searcher.name custom"
    elif isinstance(searcher, Combined) and ":" in searcher.sampler:
        asked = "a searcher.sampler of your own"
    if asked:
        raise DetError(
            f"this server runs code as the users of its machine (--run-as-users), and {asked} is"
            " not for such a server; leave it out"
        )


def _kill_late(process: subprocess.Popen[bytes], done: threading.Event, seconds: float) -> None:
    if not done.wait(seconds):
        process.kill()


class AccountStorage(Storage):
    """The checkpoint storage of a user. All it does is done by processes of that user.

    So links that the user makes lead nowhere where the user could not go. Files that come from
    there are copied to a directory of this process.
    """

    def __init__(self, account: Account, config: ExperimentConfig) -> None:
        self._account, self._config = account, to_json(config)

    def __repr__(self) -> str:
        return f"AccountStorage({self._account.name!r})"

    @contextmanager
    def restore(self, uuid: str, selector: Selector | None = None) -> Iterator[Path]:
        with TemporaryDirectory(prefix="det-checkpoint-") as scratch:
            self.download(uuid, Path(scratch), selector)
            yield Path(scratch)

    def download(self, uuid: str, target: Path, selector: Selector | None = None) -> None:
        names = None if selector is None else tuple(filter(selector, self.files(uuid)))
        target.mkdir(parents=True, exist_ok=True)
        with self._asking(_COPY_SECONDS, "get", uuid, names) as (_, output):
            try:
                with tarfile.open(fileobj=output, mode="r|") as tar:
                    _unpack(tar, target)
            except (tarfile.TarError, EOFError, ValueError, LookupError, ArithmeticError) as error:
                raise StorageError(f"checkpoint {uuid} cannot be read: {error}") from error

    def files(self, uuid: str) -> dict[str, int]:
        return self._sizes(self._ask("files", uuid))

    def delete(self, uuid: str, globs: Sequence[str] = ("**/*",)) -> dict[str, int]:
        return self._sizes(self._ask("delete", uuid, tuple(globs)))

    def list(self) -> Iterable[str]:
        found = self._ask("list")
        return [str(each) for each in found] if isinstance(found, list) else []

    def exists(self, uuid: str) -> bool:
        return self._ask("exists", uuid) is True

    def url(self, uuid: str) -> str:
        return str(self._ask("url", uuid))

    def check(self) -> None:
        self._ask("check")

    @contextmanager
    def store(self, uuid: str) -> Iterator[Path]:
        with TemporaryDirectory(prefix="det-checkpoint-") as scratch:
            yield Path(scratch)
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as tar:
                tar.add(scratch, "")
            with self._asking(_COPY_SECONDS, "store", uuid, None, packed.getvalue()):
                pass

    def begin(self, uuid: str) -> NoReturn:
        self._refuse()

    def put(self, uuid: str, source: Path, names: Iterable[str]) -> NoReturn:
        self._refuse()

    def commit(self, uuid: str) -> NoReturn:
        self._refuse()

    def abort(self, uuid: str) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StorageError(f"only code of {self._account.name} writes a checkpoint in parts")

    def _sizes(self, found: Any) -> dict[str, int]:
        if not isinstance(found, Mapping) or not all(isinstance(n, int) for n in found.values()):
            raise StorageError(f"the storage of {self._account.name} gives no files")
        return {str(name): size for name, size in found.items()}

    def _ask(self, operation: str, uuid: str = "", names: tuple[str, ...] | None = None) -> Any:
        with self._asking(_SECONDS, operation, uuid, names) as (value, _):
            return value

    @contextmanager
    def _asking(
        self,
        seconds: float,
        operation: str,
        uuid: str,
        names: tuple[str, ...] | None,
        content: bytes = b"",
    ) -> Iterator[tuple[Any, IO[bytes]]]:
        """Give what a process of the user answers, and the rest of its output."""
        root = str(self._account.checkpoints)
        wish = Wish(operation=operation, config=self._config, root=root, uuid=uuid, names=names)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "det_node.checkpoints"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                **self._account.options(),
            )
        except OSError as error:
            raise StorageUnreachable(
                f"no process of {self._account.name} can be started: {error.strerror}"
            ) from error
        # The user may stop the process.
        done = threading.Event()
        start_thread(_kill_late, process, done, seconds, name="det-account-limit")
        try:
            assert process.stdin
            assert process.stdout
            with suppress(OSError), process.stdin:
                process.stdin.write(encode_wish(wish) + b"\n" + content)
            output = io.BufferedReader(_Output(process.stdout.fileno(), seconds))
            try:
                reply = decode_reply(output.readline(_LONGEST_REPLY))
            except ValueError as error:
                raise StorageUnreachable(
                    f"a process of {self._account.name} did not say what is in the checkpoint"
                    " storage of theirs; try again"
                ) from error
            if reply.problem:
                kind = StorageUnreachable if reply.passes else StorageError
                raise kind(reply.problem)
            done.set()
            yield reply.value, output
        finally:
            done.set()
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


class _Output(io.RawIOBase):
    """What another process writes, which is taken for stopped when it is silent for too long."""

    def __init__(self, descriptor: int, seconds: float) -> None:
        self._descriptor, self._seconds = descriptor, seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        waiting = select.poll()
        waiting.register(self._descriptor, select.POLLIN)
        if not waiting.poll(1000 * self._seconds):
            raise StorageUnreachable("the checkpoint storage does not answer; try again")
        data = os.read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _unpack(tar: tarfile.TarFile, target: Path) -> None:
    """Write the regular files of an archive by somebody else below a directory of this process."""
    for entry in tar:
        parts = PurePosixPath(entry.name).parts
        if not entry.isreg() or not parts or {"/", ".", ".."} & {*parts} or "\0" in entry.name:
            raise StorageError(f"{entry.name!r} is no file of a checkpoint")
        source = tar.extractfile(entry)
        assert source
        place = target.joinpath(*parts)
        place.parent.mkdir(parents=True, exist_ok=True)
        with source, place.open("xb") as file:
            while block := source.read(1 << 20):
                file.write(block)
