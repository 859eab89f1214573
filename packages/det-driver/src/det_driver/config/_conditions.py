"""Mistakes in conditions (`when`) and in constraints between hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError
from random import Random
from typing import Any

from det_core.config import Categorical, Const, ExperimentConfig, Int, SearcherConfig
from det_core.config.faults import Path, dotted, shown
from det_core.errors import did_you_mean

from ..space import (
    Conditions,
    Expression,
    Limits,
    any_values,
    leaves,
    needs_backticks,
    same,
    wanted,
)

_SAMPLES = 2000
_MOST_LISTED = 10


def space_faults(config: ExperimentConfig) -> Iterator[tuple[Path, str]]:
    """Yield the mistakes of a space with sound ranges, each with its place."""
    space = dict(leaves(config.hyperparameters))
    conditions = [*_conditions(space)]
    yield from conditions
    if isinstance(config.searcher, SearcherConfig) and config.searcher.stop_when is not None:
        try:
            named = Expression(config.searcher.stop_when).names
        except ValueError as error:
            at = f"searcher.stop_when is {shown(config.searcher.stop_when)}"
            yield ("searcher", "stop_when"), f"{at}: {error}"
        else:
            if not named:
                text = (
                    f"searcher.stop_when is {shown(config.searcher.stop_when)}, which names no"
                    " metric; name one"
                )
                yield ("searcher", "stop_when"), text
    constraints = config.searcher.constraints if isinstance(config.searcher, SearcherConfig) else ()
    unreadable = [*_unreadable(constraints, space)]
    yield from unreadable
    if not conditions and not unreadable and constraints:
        yield from _refusing(config.hyperparameters, constraints)


def _conditions(space: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    found = False
    for name, hp in space.items():
        for parent, value in (hp.when or {}).items():
            path = ("hyperparameters", *name.split("."), "when", parent)
            at = f"hyperparameters.{name}.when"
            if text := _wrong_parent(at, name, parent, space) or _wrong_value(
                at, parent, value, space[parent]
            ):
                found = True
                yield path, text
    if not found:
        try:
            Conditions(space)
        except CycleError as error:
            *_, name = error.args[1]
            circle = " on ".join(error.args[1])
            at = f"hyperparameters.{name}.when"
            yield (
                ("hyperparameters", *name.split("."), "when"),
                (
                    f"{at} goes round in a circle: {circle}; let one of them depend on none of the"
                    " others"
                ),
            )


def _wrong_parent(at: str, name: str, parent: str, space: Mapping[str, Any]) -> str:
    if parent not in space:
        last = [each for each in space if each.rpartition(".")[2] == parent and each != name]
        near = f"; did you mean {last[0]!r}?" if len(last) == 1 else did_you_mean(parent, space)
        return (
            f"{at} names {parent!r}, and there is no such"
            f" hyperparameter{near or '; give a dotted name from the top'}"
        )
    if parent == name:
        return f"{at} names the hyperparameter itself; name another one"
    hp = space[parent]
    if not isinstance(hp, Categorical | Const | Int):
        kind = hp.__struct_config__.tag
        return (
            f"{at} names {parent!r}, a {kind}, which seldom has exactly one value; name a"
            " categorical, an int or a constant"
        )
    return ""


def _wrong_value(at: str, parent: str, value: Any, hp: Categorical | Const | Int) -> str:
    values = wanted(value)
    if not values:
        return f"{at}.{parent} is an empty list; give the values that it must have"
    for each in values:
        if not _possible(hp, each):
            known = _known(hp)
            near = did_you_mean(str(each), map(str, known)) if known else ""
            listed = f"; it takes {', '.join(map(shown, known[:_MOST_LISTED]))}" if known else ""
            rest = (
                f"; it takes whole numbers from {hp.minval} to {hp.maxval}"
                if isinstance(hp, Int)
                else listed
            )
            return f"{at}.{parent} is {shown(each)}, which {parent} never is{near or rest}"
    return ""


def _possible(hp: Categorical | Const | Int, value: Any) -> bool:
    if isinstance(hp, Int):
        whole = (
            isinstance(value, int)
            and not isinstance(value, bool)
            and hp.minval <= value <= hp.maxval
        )
        return whole and (value - hp.minval) % (hp.step or 1) == 0
    return any(same(value, each) for each in _known(hp))


def _known(hp: Any) -> list[Any]:
    if isinstance(hp, Categorical):
        return [*hp.vals]
    return [hp.val] if isinstance(hp, Const) else []


def _unreadable(
    constraints: tuple[str, ...], space: Mapping[str, Any]
) -> Iterator[tuple[Path, str]]:
    # A constant may be a map.
    constants = {
        name: hp.val
        for name, hp in space.items()
        if isinstance(hp, Const) and isinstance(hp.val, Mapping)
    }
    for number, text in enumerate(constraints):
        path: Path = ("searcher", "constraints", number)
        at = f"{dotted(path)} is {shown(text)}"
        try:
            names = Expression(text).names
        except ValueError as error:
            yield path, f"{at}: {error}{_in_backticks(text, space)}"
            continue
        for name in sorted(names):
            if name in space or any(name.startswith(f"{constant}.") for constant in constants):
                continue
            near = _in_backticks(text, space) or did_you_mean(name, space)
            if not near:
                near = (
                    f"; known: {', '.join([*space][:_MOST_LISTED])}"
                    if space
                    else "; there are no hyperparameters"
                )
            yield path, f"{at}, and there is no hyperparameter {name!r}{near}"
            break
        else:
            if not names:
                yield path, f"{at}, which names no hyperparameter; name those that it concerns"


def _in_backticks(text: str, space: Mapping[str, Any]) -> str:
    """Return a hint if a constraint has a name that Python cannot read and that lacks backticks."""
    bare = "".join(text.split("`")[::2])
    found = [name for name in space if needs_backticks(name) and name in bare]
    return f"; write `{max(found, key=len)}`, in backticks" if found else ""


def _refusing(
    hyperparameters: Mapping[str, Any], constraints: tuple[str, ...]
) -> Iterator[tuple[Path, str]]:
    """Yield the constraints that are no conditions, or that no sample meets, alone or together."""
    random = Random(0)
    samples = [any_values(hyperparameters, random) for _ in range(_SAMPLES)]
    found = False
    for number, text in enumerate(constraints):
        path: Path = ("searcher", "constraints", number)
        at = f"{dotted(path)} is {shown(text)}"
        limits = Limits(hyperparameters, (text,))
        allowed = 0
        try:
            for sample in samples:
                allowed += limits.check(sample)
        except TypeError as error:
            found = True
            yield path, f"{at}: {error}; give a condition such as hidden * layers <= 1024"
        else:
            if not allowed:
                found = True
                yield (
                    path,
                    (
                        f"{at}, which none of {_SAMPLES:,} samples meets; widen the ranges, or"
                        " correct it"
                    ),
                )
    together = Limits(hyperparameters, constraints)
    if not found and not any(together.check(sample) for sample in samples):
        text = (
            f"searcher.constraints are met together by none of {_SAMPLES:,} samples; widen the"
            " ranges, or correct them"
        )
        yield ("searcher", "constraints"), text
