"""Reducers: what a trial gathers over batches, and over ranks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from typing import Any

import numpy as np
import pytest
import torch

from det_core import Every, InvalidHP, Schedule, TrialError
from det_torch import MetricReducer, state
from det_torch.reducers import FunctionReducer, ReducerSet, pack, unpack
from det_torch.testing import OneVarTrial

PAIRS = Schedule(report=Every(2), validate=Every(4), policy="none")


class Total(MetricReducer):
    """The sum of what it is given."""

    def __init__(self) -> None:
        self.total = 0

    def update(self, value: int) -> None:
        self.total += value

    def reset(self) -> None:
        self.total = 0

    def per_slot_reduce(self) -> int:
        return self.total

    def cross_slot_reduce(self, per_slot_metrics: list[int]) -> Any:
        return sum(per_slot_metrics)


class Attributes(Total):
    """The same, with attributes of every kind that is usual."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.total, self.worst, self.seen, self.array, self.pairs = (
            0,
            torch.zeros(1),
            [],
            np.zeros(2),
            {"n": (0, "")},
        )
        self.different, self.last, self.count = set[int](), deque[int](maxlen=2), Counter[int]()
        self.by_name = defaultdict[str, list[int]](list)

    def update(self, value: int) -> None:
        super().update(value)
        self.worst = torch.maximum(self.worst, torch.tensor([float(value)]))
        self.seen.append(torch.tensor(value))
        self.array += value
        self.pairs["n"] = (self.pairs["n"][0] + value, str(value))
        self.different.add(value % 3)
        self.last.append(value)
        self.count[value % 2] += 1
        self.by_name[str(value % 2)].append(value)

    def per_slot_reduce(self) -> Any:
        gathered = [
            self.total,
            self.worst.item(),
            sum(self.seen).item(),
            self.array.sum(),
            int(self.pairs["n"][0]),
        ]
        return [
            *gathered,
            len(self.different),
            *self.last,
            *self.count.values(),
            *map(len, self.by_name.values()),
        ]

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        return sum(number * 10**place for place, number in enumerate(per_slot_metrics[0]))


class Keeping(Total):
    """The same, which says itself what survives an interruption."""

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


def gathering(
    make: Any, value: Any = lambda batch_idx: batch_idx, **wrap: Any
) -> type[OneVarTrial]:
    """Return a trial with one reducer, which gets a value in each training and validation batch."""

    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.reducer = context.wrap_reducer(make(), **{"name": "gathered", **wrap})

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            self.reducer.update(value(batch_idx))
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            self.reducer.update(value(100 + batch_idx))
            return super().evaluate_batch(batch, batch_idx)

    return Trial


@pytest.mark.parametrize("make", [Total, lambda: sum])
def test_reports_and_validations_reduce_only_their_own_values(lab: Any, make: Any) -> None:
    """Though one reducer serves both."""
    ran = lab(gathering(make), 6, schedule=PAIRS)
    assert {batches: metrics["gathered"] for batches, metrics in ran.training.items()} == {
        2: 1,
        4: 5,
        6: 9,
    }
    assert {batches: metrics["gathered"] for batches, metrics in ran.validation.items()} == {
        4: 100,
        6: 100,
    }


def test_a_reducer_may_be_for_one_of_the_two(lab: Any) -> None:
    training = lab(gathering(Total, for_validation=False), 2, schedule=PAIRS)
    validation = lab(gathering(Total, for_training=False), 2, schedule=PAIRS)
    assert ("gathered" in training.training[2], "gathered" in training.validation[2]) == (
        True,
        False,
    )
    assert ("gathered" in validation.training[2], validation.validation[2]["gathered"]) == (
        False,
        100,
    )


def test_a_reducer_without_a_name_gives_several_metrics(lab: Any) -> None:
    def spread(values: list[int]) -> dict[str, int]:
        return {"low": min(values), "high": max(values)}

    ran = lab(gathering(lambda: spread, name=None), 2, schedule=PAIRS)
    assert (ran.training[2]["low"], ran.training[2]["high"]) == (0, 1)


def updated_in_validation(function: Any, **wrap: Any) -> type[OneVarTrial]:
    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.reducer = context.wrap_reducer(function, name="value", **wrap)

        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            self.reducer.update(3.0)
            return super().evaluate_batch(batch, batch_idx)

    return Trial


def test_function_without_values_gets_an_empty_list(lab: Any) -> None:
    ran = lab(updated_in_validation(sum), 2, schedule=PAIRS)
    assert (ran.training[2]["value"], ran.validation[2]["value"]) == (0, 3.0)


def test_function_that_fails_on_an_empty_list_is_named(lab: Any) -> None:
    """And may be left out where it is given nothing."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    with pytest.raises(TrialError) as failure:
        lab(updated_in_validation(mean), 2, schedule=PAIRS)
    assert (
        str(failure.value)
        == "the function of the reducer 'value' failed on an empty list (ZeroDivisionError:"
        " division by zero), as update() gave it no value since the last report; update it in"
        " train_batch and in evaluate_batch, or wrap it with for_training=False or"
        " for_validation=False"
    )
    ran = lab(updated_in_validation(mean, for_training=False), 2, schedule=PAIRS)
    assert ("value" in ran.training[2], ran.validation[2]["value"]) == (False, 3.0)


def array(batch_idx: int) -> Any:
    """A value of every kind that is usual."""
    return {
        "preds": np.full(2, batch_idx, dtype=np.float32),
        "y": [torch.tensor(batch_idx)],
        "n": np.int64(batch_idx),
    }


def summed(values: list[Any]) -> float:
    assert all(isinstance(v["preds"], np.ndarray) and isinstance(v["n"], np.int64) for v in values)
    return float(sum(v["preds"].sum() + v["y"][0] + v["n"] for v in values))


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (Keeping, lambda n: n),
        (Total, lambda n: n),
        (Attributes, lambda n: n),
        (lambda: sum, lambda n: n),
        (lambda: summed, array),
    ],
)
def test_what_was_gathered_survives_an_interruption(lab: Any, make: Any, value: Any) -> None:
    """A run that is preempted between two reports gives the report of one that is not."""

    trial, schedule, reports, checkpoint = (
        gathering(make, value),
        Schedule(report=Every(5), policy="none"),
        {},
        None,
    )
    whole = lab(trial, 10, schedule=schedule)
    for stop_at in (2, 6):
        ran = lab(preempting(lab, trial, stop_at), 10, schedule=schedule, checkpoint=checkpoint)
        reports |= ran.training
        checkpoint = ran.checkpoints[stop_at + 1]
    reports |= lab(trial, 10, schedule=schedule, checkpoint=checkpoint).training
    assert reports == whole.training
    assert list(reports) == [5, 10]


def preempting(lab: Any, trial: type, stop_at: int) -> type:
    class Preempting(trial):  # type: ignore[misc, valid-type]
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            lab.host.preempted.raised = batch_idx == stop_at
            return super().train_batch(batch, epoch_idx, batch_idx)

    return Preempting


class Holding(Total):
    """Keeps its total, and an object that a checkpoint cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.thing = object()


@pytest.mark.parametrize(
    ("make", "value", "lost", "found"),
    [
        (
            Holding,
            lambda n: n,
            "Holding (name='gathered') goes on in the middle of a training report without thing;",
            10,
        ),
        (
            lambda: len,
            lambda n: {"of my own": object()},
            (
                "FunctionReducer (name='gathered') goes on in the middle of a training report"
                " without state_dict();"
            ),
            2,
        ),
    ],
)
def test_what_cannot_be_kept_is_said_when_the_run_goes_on(
    lab: Any, make: Any, value: Any, lost: str, found: int
) -> None:
    trial, schedule = gathering(make, value), Schedule(report=Every(5), policy="none")
    first = lab(preempting(lab, trial, 2), 5, schedule=schedule)
    with pytest.warns(UserWarning, match=re.escape(lost)):
        second = lab(trial, 5, schedule=schedule, checkpoint=first.checkpoints[3])
    assert second.training[5]["gathered"] == found


def test_a_warm_start_gathers_from_nothing(lab: Any) -> None:
    trial, schedule = gathering(Keeping), Schedule(report=Every(5), policy="none")
    first = lab(preempting(lab, trial, 2), 5, schedule=schedule)
    warm = lab(trial, 5, schedule=schedule, checkpoint=first.checkpoints[3], trial_id=2)
    assert warm.training[5]["gathered"] == 10


def test_report_due_at_the_start_has_the_pending_values(lab: Any) -> None:
    """The length is now less than it was.

    The pending batches are reported before anything is trained.
    """
    trial, schedule = gathering(Keeping), Schedule(report=Every(5), policy="none")
    first = lab(preempting(lab, trial, 2), 5, schedule=schedule)
    assert (
        lab(trial, 3, schedule=schedule, checkpoint=first.checkpoints[3]).training[3]["gathered"]
        == 3
    )


def test_values_are_those_of_the_moment_in_which_they_were_given() -> None:
    """Though the trial changes the tensor afterwards."""
    reducer, tensor = FunctionReducer(lambda values: values), torch.zeros(1, requires_grad=True)
    running = tensor.detach()
    reducer.update({"a": [running, (running,)]})
    reducer.update(running)
    running += 1
    first, second = reducer.cross_slot_reduce([reducer.per_slot_reduce()])
    assert (first["a"][0].item(), first["a"][1][0].item(), second.item()) == (0, 0, 0)


def test_function_gets_all_ranks_values_in_data_order() -> None:
    """Batch i went to rank i modulo their number."""
    assert FunctionReducer(lambda values: values).cross_slot_reduce(
        [[0, 3, 6], [1, 4], [2, 5]]
    ) == list(range(7))


def test_one_exchange_serves_all_reducers() -> None:
    reducers, exchanges = ReducerSet(), []

    def allgather(mine: Any) -> list[Any]:
        exchanges.append(mine)
        return [mine, mine]

    for name in ("a", "b"):
        reducers.add(sum, name, True, True).update(3)  # type: ignore[attr-defined]
    assert reducers.metrics(allgather, training=True) == {"a": 6, "b": 6}
    assert len(exchanges) == 1


def test_every_rank_takes_up_what_it_had_gathered() -> None:
    ranks = [ReducerSet(), ReducerSet()]
    reducers = [each.add(Keeping(), "total", True, True) for each in ranks]
    for number, reducer in enumerate(reducers):
        reducer.update(number + 5)  # type: ignore[attr-defined]
    states = [each.state(lambda mine: [mine])[0] for each in ranks]
    again = ReducerSet()
    total: Any = again.add(Keeping(), "total", True, True)
    again.restore(states, rank=1, size=2)
    assert total.total == 6
    with pytest.warns(
        UserWarning, match="goes on in the middle of a training report without what it gathered"
    ):
        again.restore(states, rank=0, size=1)


class Failing(Total):
    def __init__(self, method: str, error: Exception) -> None:
        super().__init__()
        setattr(self, method, self.fail)
        self.error = error

    def fail(self, *arguments: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("method", ["reset", "per_slot_reduce", "cross_slot_reduce"])
def test_a_reducer_that_fails_is_named_with_the_method(lab: Any, method: str) -> None:
    message = f'reducer of type Failing for name="gathered" failed in a call to {method}'
    with pytest.raises(ValueError, match=f"^{message}$") as failure:
        lab(gathering(lambda: Failing(method, ZeroDivisionError("mine"))), 2)
    assert isinstance(failure.value.__cause__, ZeroDivisionError)


def test_a_reducer_may_say_that_hyperparameters_cannot_work(lab: Any) -> None:
    with pytest.raises(InvalidHP, match="too many"):
        lab(gathering(lambda: Failing("cross_slot_reduce", InvalidHP("too many"))), 2)


def test_a_name_and_a_dict_exclude_each_other(lab: Any) -> None:
    with pytest.raises(
        TrialError,
        match=r"^the reducer 'gathered' returned a dict; wrap it without a name, or return one",
    ):
        lab(gathering(lambda: lambda values: {"a": 1}), 1)
    with pytest.raises(
        TrialError,
        match=r"^Total returned int and has no name; give wrap_reducer a name, or return a dict",
    ):
        lab(gathering(Total, name=None), 1)


@pytest.mark.parametrize("wrong", [7, "sum", Total])
def test_what_is_no_reducer_is_refused(lab: Any, wrong: Any) -> None:
    with pytest.raises(
        TrialError, match=r"^wrap_reducer got .*; give a function or an instance of MetricReducer$"
    ):
        lab.context().wrap_reducer(wrong)


def test_a_reducer_is_wrapped_once(lab: Any) -> None:
    context, reducer = lab.context(), Total()
    assert context.wrap_reducer(reducer, "a") is reducer
    with pytest.raises(TrialError, match=r"^Total is wrapped already; wrap a reducer once$"):
        context.wrap_reducer(reducer, "b")


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(True),
        np.uint8(200),
        np.float64(0.1),
        np.bool_(True),
        [1, ("a", {"k": np.ones(2)})],
        {},
    ],
)
def test_what_is_packed_is_plain_and_comes_back_in_its_type(value: Any) -> None:
    packed = pack(value)
    state.check({"packed": packed})
    again = unpack(packed)
    assert type(again) is type(value)
    np.testing.assert_equal(again, value)
    assert getattr(again, "dtype", None) == getattr(value, "dtype", None)


def test_a_packed_array_is_a_copy() -> None:
    array = np.zeros(2)
    packed = pack(array)
    array[:] = 1
    assert unpack(packed).tolist() == [0, 0]


@pytest.mark.parametrize(
    "value",
    [object(), np.array(["text"]), {(1, 2): object}, {object(): 1}, [torch.nn.Linear(1, 1)]],
)
def test_what_cannot_be_packed_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="is no plain data"):
        pack(value)


def test_a_tensor_comes_back_to_the_device_that_it_was_on() -> None:
    """A checkpoint is read on the CPU."""
    packed = pack([torch.ones(2, device="meta")])
    packed[0]["tensor"] = torch.ones(2)
    assert unpack(packed)[0].device.type == "meta"
