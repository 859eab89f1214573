"""Functions for the adapters of all frameworks, where a run has several ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from ..errors import PluginError
from ..ranks.backend import Backend, RankLost
from .adapter import RunInfo

_SIGNS = (
    "Broken pipe",
    "Collective ops is aborted",
    "Connection refused",
    "NCCL communicator was aborted",
    "Socket closed",
    "Timed out waiting",
    "closed by peer",
    "failed to connect to all addresses",
    "has been shut down",
    "remote process exited",
    "reset by peer",
    "timed out",
)


def join_ranks(run: RunInfo, kind: type, refusal: str, default: type[Backend] | None = None) -> Any:
    """Meet the other ranks of a run over its backend, or over `default`. Return that backend.

    Returns None where there is only one rank. Raises PluginError for a backend that is not a
    `kind`. Its message is `refusal`, with `{name}` replaced.
    """
    if run.distributed.size == 1:
        return None
    found = run.backend.load() if run.backend is not None else default
    if found is None or not issubclass(found, kind):
        raise PluginError(
            refusal.format(name=repr(run.backend.name if run.backend is not None else "none"))
        )
    backend = found.join(run.distributed, run.config.optimizations)
    try:
        backend.init()
    except BaseException:
        backend.shutdown()
        raise
    return backend


def lost(error: Exception, rank: int, size: int, when: str) -> Exception:
    """Return RankLost where a failed exchange means that another rank is gone, else `error`."""
    text = str(error)
    if size == 1 or not any(sign in text for sign in _SIGNS):
        return error
    other = 1 - rank if size == 2 else -1
    who = f"rank {other}" if other >= 0 else "another rank"
    line = next(iter(text.strip().splitlines()), "")[:200]
    return RankLost(other, f"{who} is gone, as rank {rank} found {when}; see its output ({line})")


def global_batch_size(run: RunInfo, of_rank: Callable[[], int | None] = lambda: None) -> int | None:
    """Return the number of records in a batch over all ranks.

    This is the hyperparameter `global_batch_size`, rounded down to a multiple of the world size, or
    else the size that `of_rank` returns for one rank times the world size. None where neither is
    known.
    """
    size, ranks = run.hparams.get("global_batch_size"), run.distributed.size
    if isinstance(size, int) and not isinstance(size, bool):
        return size // ranks * ranks
    own = of_rank()
    return own * ranks if own else None


def of_all_ranks(rows: list[dict[str, float]], run: RunInfo) -> list[dict[str, float]]:
    """Return the metrics of batches for a report.

    They are means over the ranks, or the chief's metrics where the configuration asks for those.
    """
    if run.distributed.size == 1:
        return rows
    if not run.config.optimizations.average_training_metrics:
        return run.distributed.broadcast(rows)  # type: ignore[no-any-return]
    return [mean_row(ranks) for ranks in zip(*run.distributed.allgather(rows), strict=True)]


def mean_row(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric of one batch, over the ranks that have it."""
    names = dict.fromkeys(name for row in ranks for name in row)
    found = {name: [row[name] for row in ranks if name in row] for name in names}
    # sum() rounds differently since Python 3.12, and a run's numbers must not depend on the
    # version.
    return {name: reduce(add, values) / len(values) for name, values in found.items()}
