"""Compares every array of runs that are interrupted, on one rank and on two over each backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest

from det_core.hooks import Plugins
from det_core.hooks.records import Framework
from det_core.train.schedule import Every, Schedule

from ._numbers_suite import NumbersSuite, backend_or_skip
from ._play import Cast, Request, play
from ._runs import Run, Runs
from ._whole_state import Contents, compared, resumed_differences

LENGTH = 7
"""Two epochs of three batches, and one batch more."""
_RARELY = 4
_RARE = Schedule(report=Every(_RARELY), policy="none")
_INTERRUPTED_AT = 5
"""Within epoch 1. The metrics of this batch wait for the next report."""


@dataclass(frozen=True)
class StrictRuns:
    """The chief's runs of two ranks by name, and what reads their checkpoints."""

    chief: Mapping[str, Run]
    reader: Runs


class StrictSuite(NumbersSuite):
    """The part of `AdapterSuite` that compares every array of a model with all kinds of state.

    All runs over one backend share a pair of processes, which stop and continue at each position.
    They import the trial class by its module's name.
    """

    _strict: ClassVar[dict[tuple[type, str], StrictRuns | Exception]] = {}

    @pytest.fixture
    def strict_trial(self) -> type:
        """A trial class with all kinds of state, whose epochs have three batches.

        Examples of state: normalization, dropout, optimizers with moments that step at different
        rates, a schedule, shuffled and augmented data of worker processes, parameters that thaw in
        epoch 1, callbacks with a state. On two ranks, `global_batch_size` is 4.
        """
        return pytest.skip("`strict_trial` is not overridden")

    @pytest.fixture
    def strict_settings(self) -> dict[str, Any]:
        """Settings of the runs of the strict trial, such as `{"aggregation": 2}`."""
        return {}

    @pytest.fixture
    def contents(self, framework: Framework) -> Contents:
        """A function that reads a checkpoint's directory.

        By default it is the record's `tensors`.
        """
        module, _, function = framework.tensors.rpartition(".")
        if not module:
            pytest.skip(f"{framework.name} names no `tensors`, and `contents` is not overridden")
        found: Contents = getattr(import_module(module), function)
        return found

    def test_resumed_run_has_the_arrays_of_an_uninterrupted_run(
        self,
        plugins: Plugins,
        strict_trial: type,
        strict_settings: dict[str, Any],
        contents: Contents,
        tmp_path: Path,
    ) -> None:
        """The run is resumed at each position, including both sides of an epoch's end.

        Saving and validating change no array either.
        """
        run = Runs(plugins, strict_trial, tmp_path)
        assert resumed_differences(run, LENGTH, contents, **strict_settings) == {}

    def test_run_that_stops_between_reports_has_the_same_arrays(
        self,
        plugins: Plugins,
        strict_trial: type,
        strict_settings: dict[str, Any],
        contents: Contents,
        tmp_path: Path,
    ) -> None:
        """Metrics that wait for the next report, and those of the epoch, are in the checkpoint."""
        run = Runs(plugins, strict_trial, tmp_path)
        settings: dict[str, Any] = {"schedule": _RARE, **strict_settings}
        whole = run(LENGTH, **settings)
        first = run(LENGTH, preempt_at=_INTERRUPTED_AT, **settings)
        checkpoint = first.checkpoints[_INTERRUPTED_AT]
        second = run(LENGTH, checkpoint=checkpoint, **settings)
        assert _interrupted(run, contents, first, second, whole) == []

    # On two ranks

    @pytest.fixture(params=["native", "horovod"])
    def strict_ranks(
        self,
        request: pytest.FixtureRequest,
        plugins: Plugins,
        strict_trial: type,
        strict_settings: dict[str, Any],
        contents: Contents,
        framework: Framework,
        hooks: str,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> StrictRuns:
        """The strict trial's runs on two ranks over a backend. Do not override it."""
        backend = backend_or_skip(request.param, framework, plugins)
        key = (type(self), request.param)
        if key not in self._strict:
            folder = tmp_path_factory.mktemp(f"strict-{framework.name}-{request.param}")
            cast = Cast(
                trial=strict_trial, framework=framework.name, hooks=hooks, backend=backend.name
            )
            requests = list(_requests(_selected_positions(request), strict_settings))
            # A test that is ended by its time limit is not an Exception.
            self._strict[key] = RuntimeError("the runs on two ranks did not end in an earlier test")
            try:
                chief = play(cast, requests, folder, seconds=60.0 * len(requests))[0]
                self._strict[key] = StrictRuns(chief, Runs(plugins, strict_trial, folder))
            except Exception as error:
                self._strict[key] = error
        found = self._strict[key]
        if isinstance(found, Exception):
            raise found
        return found

    @pytest.mark.parametrize("position", range(1, LENGTH))
    def test_two_ranks_resume_with_the_arrays_of_a_whole_run(
        self, strict_ranks: StrictRuns, position: int, contents: Contents
    ) -> None:
        """Every array of every later checkpoint is the same, those of each rank included."""
        second, whole = strict_ranks.chief[f"from {position}"], strict_ranks.chief["whole"]
        assert compared(strict_ranks.reader, contents, second, whole, position) == []

    def test_two_ranks_that_stop_between_reports_have_equal_arrays(
        self, strict_ranks: StrictRuns, contents: Contents
    ) -> None:
        """As one rank does. The save where it stops changes no array of an uninterrupted run."""
        chief = strict_ranks.chief
        first, second = chief["interrupted"], chief["continued"]
        whole = chief["rarely reported"]
        assert _interrupted(strict_ranks.reader, contents, first, second, whole) == []


def _interrupted(
    reader: Runs, contents: Contents, first: Run, second: Run, whole: Run
) -> list[str]:
    """Return the differences of a run that was interrupted from an uninterrupted one."""
    assert list(first.checkpoints) == [_INTERRUPTED_AT]
    assert _INTERRUPTED_AT not in first.reports
    reports = {**first.reports, **second.reports}
    return compared(reader, contents, replace(second, reports=reports), whole, 0)


def _selected_positions(request: pytest.FixtureRequest) -> list[int]:
    """Return the positions of the tests of this class that pytest runs."""
    specs = (
        getattr(item, "callspec", None)
        for item in request.session.items
        if getattr(item, "cls", None) is request.cls
    )
    return sorted({spec.params["position"] for spec in specs if spec and "position" in spec.params})


def _requests(positions: Sequence[int], settings: Mapping[str, Any]) -> Iterator[Request]:
    """Yield all runs of the strict trial on two ranks."""
    known = {name: settings[name] for name in ("aggregation", "optimizations") if name in settings}
    hparams = {name: value for name, value in settings.items() if name not in known}
    given: dict[str, Any] = {
        "length": LENGTH,
        "hparams": {"global_batch_size": 4, **hparams},
        **known,
    }
    saving: dict[str, Any] = {"save_at": range(1, LENGTH + 1), "validate": 2, **given}
    yield Request(name="whole", **saving)
    for position in positions:
        yield Request(name=f"from {position}", behind=("whole", position), **saving)
    given["report"] = _RARELY
    yield Request(name="rarely reported", **given)
    yield Request(name="interrupted", preempt_at=_INTERRUPTED_AT, **given)
    yield Request(name="continued", behind=("interrupted", _INTERRUPTED_AT), **given)
