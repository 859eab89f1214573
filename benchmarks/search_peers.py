"""The searches of other libraries for `search_regret.py`, set as their documentation recommends.

Each is asked for hyperparameters and told the result of each epoch in this process, in the order in
which the library's own runner does it. They need packages that det does not; dehb needs another
numpy than the rest:

    pip install optuna hyperopt smac syne-tune 'ray[tune]' hpbandster
    pip install dehb
"""

from __future__ import annotations

import math
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from det_core.config import Categorical, Double, Hyperparameter, Int, Log

Params = Mapping[str, Any]
Space = Mapping[str, Hyperparameter]


class Contestant(ABC):
    """A search as workers see it."""

    @abstractmethod
    def take(self) -> tuple[int, Params] | None:
        """Return the trial that a free worker is to train, from where it stands, or None."""

    @abstractmethod
    def report(self, trial: int, epoch: int, value: float) -> bool:
        """Take the validation after an epoch; return whether its worker goes on with the trial."""


class Peer(Contestant):
    """A search of another library. It numbers its trials and knows their hyperparameters."""

    def __init__(self, space: Space, epochs: int, seed: int, workers: int) -> None:
        # Our distributed.py would hide the package that SMAC and DEHB import.
        sys.path[:] = [
            each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent
        ]
        # Some libraries draw from numpy's global generator.
        np.random.seed(seed)
        self.space, self.epochs, self.seed, self.workers = space, epochs, seed, workers

    def values(self, chosen: Params) -> Params:
        """Return the hyperparameters for a choice, where categories are positions."""
        return {
            name: each.vals[int(chosen[name])] if isinstance(each, Categorical) else chosen[name]
            for name, each in self.space.items()
        }

    def ranges(self, make: Callable[..., Any]) -> dict[str, Any]:
        """Call `make` with the name, kind and bounds of each hyperparameter.

        Kinds are float, log, int and choice. Ordered categories are ints.
        """
        found = {}
        for name, each in self.space.items():
            match each:
                case Log(minval=low, maxval=high, base=base):
                    found[name] = make(name, "log", base**low, base**high)
                case Double(minval=low, maxval=high):
                    found[name] = make(name, "float", low, high)
                case Int(minval=low, maxval=high):
                    found[name] = make(name, "int", low, high)
                case Categorical(vals=vals, ordered=ordered):
                    found[name] = make(name, "int" if ordered else "choice", 0, len(vals) - 1)
        return found


class Optuna(Peer):
    """A study of Optuna's: TPE, with a pruner or without."""

    def __init__(self, pruner: str, *arguments: Any) -> None:
        import optuna
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        super().__init__(*arguments)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        pruners: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
            "none": optuna.pruners.NopPruner,
            "median": optuna.pruners.MedianPruner,
            "sha": optuna.pruners.SuccessiveHalvingPruner,
            "hyperband": lambda: optuna.pruners.HyperbandPruner(max_resource=self.epochs),
        }

        def range_(name: str, kind: str, low: Any, high: Any) -> Any:
            match kind:
                case "choice":
                    return CategoricalDistribution(range(high + 1))
                case "int":
                    return IntDistribution(low, high)
                case _:
                    return FloatDistribution(low, high, log=kind == "log")

        sampler = optuna.samplers.TPESampler(seed=self.seed, constant_liar=self.workers > 1)
        self._study = optuna.create_study(
            sampler=sampler, pruner=pruners[pruner](), direction="maximize"
        )
        self._ranges = self.ranges(range_)
        self._trials: dict[int, optuna.Trial] = {}

    def take(self) -> tuple[int, Params]:
        trial = self._study.ask(self._ranges)
        self._trials[trial.number] = trial
        return trial.number, self.values(trial.params)

    def report(self, trial: int, epoch: int, value: float) -> bool:
        from optuna.trial import TrialState

        asked = self._trials[trial]
        asked.report(value, epoch)
        if epoch == self.epochs:
            self._study.tell(asked, value)
            return False
        if asked.should_prune():
            self._study.tell(asked, state=TrialState.PRUNED)
            return False
        return True


class Hyperopt(Peer):
    """TPE, every trial to the end."""

    def __init__(self, *arguments: Any) -> None:
        from hyperopt import Trials, hp
        from hyperopt.base import Domain

        super().__init__(*arguments)

        def range_(name: str, kind: str, low: Any, high: Any) -> Any:
            match kind:
                case "choice":
                    return hp.choice(name, range(high + 1))
                case "int":
                    return hp.uniformint(name, low, high)
                case "log":
                    return hp.loguniform(name, math.log(low), math.log(high))
                case _:
                    return hp.uniform(name, low, high)

        self._domain = Domain(lambda _: 0, self.ranges(range_))
        self._trials = Trials()
        self._random = np.random.default_rng(self.seed)
        self._docs: dict[int, Any] = {}

    def take(self) -> tuple[int, Params]:
        from hyperopt import JOB_STATE_RUNNING, tpe

        ids = self._trials.new_trial_ids(1)
        self._trials.refresh()
        docs = tpe.suggest(ids, self._domain, self._trials, int(self._random.integers(2**31 - 1)))
        self._trials.insert_trial_docs(docs)
        self._trials.refresh()
        (doc,) = (each for each in self._trials._dynamic_trials if each["tid"] == ids[0])
        doc["state"] = JOB_STATE_RUNNING
        self._docs[ids[0]] = doc
        return ids[0], self.values({name: each[0] for name, each in doc["misc"]["vals"].items()})

    def report(self, trial: int, epoch: int, value: float) -> bool:
        from hyperopt import JOB_STATE_DONE

        if epoch < self.epochs:
            return True
        self._docs[trial] |= {"state": JOB_STATE_DONE, "result": {"status": "ok", "loss": -value}}
        self._trials.refresh()
        return False


class SyneTune(Peer):
    """A scheduler of Syne Tune, by the name of its class in `syne_tune.optimizer.baselines`."""

    def __init__(self, scheduler: str, *arguments: Any) -> None:
        from syne_tune import config_space
        from syne_tune.optimizer import baselines

        super().__init__(*arguments)

        def range_(name: str, kind: str, low: Any, high: Any) -> Any:
            match kind:
                case "choice":
                    return config_space.choice([*range(high + 1)])
                case "int":
                    return config_space.randint(low, high)
                case "log":
                    return config_space.loguniform(low, high)
                case _:
                    return config_space.uniform(low, high)

        keys: dict[str, Any] = {"metric": "value", "do_minimize": False, "random_seed": self.seed}
        if scheduler in ("ASHA", "ASHABORE", "ASHACQR", "BOHB"):
            keys |= {"time_attr": "epoch", "max_t": self.epochs}
        self._scheduler = getattr(baselines, scheduler)(self.ranges(range_), **keys)
        self._trials: list[Any] = []

    def take(self) -> tuple[int, Params]:
        from datetime import datetime

        from syne_tune.backend.trial_status import Trial

        config = self._scheduler.suggest().config
        trial = Trial(len(self._trials), config, datetime(2000, 1, 1))
        self._scheduler.on_trial_add(trial)
        self._trials.append(trial)
        return trial.trial_id, self.values(config)

    def report(self, trial: int, epoch: int, value: float) -> bool:
        result = {"value": value, "epoch": epoch}
        if (
            self._scheduler.on_trial_result(self._trials[trial], result) == "STOP"
            and epoch < self.epochs
        ):
            self._scheduler.on_trial_remove(self._trials[trial])
            return False
        if epoch == self.epochs:
            self._scheduler.on_trial_complete(self._trials[trial], result)
        return epoch < self.epochs


class RayAsha(Peer):
    """Ray Tune's ASHAScheduler over random hyperparameters, which is Tune's default search."""

    def __init__(self, *arguments: Any) -> None:
        from ray.tune.schedulers import ASHAScheduler

        super().__init__(*arguments)

        def draw(name: str, kind: str, low: Any, high: Any) -> Callable[[], Any]:
            match kind:
                case "float":
                    return lambda: random.uniform(low, high)
                case "log":
                    return lambda: math.exp(random.uniform(math.log(low), math.log(high)))
                case _:
                    return lambda: int(random.integers(low, high + 1))

        random = np.random.default_rng(self.seed)
        self._draws = self.ranges(draw)
        self._scheduler = ASHAScheduler(metric="value", mode="max", max_t=self.epochs)
        self._trials: list[Any] = []

    def take(self) -> tuple[int, Params]:
        number = len(self._trials)
        self._trials.append(SimpleNamespace(trial_id=str(number)))
        self._scheduler.on_trial_add(None, self._trials[-1])
        return number, self.values({name: draw() for name, draw in self._draws.items()})

    def report(self, trial: int, epoch: int, value: float) -> bool:
        result = {"value": value, "training_iteration": epoch}
        return self._scheduler.on_trial_result(None, self._trials[trial], result) == "CONTINUE"


class RayBohb(Peer):
    """Ray Tune's TuneBOHB with HyperBandForBOHB."""

    def __init__(self, *arguments: Any) -> None:
        from ray import tune
        from ray.tune.schedulers import HyperBandForBOHB
        from ray.tune.search.bohb import TuneBOHB

        super().__init__(*arguments)
        import ray.tune.search.bohb.bohb_search as module

        module.logger.disabled = True

        def range_(name: str, kind: str, low: Any, high: Any) -> Any:
            match kind:
                case "choice":
                    return tune.choice([*range(high + 1)])
                case "int":
                    return tune.randint(low, high + 1)
                case "log":
                    return tune.loguniform(low, high)
                case _:
                    return tune.uniform(low, high)

        searcher = TuneBOHB(self.ranges(range_), metric="value", mode="max", seed=self.seed)
        self._scheduler = HyperBandForBOHB(metric="value", mode="max", max_t=self.epochs)
        self._trials: list[Any] = []
        self._searcher = searcher
        self._controller = SimpleNamespace(
            get_trials=lambda: self._trials,
            search_alg=SimpleNamespace(searcher=searcher),
            stop_trial=self._stop,
        )

    def take(self) -> tuple[int, Params] | None:
        from ray.tune.experiment import Trial

        ready = any(
            trial in bracket.trials_to_unpause and trial.status == Trial.PAUSED
            for band in self._scheduler._hyperbands
            for bracket in band
            if bracket is not None
            for trial in bracket.current_trials()
        )
        if not ready:
            number = len(self._trials)
            config = self._searcher.suggest(str(number))
            self._trials.append(_RayTrial(number, config, Trial.PENDING))
            self._scheduler.on_trial_add(self._controller, self._trials[-1])
        trial = self._scheduler.choose_trial_to_run(self._controller)
        if trial is None:
            return None
        trial.status = Trial.RUNNING
        for band in self._scheduler._hyperbands:
            for bracket in band:
                if bracket is not None:
                    bracket.trials_to_unpause.discard(trial)
        return trial.number, self.values(trial.config)

    def report(self, trial: int, epoch: int, value: float) -> bool:
        from ray.tune.experiment import Trial

        running = self._trials[trial]
        result = {"value": value, "training_iteration": epoch}
        running.last_result = result
        decision = self._scheduler.on_trial_result(self._controller, running, result)
        self._searcher.on_trial_result(running.trial_id, result)
        if decision == "CONTINUE":
            return True
        if decision == "STOP":
            self._stop(running)
        else:
            running.status = Trial.PAUSED
        return False

    def _stop(self, trial: Any) -> None:
        from ray.tune.experiment import Trial

        if trial.status == Trial.TERMINATED:
            return
        trial.status = Trial.TERMINATED
        self._scheduler.on_trial_remove(self._controller, trial)
        self._searcher.on_trial_complete(trial.trial_id, None)


class _RayTrial:
    """What Ray Tune's schedulers read of a trial."""

    is_saving = False

    def __init__(self, number: int, config: Any, status: str) -> None:
        self.number, self.trial_id, self.config, self.status = number, str(number), config, status
        self.last_result: dict[str, Any] = {}


def _config_space(peer: Peer) -> Any:
    from ConfigSpace import CategoricalHyperparameter, ConfigurationSpace, Float, Integer

    def range_(name: str, kind: str, low: Any, high: Any) -> Any:
        match kind:
            case "choice":
                return CategoricalHyperparameter(name, [*range(high + 1)])
            case "int":
                return Integer(name, (low, high))
            case _:
                return Float(name, (low, high), log=kind == "log")

    found = ConfigurationSpace(seed=peer.seed)
    found.add([*peer.ranges(range_).values()])
    return found


class Smac(Peer):
    """SMAC3's MultiFidelityFacade: a random forest with Hyperband."""

    TRIALS = 100
    """About 20 trainings of full length. It is announced, and a quarter is drawn at random."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        from smac import MultiFidelityFacade, Scenario

        self._folder = tempfile.TemporaryDirectory()
        scenario = Scenario(
            _config_space(self),
            deterministic=True,
            n_trials=self.TRIALS,
            min_budget=1,
            max_budget=self.epochs,
            seed=self.seed,
            output_directory=self._folder.name,
        )
        self._facade = MultiFidelityFacade(
            scenario, lambda config, seed, budget: 0.0, logging_level=False, overwrite=True
        )
        self._numbers: dict[Any, int] = {}
        self._asked: dict[int, Any] = {}

    def take(self) -> tuple[int, Params]:
        info = self._facade.ask()
        number = self._numbers.setdefault(info.config, len(self._numbers))
        self._asked[number] = info
        return number, self.values(dict(info.config))

    def report(self, trial: int, epoch: int, value: float) -> bool:
        from smac.runhistory.dataclasses import TrialValue

        if epoch < max(1, round(self._asked[trial].budget)):
            return True
        self._facade.tell(self._asked.pop(trial), TrialValue(cost=-value), save=False)
        return False


class Dehb(Peer):
    """DEHB: differential evolution with Hyperband."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        from dehb import DEHB

        self._folder = tempfile.TemporaryDirectory()
        self._dehb = DEHB(
            f=lambda *_: {},
            cs=_config_space(self),
            min_fidelity=1,
            max_fidelity=self.epochs,
            seed=self.seed,
            n_workers=1,
            save_freq="end",
            output_path=self._folder.name,
            log_level="ERROR",
        )
        self._jobs: dict[int, Any] = {}

    def take(self) -> tuple[int, Params]:
        job = self._dehb.ask()
        self._jobs[job["config_id"]] = job
        return job["config_id"], self.values(dict(job["config"]))

    def report(self, trial: int, epoch: int, value: float) -> bool:
        if epoch < max(1, round(self._jobs[trial]["fidelity"])):
            return True
        self._dehb.tell(self._jobs.pop(trial), {"fitness": -value, "cost": epoch})
        return False


PEERS: dict[str, Callable[[Space, int, int, int], Contestant]] = {
    "optuna tpe": partial(Optuna, "none"),
    "optuna tpe median": partial(Optuna, "median"),
    "optuna tpe sha": partial(Optuna, "sha"),
    "optuna tpe hyperband": partial(Optuna, "hyperband"),
    "hyperopt tpe": Hyperopt,
    "ray asha": RayAsha,
    "ray bohb": RayBohb,
    "smac": Smac,
    "dehb": Dehb,
    "syne-tune asha": partial(SyneTune, "ASHA"),
    "syne-tune bohb": partial(SyneTune, "BOHB"),
    "syne-tune asha bore": partial(SyneTune, "ASHABORE"),
    "syne-tune asha cqr": partial(SyneTune, "ASHACQR"),
    "syne-tune cqr": partial(SyneTune, "CQR"),
}
