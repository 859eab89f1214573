"""Trials of classes that lack something, or take something else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytest

from det_core import TrialError
from det_core.train.entrypoint import make_trial, must_take


class Base(ABC):
    def __init__(self, context: Any) -> None:
        self.context = context

    @abstractmethod
    def train(self) -> None: ...

    @abstractmethod
    def data(self) -> None: ...


class Whole(Base):
    def train(self) -> None: ...

    def data(self) -> None: ...


class Deaf(Whole):
    """Does not call the constructor of its base."""

    def __init__(self, context: Any, width: int = 1) -> None:
        self.width = width


class Bare(Base): ...


class Misspelled(Base):
    def trian(self) -> None: ...

    def data(self) -> None: ...


class Closed(Whole):
    def __init__(self) -> None: ...


def test_a_trial_knows_its_context_and_its_arguments() -> None:
    assert make_trial(Whole, Base, "context").context == "context"
    deaf = make_trial(Deaf, Base, "context", width=3)
    assert (deaf.context, deaf.width) == ("context", 3)


@pytest.mark.parametrize(
    ("trial", "arguments", "message"),
    [
        (Bare, {}, "Bare does not define data, train; every Base must"),
        (
            Misspelled,
            {},
            "Misspelled does not define train; every Base must; it has 'trian', did you mean"
            " 'train'?",
        ),
        (Closed, {}, "Closed.__init__ takes (); define it as __init__(self, context)"),
        (
            Whole,
            {"width": 3},
            "Whole.__init__ takes (context: 'Any'); define it as __init__(self, context, width)",
        ),
    ],
)
def test_what_cannot_be_made_is_one_line(
    trial: type, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrialError) as refused:
        make_trial(trial, Base, "context", **arguments)
    assert str(refused.value).replace(" -> 'None'", "").replace(" -> None", "") == message


def test_a_method_may_have_any_of_its_forms() -> None:
    forms = [("batch", "index"), ("batch",)]
    must_take(lambda batch: None, "Trial.step", forms)
    must_take(lambda batch, index: None, "Trial.step", forms)
    with pytest.raises(
        TrialError, match=r"^Trial.step takes \(\); define it as step\(self, batch, index\)$"
    ):
        must_take(lambda: None, "Trial.step", forms)
