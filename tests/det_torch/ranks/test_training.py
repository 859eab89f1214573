"""Trials on two ranks, in processes, over each backend, beside the same on one."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from det_core import Plugins
from det_testing import Run, Runs
from det_testing._play import Cast, Request, play

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
DIGITS = {"global_batch_size": 64}
ODD = {"lr": 0.001}
NOISY = {"noise": 0.5, "shuffle": True}


@pytest.fixture(scope="module")
def trials() -> Any:
    """The module of the trials, under a name by which other processes can import it."""
    sys.path.append(str(HERE))
    import trials

    yield trials
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module", params=["torch", "horovod"])
def chief(
    request: pytest.FixtureRequest, trials: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """What became of all runs on the chief; they share a pair of processes."""
    if request.param == "horovod" and find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    requests = [
        Request(name="digits", length=15, hparams=DIGITS),
        Request(name="odd", length=7, hparams=ODD, trial=trials.OddTrial),
        Request(name="drawing", length=9, save_at=[4], hparams=NOISY, trial=trials.DrawingTrial),
        Request(
            name="drawing on",
            length=9,
            behind=("drawing", 4),
            hparams=NOISY,
            trial=trials.DrawingTrial,
        ),
        Request(name="sharded", length=11, save_at=[7], hparams=ODD, trial=trials.ShardedTrial),
        Request(
            name="sharded on",
            length=11,
            behind=("sharded", 7),
            hparams=ODD,
            trial=trials.ShardedTrial,
        ),
        Request(name="whole", length=2, hparams=DIGITS, trial=trials.WholeTrial),
    ]
    cast = Cast(
        trial=trials.DigitsTrial, framework="torch", hooks="det_torch._hooks", backend=request.param
    )
    return play(cast, requests, tmp_path_factory.mktemp(request.param))[0]


@pytest.mark.sample
def test_the_digits_are_learnt_on_two_ranks_as_on_one(
    trials: Any, chief: dict[str, Run], tmp_path: Path
) -> None:
    """Global batch 64, shuffled, in double precision, across an epoch's end.

    Of three validation batches a rank has two.
    """
    alone = Runs(Plugins.installed(), trials.DigitsTrial, tmp_path / "alone")(15, **DIGITS)
    assert chief["digits"].losses == pytest.approx(alone.losses, rel=1e-6)
    assert chief["digits"].validations[15] == pytest.approx(alone.validations[15], rel=1e-6)
    assert alone.losses[15] < alone.losses[1] / 2


def test_odd_batch_of_an_epoch_goes_to_the_next_rank_in_turn(chief: dict[str, Run]) -> None:
    """Batches of the endless stream are dealt in turn.

    In an odd epoch one rank reads on in the next one.

    A validation is read once, and has each record once, whichever rank it is for.
    """
    reports = chief["odd"].reports
    assert [reports[n]["rank 0"] for n in range(1, 8)] == [
        [0.0],
        [2.0],
        [4.0],
        [6.0],
        [1.0],
        [3.0],
        [5.0],
    ]
    assert [reports[n]["rank 1"] for n in range(1, 8)] == [
        [1.0],
        [3.0],
        [5.0],
        [0.0],
        [2.0],
        [4.0],
        [6.0],
    ]
    assert (
        reports[4]["epochs"] == 1.0
    )  # an epoch is as many batches of each rank as the chief has of seven
    validation = chief["odd"].validations[7]
    assert (validation["rank 0"], validation["rank 1"]) == ([0.0, 2.0, 4.0, 6.0], [1.0, 3.0, 5.0])
    assert validation["mean"] == 3.0


def test_data_sharded_by_rank_is_kept_and_resumes_on_each_rank(chief: dict[str, Run]) -> None:
    """Each record is seen once an epoch of its rank.

    A validation has each once, though torch's sampler repeats one.
    """
    reports = chief["sharded"].reports
    assert [reports[n]["rank 0"] for n in range(1, 12)] == [[float(n % 5)] for n in range(11)]
    assert [reports[n]["rank 1"] for n in range(1, 12)] == [[float(5 + n)] for n in range(11)]
    validation = chief["sharded"].validations[11]
    assert (validation["rank 0"], validation["rank 1"]) == (
        [0.0, 2.0, 4.0, 6.0, 8.0],
        [1.0, 3.0, 5.0, 7.0],
    )
    assert validation["mean"] == 4.0
    again = chief["sharded on"].reports
    assert again == {n: report for n, report in reports.items() if n > 7}


def test_each_rank_has_its_own_random_numbers_again(chief: dict[str, Run]) -> None:
    """Though the ranks have drawn different numbers of them."""
    assert chief["drawing on"].losses == {
        n: loss for n, loss in chief["drawing"].losses.items() if n > 4
    }


def test_a_whole_evaluation_is_the_chiefs(chief: dict[str, Run]) -> None:
    """With all of the data."""
    validation = chief["whole"].validations[2]
    assert (validation["count"], validation["rank"]) == (150, 0)
