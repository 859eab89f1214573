"""Validation: the whole set, reduced over batches and ranks."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from det_core import DistributedContext, Every, MetricError, Schedule, TrialError
from det_torch import DataLoader, Reducer
from det_torch.reduction import reduce_batches, reduce_ranks
from det_torch.testing import OneVarTrial, Records
from det_torch.validation import in_step

VALUES = [1.0, 2.0, 6.0, 3.0, 4.0]


class Five(OneVarTrial):
    """A validation set of five batches, of which each metric is a function."""

    reducer: Any = Reducer.AVG

    def build_validation_data_loader(self) -> Any:
        return DataLoader(Records(VALUES), batch_size=1)

    def evaluate_batch(self, batch: Any) -> Any:
        return {"x": batch.sum()}

    def evaluation_reducer(self) -> Any:
        return self.reducer


def evaluating(function: Any, reduced: Any = Reducer.AVG) -> type[Five]:
    class Trial(Five):
        reducer = reduced

        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            return function(batch, batch_idx)

    return Trial


def metrics_of(lab: Any, trial: type, **info: Any) -> dict[str, Any]:
    with lab.adapter(trial, **info) as adapter:
        return dict(adapter.validate())


@pytest.mark.parametrize(
    ("reducer", "value"),
    [(Reducer.AVG, 3.2), (Reducer.SUM, 16.0), (Reducer.MAX, 6.0), (Reducer.MIN, 1.0)],
)
@pytest.mark.parametrize(
    "kind", [torch.Tensor, float, np.float64, np.asarray, lambda x: x.reshape(1)]
)
def test_a_metric_is_reduced_over_batches(
    lab: Any, reducer: Reducer, value: float, kind: Any
) -> None:
    """Whether it comes as a tensor, a number, or an array that holds one."""
    metrics = metrics_of(lab, evaluating(lambda batch, _: {"x": kind(batch.sum())}, reducer))
    assert metrics == {"x": pytest.approx(value)}
    assert type(metrics["x"]) is float


def test_each_metric_may_have_a_reducer_of_its_own(lab: Any) -> None:
    trial = evaluating(
        lambda b, i: {"low": b.sum(), "n": 1}, {"low": Reducer.MIN, "n": Reducer.SUM}
    )
    assert metrics_of(lab, trial) == {"low": 1.0, "n": 5}


def test_arrays_are_reduced_element_by_element(lab: Any) -> None:
    trial = evaluating(lambda b, i: {"per class": torch.tensor([b.sum(), -b.sum()])}, Reducer.MAX)
    assert metrics_of(lab, trial) == {"per class": [6.0, -1.0]}


def test_sums_in_half_precision_do_not_overflow() -> None:
    halves = [torch.tensor(60000.0, dtype=torch.float16)] * 4
    assert reduce_batches("x", halves, Reducer.SUM).item() == pytest.approx(240000, rel=1e-3)
    assert reduce_batches("x", halves, Reducer.AVG).item() == pytest.approx(60000, rel=1e-3)


def test_numbers_keep_their_precision() -> None:
    assert reduce_batches("x", [0.1, 0.1], Reducer.MAX).item() == 0.1
    assert reduce_batches("x", [2**53, 1], Reducer.SUM).item() == 2**53 + 1
    assert reduce_batches("x", [[0.1], [0.1]], Reducer.AVG).tolist() == [0.1]
    assert reduce_batches("x", [([1, 0.3], [2, 4])] * 2, Reducer.MAX).tolist() == [[1, 0.3], [2, 4]]
    assert reduce_batches("x", [[2**53, 1]] * 2, Reducer.SUM).tolist() == [2**54, 2]


@pytest.mark.parametrize(
    ("reducer", "value"),
    [(Reducer.AVG, 3.2), (Reducer.SUM, 9.0), (Reducer.MAX, 5.0), (Reducer.MIN, 4.0)],
)
def test_ranks_are_weighed_by_their_batches_in_a_mean_only(reducer: Reducer, value: float) -> None:
    ranks = [torch.tensor(4.0, dtype=torch.float64), torch.tensor(5.0, dtype=torch.float64)]
    weighed = (4.0 * 4 + 5.0) / 5 if reducer is Reducer.AVG else value
    assert reduce_ranks(ranks, [4, 1], reducer) == pytest.approx(weighed)


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        ([("x", "high")], MetricError, "metric 'x' is 'high' (str)"),
        ([("x", None)], MetricError, "metric 'x' is None (NoneType)"),
        ([("x", {"a": 1})], MetricError, "metric 'x' is {'a': 1} (dict)"),
        ([("x", object)], MetricError, "metric 'x' is <class 'object'> (type)"),
    ],
)
def test_what_is_no_number_is_refused_by_name(
    lab: Any, metrics: Any, error: type, message: str
) -> None:
    with pytest.raises(error) as refusal:
        metrics_of(lab, evaluating(lambda batch, _: dict(metrics)))
    assert str(refusal.value).startswith(message)


def test_shapes_that_differ_between_batches_are_refused(lab: Any) -> None:
    with pytest.raises(
        MetricError,
        match=r"^metric 'x' has the shapes \(0,\) and \(1,\) and \(2,\) in different batches",
    ):
        metrics_of(lab, evaluating(lambda batch, i: {"x": torch.zeros(i)}))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "evaluate_batch returned NoneType; return a dict of metrics by name"),
        (torch.ones(1), "evaluate_batch returned Tensor; return a dict of metrics by name"),
    ],
)
def test_metrics_are_a_dict(lab: Any, returned: Any, message: str) -> None:
    with pytest.raises(TrialError) as refusal:
        metrics_of(lab, evaluating(lambda batch, _: returned))
    assert str(refusal.value) == message


def test_names_are_the_same_for_every_batch(lab: Any) -> None:
    with pytest.raises(
        TrialError,
        match=r"returned \['x', 'y'\] for batch 1 and \['x'\] before; return the same metrics",
    ):
        metrics_of(lab, evaluating(lambda batch, i: {"x": 1, **({"y": 2} if i else {})}))


def test_a_dict_of_reducers_covers_exactly_the_metrics(lab: Any) -> None:
    with pytest.raises(
        TrialError,
        match=r"evaluation_reducer covers \['y'\], but evaluate_batch returns \['x'\]; give each",
    ):
        metrics_of(lab, evaluating(lambda batch, i: {"x": 1}, {"y": Reducer.AVG}))
    with pytest.raises(
        TrialError, match=r"evaluation_reducer gives 'mean' for 'x'; give one of det_torch.Reducer"
    ):
        metrics_of(lab, evaluating(lambda batch, i: {"x": 1}, "mean"))


def test_metric_keeps_its_batch_value_if_tensor_changes_later(lab: Any) -> None:
    running = torch.zeros(())
    assert metrics_of(lab, evaluating(lambda batch, _: {"x": running.copy_(batch.sum())})) == {
        "x": pytest.approx(3.2)
    }


def test_not_a_number_is_reported_as_it_is(lab: Any) -> None:
    assert math.isnan(
        metrics_of(lab, evaluating(lambda batch, _: {"x": torch.tensor(float("nan"))}))["x"]
    )


def test_quick_evaluates_one_batch(lab: Any) -> None:
    assert metrics_of(lab, Five, quick=True) == {"x": 1.0}


class Full(Five):
    """Evaluates the whole set at once."""

    evaluate_batch = OneVarTrial.__mro__[1].evaluate_batch  # type: ignore[attr-defined]

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        values = [float(batch.sum()) for batch in data_loader]
        grad = torch.is_grad_enabled() or self.context.models[0].training
        return {
            "values": values,
            "batches_there": len(data_loader),
            "records": len(data_loader.dataset),
            "grad": grad,
        }


def test_the_whole_set_may_be_evaluated_at_once(lab: Any) -> None:
    assert metrics_of(lab, Full) == {
        "values": VALUES,
        "batches_there": 5,
        "records": 5,
        "grad": False,
    }


def test_quick_gives_a_full_evaluation_one_batch(lab: Any) -> None:
    assert metrics_of(lab, Full, quick=True) == {
        "values": [1.0],
        "batches_there": 1,
        "records": 5,
        "grad": False,
    }


def test_a_full_evaluation_returns_a_dict(lab: Any) -> None:
    class Wrong(Full):
        def evaluate_full_dataset(self, data_loader: Any) -> Any:
            return 0.5

    with pytest.raises(
        TrialError,
        match=r"^evaluate_full_dataset returned float; return a dict of metrics by name$",
    ):
        metrics_of(lab, Wrong)


def test_validation_leaves_generators_and_modes_as_they_were(lab: Any) -> None:
    """Also of parts that are frozen, and without calling `train` on what does more in it."""

    class Merging(nn.Linear):
        merged = False

        def train(self, mode: bool = True) -> Any:
            self.merged = not mode
            return super().train(mode)

    class Trial(Five):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.net = context.wrap_model(
                nn.Sequential(Merging(1, 1), nn.BatchNorm1d(1), nn.Dropout(0.5))
            )

        def evaluate_batch(self, batch: Any) -> Any:
            drawn = float(torch.rand(1)) + random.random() + np.random.rand()
            return {
                "training": any(m.training for m in self.net.modules()),
                "drawn": drawn,
                "grad": torch.is_grad_enabled(),
            }

    with lab.adapter(Trial) as adapter:
        adapter.validate()  # the first puts models into training mode
        net = adapter.trial.net
        net[1].eval()
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        metrics = adapter.validate()
        after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        assert (metrics["training"], metrics["grad"]) == (0, 0)
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]
        assert [m.training for m in net.modules()] == [True, True, False, True]
        assert not net[0].merged
        assert adapter.validate() == metrics


def test_a_model_trains_again_after_a_validation_that_failed(lab: Any) -> None:
    def fail(batch: Any, index: int) -> Any:
        raise ArithmeticError("mine")

    with lab.adapter(evaluating(fail)) as adapter:
        adapter.context.models[0].train()
        with pytest.raises(ArithmeticError):
            adapter.validate()
        assert adapter.context.models[0].training


def test_the_validation_loader_may_be_torchs_or_a_list(lab: Any) -> None:
    class Torch(Five):
        def build_validation_data_loader(self) -> Any:
            return torch.utils.data.DataLoader(Records(VALUES), batch_size=1)

    class List(Five):
        def build_validation_data_loader(self) -> Any:
            return [torch.tensor([[value]]) for value in VALUES]

    assert metrics_of(lab, Torch) == metrics_of(lab, List) == {"x": pytest.approx(3.2)}


def test_an_empty_validation_set_is_refused(lab: Any) -> None:
    class Empty(Five):
        def build_validation_data_loader(self) -> Any:
            return DataLoader(Records([]), batch_size=1)

    with pytest.raises(TrialError, match="the validation data loader is empty"):
        metrics_of(lab, Empty)


def test_a_validation_happens_at_its_period_and_at_the_end(lab: Any) -> None:
    ran = lab(Five, 5, schedule=Schedule(report=Every(5), validate=Every(2), policy="none"))
    assert list(ran.validation) == [2, 4, 5]


def test_one_rank_goes_through_its_batches_once() -> None:
    assert list(in_step([1, 2], DistributedContext())) == [(1, True), (2, True)]
