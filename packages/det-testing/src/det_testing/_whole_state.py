"""Compares every array of a resumed run with those of an uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from det_core.checkpoint import read_checkpoint
from det_core.hooks.records import Framework
from det_core.train.schedule import Every

from ._runs import EACH_BATCH, Run, Runs

Contents = Callable[[Path], Any]
"""Reads everything in a checkpoint's directory, as containers of arrays and plain values."""


SAVES_EACH = replace(EACH_BATCH, checkpoint=Every(1), validate=Every(2))


def differences(mine: Any, other: Any, place: str = "") -> list[str]:
    """Return the places where two nested values differ, bit for bit.

    Types, keys, lengths, arrays, and attributes of containers are compared. An array has a `shape`,
    a `dtype` and a `tolist` or a `numpy`.
    """
    if type(mine) is not type(other):
        return [f"{place}: {type(mine).__name__}, not {type(other).__name__}"]
    if hasattr(mine, "shape") and hasattr(mine, "dtype"):
        same = _facts(mine) == _facts(other)
        return [] if same else [f"{place}: {_facts(mine)!r:.60}, not {_facts(other)!r:.60}"]
    found: list[str] = []
    if isinstance(mine, Mapping):
        if list(map(repr, mine)) != list(map(repr, other)):
            return [f"{place}: the keys {list(mine)!r:.80}, not {list(other)!r:.80}"]
        for (key, value), theirs in zip(mine.items(), other.values(), strict=True):
            found += differences(value, theirs, f"{place}[{key!r}]")
    elif isinstance(mine, (list, tuple)):
        if len(mine) != len(other):
            return [f"{place}: {len(mine)} items, not {len(other)}"]
        for index, (value, theirs) in enumerate(zip(mine, other, strict=True)):
            found += differences(value, theirs, f"{place}[{index}]")
    elif isinstance(mine, set):
        found += [] if mine == other else [f"{place}: {mine!r:.60}, not {other!r:.60}"]
    elif repr(mine) != repr(other):
        # repr distinguishes 0.0 from -0.0 and regards all NaN as equal.
        found.append(f"{place}: {mine!r:.60}, not {other!r:.60}")
    if isinstance(mine, (dict, list)) and hasattr(mine, "__dict__"):
        found += differences(vars(mine), vars(other), f"{place}.__dict__")
    return found


def _facts(array: Any) -> tuple[str, tuple[int, ...], str]:
    plain = array if hasattr(array, "tolist") else array.numpy()
    return str(array.dtype), tuple(array.shape), repr(plain.tolist())


def resumed_differences(
    run: Runs,
    length: int,
    contents: Contents,
    *,
    positions: Sequence[int] | None = None,
    whole: Run | None = None,
    framework: Framework | None = None,
    **settings: Any,
) -> dict[int, list[str]]:
    """Return the differences of resumed runs from an uninterrupted one.

    They are listed by the position of the resume. A run of `length` batches saves after each batch,
    and validates after every second. `whole` is such a run if there is one already. From each of
    its checkpoints, or those of `positions`, another run continues to the end. All its reports, and
    all contents of each of its checkpoints, are compared.

    Position 0 has the differences from a run that saves and validates only at its end. `framework`
    replaces the trial's own in the resumed runs, for example by one with a fault.
    """
    found: dict[int, list[str]] = {}
    if whole is None:
        whole = run(length, schedule=SAVES_EACH, **settings)
        undisturbed = run(length, **settings)
        if differs := compared(run, contents, whole, undisturbed, 0, validations=False):
            found[0] = differs
    for position in positions if positions is not None else range(1, length):
        checkpoint = whole.checkpoints[position]
        second = run(
            length, schedule=SAVES_EACH, checkpoint=checkpoint, framework=framework, **settings
        )
        if differs := compared(run, contents, second, whole, position):
            found[position] = differs
    return found


def compared(
    run: Runs, contents: Contents, mine: Run, other: Run, behind: int, *, validations: bool = True
) -> list[str]:
    """Return the differences after a position. Those of a checkpoint begin with its position."""
    found: list[str] = []
    for name in ("reports", "validations") if validations else ("reports",):
        theirs = {
            batches: dict(report)
            for batches, report in getattr(other, name).items()
            if batches > behind
        }
        own = {
            batches: dict(report)
            for batches, report in getattr(mine, name).items()
            if batches > behind
        }
        found += differences(own, theirs, name)
    for batches in sorted(other.checkpoints):
        if batches <= behind:
            continue
        if batches not in mine.checkpoints:
            found.append(f"{batches}: no checkpoint")
            continue
        states = [_read(run, contents, each.checkpoints[batches]) for each in (mine, other)]
        found += [f"{batches}: {each}" for each in differences(*states)]
    return found


def _read(run: Runs, contents: Contents, uuid: str) -> Any:
    with read_checkpoint(run.storage, uuid) as (path, _):
        return contents(path)
