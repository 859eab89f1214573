"""Converts single values of Determined's tables: times, states, metrics, positions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from det_driver.store import CheckpointState, ExperimentState, TrialState, load

LARGEST = 10**18
"""The positions of reports are below this, as everywhere in the store."""
_MOST_DIGITS = 300
_LONG_NUMBER = re.compile(rf"\d{{{_MOST_DIGITS}}}")
_UNIX, _UNIX_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ENDED = {"COMPLETED": "COMPLETED", "CANCELED": "CANCELED", "ERROR": "ERROR", "KILLED": "CANCELED"}


def read_time(text: str | None) -> float | None:
    """Return a timestamp as unix seconds. One without a time zone is in UTC.

    Returns None for NULL, for `infinity` and for years before 1.
    """
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time - (_UNIX if time.tzinfo is None else _UNIX_UTC)).total_seconds()


def read_json(text: str | None) -> Any:
    """Return the value of a jsonb column. None where the column is NULL, and for a JSON null."""
    if text is None:
        return None
    if len(text) < _MOST_DIGITS or _LONG_NUMBER.search(text) is None:
        return load(text)
    return json.loads(text, parse_int=_read_int)


def _read_int(text: str) -> float:
    """Return an integer. One that does not fit a float is infinite, as other numbers are.

    PostgreSQL writes all digits of a number.
    """
    return int(text) if len(text) < _MOST_DIGITS else float(text)


def read_object(text: str | None) -> dict[str, Any]:
    """Return the map in a jsonb column. An empty one for any other value."""
    value = read_json(text)
    return value if isinstance(value, dict) else {}


def is_true(text: str | None) -> bool:
    """Return the value of a boolean column."""
    return text == "t"


def read_labels(value: Any) -> list[str]:
    """Return the labels of a configuration. In old rows they are the keys of a map."""
    if isinstance(value, dict):
        value = [label for label, is_set in value.items() if is_set]
    return (
        list(dict.fromkeys(label for label in value if isinstance(label, str)))
        if isinstance(value, list)
        else []
    )


def read_array(text: str | None) -> list[str]:
    """Return the items of an array of texts, as PostgreSQL writes it: `{one,"and two"}`."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|([^,{}]+)', text or "")
    return [re.sub(r"\\(.)", r"\1", quoted) if quoted else plain for quoted, plain in found]


def read_state(state: str) -> tuple[ExperimentState, str | None]:
    """Return the state of an experiment, and a reason or None. One that had not ended is paused."""
    name = state.removeprefix("STOPPING_")
    if name in _ENDED:
        return ExperimentState(_ENDED[name]), None
    if name.startswith("DELET"):
        return ExperimentState.ERROR, f"Determined was deleting it ({state})"
    return ExperimentState.PAUSED, f"it had not ended in Determined ({state})"


def read_trial_state(state: str, of: ExperimentState) -> TrialState:
    """Return the state of a trial. One that had not ended has the state of its experiment."""
    name = state.removeprefix("STOPPING_")
    return TrialState(_ENDED[name]) if name in _ENDED else TrialState(of)


def read_metrics(text: str | None) -> dict[str, Any] | None:
    """Return the metrics of a report of any group. None for a report without metrics."""
    found = read_object(text)
    for name in ("validation_metrics", "avg_metrics"):
        if isinstance(values := found.get(name), dict):
            is_odd = text is not None and ("NaN" in text or "Infinity" in text)
            return (finite_or_not(values) if is_odd else values) or None
    batches = found.get("batch_metrics")
    return finite_or_not(_means(batches)) or None if isinstance(batches, list) else None


def read_batches(text: str | None) -> list[dict[str, Any]]:
    """Return the metrics of each batch of a training report. Empty where it has none."""
    try:
        found = read_object(text).get("batch_metrics")
    except (ValueError, RecursionError):
        return []
    rows = found if isinstance(found, list) else []
    return [finite_or_not(row) if isinstance(row, dict) else {} for row in rows]


def finite_or_not(value: Any) -> Any:
    """Return a value with NaN and infinities, which Determined wrote as text, as floats."""
    if isinstance(value, str):
        return _NUMBERS.get(value, value)
    if isinstance(value, dict):
        return {name: finite_or_not(each) for name, each in value.items()}
    return [finite_or_not(each) for each in value] if isinstance(value, list) else value


def _means(batches: list[Any]) -> dict[str, float]:
    """Return the mean of each metric, over the batches in which it is a number."""
    rows = [finite_or_not(each) for each in batches if isinstance(each, dict)]
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found.setdefault(name, []).append(value)
    return {name: _sum(values) / len(values) for name, values in found.items()}


def _sum(values: list[float]) -> float:
    # math.fsum raises an error for infinities of both signs.
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def read_position(value: Any) -> int | None:
    """Return a number of batches from the value of `steps_completed` in a checkpoint's metadata.

    The value may be a whole number, or 12.0, or text such as "12". Fractions are cut off. Returns
    None if it is no number, negative, or 10**18 or more.
    """
    try:
        number = float(value)
        return int(value if isinstance(value, int) else number) if 0 <= number < LARGEST else None
    except (TypeError, ValueError, OverflowError):
        return None


def read_checkpoint_state(state: str) -> CheckpointState | None:
    """Return the state of a checkpoint. None for one that was never complete."""
    return CheckpointState(state) if state in CheckpointState.__members__ else None


def read_size(size: str | int | None, resources: str | None) -> int:
    """Return the size of a checkpoint in bytes: the recorded one, or the sum of its files."""
    if size is not None:
        return int(size)
    return sum(each for each in read_object(resources).values() if isinstance(each, int))


def framework_of(metadata: Mapping[str, Any]) -> str:
    """Return det's name of the framework that wrote a checkpoint. Empty for an unknown one."""
    name = str(metadata.get("framework") or "").lower()
    return (
        "torch"
        if name.startswith(("torch", "pytorch"))
        else "keras"
        if name.startswith("tensorflow")
        else ""
    )
