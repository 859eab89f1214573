"""A study of Optuna that can be saved as JSON and restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from det_core.errors import ConfigError, PluginError
from det_driver.search import MOST_DRAWS

from .samplers import generators, quiet
from .space import Space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study

TRIES = 20
"""After so many suggestions in a row that constraints refuse, one is drawn at random."""
Direction = Literal["minimize", "maximize"]


class Suggestions:
    """Asks a sampler for hyperparameters and gives it results.

    Trials are numbered 0, 1, 2, ... in order. All calls are kept in a list. A restored study
    replays them, because samplers hold generators, models and caches that only they can rebuild. So
    nothing is unpickled. If a sampler holds only generators, their states and the trials are
    restored instead, and no suggestion is computed twice.
    """

    def __init__(
        self, space: Space, sampler: BaseSampler, seed: int, smaller_is_better: Sequence[bool]
    ) -> None:
        import optuna

        self._space = space
        self._sampler = sampler
        self._random = optuna.samplers.RandomSampler(seed=seed)
        self._past: list[list[Any]] = []
        # The number of each trial in the study, which counts refused suggestions too.
        self._numbers: list[int] = []
        self._asked = 0
        directions: list[Direction] = [
            "minimize" if smaller else "maximize" for smaller in smaller_is_better
        ]
        with quiet():
            self._study: Study = optuna.create_study(
                study_name="det", sampler=sampler, directions=directions
            )

    def ask(self) -> dict[str, Any]:
        """Return the hyperparameters that the sampler suggests for the next trial.

        Suggestions that constraints refuse are set aside. After `TRIES` refusals hyperparameters
        are drawn at random.
        """
        for _ in range(TRIES):
            if (hparams := self._next("ask")) is not None:
                return hparams
        return self.draw()

    def draw(self) -> dict[str, Any]:
        """Return random hyperparameters for the next trial.

        The sampler learns from them like from others.
        """
        for _ in range(MOST_DRAWS):
            if (hparams := self._next("draw")) is not None:
                return hparams
        raise ConfigError(
            f"searcher.constraints refused {MOST_DRAWS:,} choices in a row; narrow the ranges"
        )

    def tell(self, trial: int, values: Sequence[float]) -> None:
        """Give the sampler the results of a trial. All must be finite."""
        self._note("tell", self._numbers[trial], list(values))

    def set_aside(self, trial: int) -> None:
        """Mark a trial's hyperparameters as bad. TPE avoids them, and other samplers ignore them.

        With two metrics TPE ignores them too, because it fails on them in Optuna 4.0.
        """
        self._note("set_aside", self._numbers[trial])

    def forget(self, trial: int) -> None:
        """Mark a trial as one without a result, which says nothing about its hyperparameters."""
        self._note("forget", self._numbers[trial])

    def past(self) -> list[list[Any]]:
        """Return all calls and results so far, in order."""
        return [list(each) for each in self._past]

    def memory(self) -> dict[str, Any] | None:
        """Return the state that makes a replay unnecessary: the trials and the generators.

        Return None if the sampler holds more than generators.
        """
        found = generators(self._sampler)
        if not found:
            return None
        trials = [
            [trial.params, dict(trial.system_attrs)]
            for trial in self._study.get_trials(deepcopy=False)
        ]
        states = [each.get_state(legacy=False) for each in (*found, *generators(self._random))]
        kept = [
            [s["state"]["key"].tolist(), s["state"]["pos"], s["has_gauss"], s["gauss"]]
            for s in states
        ]
        return {"trials": trials, "generators": kept}

    def relive(self, past: Sequence[Sequence[Any]], memory: Mapping[str, Any] | None) -> None:
        """Restore a study of the same settings, from its memory or by replaying its calls."""
        if memory is None:
            for name, *arguments in past:
                if arguments:
                    self._note(name, *arguments)
                else:
                    self._suggest(name)
            self._count()
            return
        from optuna.trial import TrialState, create_trial

        self._past = [list(each) for each in past]
        self._count()
        ends = {each[1]: each for each in past if len(each) > 1}
        for number, (params, attributes) in enumerate(memory["trials"]):
            name, *arguments = ends.get(number, ["ask"])
            state = {"ask": "RUNNING", "tell": "COMPLETE"}.get(name) or self._end_of(name)
            trial = create_trial(
                state=TrialState[state],
                values=arguments[1] if name == "tell" else None,
                params=params,
                distributions={each: self._space.distributions[each] for each in params},
                system_attrs=attributes,
            )
            self._study.add_trial(trial)
        both = (*generators(self._sampler), *generators(self._random))
        for generator, saved in zip(both, memory["generators"], strict=True):
            generator.set_state(("MT19937", *saved))

    def _next(self, how: str) -> dict[str, Any] | None:
        """Return the next hyperparameters, or None if constraints refuse them."""
        params = self._suggest(how)
        hparams = self._space.hparams(params)
        if hparams is None:
            self._note("refused", self._asked - 1)
        else:
            self._numbers.append(self._asked - 1)
        return hparams

    def _suggest(self, how: str) -> dict[str, Any]:
        self._past.append([how])
        self._asked += 1
        sampler = self._sampler if how == "ask" else self._random
        self._study.sampler = sampler
        try:
            with quiet():
                params = self._space.suggest(self._study.ask())
        except ValueError as error:
            name = type(sampler).__name__
            raise PluginError(
                f"Optuna's {name} cannot suggest hyperparameters: {error}; take another sampler"
            ) from error
        self._study.sampler = self._sampler
        return params

    def _note(self, name: str, number: int, values: Sequence[float] | None = None) -> None:
        from optuna.trial import TrialState

        self._past.append([name, number] if values is None else [name, number, values])
        with quiet():
            if values is not None:
                self._study.tell(number, values)
            else:
                self._study.tell(number, state=TrialState[self._end_of(name)])

    def _end_of(self, name: str) -> str:
        return "FAIL" if name == "forget" or len(self._study.directions) > 1 else "PRUNED"

    def _count(self) -> None:
        """Number the trials: all that were asked for and not refused."""
        refused = {each[1] for each in self._past if each[0] == "refused"}
        self._asked = sum(len(each) == 1 for each in self._past)
        self._numbers = [number for number in range(self._asked) if number not in refused]
