"""What an experiment is called, what is said of it, and how it stands."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Unpack

from det_core.config import from_json, masked

from ..driver import describe
from ..store import Description, ExperimentRow
from ._checkpoint import Home


class Described:
    """One experiment's row in the store: read anew whenever it is asked, and changed also while a driver has it."""

    def __init__(self, home: Home, row: ExperimentRow) -> None:
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
        """How much is done, 0 to 1."""
        return self._row.progress

    @property
    def reason(self) -> str:
        """Why it ended, or paused, as it did; empty where nothing went wrong."""
        return self._row.reason or ""

    @property
    def seconds(self) -> float:
        """How long it has taken since its start, pauses too, until now where it has not ended; 0 before that."""
        return 0.0 if (row := self._row).started is None else (row.ended or time.time()) - row.started

    @property
    def description(self) -> str:
        """What is said of it."""
        return self._row.description

    @property
    def labels(self) -> list[str]:
        """The words by which it is found."""
        return list(self._row.labels)

    @property
    def archived(self) -> bool:
        """Whether it is left out of listings."""
        return self._row.archived

    @property
    def config(self) -> dict[str, Any]:
        """Its complete configuration, without what is secret."""
        return dict(masked(from_json(self._row.config)))

    def get_config(self) -> dict[str, Any]:
        """Return its complete configuration."""
        return self.config

    def set_name(self, name: str) -> None:
        """Call it something else; what runs goes on."""
        self._describe(name=name)
        self.name = name

    def set_description(self, description: str) -> None:
        """Say something of it."""
        self._describe(description=description)

    def set_labels(self, labels: Iterable[str]) -> None:
        """Give it these labels, and no others."""
        self._describe(labels=list(dict.fromkeys(labels)))

    def _describe(self, **changes: Unpack[Description]) -> None:
        with self._home.writer() as store:
            describe(store, self.id, **changes)

    @property
    def _row(self) -> ExperimentRow:
        with self._home.reader() as store:
            return store.experiments.get(self.id)
