"""Points of a Sobol sequence, which fill the space more evenly than random ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from det_core.config import Hyperparameter
from det_core.errors import ConfigError

from ..space import MOST_DRAWS, Limits
from ._sampler import Sampler, UnitCube
from ._sampling import RandomState
from .base import Exit

_BITS = 32
_DIRECTIONS = """
3 1; 7 1 3; 11 1 3 1; 13 1 1 1; 19 1 1 3 3; 25 1 3 5 13; 37 1 1 5 5 17; 41 1 1 5 5 5; 47 1 1 7
11 19; 55 1 1 5 1 1; 59 1 1 1 3 11; 61 1 3 5 5 31; 67 1 3 3 9 7 49; 91 1 1 1 15 21 21; 97 1 3
1 13 27 49; 103 1 1 1 15 7 5; 109 1 3 1 15 13 25; 115 1 1 5 5 19 61; 131 1 3 7 11 23 15 103;
137 1 3 7 13 13 15 69; 143 1 1 3 13 7 35 63; 145 1 3 5 9 1 25 53; 157 1 3 1 13 9 35 107; 167 1
3 1 5 27 61 31; 171 1 1 5 11 19 41 61; 185 1 3 5 3 3 13 69; 191 1 1 7 13 1 19 1; 193 1 3 7 5
13 19 59; 203 1 1 3 9 25 29 41; 211 1 3 5 13 23 1 55; 213 1 3 7 3 13 59 17; 229 1 3 1 3 5 53
69; 239 1 1 5 5 23 33 13; 241 1 1 7 7 1 61 123; 247 1 1 7 9 13 61 49; 253 1 3 3 5 3 55 33; 285
1 3 1 15 31 13 49 245; 299 1 3 5 15 31 59 63 97; 301 1 3 1 11 11 11 77 249; 333 1 3 1 11 27 43
71 9; 351 1 1 7 15 21 11 81 45; 355 1 3 7 3 25 31 65 79; 357 1 3 1 1 19 11 3 205; 361 1 1 5 9
19 21 29 157; 369 1 3 7 11 1 33 89 185; 391 1 3 3 3 15 9 79 71; 397 1 3 7 11 15 39 119 27; 425
1 1 3 1 11 31 97 225; 451 1 1 1 3 23 43 57 177; 463 1 3 7 7 17 17 37 71; 487 1 3 1 5 27 63 123
213; 501 1 1 3 5 11 43 53 133; 529 1 3 5 5 29 17 47 173 479; 539 1 3 3 11 3 1 109 9 69; 545 1
1 1 5 17 39 23 5 343; 557 1 3 1 5 25 15 31 103 499; 563 1 1 1 11 11 17 63 105 183; 601 1 1 5
11 9 29 97 231 363; 607 1 1 5 15 19 45 41 7 383; 617 1 3 7 7 31 19 83 137 221; 623 1 1 1 3 23
15 111 223 83; 631 1 1 5 13 31 15 55 25 161; 637 1 1 3 13 25 47 39 87 257
"""
"""For each dimension after the first: a primitive polynomial, and the first direction numbers."""


class Sobol(Sampler):
    """Proposes the points of a Sobol sequence, all shifted by one random point. It does not learn.

    Source: Sobol 1967. Direction numbers of Joe and Kuo 2008, "Constructing Sobol sequences with
    better two-dimensional projections", SIAM J. Sci. Comput. 30 (new-joe-kuo-6.21201), with a
    digital shift.
    """

    def __init__(self, hyperparameters: Mapping[str, Hyperparameter], limits: Limits) -> None:
        self._cube = UnitCube(hyperparameters, limits)
        self._directions = _directions(len(self._cube.axes))
        self._shift: list[int] = []
        self._number = 0

    def propose(self, trial: int, rng: RandomState) -> dict[str, Any]:
        if not self._shift:
            self._shift = [rng.below(2**_BITS) for _ in self._cube.axes]
        for _ in range(MOST_DRAWS):
            if (hparams := self._cube.hparams(self._next())) is not None:
                return hparams
        raise ConfigError(
            f"searcher.constraints refused {MOST_DRAWS:,} points in a row; narrow the ranges"
        )

    def validated(self, trial: int, length: float, loss: float) -> None:
        pass

    def exited(self, trial: int, reason: Exit) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {"shift": list(self._shift), "number": self._number}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._shift = list(state["shift"])
        self._number = state["number"]

    def _next(self) -> list[float]:
        gray = self._number ^ self._number >> 1
        self._number += 1
        point = []
        for shift, directions in zip(self._shift, self._directions, strict=True):
            bits = shift
            for place, direction in enumerate(directions):
                if gray >> place & 1:
                    bits ^= direction
            point.append((bits + 0.5) / 2**_BITS)
        return point


def _directions(dimensions: int) -> list[list[int]]:
    rows = [[int(number) for number in row.split()] for row in _DIRECTIONS.split(";")]
    if dimensions > len(rows) + 1:
        raise ConfigError(
            f"searcher.sampler is 'sobol', of at most {len(rows) + 1} ranges, and the space has"
            f" {dimensions}; take random"
        )
    found = [[1 << _BITS - 1 - place for place in range(_BITS)]]
    for polynomial, *first in rows[: max(dimensions - 1, 0)]:
        degree = len(first)
        numbers = [number << _BITS - 1 - place for place, number in enumerate(first)]
        for place in range(degree, _BITS):
            value = numbers[place - degree] ^ numbers[place - degree] >> degree
            for k in range(1, degree):
                if polynomial >> degree - k & 1:
                    value ^= numbers[place - k]
            numbers.append(value)
        found.append(numbers)
    return found[:dimensions]
