"""How a script reports to its driver that it failed or that it ended."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import DetError
from ..hooks.runtime import runtime
from .adapter import Stop
from .failure import explained
from .host import HostLost, Outcome

if TYPE_CHECKING:
    from ..config import ExperimentConfig
    from .environ import WorkerEnv
    from .host import DriverHost

EXIT = {
    Outcome.MISTAKE: 2,
    Outcome.BLOCKED: 2,
    Outcome.UNREACHABLE: 2,
    Outcome.DAMAGED: 2,
    Outcome.ERROR: 1,
    Outcome.OUT_OF_MEMORY: 1,
    Outcome.PEER_LOST: 1,
}
FAILURES = {*EXIT, Outcome.INVALID_HP}
OUTCOMES = {
    Stop.COMPLETED: Outcome.COMPLETED,
    Stop.PREEMPTED: Outcome.PREEMPTED,
    Stop.USER_STOPPED: Outcome.USER_STOPPED,
}


class ScriptEnding:
    """Reports to the driver how a script ends, classified like the end of a trial class.

    An exception is reported when it leaves the context of the script, and again when it leaves the
    script. A script may catch it between the two and end well, so the driver compares the first
    report with the exit status. The second one counts whatever status a shell around the script
    ends with. A script that ends without a message, such as by `os._exit`, has not completed.

    `reads_status` says that the host reads the exit status of the process, and so learns of
    `sys.exit`.
    """

    def __init__(
        self,
        host: DriverHost,
        config: ExperimentConfig,
        *,
        is_chief: bool = True,
        waits: bool = True,
        reads_status: bool = False,
        env: WorkerEnv | None = None,
    ) -> None:
        self._host, self._pid, self._config, self._env = host, os.getpid(), config, env
        self._is_chief, self._waits, self._reads_status = is_chief, waits, reads_status
        self._reported = False
        self.has_own_handler: Callable[[], bool] = lambda: False
        """Whether the script handles SIGTERM itself, and never asked whether it is to end."""
        self._hook, self._exit = sys.excepthook, sys.exit
        if isinstance(earlier := getattr(self._hook, "__self__", None), ScriptEnding):
            # An exception that leaves the script is reported once.
            self._hook = earlier._hook
        self._status: object = None
        # A script may begin while an earlier exception is handled, as a second attempt does.
        self._before = sys.exc_info()[1]
        sys.excepthook = self._uncaught
        if not reads_status:
            # Python tells nobody else with which status a script ends.
            sys.exit = self._exiting
        atexit.register(self.complete)

    @classmethod
    def of_run(cls, host: DriverHost, env: WorkerEnv) -> ScriptEnding:
        """Return the ending of a process of a run."""
        return cls(
            host,
            env.config,
            is_chief=env.ranks.rank == 0,
            # An agent keeps the message for the next driver.
            waits=not env.kept or env.ranks.size > 1,
            reads_status=True,
            env=env,
        )

    def fail(self, error: BaseException, *, uncaught: bool = False) -> tuple[Outcome, str]:
        """Report why the script failed. Return its outcome and the sentence for a person."""
        outcome, message, trace = explained(error, self._config)
        if not isinstance(error, SystemExit):
            self._report(outcome, message, trace, uncaught=uncaught)
        elif self._reads_status:
            self._status = error.code
        elif error.code not in (None, 0):
            self._report(Outcome.ERROR, f"the script called sys.exit({error.code!r})")
        return outcome, message

    def complete(self) -> None:
        """Report that the script completed. Only the first report counts."""
        if not self._reads_status and not self._reported:
            # A script may close its context in `finally`, or call sys.exit outside of it.
            error = sys.exc_info()[1]
            error = None if error is self._before else error
            if error is None and self._status not in (None, 0):
                error = SystemExit(self._status)
            if error is not None:
                self.fail(error)
        # A launcher may end with the status of another rank than the one that called sys.exit.
        if not self._reported and (self._is_chief or self._status not in (None, 0)):
            self._report(
                Outcome.COMPLETED,
                own_handler=self.has_own_handler(),
                status=_exit_status(self._status),
            )
        atexit.unregister(self.complete)
        if sys.exit == self._exiting:
            sys.exit = self._exit
        # A shell may hide how a script of a run ends, also after its context.
        if sys.excepthook == self._uncaught and self._env is None:
            sys.excepthook = self._hook

    def _exiting(self, status: Any = None, /) -> NoReturn:
        self._status = status
        self._exit(status)

    def _uncaught(
        self, kind: type[BaseException], error: BaseException, at: TracebackType | None
    ) -> None:
        if self._env is not None or not self._reported:
            self.fail(error, uncaught=True)
        self._hook(kind, error, at)

    def _report(self, outcome: Outcome, message: str = "", trace: str = "", **facts: Any) -> None:
        # A forked process shares the connection, and must not report.
        if os.getpid() != self._pid:
            return
        self._reported = True
        try:
            self._host.finished(outcome, message, trace, wait=self._waits, **facts)
        except DetError:
            return
        except HostLost:
            if self._env is None or not facts.get("uncaught"):
                return
            # The script has left its context, which closed the connection. Where no other can be
            # made, the exit status and the traceback in the log still tell of the failure.
            with suppress(Exception):
                again = runtime().connect(self._env)
                again.finished(outcome, message, trace, wait=self._waits, **facts)
                again.close()


def _exit_status(code: object) -> int:
    """Return the exit status of a process that calls `sys.exit` with this."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1
