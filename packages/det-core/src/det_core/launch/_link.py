"""The launcher's end of a host's process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from typing import Any

from ..errors import DetError
from ..process import end_group
from ._frames import Frame, FrameDecoder, FrameError, Kind
from ._hosts import Host, agent_argv

_CHUNK = 1 << 18


class Link:
    """Starts a host's process and talks with it; `over` says that it has told all."""

    def __init__(self, host: Host, template: str) -> None:
        self.host = host
        self.over = False
        self.heard = time.monotonic()
        self._decoder = FrameDecoder()
        argv = agent_argv(host, template)
        try:
            # In a session of its own, as it has to outlive the launcher to end the ranks.
            self._process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise DetError(
                f"cannot run {argv[0]!r} for the host {host.name!r}: {error.strerror}; see --agent"
            ) from error

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Tell it something; harmless when it has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self) -> list[Frame]:
        """Return what it has said; after the last of it `over` is true. DetError where it failed."""
        data = os.read(self.fileno(), _CHUNK)
        self.heard = time.monotonic()
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            raise DetError(
                f"the process on the host {self.host.name!r} is none of det's: {error}{self._noise()}"
            ) from None
        for frame in frames:
            match frame.kind:
                case Kind.PROBLEM:
                    raise DetError(frame.body.decode(errors="replace"))
                case Kind.END:
                    self.over = True
        if not data and not self.over:
            raise DetError(f"{self._lost()}{self._noise()}")
        return frames

    def hang_up(self) -> None:
        """Let the process end, and with it its ranks."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def wait(self, deadline: float) -> None:
        """Wait for its end, until a time of the monotonic clock; then kill it."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            end_group(self._process.pid)
            self._process.wait()

    def _lost(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        status = self._process.returncode or 0
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return f"the process on the host {self.host.name!r} ended with {how}, and its ranks with it"

    def _noise(self) -> str:
        text = self._decoder.noise.decode(errors="replace").strip()
        return f"; it said: {text.splitlines()[-1][:500]}" if text else ""
