"""The table of models that users bring, trained by det and by the framework alone.

`pytest -s -k models_of_users` prints it.

model | ranks | how det's run went | largest difference of weights | of metrics
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np


def compare(
    model: str,
    way: str,
    weights: tuple[Any, Any],
    metrics: tuple[Any, Any],
    *,
    ranks: int = 1,
    bound: float = 0.0,
) -> None:
    """Print a row of the table and check it.

    Trees of what det and the framework alone have, bit for bit unless it says else.
    """
    found = [max(_gaps(*pair), default=(float("inf"), "nothing")) for pair in (weights, metrics)]
    print(f"\n| {model} | {ranks} | {way} | {found[0][0]:.2g} | {found[1][0]:.2g} |")
    for what, (gap, place) in zip(("weights", "metrics"), found, strict=True):
        assert gap <= bound, f"{model}, {way}: {what} differ by {gap:g} in {place}"


def _gaps(mine: Any, theirs: Any, place: str = "") -> Iterator[tuple[float, str]]:
    """Yield the largest difference in each array, and where that is.

    Infinity where the trees are not alike.
    """
    if isinstance(theirs, Mapping):
        pairs = [(mine.get(key, ()), value, f"{place}[{key!r}]") for key, value in theirs.items()]
        alike = list(mine) == list(theirs)
    elif isinstance(theirs, Sequence):
        pairs = [
            (*pair, f"{place}[{at}]") for at, pair in enumerate(zip(mine, theirs, strict=False))
        ]
        alike = len(mine) == len(theirs)
    else:
        one, other = (np.asarray(each, dtype=np.float64) for each in (mine, theirs))
        pairs, alike = [], one.shape == other.shape
        if alike and one.size:
            gap = np.nan_to_num(np.abs(one - other), nan=np.inf)
            yield (
                float(np.where((one == other) | (np.isnan(one) & np.isnan(other)), 0.0, gap).max()),
                place,
            )
    if not alike:
        yield float("inf"), place
    for one, other, inner in pairs:
        yield from _gaps(one, other, inner)
