"""Fifos, directories and garbage in place of what drivers and agents note hold nobody up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from det_core.errors import StoreError
from det_driver.engines._links import read_secret
from det_node.agent import find
from det_node.process import noted_processes

ODD: list[Callable[[Path], object]] = [
    os.mkfifo,
    os.mkdir,
    lambda path: path.write_bytes(b"\xff"),
    lambda path: path.write_text('[1, {"a": null}]'),
]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", ODD)
def test_what_is_in_place_of_a_note_is_no_note(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "agent.json")
    make(tmp_path / "process-0.json")
    assert find(tmp_path / "agent.json") is None
    assert noted_processes(tmp_path) == []


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", ODD)
def test_what_is_in_place_of_the_secret_is_named(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    make(tmp_path / "secret")
    with pytest.raises(StoreError, match="secret holds no secret of det any more; restore it, or"):
        read_secret(tmp_path)
