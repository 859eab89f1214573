"""What a fork server gives its forks: the descriptors of their runs, and memory that they share."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys

import pytest

from det_node.forks import Given, send_with

FORKS = """
import os, sys, weakref
from det_node.forks import SharedPages

class Thing:
    pass

imported, shared = Thing(), SharedPages()
weakref.finalize(imported, print, "imported", flush=True)
shared.freeze()
if (child := os.fork()) == 0:
    own = Thing()
    weakref.finalize(own, print, "a fork's own", flush=True)
    sys.exit()
os.waitpid(child, 0)
print("the fork has ended", flush=True)
shared.release()
"""


def test_each_descriptor_stays_with_its_message_and_is_closed() -> None:
    ours, theirs = socket.socketpair()
    given = Given()
    with ours, theirs, open(os.devnull) as one, open(__file__) as other:
        send_with(ours, b"one", one.fileno())
        send_with(ours, b"other" * 100, other.fileno())
        send_with(ours, b"none")
        data = b""
        while len(data) < 3 + 500 + 4:
            data += given.receive(theirs)
        assert data == b"one" + b"other" * 100 + b"none"
        for file in (one, other):
            first = given.first()
            assert os.path.samestat(os.fstat(first), os.fstat(file.fileno()))
            assert not os.get_inheritable(first)
            given.close(1)
            with pytest.raises(OSError):
                os.fstat(first)


def test_descriptor_beyond_the_limit_fails_only_its_own_run() -> None:
    ours, theirs = socket.socketpair()
    given, limits = Given(), resource.getrlimit(resource.RLIMIT_NOFILE)
    with ours, theirs, open(os.devnull) as file:
        send_with(ours, b"a", file.fileno())
        resource.setrlimit(resource.RLIMIT_NOFILE, (file.fileno() + 1, limits[1]))
        try:
            assert given.receive(theirs) == b"a"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        send_with(ours, b"b", file.fileno())
        assert given.receive(theirs) == b"b"
        with pytest.raises(OSError, match="Too many open files"):
            given.first()
        given.close(1)
        assert os.path.samestat(os.fstat(given.first()), os.fstat(file.fileno()))
        given.close()


@pytest.mark.process
def test_finalizers_run_once_where_they_were_made() -> None:
    """`SharedPages` uses the private registry of `weakref.finalize`.

    A new Python may change that.
    """
    ended = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.splitlines() == ["a fork's own", "the fork has ended", "imported"]
    assert ended.stderr == ""
