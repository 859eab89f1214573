"""What adapters do where there are several ranks."""

from __future__ import annotations

from typing import Any, Self, cast

import pytest

from det_core import (
    Backend,
    BackendRecord,
    DistributedContext,
    PluginError,
    Plugins,
    Ranks,
    RunInfo,
    Serial,
)
from det_core.config import parse
from det_core.ranks.backend import RankLost
from det_core.train.ranks import global_batch_size, join_ranks, lost, mean_row, of_all_ranks

REFUSAL = "the backend {name} knows no arrays"


class Two(Serial):
    """The first of two ranks, of which the other one has `theirs`."""

    theirs: Any = None

    def __init__(self) -> None:
        self.ranks = Ranks(rank=0, size=2, local_rank=0, local_size=2)
        self.open: list[str] = []

    @classmethod
    def join(cls, control: DistributedContext, optimizations: Any = None) -> Self:
        joined = cls()
        joined.given = (control, optimizations)  # type: ignore[attr-defined]
        return joined

    def init(self) -> None:
        self.open.append("init")

    def shutdown(self) -> None:
        self.open.append("shutdown")

    def allgather(self, value: Any) -> list[Any]:
        return [value, self.theirs]


class Failing(Two):
    made: Failing

    def init(self) -> None:
        type(self).made = self
        raise RuntimeError("no network")


def run(backend: type[Backend] | None = None, *, ranks: int = 2, **more: Any) -> RunInfo:
    config = more.pop("config", {})
    return RunInfo(
        config=parse({"entrypoint": "model_def:Trial", **config}).config,
        hparams=more.pop("hparams", {}),
        seed=0,
        build=Plugins().build("fake"),
        distributed=DistributedContext.from_backend(Two()) if ranks == 2 else DistributedContext(),
        backend=BackendRecord(name="odd", load=lambda: backend) if backend else None,
    )


def test_one_rank_meets_nobody() -> None:
    assert join_ranks(run(Two, ranks=1), Two, REFUSAL) is None


def test_ranks_join_over_their_backend_with_the_configuration() -> None:
    info = run(Two)
    backend = cast(Any, join_ranks(info, Two, REFUSAL))
    assert backend.given == (info.distributed, info.config.optimizations)
    assert backend.open == ["init"]


def test_a_default_serves_where_no_backend_was_chosen() -> None:
    assert isinstance(join_ranks(run(), Two, REFUSAL, default=Two), Two)


@pytest.mark.parametrize(("backend", "name"), [(Serial, "'odd'"), (None, "'none'")])
def test_a_backend_of_another_kind_is_refused_by_its_name(backend: Any, name: str) -> None:
    with pytest.raises(PluginError) as refused:
        join_ranks(run(backend), Two, REFUSAL)
    assert str(refused.value) == f"the backend {name} knows no arrays"


def test_a_backend_that_cannot_begin_is_left() -> None:
    with pytest.raises(RuntimeError, match="no network"):
        join_ranks(run(Failing), Two, REFUSAL)
    assert Failing.made.open == ["shutdown"]


def test_all_six_numbers_of_a_context_come_together() -> None:
    assert DistributedContext().ranks == Ranks()
    assert run().distributed.ranks == Ranks(rank=0, size=2, local_rank=0, local_size=2)


@pytest.mark.parametrize(
    ("rank", "size", "who", "other"),
    [(0, 2, "rank 1", 1), (1, 2, "rank 0", 0), (1, 3, "another rank", -1)],
)
def test_a_connection_that_broke_says_who_is_gone(
    rank: int, size: int, who: str, other: int
) -> None:
    error = lost(
        RuntimeError("[gloo] Connection closed by peer\nmore"), rank, size, "while it summed"
    )
    assert isinstance(error, RankLost)
    assert error.rank == other
    said = (
        f"{who} is gone, as rank {rank} found while it summed; see its output ([gloo] Connection"
        " closed by peer)"
    )
    assert str(error) == said


def test_error_that_shows_no_lost_rank_is_returned_unchanged() -> None:
    """With one rank, no other rank can be lost, so a timeout stays the same error."""
    for error, size in ((RuntimeError("out of memory"), 2), (RuntimeError("timed out"), 1)):
        assert lost(error, 0, size, "while it summed") is error


def test_the_global_batch_size_is_a_multiple_of_the_ranks() -> None:
    assert global_batch_size(run(hparams={"global_batch_size": 7})) == 6
    assert global_batch_size(run(ranks=1, hparams={"global_batch_size": 7}), lambda: 3) == 7
    assert global_batch_size(run(), lambda: 3) == 6
    assert global_batch_size(run(hparams={"global_batch_size": True}), lambda: None) is None
    assert global_batch_size(run()) is None


def test_rows_are_means_over_the_ranks_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Two, "theirs", [{"loss": 3.0, "more": 5.0}])
    assert of_all_ranks([{"loss": 1.0}], run()) == [{"loss": 2.0, "more": 5.0}]
    alone = run(config={"optimizations": {"average_training_metrics": False}})
    assert of_all_ranks([{"loss": 1.0}], alone) == [{"loss": 1.0}]
    rows = [{"loss": 1.0}]
    assert of_all_ranks(rows, run(ranks=1)) is rows


def test_a_mean_is_summed_in_the_order_of_the_ranks() -> None:
    """As it was when each plugin did so: an exact sum has other last bits."""
    ranks = [{"x": 0.1}, {"x": 0.2}, {"x": 0.3}]
    assert mean_row(ranks) == {"x": (0.1 + 0.2 + 0.3) / 3}
