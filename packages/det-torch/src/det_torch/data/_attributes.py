"""Reads and sets the plain attributes of a dataset that training has changed, such as the level of
a curriculum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset

_PLAIN = (bool, int, float, str, type(None))
# A dataset may be made of others. More are not searched.
_MOST = 100

Attributes = dict[str, dict[str, Any]]
Changes = dict[str, dict[str, list[Any]]]


def find_datasets(dataset: Any) -> dict[str, Any]:
    """Return a dataset and those in its attributes, such as that of a `Subset`, by their paths."""
    found: dict[str, Any] = {}
    todo = [("dataset", dataset)]
    while todo and len(found) < _MOST:
        path, part = todo.pop(0)
        if any(part is each for each in found.values()):
            continue
        found[path] = part
        for name, value in getattr(part, "__dict__", {}).items():
            if isinstance(value, Dataset):
                todo.append((f"{path}.{name}", value))
            elif isinstance(value, (list, tuple)) and len(value) <= _MOST:
                inner = [(i, each) for i, each in enumerate(value) if isinstance(each, Dataset)]
                todo += [(f"{path}.{name}[{index}]", each) for index, each in inner]
    return found


def read_attributes(datasets: Mapping[str, Any]) -> Attributes:
    """Return the numbers, text and None in the attributes of datasets, by path and name."""
    return {
        path: {
            name: value
            for name, value in getattr(dataset, "__dict__", {}).items()
            if type(value) in _PLAIN
        }
        for path, dataset in datasets.items()
    }


def changed_attributes(now: Attributes, first: Attributes) -> Changes:
    """Return the attributes that are new or differ from the first ones, each with its first value.

    An attribute is a list of its value now and of its first one, if it had any.
    """
    found: Changes = {
        path: {
            name: [value, *([first[path][name]] if name in first.get(path, {}) else [])]
            for name, value in own.items()
            if name not in first.get(path, {}) or repr(value) != repr(first[path][name])
        }
        for path, own in now.items()
    }
    return {path: own for path, own in found.items() if own}


def restore_attributes(
    datasets: Mapping[str, Any], changes: Mapping[str, Any], first: Attributes
) -> None:
    """Set attributes to what they had been changed to, and `first` to the first values.

    One that is not a number, text or None in the dataset is unchanged.
    """
    for path in datasets.keys() & changes.keys():
        for name, (value, *before) in changes[path].items():
            if type(value) in _PLAIN and type(getattr(datasets[path], name, None)) in _PLAIN:
                setattr(datasets[path], name, value)
            # The dataset may have been made with the value that it was changed to.
            first[path].pop(name, None)
            if before:
                first[path][name] = before[0]
