"""How much training: a number of batches, records or epochs."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Unit = Literal["batches", "records", "epochs"]
UNITS: tuple[Unit, ...] = ("batches", "records", "epochs")


class Length(Struct, frozen=True):
    """An amount of training, absolute from the trial's start; in YAML `{epochs: 3}`, or a bare number of batches."""

    unit: Unit
    n: int

    def __str__(self) -> str:
        return f"{self.n} {self.unit}"
