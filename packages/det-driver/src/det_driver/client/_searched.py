"""What came of an experiment's search: its trials as a table, and what mattered."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from det_core.config import from_json
from det_core.errors import DetError, StoreError, did_you_mean

from ..store import TrialRow, TrialsMark
from ._described import Described
from ._importances import Slice, importances, slices
from ._space import Space

_TELLING = 5000


class Table(NamedTuple):
    """Trials in columns: `id`, `state`, `batches`, `progress`, `best_metric`, `best_batches`, `latest_metric`, `started`, ….

    Times are unix seconds. `hparams` has what was searched, by dotted names, None where a trial has none.
    """

    columns: Mapping[str, list[Any]]
    hparams: Mapping[str, list[Any]]
    mark: TrialsMark


class Searched(Described):
    """One experiment's trials, all together."""

    def table(self, since: Table | None = None) -> Table:
        """Return its trials in columns, in order; or, with an earlier table, those that have changed since then or are new."""
        with self._home.reader() as store:
            space = Space(from_json(store.experiments.get(self.id).config).hyperparameters)
            rows, mark = store.trials.changed(self.id, since.mark if since is not None else None)
        columns = {name: [*map(attrgetter(name), rows)] for name in TrialRow.__struct_fields__}
        columns["state"] = [*map(str, columns["state"])]
        return Table(columns, space.columns(columns.pop("hparams")), mark)

    def to_frame(self) -> Any:
        """Return its trials as a pandas DataFrame, a row each, hyperparameters as `hparams.NAME`; DetError without pandas."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise DetError("a DataFrame comes with pandas, which is not installed; pip install pandas") from None
        table = self.table()
        return pandas.DataFrame({**table.columns, **{f"hparams.{name}": of for name, of in table.hparams.items()}})

    def importances(self) -> dict[str, float]:
        """Return what mattered: for each hyperparameter the share, 0 to 1, of the trials' differences that it alone explains.

        The first one matters most. Empty for searches of fewer than 8 trials that reported the searcher's metric. Of a search
        of many thousands of trials, some 5,000 tell, spread over all of it.
        """
        return importances(self._measured(_TELLING))

    def slices(self, name: str) -> list[Slice]:
        """Return how good the trials are along a hyperparameter, by its dotted name; StoreError where none was chosen so."""
        measured = self._measured()
        known = list(dict.fromkeys(each for chosen, _ in measured for each in chosen))
        if name not in known:
            way_out = did_you_mean(name, known) or f"; known: {', '.join(known) or 'none'}"
            raise StoreError(f"no trial of experiment {self.id} has a chosen {name!r}{way_out}")
        return slices(
            [(chosen.get(name), metric) for chosen, metric in measured], smaller_is_better=self.smaller_is_better
        )

    def _measured(self, most: int | None = None) -> list[tuple[dict[str, Any], float]]:
        with self._home.reader() as store:
            space = Space(from_json(store.experiments.get(self.id).config).hyperparameters)
            return [(space.chosen(hparams), best) for hparams, best in store.trials.measured(self.id, most)]
