"""Whether an experiment has found anything."""

from __future__ import annotations

from ._state import State


def no_usable_metric(state: State) -> str:
    """Say what is wrong where validations were reported, and none of them holds a number by which trials are ranked.

    NaN counts as the worst value: its trial goes on, and completes. Returns nothing where all is well, and for scripts that
    reported no validation at all.
    """
    metric = state.config.searcher.metric if state.config.searcher else None
    if not metric or state.best is not None:
        return ""
    report = next(state.store.metrics.read(experiment_id=state.id, group="validation"), None)
    if report is None:
        return ""
    if metric in report.values:
        return f"no trial has a usable {metric!r} (searcher.metric): it was never a number; look at the losses, and train slower"
    known = ", ".join(sorted(set(report.values) - {"batches", "epochs"})) or "nothing"
    return f"no trial has a usable {metric!r} (searcher.metric): validations reported {known}; report it, or name one of those"
