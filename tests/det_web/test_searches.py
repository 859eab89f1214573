"""Every searcher has a picture, and the picture shows what the search did.

Said here of each that is installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.det_web.browsing import SAVED, Page, signed_in
from tests.det_web.conftest import det, install_fakes, start, stop
from tests.repo.browser import CHROMIUM

from det_core import Plugins
from det_driver.client import Client, Trial
from det_driver.store import Store

browsed = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
)

MODEL = "from det_testing.fakes import OwnedOneVar\n\nclass Model(OwnedOneVar):\n    pass\n"
MINE = """
from det_driver.search import Close, Create, Searcher, Train

class Mine(Searcher):
    def __init__(self, config, hyperparameters, seed): self.metric = config.metric
    def start(self): return [op for t in (0, 1) for op in (Create(t, {"lr": 0.01 + t / 100}, t), Train(t, 4))]
    def validated(self, trial, length, metrics): return [Close(trial)] if length >= 4 else []
    def exited(self, trial, reason): return []
    def progress(self, trial_progress): return 0.5
    def state(self): return {}
    def restore(self, state): pass
"""
CONFIG = """
name: {name}
entrypoint: model_def:Model
hyperparameters:
  lr: {{type: log, minval: -4, maxval: -1.5, count: 3}}
searcher: {{metric: val_loss, {searcher}}}
min_validation_period: 2
reproducibility: {{experiment_seed: 3}}
"""

Rung = tuple[int, int]
"""Its length, and how many trials came to it."""

CURVES = {
    "single": ("name: single, max_length: 6", 1),
    "random": ("name: random, max_trials: 3, max_length: 4", 3),
    "grid": ("name: grid, max_length: 4", 3),
    "custom": ("name: custom, entrypoint: 'mine:Mine'", 2),
    "combined": ("sampler: sobol, schedule: full, max_trials: 3, max_length: 4", 3),
    "auto": ("name: auto, max_trials: 3, max_length: 4", 3),
    "optuna": ("name: optuna, sampler: random, max_trials: 3, max_length: 4", 3),
}
"""Searchers that train each trial to its end.

The searcher's settings, and how many trials it makes.
"""

RUNGS: dict[str, tuple[str, list[list[Rung]] | None]] = {
    "async_halving": (
        "name: async_halving, num_rungs: 3, divisor: 2, max_length: 8, max_trials: 6",
        None,
    ),
    "async_halving stops": (
        (
            "name: async_halving, num_rungs: 3, divisor: 2, max_length: 8, max_trials: 6,"
            " stop_once: true"
        ),
        None,
    ),
    "adaptive_asha": (
        "name: adaptive_asha, bracket_rungs: [2, 1], divisor: 2, max_length: 4, max_trials: 5",
        None,
    ),
    # Li et al. 2018, table 1, for R = 4 and η = 2.
    "hyperband": (
        "name: hyperband, divisor: 2, max_length: 4",
        [[(1, 4), (2, 2), (4, 1)], [(2, 3), (4, 1)], [(4, 3)]],
    ),
}
"""Searchers with rungs, and how many trials come to each rung of each bracket.

Only those that decide it beforehand have such numbers.
"""

POPULATIONS = {
    "pbt": (
        "name: pbt, population_size: 5, num_rounds: 3, length_per_round: {batches: 2}, "
        "replace_function: {truncate_fraction: 0.4}"
    )
}


@dataclass
class Searched:
    """A page, and the home that it shows, in which each search has the name that it has here."""

    page: Page
    project: Path
    home: Path

    def run(self, name: str, searcher: str) -> int:
        """Run a search to its end and return the experiment's number."""
        (self.project / "search.yaml").write_text(CONFIG.format(name=name, searcher=searcher))
        done = det(self.home, self.project, "run", "search.yaml", "-q")
        assert done.returncode == 0, done.stderr
        [found] = [each.id for each in Client(self.home).list_experiments() if each.name == name]
        return found


@pytest.fixture(scope="module")
def searched(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searched]:
    place = tmp_path_factory.mktemp("searches")
    (place / "project").mkdir()
    (place / "project/model_def.py").write_text(MODEL)
    (place / "project/mine.py").write_text(MINE)
    with pytest.MonkeyPatch.context() as patch:
        install_fakes(place, patch)
        Store(place / "home").close()
        server = start(place / "home")
        with signed_in(server, place / "profile") as page:
            page.browser.before_scripts(SAVED)
            yield Searched(page, place / "project", place / "home")
        stop(server)


def reported(trial: Trial) -> dict[float, float]:
    """Return what a trial validated to, by batches: as the client tells it."""
    curve = trial.series("val_loss", "validation", 1000)
    return dict(zip(curve.x, curve.y, strict=True))


def test_no_searcher_that_is_installed_is_forgotten_here() -> None:
    assert set(Plugins.installed().searchers()) <= {*CURVES, *RUNGS, *POPULATIONS}


@pytest.mark.sample
@browsed
@pytest.mark.parametrize("name", CURVES)
def test_search_without_rungs_shows_the_curve_of_each_trial(searched: Searched, name: str) -> None:
    if name not in Plugins.installed().searchers():
        pytest.skip(f"no plugin brings the searcher {name}")
    settings, count = CURVES[name]
    id, page = searched.run(name, settings), searched.page
    page.open(f"/e/{id}/search", ".plot canvas")
    page.until(f"document.querySelector('.plot canvas').dataset.drawn === '{count}'")
    trials = Client(searched.home).get_experiment(id).list_trials()
    shown: dict[str, dict[float, float]] = {f"trial {each.id}": {} for each in trials}
    for row in page.rows("Learning curves"):
        shown[row["line"]][float(row["batches"])] = float(row["value"])
    assert shown == {f"trial {each.id}": reported(each) for each in trials}
    assert len(shown) == count
    assert all(curve for curve in shown.values())
    assert inked(page, ".plot canvas") > 100


def inked(page: Page, canvas: str) -> int:
    """Count the pixels of a picture that have the colour of a line.

    Its axes and their texts are grey.
    """
    return int(
        page.tell(f"""{{
              let board = document.querySelector({json.dumps(canvas)});
              let all = board.getContext('2d').getImageData(0, 0, board.width, board.height).data, found = 0;
              for (let i = 0; i < all.length; i += 4) {{
                let rgb = [all[i], all[i + 1], all[i + 2]];
                found += all[i + 3] > 100 && Math.max(...rgb) - Math.min(...rgb) > 60;
              }}
              found;
            }}""")
    )


@pytest.mark.sample
@browsed
@pytest.mark.parametrize("name", RUNGS)
def test_search_with_rungs_shows_who_reached_and_passed_each(searched: Searched, name: str) -> None:
    settings, planned = RUNGS[name]
    id, page = searched.run(name, settings), searched.page
    page.open(f"/e/{id}/search", "svg .bar")
    page.until("[...document.querySelectorAll('.plot canvas')].every(c => c.dataset.drawn > 0)")
    curves = {
        each.id: reported(each) for each in Client(searched.home).get_experiment(id).list_trials()
    }
    counted: list[list[Rung]] = []
    placed: list[int] = []
    for title in [each for each in page.texts("section h2") if each.startswith("Bracket")]:
        rungs: dict[int, dict[int, tuple[float, bool]]] = {}
        for row in page.rows(title):
            own = rungs.setdefault(int(row["length"]), {})
            own[int(row["trial"])] = float(row["val_loss"]), row["promoted"] == "true"
        lengths = sorted(rungs)
        for length, further in zip(lengths, [*lengths[1:], None], strict=True):
            went_on = {trial for trial, (_, promoted) in rungs[length].items() if promoted}
            assert went_on == (set(rungs[further]) if further else set())
            assert all(
                value == curves[trial][length] for trial, (value, _) in rungs[length].items()
            )
            assert all(max(curves[trial]) == length for trial in set(rungs[length]) - went_on)
        for length, line in zip(lengths, lines(page, title), strict=True):
            values, on = zip(*rungs[length].values(), strict=True)
            assert line == (length, len(values), sum(on), pytest.approx(min(values), rel=1e-3))
        counted.append([(length, len(rungs[length])) for length in lengths])
        placed += rungs[lengths[0]]
    assert sorted(placed) == sorted(curves), "each trial is in one bracket"
    assert any(len(bracket) > 1 for bracket in counted), "somebody went on"
    assert planned in (None, counted)
    assert len(counted) == {"adaptive_asha": 2, "hyperband": 3}.get(name, 1)


def lines(page: Page, title: str) -> list[tuple[int, int, int, float]]:
    """Read the picture of a bracket.

    Of each rung its length, how many came, how many went on, the best. Bars say the same.
    """
    rungs = page.tell(
        f"""[...[...document.querySelectorAll('section')].find(s => s.ariaLabel === {json.dumps(title)})
          .querySelectorAll('svg g')].map(g =>
            [g.textContent, ...[...g.querySelectorAll('rect')].map(r => +r.getAttribute('width'))])"""
    )
    found = []
    for text, came, went in rungs:
        told = re.fullmatch(r"(\d+) batches(\d+) trials?, (\d+) went on, best (\S+)", text)
        assert told is not None, text
        assert went / came == pytest.approx(int(told[3]) / int(told[2]))
        found.append((int(told[1]), int(told[2]), int(told[3]), float(told[4].replace("−", "-"))))
    return found


@browsed
@pytest.mark.parametrize("name", POPULATIONS)
def test_a_population_shows_its_rounds_and_whose_copy_each_is(
    searched: Searched, name: str
) -> None:
    id, page = searched.run(name, POPULATIONS[name]), searched.page
    page.open(f"/e/{id}/search", "svg circle")
    with Store.reader(searched.home) as store:
        owners = {row.uuid: row.trial_id for row in store.checkpoints.list(experiment_id=id)}
        parents = {row.id: owners.get(row.source_checkpoint or "") for row in store.trials.list(id)}
    rows = page.rows("Genealogy")
    assert [sum(row["round"] == number for row in rows) for number in "123"] == [5, 5, 5]
    assert {
        int(row["trial"]): int(row["parent"]) if row["parent"] else None for row in rows
    } == parents
    assert sum(parent is not None for parent in parents.values()) == 4, (
        "two of five are replaced after a round"
    )
    circles = page.tell(
        "[...document.querySelectorAll('svg g:has(circle)')].map(g =>"
        " [g.querySelector('circle').getAttribute('cx'),"
        " g.querySelector('circle').getAttribute('cy'),"
        " g.querySelector('circle').getAttribute('fill'), parseInt(g.textContent),"
        " g.querySelector('path')?.getAttribute('d') ?? ''].map(String))"
    )
    rounds: dict[float, dict[int, tuple[float, str, str]]] = {}
    for x, y, colour, trial, way in circles:
        rounds.setdefault(float(x), {})[int(trial)] = float(y), colour, way
    values = {(row["round"], int(row["trial"])): float(row["metric"]) for row in rows}
    before: dict[int, tuple[float, str, str]] = {}
    for number, (_, members) in enumerate(sorted(rounds.items()), 1):
        ranked = sorted(members, key=lambda trial: members[trial][0])
        assert ranked == sorted(members, key=lambda trial: values[str(number), trial]), (
            "the best is on top"
        )
        for trial, (_, colour, way) in members.items():
            source = trial if trial in before else parents[trial]
            assert (way == "") == (number == 1)
            if source is not None:
                height, family, _ = before[source]
                assert (colour, float(way.partition("C")[0].split()[1])) == (family, height)
        before = members
