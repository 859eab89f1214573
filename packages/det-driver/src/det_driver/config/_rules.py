"""Rules between fields, over structs that have been read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from det_core.config import (
    AdaptiveAsha,
    AsyncHalving,
    Azure,
    Categorical,
    Combined,
    Const,
    Double,
    ExperimentConfig,
    Grid,
    Hyperband,
    Int,
    Log,
    LogPolicy,
    Pbt,
    Profiling,
    Rungs,
    SharedFs,
    is_trial_entrypoint,
)
from det_core.config.decoding import Rule
from det_core.config.faults import Path, dotted, shown

from ..space import count_steps
from ._spaces import values_for_exponents

Found = list[tuple[Path, str]]

MOST_TRIALS = 1_000_000
"""The limit of the trials of a search, of the points of a grid, and of hyperband's first rung."""
MOST_RUNGS = 1_000
"""The limit of the rungs of a bracket."""


def _bounds(hp: Int | Double | Log, at: str) -> Found:
    if hp.minval < hp.maxval:
        return []
    return [
        (
            ("minval",),
            f"{at}.minval is {hp.minval} and maxval is {hp.maxval}; give a minval below maxval",
        )
    ]


def _int(hp: Int, at: str) -> Found:
    if wrong := _bounds(hp, at):
        return wrong
    if hp.log and hp.step is not None:
        return [(("step",), f"{at} has both log and step; give one of them")]
    if hp.log and hp.minval < 1:
        return [
            (
                ("minval",),
                (
                    f"{at}.minval is {hp.minval}, which has no logarithm; give 1 or more, or leave"
                    " log out"
                ),
            )
        ]
    return _step(hp, at)


def _double(hp: Double, at: str) -> Found:
    if wrong := _bounds(hp, at):
        return wrong
    if not math.isfinite(hp.maxval - hp.minval):
        reach = f"{at}.minval is {hp.minval} and maxval is {hp.maxval}"
        return [(("minval",), f"{reach}, too far apart for any number; give closer bounds")]
    return _step(hp, at)


def _step(hp: Int | Double, at: str) -> Found:
    if hp.step is None or hp.step <= hp.maxval - hp.minval:
        return []
    reach = f"minval is {hp.minval} and maxval is {hp.maxval}"
    return [(("step",), f"{at}.step is {hp.step}, {reach}; give a step that fits between them")]


def _exponents(hp: Log, at: str) -> Found:
    if wrong := _bounds(hp, at):
        return wrong
    text = values_for_exponents(hp, at)
    return [((), text)] if text else []


def _halving(searcher: Rungs, at: str) -> Found:
    promoting, stopping = searcher.max_length is not None, searcher.max_time is not None
    if promoting and (stopping or searcher.time_metric is not None):
        way_out = "give max_length to promote trials, or max_time and time_metric to stop them"
        return [
            (("max_length",), f"{at} has both max_length and max_time or time_metric; {way_out}")
        ]
    if not promoting and not stopping and searcher.time_metric is None:
        way_out = "give max_length to promote trials, or max_time and time_metric to stop them"
        return [(("max_length",), f"{at}.max_length is missing; {way_out}")]
    if not promoting and not stopping:
        return [
            (
                ("max_time",),
                f"{at}.max_time is missing; say how long trials train, in units of time_metric",
            )
        ]
    if stopping and searcher.time_metric is None:
        way_out = "name the validation metric that counts the time, such as batches"
        return [(("time_metric",), f"{at}.time_metric is missing; {way_out}")]
    if stopping and searcher.stop_once is False:
        way_out = "leave stop_once out, or give max_length"
        return [
            (
                ("stop_once",),
                f"{at}.stop_once is false, but max_time and time_metric stop trials; {way_out}",
            )
        ]
    return []


def _combined(searcher: Combined, at: str) -> Found:
    lengths = (searcher.max_length, searcher.max_time, searcher.time_metric)
    if searcher.schedule == "full" and not any(lengths):
        return []
    wrong = _halving(searcher, at)
    return wrong or (_hyperband(searcher, at) if searcher.schedule == "hyperband" else [])


def _hyperband(searcher: Hyperband | Combined, at: str) -> Found:
    """Limit the rungs and the trials of the first bracket.

    It begins with as many trials as the greatest power of the divisor in the length.
    """
    if searcher.max_length is None:
        return []
    halvings = math.floor(math.log(max(searcher.max_length.n, 1), searcher.divisor))
    if halvings > MOST_RUNGS:
        text = f"{at}.divisor is {searcher.divisor}, which makes {halvings:,} rungs"
        return [(("divisor",), f"{text}, {MOST_RUNGS:,} at most; give a larger divisor")]
    if searcher.divisor**halvings <= MOST_TRIALS:
        return []
    text = (
        f"{at}.max_length is {searcher.max_length}, and hyperband begins with about as many trials"
    )
    return [
        (
            ("max_length",),
            f"{text}, {MOST_TRIALS:,} at most; give it in a larger unit, such as epochs",
        )
    ]


def _pbt(searcher: Pbt, at: str) -> Found:
    if searcher.population_size * searcher.num_rounds <= MOST_TRIALS:
        return []
    text = (
        f"{at}.population_size is {searcher.population_size:,} and num_rounds is"
        f" {searcher.num_rounds:,}"
    )
    return [(("population_size",), f"{text}; their product is {MOST_TRIALS:,} at most: lower one")]


def _shared_fs(storage: SharedFs, at: str) -> Found:
    if storage.storage_path is None:
        return []
    host, inside = PurePosixPath(storage.host_path), PurePosixPath(storage.storage_path)
    outside = not inside.is_relative_to(host) if inside.is_absolute() else False
    if not outside and ".." not in inside.parts:
        return []
    way_out = "give a relative path, or one below host_path"
    text = (
        f"{at}.storage_path is {storage.storage_path!r}, outside {storage.host_path!r}; {way_out}"
    )
    return [(("storage_path",), text)]


def _azure(storage: Azure, at: str) -> Found:
    if storage.connection_string is None and storage.account_url is None:
        text = f"{at}.connection_string is missing; give it, or account_url and credential"
        return [(("connection_string",), text)]
    if storage.connection_string is None:
        return []
    others = [name for name in ("account_url", "credential") if getattr(storage, name) is not None]
    way_out = "give connection_string alone, or account_url and credential"
    return [((name,), f"{at} has both connection_string and {name}; {way_out}") for name in others]


def _profiling(profiling: Profiling, at: str) -> Found:
    last = profiling.end_after_batch
    if last is None or profiling.begin_on_batch <= last:
        return []
    text = f"{at}.begin_on_batch is {profiling.begin_on_batch} and end_after_batch is {last}"
    return [(("begin_on_batch",), f"{text}; begin no later than you end")]


def _pattern(policy: LogPolicy, at: str) -> Found:
    if policy.name is None and policy.action is None:
        return [(("name",), f"{at}.name is missing; give the policy a name, or an action")]
    try:
        re.compile(policy.pattern or "")
    except re.error as error:
        return [
            (
                ("pattern",),
                (
                    f"{at}.pattern is {policy.pattern!r}, not a regular expression ({error});"
                    " correct it"
                ),
            )
        ]
    return []


def _experiment(config: ExperimentConfig, at: str) -> Found:
    return [
        *_entrypoint(config),
        *_batch_size(config.hyperparameters.get("global_batch_size")),
        *_limits(config.searcher),
        *_grid(config),
        *_trial_length(config),
        *_policies(config.log_policies),
        *_tensorboard(config.tensorboard_storage or {}),
    ]


def _limits(searcher: Any) -> Found:
    """Limit what the settings of any searcher, also of a plugin's, make it build at once."""
    most = {
        "max_trials": MOST_TRIALS,
        "num_rungs": MOST_RUNGS,
        "max_rungs": MOST_RUNGS,
        "bracket_rungs": MOST_RUNGS,
    }
    found: Found = []
    for key, limit in most.items():
        given = getattr(searcher, key, None)
        for each in given if isinstance(given, tuple) else (given,):
            if isinstance(each, int) and each > limit:
                found.append((("searcher", key), f"searcher.{key} is {each:,}; {limit:,} at most"))
    return found


def _entrypoint(config: ExperimentConfig) -> Found:
    words = (
        [config.entrypoint] if isinstance(config.entrypoint, str) else list(config.entrypoint or ())
    )
    if config.entrypoint is None or (words and words[0].strip()):
        return []
    return [
        (
            ("entrypoint",),
            "entrypoint is empty; give module:Class, or a command such as python3 train.py",
        )
    ]


def _trial_length(config: ExperimentConfig) -> Found:
    searcher = config.searcher
    # These searchers have their own rules, and a script may end by itself.
    if isinstance(searcher, AdaptiveAsha | AsyncHalving | Hyperband) or not is_trial_entrypoint(
        config.entrypoint
    ):
        return []
    if (
        searcher is None
        or getattr(searcher, "max_length", searcher) is not None
        or getattr(searcher, "max_time", None) is not None
    ):
        return []
    way_out = f"say how long {config.entrypoint} trains, such as {{epochs: 3}}"
    return [(("searcher", "max_length"), f"searcher.max_length is missing; {way_out}")]


def _counts(hyperparameters: dict[str, Any], path: Path) -> Iterator[tuple[Path, str]]:
    for name, hp in hyperparameters.items():
        if isinstance(hp, dict):
            yield from _counts(hp, (*path, name))
        elif (
            isinstance(hp, Int | Double | Log)
            and hp.count is None
            and getattr(hp, "step", None) is None
        ):
            where = (*path, name, "count")
            yield where, f"{dotted(where)} is missing; a grid needs to know how many values to take"


def _grid(config: ExperimentConfig) -> Found:
    key = "name" if isinstance(config.searcher, Grid) else "sampler"
    if getattr(config.searcher, key, None) != "grid":
        return []
    missing = list(_counts(config.hyperparameters, ("hyperparameters",)))
    if missing or (points := _points(config.hyperparameters)) <= MOST_TRIALS:
        return missing
    way_out = "lower a count, or let random draw some of them (max_trials)"
    count = f"{points:,}" if points < 10**12 else f"about 10^{math.log10(points):.0f}"
    return [
        (
            ("searcher", key),
            f"searcher.{key} is grid, of {count} trials; {MOST_TRIALS:,} at most: {way_out}",
        )
    ]


def _points(hp: Any) -> int:
    if isinstance(hp, dict):
        return math.prod(map(_points, hp.values()))
    if isinstance(hp, Int) or getattr(hp, "step", None) is not None:
        steps = count_steps(hp)
        return min(hp.count or (steps if hp.step else 1), steps)
    return len(hp.vals) if isinstance(hp, Categorical) else getattr(hp, "count", None) or 1


def _batch_size(hp: Any) -> Found:
    path: Path = ("hyperparameters", "global_batch_size")
    if hp is None:
        return []
    if isinstance(hp, Int):
        wrong = [] if hp.minval >= 1 else [((*path, "minval"), hp.minval)]
    elif isinstance(hp, Const | Categorical):
        values = hp.vals if isinstance(hp, Categorical) else (hp.val,)
        wrong = [(path, value) for value in values if not _is_positive(value)]
    else:
        kind = "map" if isinstance(hp, dict) else f"{hp.__struct_config__.tag} range"
        return [
            (
                path,
                f"{dotted(path)} is a {kind}; give a positive whole number, or a range of type int",
            )
        ]
    return [
        (where, f"{dotted(where)} is {shown(value)}; give a positive whole number")
        for where, value in wrong
    ]


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _policies(policies: tuple[LogPolicy, ...]) -> Found:
    names = [policy.name for policy in policies if policy.name is not None]
    twice = sorted({name for name in names if names.count(name) > 1})
    return [
        (("log_policies",), f"log_policies has two policies of the name {name!r}; keep one")
        for name in twice
    ]


def _tensorboard(storage: dict[str, Any]) -> Found:
    kept = [key for key in storage if key.startswith("save_")]
    way_out = "checkpoint_storage says what is kept"
    return [
        (("tensorboard_storage", key), f"tensorboard_storage.{key} has no meaning; {way_out}")
        for key in kept
    ]


RULES: dict[type[Struct], Rule] = {
    AdaptiveAsha: _halving,
    AsyncHalving: _halving,
    Azure: _azure,
    Combined: _combined,
    Double: _double,
    ExperimentConfig: _experiment,
    Hyperband: _hyperband,
    Int: _int,
    Log: _exponents,
    LogPolicy: _pattern,
    Pbt: _pbt,
    Profiling: _profiling,
    SharedFs: _shared_fs,
}
