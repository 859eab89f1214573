"""A study of Optuna's that can be written down as JSON and taken up again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from det_core.errors import PluginError

from .samplers import generators, quiet
from .space import Space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study

Direction = Literal["minimize", "maximize"]


class Suggestions:
    """Asks a sampler for hyperparameters and tells it of results; trials are numbered 0, 1, 2, ... as they are asked for.

    What is asked for and told is kept as a list, and a study taken up again goes through it anew: samplers keep generators,
    models and caches that only they can rebuild, and none of them need be unpickled. Where a sampler has nothing but
    generators, these are kept, and the trials are put back as they were: no suggestion is computed twice.
    """

    def __init__(self, space: Space, sampler: BaseSampler, seed: int, smaller_is_better: Sequence[bool]) -> None:
        import optuna

        self._space = space
        self._sampler = sampler
        self._random = optuna.samplers.RandomSampler(seed=seed)
        self._past: list[list[Any]] = []
        directions: list[Direction] = ["minimize" if smaller else "maximize" for smaller in smaller_is_better]
        with quiet():
            self._study: Study = optuna.create_study(study_name="det", sampler=sampler, directions=directions)

    def ask(self) -> dict[str, Any]:
        """Return the hyperparameters of the next trial, as the sampler suggests them."""
        self._past.append(["ask"])
        return self._next(self._sampler)

    def draw(self) -> dict[str, Any]:
        """Return the hyperparameters of the next trial, drawn at random; the sampler learns of them all the same."""
        self._past.append(["draw"])
        return self._next(self._random)

    def tell(self, trial: int, values: Sequence[float]) -> None:
        """Take the results of a trial, all finite."""
        self._past.append(["tell", trial, list(values)])
        with quiet():
            self._study.tell(trial, list(values))

    def set_aside(self, trial: int) -> None:
        """Take note that a trial's hyperparameters led nowhere; TPE keeps away from them, the others forget them.

        With two metrics TPE does not either: it stumbles over them in Optuna 4.0.
        """
        self._past.append(["set_aside", trial])
        self._end(trial, self._aside)

    def forget(self, trial: int) -> None:
        """Take note that a trial has no result, which says nothing of its hyperparameters."""
        self._past.append(["forget", trial])
        self._end(trial, "FAIL")

    def past(self) -> list[list[Any]]:
        """Return what was asked for and told, in order."""
        return [list(each) for each in self._past]

    def memory(self) -> dict[str, Any] | None:
        """Return what spares another one to live through the past: the trials as they are, and the generators; None without."""
        found = generators(self._sampler)
        if not found:
            return None
        trials = [[trial.params, dict(trial.system_attrs)] for trial in self._study.get_trials(deepcopy=False)]
        states = [each.get_state(legacy=False) for each in (*found, *generators(self._random))]
        kept = [[s["state"]["key"].tolist(), s["state"]["pos"], s["has_gauss"], s["gauss"]] for s in states]
        return {"trials": trials, "generators": kept}

    def relive(self, past: Sequence[Sequence[Any]], memory: Mapping[str, Any] | None) -> None:
        """Become the study of that past, of the same settings: by its memory, or by going through all of it."""
        if memory is None:
            for name, *arguments in past:
                getattr(self, name)(*arguments)
            return
        from optuna.trial import TrialState, create_trial

        self._past = [list(each) for each in past]
        ends = {each[1]: each for each in past if len(each) > 1}
        for number, (params, attributes) in enumerate(memory["trials"]):
            name, *told = ends.get(number, ["ask"])
            state = {"ask": "RUNNING", "tell": "COMPLETE", "set_aside": self._aside, "forget": "FAIL"}[name]
            trial = create_trial(
                state=TrialState[state],
                values=told[1] if name == "tell" else None,
                params=params,
                distributions=self._space.distributions,
                system_attrs=attributes,
            )
            self._study.add_trial(trial)
        both = (*generators(self._sampler), *generators(self._random))
        for generator, saved in zip(both, memory["generators"], strict=True):
            generator.set_state(("MT19937", *saved))

    @property
    def _aside(self) -> str:
        return "PRUNED" if len(self._study.directions) == 1 else "FAIL"

    def _next(self, sampler: BaseSampler) -> dict[str, Any]:
        self._study.sampler = sampler
        try:
            with quiet():
                params = self._study.ask(self._space.distributions).params
        except ValueError as error:
            name = type(sampler).__name__
            raise PluginError(
                f"Optuna's {name} cannot suggest hyperparameters: {error}; take another sampler"
            ) from error
        self._study.sampler = self._sampler
        return self._space.hparams(params)

    def _end(self, trial: int, state: str) -> None:
        from optuna.trial import TrialState

        with quiet():
            self._study.tell(trial, state=TrialState[state])
