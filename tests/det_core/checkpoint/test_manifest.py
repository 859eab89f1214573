"""What a checkpoint says of itself comes back as it was written, or a sentence says why not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from det_core.checkpoint.manifest import decode, draft, encode
from det_core.errors import CheckpointError

MADE = draft(framework="x", batches=7, metadata={"b": [1, None], "a": {"c": "é"}})


def test_a_manifest_comes_back_as_it_was() -> None:
    assert decode(encode(MADE), MADE.uuid) == MADE


def test_it_names_the_commit_of_the_code_where_there_is_one() -> None:
    assert "commit" not in MADE.origin
    found = draft(framework="x", batches=7, commit="abc+")
    assert found.origin == MADE.origin | {"commit": "abc+"}


def test_it_may_be_written_otherwise_as_long_as_it_says_the_same() -> None:
    other = json.dumps(json.loads(encode(MADE)), sort_keys=True, indent=4).encode()
    assert other != encode(MADE)
    assert decode(other, MADE.uuid) == MADE


def test_that_of_another_checkpoint_is_named() -> None:
    message = (
        f"^checkpoint mine: its manifest is that of {MADE.uuid}; give the directory that name"
        " again$"
    )
    with pytest.raises(CheckpointError, match=message):
        decode(encode(MADE), "mine")


def test_one_that_is_nested_too_deeply_cannot_be_read() -> None:
    with pytest.raises(
        CheckpointError, match=r"^checkpoint u: manifest.json cannot be read \(RecursionError: "
    ):
        decode(b'{"format": 1, "metadata": ' + b"[" * 10**6, "u")


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), TypeError),
        ("\udc80", ValueError),
        (10**5000, (ValueError, OverflowError)),
        (endless(), RecursionError),
    ],
    ids=["an object", "half a character", "a very large number", "a list of itself"],
)
def test_metadata_that_json_does_not_know_is_refused(value: Any, kind: Any) -> None:
    with pytest.raises(
        CheckpointError, match=r"^checkpoint metadata must be plain JSON: .*; convert it first$"
    ) as said:
        draft(framework="x", batches=1, metadata={"value": value})
    assert isinstance(said.value.__cause__, kind)
