"""One number out of those of the ranks, each of which has validated a share of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Rank = tuple[Mapping[str, float], Mapping[str, tuple[str, float]]]


def of_shares(ranks: Sequence[Rank]) -> dict[str, float]:
    """Return each metric over the ranks: the mean by their weights, the sum, the largest or the smallest.

    Each rank gives its metrics and, of those that it knows of, how they are reduced (`mean`, `sum`, `max` or `min`) and with
    which weight. A metric of which nothing is known is a mean in which the ranks count alike.
    """
    names = dict.fromkeys(name for metrics, _ in ranks for name in metrics)
    return {name: _reduced(name, [rank for rank in ranks if name in rank[0]]) for name in names}


def _reduced(name: str, ranks: Sequence[Rank]) -> float:
    values = [metrics[name] for metrics, _ in ranks]
    known = [shares.get(name, ("mean", 1.0)) for _, shares in ranks]
    reduction = known[0][0]
    if reduction != "mean":
        return {"sum": sum, "max": max, "min": min}[reduction](values)  # type: ignore[operator,no-any-return]
    if all(value == values[0] for value in values):
        return values[0]
    weights = [weight for _, weight in known]
    if not any(weights):
        weights = [1.0] * len(values)
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
    return sum(value * weight for value, weight in pairs) / sum(weights)
