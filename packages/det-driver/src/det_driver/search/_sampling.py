"""The random numbers of a search, equal to numpy's, and hyperparameters drawn with them.

The order of draws is Determined's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from random import Random
from typing import Any

from det_core.config import Categorical, Const, Double, Hyperparameter, Int, Log
from det_core.errors import ConfigError

from ..space import count_steps, int_at, step_at

_WORDS = 624


class RandomState:
    """Mersenne Twister draws, equal to those of `numpy.random.RandomState(seed)`.

    The standard library has the same generator (Matsumoto and Nishimura 1998, MT19937). Only the
    seeding (`init_genrand`) and the conversion from words to numbers are numpy's.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**32:
            raise ConfigError(
                f"reproducibility.experiment_seed is {seed}; give a whole number from 0 to"
                f" {2**32 - 1}"
            )
        # It draws hyperparameters, reproducibly. Keys and tokens are made by `secrets`.
        self._random = Random()
        self._random.setstate((3, (*_init_genrand(seed), _WORDS), None))
        self.random = self._random.random
        """Draw a double in [0, 1), as `random_sample()`."""

    def below(self, n: int) -> int:
        """Draw an int in [0, n), as `randint(0, n)`: masked rejection.

        Nothing is drawn for n == 1.
        """
        top = n - 1
        mask = (1 << top.bit_length()) - 1
        word = self._random.getrandbits
        value = top + 1 if top else 0
        while value > top:
            value = (word(32) if top < 2**32 else word(32) << 32 | word(32)) & mask
        return value

    def uniform(self, low: float, high: float) -> float:
        """Draw a double in [low, high), as `uniform(low, high)`."""
        return low + (high - low) * self.random()

    def skip_words(self, words: int) -> None:
        """Draw 32-bit words and discard them."""
        self._random.getrandbits(32 * words)

    def state(self) -> dict[str, Any]:
        """Return the generator's words and its position in them."""
        *words, position = self._random.getstate()[1]
        return {"words": words, "position": position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self._random.setstate((3, (*state["words"], state["position"]), None))


def _init_genrand(seed: int) -> list[int]:
    words = [seed]
    for i in range(1, _WORDS):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + i) & 0xFFFFFFFF)
    return words


Draw = Callable[[RandomState], Any]


def sampler(hyperparameters: Mapping[str, Hyperparameter]) -> Draw:
    """Return a function that draws a value for each hyperparameter, in sorted order at every depth.

    The order decides which random number becomes which hyperparameter. Determined sorts only the
    outermost keys and takes nested ones in any order, so its nested searches cannot be reproduced.
    """
    parts = [(name, draw_of(hyperparameters[name])) for name in sorted(hyperparameters)]
    return lambda rng: {name: draw(rng) for name, draw in parts}


def draw_of(hyperparameter: Hyperparameter) -> Draw:
    """Return a function that draws a value of one hyperparameter."""
    match hyperparameter:
        case Int(log=True):
            return lambda rng: int_at(hyperparameter, rng.random())
        case Int() | Double() if hyperparameter.step is not None:
            steps = count_steps(hyperparameter)
            return lambda rng: step_at(hyperparameter, rng.below(steps))
        case Int(minval=smallest, maxval=largest):
            return lambda rng: smallest + rng.below(largest - smallest + 1)
        case Double(minval=low, maxval=high):
            return lambda rng: rng.uniform(low, high)
        case Log(minval=low, maxval=high, base=base):
            return lambda rng: base ** rng.uniform(low, high)
        case Categorical(vals=vals):
            return lambda rng: own(vals[rng.below(len(vals))])
        case Const(val=val):
            return lambda _: own(val)
        case _:
            return sampler(hyperparameter)


def own(value: Any) -> Any:
    """Return a copy of a value that a trial may change without an effect on other trials."""
    return deepcopy(value) if isinstance(value, list | dict) else value
