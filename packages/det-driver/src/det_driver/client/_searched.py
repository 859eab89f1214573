"""The results of an experiment's search: a table of its trials, and the importances."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, Unpack

from det_core.config import from_json, masked
from det_core.errors import DetError, StoreError, did_you_mean

from ..store import Description, ExperimentRow, TrialRow, TrialsMark
from . import _calls
from ._fanova import fanova
from ._home import AnyHome
from ._importances import Slice, importances, slices, whole_percents
from ._space import Space


class Described:
    """One experiment's row in the store.

    Each property reads the row again. Names, descriptions and labels can change while it is driven.
    """

    def __init__(self, home: AnyHome, row: ExperimentRow) -> None:
        self._home = home
        self.id = row.id
        self.name = row.name
        self.metric = row.metric
        self.smaller_is_better = row.smaller_is_better

    @property
    def state(self) -> str:
        """ACTIVE, PAUSED, COMPLETED, ERROR or CANCELED."""
        return str(self._row.state)

    @property
    def progress(self) -> float:
        """The part that is done, from 0 to 1."""
        return self._row.progress

    @property
    def reason(self) -> str:
        """The reason why it ended or paused. Empty if nothing went wrong."""
        return self._row.reason or ""

    @property
    def seconds(self) -> float:
        """The time from its start to its end, or to now, with pauses. 0 before its start."""
        return (
            0.0 if (row := self._row).started is None else (row.ended or time.time()) - row.started
        )

    @property
    def description(self) -> str:
        """The description that users gave."""
        return self._row.description

    @property
    def labels(self) -> list[str]:
        """The labels that users gave."""
        return list(self._row.labels)

    @property
    def archived(self) -> bool:
        """Whether listings hide it."""
        return self._row.archived

    @property
    def config(self) -> dict[str, Any]:
        """Its complete configuration without secrets."""
        return dict(masked(from_json(self._row.config)))

    def get_config(self) -> dict[str, Any]:
        """Return its complete configuration without secrets."""
        return self.config

    def set_name(self, name: str) -> None:
        """Change its name. Its runs continue."""
        self._describe(name=name)
        self.name = name

    def set_description(self, description: str) -> None:
        """Change its description."""
        self._describe(description=description)

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace its labels."""
        self._describe(labels=list(dict.fromkeys(labels)))

    def _describe(self, **changes: Unpack[Description]) -> None:
        self._home.call(_calls.describe, self.id, changes)

    @property
    def _row(self) -> ExperimentRow:
        return self._home.call(_calls.experiment, self.id)


class Table(NamedTuple):
    """Trials in columns: `id`, `state`, `batches`, `progress`, `best_metric`, `started` and others.

    Times are Unix seconds. `hparams` has the searched hyperparameters by dotted names. The value is
    None if a trial does not have one.
    """

    columns: Mapping[str, list[Any]]
    hparams: Mapping[str, list[Any]]
    mark: TrialsMark


class Mattered(NamedTuple):
    """The importances of a search, as `shares`, and the number of compared trials.

    `length` is the length at which the trials were compared, in the searcher's unit. It is None if
    each trial counts with its best value. `shares` is empty for too few trials, or if all are
    equally good.
    """

    shares: dict[str, float]
    trials: int
    length: int | None

    @property
    def percents(self) -> tuple[dict[str, int], int]:
        """The shares as whole percents, and the rest of 100, which is interplay and chance."""
        return whole_percents(self.shares)


class Searched(Described):
    """All trials of one experiment."""

    def table(self, since: Table | None = None) -> Table:
        """Return its trials in columns, in order.

        With an earlier table, return only trials that are new or have changed since then.
        """
        space = Space(from_json(self._row.config).hyperparameters)
        rows, mark = self._home.call(_calls.changed, self.id, since and since.mark)
        columns = {name: [*map(attrgetter(name), rows)] for name in TrialRow.__struct_fields__}
        columns["state"] = [*map(str, columns["state"])]
        return Table(columns, space.columns(columns.pop("hparams")), mark)

    def to_frame(self) -> Any:
        """Return its trials as a pandas DataFrame with a row each. Raises DetError without pandas.

        Hyperparameters are in columns `hparams.NAME`.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise DetError(
                "a DataFrame comes with pandas, which is not installed; pip install pandas"
            ) from None
        table = self.table()
        return pandas.DataFrame(
            {**table.columns, **{f"hparams.{name}": of for name, of in table.hparams.items()}}
        )

    def importances(self) -> dict[str, float]:
        """Return for each hyperparameter the share of the trials' differences that it explains.

        Each share, from 0 to 1, is what the hyperparameter alone explains. The greatest comes
        first. The result is empty for fewer than 8 trials that reported the searcher's metric. In a
        search of many thousands of trials about 5,000 count, spread over all of it. If a search
        trains some trials longer than others (ASHA, Hyperband), trials are compared at the length
        that most of them reached.
        """
        return self.what_mattered().shares

    def what_mattered(self, *, forest: bool = False) -> Mattered:
        """Return the importances, the number of compared trials, and the length of comparison.

        With `forest`, they are those of fANOVA, which needs scikit-learn and at least 20 trials.
        """
        analyse = fanova if forest else importances
        length, compared = self._home.call(_calls.compared, self.id)
        return Mattered(analyse(compared), len(compared), length)

    def slices(self, name: str) -> list[Slice]:
        """Return how good the trials are along a hyperparameter, given by its dotted name.

        Raises StoreError if no trial has such a chosen hyperparameter.
        """
        measured = self._home.call(_calls.measured, self.id, None)
        known = list(dict.fromkeys(each for chosen, _ in measured for each in chosen))
        if name not in known:
            way_out = did_you_mean(name, known) or f"; known: {', '.join(known) or 'none'}"
            raise StoreError(f"no trial of experiment {self.id} has a chosen {name!r}{way_out}")
        return slices(
            [(chosen.get(name), metric) for chosen, metric in measured],
            smaller_is_better=self.smaller_is_better,
        )
