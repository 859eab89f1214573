from __future__ import annotations

from det_core.config import Grid, Int, Length
from det_driver.search import Create, Exit, make

SPACE = {"1": Int(minval=0, maxval=20, count=3), "2": Int(minval=0, maxval=10, count=3)}
CONFIG = Grid(metric="loss", max_length=Length("batches", 10), max_concurrent_trials=4)


def test_trials_are_created_from_the_end_of_the_grid() -> None:
    creates = [op for op in make(CONFIG, SPACE, 0).start() if isinstance(op, Create)]
    points = [{"1": a, "2": b} for a in (0, 10, 20) for b in (0, 5, 10)]
    assert [create.hparams for create in creates] == points[:-5:-1]


def test_every_point_is_trained_once(train) -> None:
    reports, _ = train(make(CONFIG, SPACE, 0))
    assert reports == {trial: [10] for trial in range(9)}


def test_invalid_hyperparameters_are_not_replaced(train) -> None:
    reports, _ = train(make(CONFIG, SPACE, 0), exits={2: Exit.INVALID_HP})
    assert reports == {trial: [] if trial == 2 else [10] for trial in range(9)}


def test_progress_counts_points() -> None:
    searcher = make(CONFIG, SPACE, 0)
    searcher.start()
    searcher.exited(0, Exit.ERRORED)
    assert searcher.progress({1: 0.5, 2: 0.5}) == 2 / 9
