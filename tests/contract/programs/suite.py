"""Whole programs, as users write them, held to the plain framework, to kills, and to two ranks.

A program is a module with a trial class `Trial` and a function `plain`, which trains the same model
by the framework alone. It may have `OPTIMIZATIONS`, `HPARAMS`, `REPORT` (how many batches reports
are apart), and `TWO_RANKS`: how far, in parts of the largest weight, two ranks may come from the
plain framework on the global batch, and why. The number is None where nothing bounds it. `QUIET`
are hyperparameters, and arguments of `plain`, with which nothing depends on the number of ranks, so
that they come within rounding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from det_core import Every, Plugins, Schedule
from det_core.checkpoint import read_checkpoint
from det_core.train.schedule import At
from det_testing import Run, Runs, differences
from det_testing._play import Cast, Request, play

ROOT = Path(__file__).parents[3]
SEED = 1
LENGTH = 20
VALIDATED = 7
KILLS = ((5, 8), (12, 14))
"""Where a run saves for the last time before it is killed, and where it is killed."""
ROUNDING = 1e-5


@dataclass(frozen=True)
class Outcome:
    """What the plain framework came to.

    Metrics of each period, validations by position, weights by name.
    """

    training: Sequence[Mapping[str, float]]
    validation: Mapping[int, Mapping[str, float]]
    weights: Mapping[str, Any]


def is_validated(batches: int) -> bool:
    """Say whether a program validates behind so many batches."""
    return batches % VALIDATED == 0 or batches == LENGTH


def is_reported(batches: int, period: int) -> bool:
    """Say whether a period of reports ends behind so many batches.

    At its length, and where anything else is due.
    """
    return batches % period == 0 or is_validated(batches) or batches in dict(KILLS)


def mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means of metrics over batches."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def schedule(save_at: Iterable[int] = (), period: int = 1) -> Schedule:
    return Schedule(
        report=Every(period), validate=Every(VALIDATED), checkpoint=At(set(save_at)), policy="none"
    )


def computed(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a report by name, without the position, which det adds."""
    return {name: report[name] for name in sorted(report) if name not in ("batches", "epochs")}


class Table:
    """What is printed of the programs: a row for each."""

    columns = ("program", "weights, plain and det", "after two kills", "two ranks", "metrics")
    rows: ClassVar[dict[str, dict[str, str]]] = {}

    @classmethod
    def put(cls, program: str, column: str, text: str) -> None:
        cls.rows.setdefault(program, {})[column] = text

    @classmethod
    def show(cls) -> str:
        lines = [cls.columns, ("---",) * len(cls.columns)]
        for program, row in cls.rows.items():
            lines.append((program, *(row.get(column, "") for column in cls.columns[1:])))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class ProgramSuite:
    """Inherit it for a framework.

    Give the programs, the hook module, and what reads its checkpoints.
    """

    framework: ClassVar[str]
    hooks: ClassVar[str]
    backend: ClassVar[str] = "native"
    metric: ClassVar[str] = "val_loss"
    programs: ClassVar[Sequence[str]]
    killed: ClassVar[str]
    """Source of a `Trial` of `programs[0]` that kills its own process where `dies(n)` is true."""
    variants: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {}
    """By name, a program and optimizations with which two ranks run it once more."""

    _two: ClassVar[dict[str, Any]] = {}
    _plain: ClassVar[dict[str, Outcome]] = {}

    def contents(self, path: Path) -> Any:
        """Read all of a checkpoint."""
        raise NotImplementedError

    def weights(self, path: Path) -> Mapping[str, Any]:
        """Read the weights of a checkpoint, under the names that `plain` gives them."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test for the programs, on two ranks for their variants as well."""
        for name, values in (
            ("program", self.programs),
            ("variant", [*self.programs, *self.variants]),
        ):
            if name in metafunc.fixturenames:
                metafunc.parametrize(
                    name, values, ids=[value.rpartition(".")[2] for value in values]
                )

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _print_table(cls) -> Any:
        yield
        print(f"\n{Table.show()}")

    @pytest.fixture
    def root(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("programs")

    def plain(self, name: str) -> Outcome:
        """Return what the plain framework comes to; each program is trained once."""
        if name not in self._plain:
            self._plain[name] = import_module(name).plain()
        return self._plain[name]

    def read(self, runs: Runs, run: Run, read: Callable[[Path], Any]) -> Any:
        """Read the last checkpoint of a run."""
        with read_checkpoint(runs.storage, run.checkpoints[LENGTH]) as (path, _):
            return read(path)

    @pytest.mark.slow
    def test_program_equals_plain_framework_and_survives_two_kills(
        self, program: str, root: Path
    ) -> None:
        """Weights and all metrics are equal bit for bit.

        If killed twice, all arrays of the checkpoint are, too.
        """
        module, label = import_module(program), program.rpartition(".")[2]
        runs = Runs(Plugins.installed(strict=True), module.Trial, root)
        options = settings(module)
        period = getattr(module, "REPORT", 1)
        # It saves where the others do, as a report is made there.
        whole = runs(LENGTH, schedule=schedule(dict(KILLS), period), **options)
        plain, weights = self.plain(program), self.read(runs, whole, self.weights)
        found = differences(dict(weights), dict(plain.weights))
        validated = [
            {n: computed(row) for n, row in each.items()}
            for each in (whole.validations, plain.validation)
        ]
        reported = [
            [computed(row) for row in rows] for rows in (whole.reports.values(), plain.training)
        ]
        metrics = differences(*validated) + differences(*reported)
        Table.put(label, Table.columns[1], "equal" if not found else f"{len(found)} differ")
        Table.put(label, Table.columns[4], "equal" if not metrics else f"{len(metrics)} differ")

        reports: dict[int, Any] = {}
        validations: dict[int, Any] = {}
        checkpoint = None
        for saved, died in (*KILLS, (None, None)):
            plan = schedule([saved] if saved else [], period)
            run = runs(LENGTH, schedule=plan, checkpoint=checkpoint, preempt_at=died, **options)
            # Of a killed run only what lies before its last checkpoint counts.
            reports |= {n: row for n, row in run.reports.items() if saved is None or n <= saved}
            validations |= {
                n: row for n, row in run.validations.items() if saved is None or n <= saved
            }
            if saved:
                checkpoint = run.checkpoints[saved]
        killed = differences(
            self.read(runs, run, self.contents), self.read(runs, whole, self.contents)
        )
        killed += differences(
            [reports, validations], [dict(whole.reports), dict(whole.validations)]
        )
        Table.put(label, Table.columns[2], "equal" if not killed else f"{len(killed)} differ")
        assert weights
        # This module's asserts are not rewritten: they say themselves what differs.
        assert not found + metrics + killed, "\n".join([*found, *metrics, *killed][:20])

    @pytest.mark.process
    @pytest.mark.thorough
    def test_two_ranks_survive_two_kills(
        self, variant: str, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """All arrays are those of two ranks that were left alone.

        The plain framework is as near as the program says.
        """
        ranks, folder = self._ranks(tmp_path_factory)
        program = self.variants.get(variant, (variant, {}))[0]
        module, label = import_module(program), variant.rpartition(".")[2]
        runs = Runs(Plugins.installed(strict=True), module.Trial, folder)
        whole, last = ranks[0][f"{variant} whole"], ranks[0][f"{variant} 2"]
        killed = differences(
            self.read(runs, last, self.contents), self.read(runs, whole, self.contents)
        )
        again = {n: dict(row) for n, row in whole.reports.items() if n > KILLS[1][0]}
        killed += differences({n: dict(row) for n, row in last.reports.items()}, again)
        plain, weights = self.plain(program).weights, self.read(runs, whole, self.weights)
        bound, why = getattr(module, "TWO_RANKS", (ROUNDING, "rounding"))
        away = distance(weights, plain)
        text = (
            f"{'equal' if not killed else f'{len(killed)} differ'} after two kills; {away:.0e} from"
            f" plain ({why})"
        )
        quiet = getattr(module, "QUIET", None)
        near = None
        if quiet:
            drawn = self.read(runs, ranks[0][f"{variant} quiet"], self.weights)
            near = distance(drawn, module.plain(**quiet).weights)
            text += f"; {near:.0e} where nothing is drawn"
        Table.put(label, Table.columns[3], text)
        assert not killed, "\n".join(killed[:20])
        assert bound is None or away <= bound, f"{away} from plain"
        assert near is None or near <= ROUNDING, f"{near} from plain where nothing is drawn"

    @pytest.mark.process
    @pytest.mark.thorough
    def test_a_worker_that_is_killed_twice_comes_to_the_same(self, det: Any, root: Path) -> None:
        """By SIGKILL, under `det run`, which starts it again."""
        program = self.programs[0]
        module = import_module(program)
        (det.cwd / "model_def.py").write_text(KILLED.format(program=program) + self.killed)
        config = {
            "name": "killed",
            "entrypoint": "model_def:Trial",
            "hyperparameters": dict(hparams(module)),
            "searcher": {
                "name": "single",
                "metric": self.metric,
                "max_length": {"batches": LENGTH},
            },
            "optimizations": dict(getattr(module, "OPTIMIZATIONS", {})),
            "min_validation_period": {"batches": VALIDATED},
            "min_checkpoint_period": {"batches": KILLS[0][0]},
            "scheduling_unit": 1,
            "reproducibility": {"experiment_seed": SEED},
            "checkpoint_storage": {"type": "shared_fs", "host_path": str(det.home / "checkpoints")},
        }
        (det.cwd / "const.yaml").write_text(json.dumps(config))
        det("run", "const.yaml", "-q", env={"PYTHONPATH": str(ROOT)})
        [trial] = det.json("show", "1")["trials"]
        assert trial["restarts"] == len(KILLS), trial
        newest = max(det.json("checkpoint", "list", "1"), key=lambda each: each["batches"])
        assert newest["batches"] == LENGTH
        runs = Runs(Plugins.installed(strict=True), module.Trial, root)
        whole = runs(LENGTH, schedule=schedule(), seed=trial["seed"], **settings(module))
        found = differences(
            dict(self.weights(det.home / "checkpoints" / newest["uuid"])),
            dict(self.read(runs, whole, self.weights)),
        )
        assert not found, "\n".join(found[:20])

    def _ranks(self, tmp_path_factory: pytest.TempPathFactory) -> Any:
        """Return what two ranks did of all programs; they are started once."""
        if self.framework not in self._two:
            folder = tmp_path_factory.mktemp(f"ranks-{self.framework}")
            cast = Cast(
                trial=import_module(self.programs[0]).Trial,
                framework=self.framework,
                hooks=self.hooks,
                backend=self.backend,
            )
            try:
                requests = list(self._requests())
                self._two[self.framework] = (
                    play(cast, requests, folder, seconds=60 * len(requests)),
                    folder,
                )
            except Exception as error:
                self._two[self.framework] = error
        if isinstance(found := self._two[self.framework], Exception):
            raise found
        return found

    def _requests(self) -> Any:
        every = {name: (name, {}) for name in self.programs} | dict(self.variants)
        for name, (program, more) in every.items():
            module = import_module(program)
            options = settings(module)
            given: dict[str, Any] = {
                "length": LENGTH,
                "trial": module.Trial,
                "optimizations": {**options.pop("optimizations"), **more},
                "aggregation": options.pop("aggregation"),
                "hparams": options,
            }
            (first, died), (second, died_again) = KILLS
            yield Request(name=f"{name} whole", **given)
            yield Request(name=f"{name} 0", save_at=[first], preempt_at=died, **given)
            behind = (f"{name} 0", first)
            yield Request(
                name=f"{name} 1", save_at=[second], preempt_at=died_again, behind=behind, **given
            )
            yield Request(name=f"{name} 2", behind=(f"{name} 1", second), **given)
            if quiet := getattr(module, "QUIET", None):
                yield Request(name=f"{name} quiet", **given | {"hparams": options | quiet})


KILLED = """
import os
import signal
from pathlib import Path

from {program} import *
from {program} import Trial as Program


def dies(batches):
    note = Path(os.environ["DET_HOME"], f"killed-{{batches}}")
    if batches in (8, 14) and not note.exists():
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)

"""


def hparams(module: Any) -> Mapping[str, Any]:
    return {"global_batch_size": module.BATCH, **getattr(module, "HPARAMS", {})}


def settings(module: Any) -> dict[str, Any]:
    """Return the arguments of a run of a program."""
    optimizations = dict(getattr(module, "OPTIMIZATIONS", {}))
    aggregation = optimizations.pop("aggregation_frequency", 1)
    return {"aggregation": aggregation, "optimizations": optimizations, **hparams(module)}


def distance(mine: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return how far weights are from others, in parts of the largest."""
    assert list(mine) == list(other)
    pairs = [(np.asarray(mine[name], float), np.asarray(other[name], float)) for name in mine]
    largest = max(float(np.abs(theirs).max()) for _, theirs in pairs)
    return max(float(np.abs(own - theirs).max()) for own, theirs in pairs) / largest
