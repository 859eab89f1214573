"""Optuna's samplers with any schedule: `searcher: {sampler: tpe, schedule: async_halving}`."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from det_core.config import Combined, Hyperparameter
from det_core.errors import ConfigError, PluginError
from det_driver.search import Exit, Limits, Observations, RandomState, Sampler, UnitCube

from .config import Optuna
from .samplers import quiet, sampler_of
from .space import Space
from .study import Suggestions

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

TRIES = 20
"""After so many suggestions that constraints refuse, hyperparameters are drawn at random."""
REMEMBERED = 60
"""The model is built from at most so many results."""
_OF_WHOLE_TRAININGS = ("cmaes", "qmc", "nsgaii")


def make_sampler(
    name: str, config: Combined, hyperparameters: Mapping[str, Hyperparameter], limits: Limits
) -> Sampler:
    """Return Optuna's sampler of a name. Raises ConfigError if it does not fit the schedule."""
    options = dict(config.sampler_options)
    startup = options.pop("startup_trials", None)
    settings = Optuna(
        metric=config.metric,
        smaller_is_better=config.smaller_is_better,
        max_trials=config.max_trials or 1,
        sampler=name,  # type: ignore[arg-type]
        startup_trials=startup,
        sampler_options=options,
    )
    sampler_of(settings, 0)
    if name not in _OF_WHOLE_TRAININGS:
        return Modelled(settings, hyperparameters, limits)
    if config.schedule != "full":
        raise ConfigError(
            f"searcher.sampler is {name!r}, which learns from whole generations of equally long"
            f" trainings, and searcher.schedule is {config.schedule!r}; take the schedule full, or"
            " the sampler tpe"
        )
    return Whole(settings, hyperparameters, limits)


class Modelled(Sampler):
    """Suggests hyperparameters by a model of what trials reported.

    The first ones are drawn at random. The model of gp uses the trials that trained longest. tpe
    needs an order only, so its model uses all trials. They are ranked first by how long they
    trained and then by their loss. Otherwise the trials that halving stopped would not count as bad
    ones.

    Each suggestion makes a new study from the observations and a random seed of the search, so that
    the observations are the whole state. Trials without a report are running trials for tpe (its
    constant liar). For gp they have the median result. So two workers never get the same point.

    Source: Falkner et al. 2018, "BOHB", ICML, for a model of the longest trainings with enough
    observations.
    """

    learns = True

    def __init__(
        self, settings: Optuna, hyperparameters: Mapping[str, Hyperparameter], limits: Limits
    ) -> None:
        self._settings = settings
        self._space = Space(hyperparameters, limits)
        self._cube = UnitCube(hyperparameters, limits)
        self._startup = 10 if settings.startup_trials is None else settings.startup_trials
        self._by_rank = settings.sampler == "tpe"
        self._seen: Observations[dict[str, Any]] = Observations(
            len(self._space.distributions) + 1, REMEMBERED, all_lengths=self._by_rank
        )
        self._learnt = 0

    def propose(self, trial: int, rng: RandomState) -> dict[str, Any]:
        hparams = None
        if trial + self._learnt >= self._startup and self._seen.pool and self._space.distributions:
            hparams = self._suggested(rng.below(2**31))
        if hparams is None:
            _, hparams = self._cube.draw(rng)
        self._seen.opened(trial, self._space.params(hparams))
        return hparams

    def adopt(self, trial: int, hparams: Mapping[str, Any]) -> None:
        self._learnt += trial < 0
        self._seen.opened(trial, self._space.params(hparams))

    def validated(self, trial: int, length: float, loss: float) -> None:
        self._seen.validated(trial, length, max(-1e100, min(1e100, loss)))

    def exited(self, trial: int, reason: Exit) -> None:
        self._seen.exited(trial, reason is Exit.INVALID_HP)

    def state(self) -> dict[str, Any]:
        return self._seen.state() | {"learnt": self._learnt}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._seen.restore(state)
        self._learnt = state.get("learnt", 0)

    def _suggested(self, seed: int) -> dict[str, Any] | None:
        import optuna

        settings = msgspec.structs.replace(self._settings, startup_trials=0)
        with quiet():
            study = optuna.create_study(study_name="det", sampler=sampler_of(settings, seed))
            study.add_trials(self._past())
            for _ in range(TRIES):
                asked = study.ask()
                try:
                    params = self._space.suggest(asked)
                except ValueError as error:
                    raise PluginError(
                        f"Optuna's {settings.sampler} cannot suggest hyperparameters: {error}"
                    ) from error
                if (hparams := self._space.hparams(params)) is not None:
                    return hparams
                study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        return None

    def _past(self) -> list[FrozenTrial]:
        pool = self._seen.pool
        losses = {trial: loss for trial, (_, loss) in pool.items()}
        if self._by_rank:
            losses = {trial: float(rank) for rank, trial in enumerate(self._seen.best())}
        found = [self._frozen(trial, losses[trial]) for trial in sorted(losses)]
        lie = None if self._by_rank else median(losses.values())
        return found + [self._frozen(trial, lie) for trial in self._seen.silent]

    def _frozen(self, trial: int, loss: float | None) -> FrozenTrial:
        from optuna.trial import TrialState, create_trial

        params = self._seen.items[trial]
        return create_trial(
            state=TrialState.RUNNING if loss is None else TrialState.COMPLETE,
            value=loss,
            params=params,
            distributions={name: self._space.distributions[name] for name in params},
        )


class Whole(Sampler):
    """Suggests hyperparameters by one study of Optuna for the whole search.

    All its trials train equally long.
    """

    adopts = False

    def __init__(
        self, settings: Optuna, hyperparameters: Mapping[str, Hyperparameter], limits: Limits
    ) -> None:
        self._settings = settings
        self._space = Space(hyperparameters, limits)
        self._study: Suggestions | None = None
        self._seed = 0
        self._latest: dict[int, float] = {}

    def propose(self, trial: int, rng: RandomState) -> dict[str, Any]:
        study = self._study or self._begin(rng.below(2**31))
        return study.ask()

    def adopt(self, trial: int, hparams: Mapping[str, Any]) -> None:
        raise PluginError(
            f"the sampler {self._settings.sampler} cannot take a trial that it did not suggest"
        )

    def validated(self, trial: int, length: float, loss: float) -> None:
        self._latest[trial] = loss

    def exited(self, trial: int, reason: Exit) -> None:
        assert self._study is not None
        loss = self._latest.pop(trial, None)
        if reason is Exit.INVALID_HP or (loss is not None and abs(loss) > 1e100):
            self._study.set_aside(trial)
        elif reason is Exit.COMPLETED and loss is not None:
            self._study.tell(trial, [loss])
        else:
            self._study.forget(trial)

    def state(self) -> dict[str, Any]:
        study = (
            None
            if self._study is None
            else {"past": self._study.past(), "memory": self._study.memory()}
        )
        return {
            "seed": self._seed,
            "study": study,
            "latest": [[t, loss] for t, loss in self._latest.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._study = None
        self._latest = dict(state["latest"])
        if state["study"] is not None:
            self._begin(state["seed"]).relive(state["study"]["past"], state["study"]["memory"])

    def _begin(self, seed: int) -> Suggestions:
        self._seed = seed
        # A smaller loss is always better.
        self._study = study = Suggestions(
            self._space, sampler_of(self._settings, seed), seed, [True]
        )
        return study
