"""Descriptors that are handed to a fork server: each goes with its own run, also where there is no room for one."""

from __future__ import annotations

import os
import resource
import socket

import pytest

from det_core.forks import Given, send_with


def test_each_descriptor_is_of_what_it_came_with_and_is_closed_behind_it() -> None:
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


def test_one_that_there_is_no_room_for_is_missed_by_its_own_run_alone() -> None:
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
