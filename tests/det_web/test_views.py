"""What is shown of searches, trials and machines, each by its name, in a browser against real runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.det_web.browsing import SAVED, Page, signed_in
from tests.det_web.conftest import CONFIG, SCRIPT, det, start, stop
from tests.repo.browser import CHROMIUM

from det_driver.store import ExperimentState, Store

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")

BRED = """
name: bred
entrypoint: python3 train.py
labels: [paper]
hyperparameters:
  lr: {type: log, minval: -2, maxval: -1}
  width: {type: int, minval: 1, maxval: 9}
searcher:
  {name: pbt, metric: error, population_size: 8, num_rounds: 3, length_per_round: {batches: 2},
   replace_function: {truncate_fraction: 0.25}, explore_function: {resample_probability: 0.5, perturb_factor: 0.2}}
reproducibility: {experiment_seed: 1}
"""
MEASURED = SCRIPT.replace(
    'print("training with"',
    'context.train.report_metrics("system", 1, {"gpu_util": 50.0}); open("never", "a").close(); print("training with"',
)


@pytest.fixture(scope="module")
def home(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a search by halving (1), a population (2) of code that differs, and one whose driver is gone (3)."""
    place = tmp_path_factory.mktemp("views")
    shutil.copytree(made, place / "home", symlinks=True)
    (place / "train.py").write_text(MEASURED)
    for name, text in (("bred", BRED), ("left", CONFIG.replace("name: small", "name: left"))):
        (place / f"{name}.yaml").write_text(text)
        done = det(place / "home", place, "run", f"{name}.yaml", "-q")
        assert done.returncode == 0, done.stderr
    with Store(place / "home") as store:
        store.experiments.update(3, state=ExperimentState.ACTIVE, ended=None, pid=2**22 - 1, boot="another")
    return place / "home"


@pytest.fixture(scope="module")
def page(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    server = start(home)
    with signed_in(server, tmp_path_factory.mktemp("profile")) as page:
        page.browser.before_scripts(SAVED)
        yield page
    stop(server)


def test_columns_are_chosen_and_pinned_and_the_address_has_them(page: Page) -> None:
    page.open("/e/1/trials")
    page.click("Columns")
    page.tell(
        "[...document.querySelectorAll('.menu label')].find(l => l.textContent === 'why').querySelector('input').click()"
    )
    page.until("[...document.querySelectorAll('.rows th button')].some(b => b.title === 'why')")
    of_rate = "[...document.querySelectorAll('.menu div div')].find(d => d.textContent.startsWith('lr'))"
    page.tell(f"{of_rate}.querySelectorAll('input')[1].click()")
    page.until("[...document.querySelectorAll('th.pinned')].some(t => t.textContent.startsWith('lr'))")
    page.open(str(page.tell("location.pathname + location.search")))
    assert "lr" in page.texts("th.pinned")
    assert page.tell("getComputedStyle(document.querySelector('td.pinned')).position") == "sticky"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("label:paper", ["2"]),
        ("bred", ["2"]),
        ("width>0", ["2"]),
        ("pbt", ["2"]),
        ("-pbt -left", ["1"]),
        ("lr>0.5", []),
    ],
)
def test_experiments_are_found_by_label_text_and_hyperparameter(page: Page, asked: str, found: list[str]) -> None:
    page.open("/?sort=id")
    page.type("filter", asked)
    page.until("location.search.includes('q=')")
    shown = "[...document.querySelectorAll('.rows tbody tr[aria-rowindex]')].map(r => r.querySelector('a').textContent)"
    page.until(f"JSON.stringify({shown}) === {json.dumps(json.dumps(found, separators=(',', ':')))}")


def test_one_whose_driver_is_gone_is_shown_as_such(page: Page) -> None:
    page.open("/?sort=id")
    page.until(
        "document.querySelector('.rows tbody').innerText.includes('orphaned') && !!document.querySelector('.state.ORPHANED')"
    )
    page.open("/e/3/trials")
    page.until("[...document.querySelectorAll('.actions button')].some(b => b.textContent === 'Activate')")


def test_a_population_has_its_genealogy(page: Page) -> None:
    page.open("/e/2/search", "svg circle")
    rounds = page.server.get("/experiments/2/search")["rounds"]
    assert page.tell("document.querySelectorAll('svg circle').length") == sum(map(len, rounds))
    copied = sum(each["parent"] is not None for members in rounds for each in members)
    assert copied > 0
    assert page.tell("document.querySelectorAll('svg path.edge').length") >= copied
    assert "2 rounds" in page.tell("document.querySelector('svg').getAttribute('aria-label')") or len(rounds) != 2


def test_two_hyperparameters_are_points_and_a_heat_map(page: Page) -> None:
    page.open("/e/2/trials?x=lr&y=width", ".scatter canvas")
    count = len(page.server.get("/experiments/2/trials")["columns"]["id"])
    page.until(f"Number(document.querySelector('.scatter canvas').dataset.drawn) === {count}")
    blank = page.tell("document.querySelector('.scatter canvas').toDataURL()")
    page.open("/e/2/trials?x=lr&y=width&as=best", ".scatter canvas")
    page.until("!!document.querySelector('.scatter canvas').dataset.drawn")
    assert "Heat map" in page.texts("h2")
    assert page.tell("document.querySelector('.scatter canvas').toDataURL()") != blank


def test_importances_are_shares_that_lead_to_their_scatter(page: Page) -> None:
    page.open("/e/2/search", "meter")
    assert {"lr", "width"} == set(
        page.tell("[...document.querySelectorAll('meter')].map(m => m.getAttribute('aria-label'))")
    )
    link = "[...document.querySelectorAll('th a')].find(a => a.textContent === 'lr')"
    page.tell(f"{link}.dispatchEvent(new MouseEvent('click', {{bubbles: true, cancelable: true}}))")
    page.until("location.search.includes('x=lr') && !!document.querySelector('.scatter canvas')")


def test_code_is_shown_with_its_differences_from_another_experiment(page: Page) -> None:
    page.open("/e/2/code?file=train.py", ".code pre")
    assert "core.init()" in page.text(".code")
    page.open("/e/2/code?file=train.py&with=1", ".code .added")
    assert len(page.texts(".code .added")) == len(page.texts(".code .gone")) == 1
    assert "gpu_util" in page.text(".code .added")


def test_checkpoints_have_their_sizes_and_the_best_is_marked(page: Page) -> None:
    page.open("/e/1/checkpoints")
    assert "on the disk" in page.text("main")
    page.until("document.querySelectorAll('.rows .best').length === 1")
    assert page.tell(
        "[...document.querySelectorAll('.rows tbody tr[aria-rowindex]')].every(r => /\\d+ (B|kB)/.test(r.textContent))"
    )


def test_a_trial_tells_how_to_load_its_checkpoint_and_marks_the_best(page: Page) -> None:
    page.open("/t/1/metrics", ".columns table")
    page.until("!!document.querySelector('.columns .best')")
    assert "top_checkpoint().load()" in page.text(".copied pre")
    page.until("document.querySelector('.legend')?.parentElement.parentElement.textContent.includes('best validation')")


def test_a_metric_has_a_log_axis_smoothing_and_time(page: Page) -> None:
    page.open("/t/1/metrics", ".plot canvas")
    page.until("document.querySelector('.plot canvas')?.dataset.drawn >= 1")
    before = page.tell("document.querySelector('.plot canvas').toDataURL()")
    page.tell(
        "[...document.querySelectorAll('figure label')].find(l => l.textContent.includes('log')).querySelector('input').click()"
    )
    page.until("location.search.includes('log=')")
    page.until(f"document.querySelector('.plot canvas').toDataURL() !== {json.dumps(before)}")
    page.open("/t/1/metrics?by=seconds&smooth=0.5", ".plot canvas")
    page.until("document.querySelector('.plot canvas')?.getAttribute('aria-label').includes('as reported')")


def test_what_a_trial_says_of_its_machine_has_a_page_of_its_own(page: Page) -> None:
    first = page.server.get("/experiments/2/trials")["columns"]["id"][0]
    page.open(f"/t/{first}/system", "figure")
    assert page.texts("figcaption b") == ["gpu_util"]
    page.open(f"/t/{first}/metrics", "figure")
    assert "gpu_util" not in page.texts("figcaption b")


def test_a_trace_of_the_profiler_is_at_hand(page: Page) -> None:
    page.open("/t/1/system", "section a[download]")
    assert page.texts("section a[download]") == ["run/a.pt.trace.json"]
    second = page.server.get("/experiments/2/trials")["columns"]["id"][0]
    page.open(f"/t/{second}/system", "section .empty")
    assert "context.set_profiler" in page.text("section .empty")


def test_the_cluster_has_its_slots_and_who_waits_for_whom(page: Page, home: Path) -> None:
    page.open("/cluster", ".slots li")
    assert "free" in page.text(".slots")
    assert "Nobody waits." in page.text("main")
    with Store(home) as store:
        (lease,) = store.slots.leases(1, 1, ("gpu:0",), count=1)
        try:
            assert store.slots.leases(2, 1, ("gpu:0",), count=1) == []
            page.open("/cluster", ".slots .held")
            page.until("document.querySelector('main').textContent.includes('experiment 1')")
            page.until("/Experiment 2 waits for .*held by experiment 1/.test(document.querySelector('main').innerText)")
        finally:
            store.slots.stop_waiting(2)
            store.slots.release(lease)


@pytest.mark.parametrize(
    ("view", "within", "button", "name", "begins"),
    [
        ("/?sort=id", "experiments", "CSV", ".csv", "id,name,state"),
        ("/e/1/trials", "trials of", "CSV", ".csv", "id,state,best"),
        ("/e/1/trials", "Learning curves", "PNG", ".png", "\x89PNG"),
        ("/e/1/trials", "Parallel", "PNG", ".png", "\x89PNG"),
        ("/e/1/trials", "Scatter", "PNG", ".png", "\x89PNG"),
        ("/e/1/search", "Bracket 1", "SVG", ".svg", "<svg"),
        ("/e/2/search", "Genealogy", "SVG", ".svg", "<svg"),
        ("/t/1/metrics", "loss", "CSV", ".csv", "line,batches,value"),
    ],
)
def test_each_table_and_picture_is_saved(
    page: Page, view: str, within: str, button: str, name: str, begins: str
) -> None:
    page.open(view, "figure, .rows tbody a, svg")
    page.until("!document.querySelector('[aria-busy]') && !!document.querySelector('canvas, svg, .rows tbody a')")
    page.tell("new Promise(done => setTimeout(done, 200))")
    page.save(within, button)
    assert page.tell("saved[0].called").endswith(name)
    head = "saved[0].arrayBuffer().then(b => String.fromCharCode(...new Uint8Array(b).slice(0, 40)))"
    assert str(page.tell(head)).startswith(begins)


def test_everything_that_is_pressed_has_a_name_and_what_is_read_a_role(page: Page) -> None:
    nameless = """[...document.querySelectorAll('button, a, input, select, textarea, svg[role], [role=img]')].filter(e =>
        !(e.textContent.trim() || e.getAttribute('aria-label') || e.title || e.labels?.length || e.placeholder)
    ).map(e => e.outerHTML)"""
    for view in (
        "/",
        "/e/1/trials",
        "/e/1/search",
        "/e/2/search",
        "/e/1/code",
        "/t/1/metrics",
        "/t/1/logs",
        "/compare?t=1,2",
        "/cluster",
    ):
        page.open(view, "main :is(a, button, .slots)")
        page.until("!document.querySelector('[aria-busy]')")
        assert page.tell(nameless) == [], view
        assert page.tell(
            "[...document.querySelectorAll('canvas')].every(c => c.closest('[role=img], [aria-label]'))"
        ), view
        assert page.tell(
            "document.querySelectorAll('main').length === 1 && document.querySelectorAll('h1').length === 1"
        ), view
        assert page.tell("document.documentElement.lang") == "en"
