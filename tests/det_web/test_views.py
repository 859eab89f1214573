"""What is shown of searches, trials and machines, in a browser against real runs.

Each is found by its name.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.det_web.browsing import SAVED, Page, signed_in
from tests.det_web.conftest import CONFIG, SCRIPT, det, start, stop
from tests.repo.browser import CHROMIUM

from det_core.config import to_json
from det_driver.config import load
from det_driver.store import ExperimentState, Store

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium is installed: apt-get install chromium"
    ),
]

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
MEASURED = SCRIPT.replace('{"error": lr', '{"val_loss": lr, "error": lr').replace(
    'print("training with"',
    'context.train.report_metrics("system", 1, {"gpu_util": 50.0}); open("never", "a").close();'
    ' print("training with"',
)


@pytest.fixture(scope="module")
def home(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a search by halving (1) and a population (2) of code that differs.

    The driver of the third experiment is gone.
    """
    place = tmp_path_factory.mktemp("views")
    shutil.copytree(made, place / "home", symlinks=True)
    (place / "train.py").write_text(MEASURED)
    for name, text in (("bred", BRED), ("left", CONFIG.replace("name: small", "name: left"))):
        (place / f"{name}.yaml").write_text(text)
        done = det(place / "home", place, "run", f"{name}.yaml", "-q")
        assert done.returncode == 0, done.stderr
    with Store(place / "home") as store:
        store.experiments.update(
            3, state=ExperimentState.ACTIVE, ended=None, pid=2**22 - 1, boot="another"
        )
    return place / "home"


@pytest.fixture(scope="module")
def page(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    server = start(home)
    with signed_in(server, tmp_path_factory.mktemp("profile")) as page:
        page.browser.before_scripts(SAVED)
        yield page
    stop(server)


@pytest.mark.thorough
def test_columns_are_chosen_and_pinned_and_the_address_has_them(page: Page) -> None:
    page.open("/e/1/trials")
    page.click("Columns")
    page.tell(
        "[...document.querySelectorAll('.menu label')].find(l => l.textContent ==="
        " 'why').querySelector('input').click()"
    )
    page.until("[...document.querySelectorAll('.rows th button')].some(b => b.title === 'why')")
    of_rate = (
        "[...document.querySelectorAll('.menu div div')].find(d => d.textContent.startsWith('lr'))"
    )
    page.tell(f"{of_rate}.querySelectorAll('input')[1].click()")
    page.until(
        "[...document.querySelectorAll('th.pinned')].some(t => t.textContent.startsWith('lr'))"
    )
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
def test_experiments_are_found_by_label_text_and_hyperparameter(
    page: Page, asked: str, found: list[str]
) -> None:
    page.open("/?sort=id")
    page.type("filter", asked)
    page.until("location.search.includes('q=')")
    shown = (
        "[...document.querySelectorAll('.rows tbody tr[aria-rowindex]')].map(r =>"
        " r.querySelector('a').textContent)"
    )
    page.until(
        f"JSON.stringify({shown}) === {json.dumps(json.dumps(found, separators=(',', ':')))}"
    )


def test_one_whose_driver_is_gone_is_shown_as_such(page: Page) -> None:
    page.open("/?sort=id")
    page.until(
        "document.querySelector('.rows tbody').innerText.includes('orphaned') &&"
        " !!document.querySelector('.state.ORPHANED')"
    )
    page.open("/e/3/trials")
    page.until(
        "[...document.querySelectorAll('.actions button')].some(b => b.textContent === 'Activate')"
    )


def test_a_population_has_its_genealogy(page: Page) -> None:
    page.open("/e/2/search", "svg circle")
    rounds = page.server.get("/experiments/2/search")["rounds"]
    assert page.tell("document.querySelectorAll('svg circle').length") == sum(map(len, rounds))
    copied = sum(each["parent"] is not None for members in rounds for each in members)
    assert copied > 0
    assert page.tell("document.querySelectorAll('svg path.edge').length") >= copied
    assert (
        "2 rounds" in page.tell("document.querySelector('svg').getAttribute('aria-label')")
        or len(rounds) != 2
    )


def test_two_hyperparameters_are_points_and_a_heat_map(page: Page) -> None:
    page.open("/e/2/trials?x=lr&y=width", ".scatter canvas")
    count = len(page.server.get("/experiments/2/trials")["columns"]["id"])
    page.until(f"Number(document.querySelector('.scatter canvas').dataset.drawn) === {count}")
    blank = page.tell("document.querySelector('.scatter canvas').toDataURL()")
    page.open("/e/2/trials?x=lr&y=width&as=best", ".scatter canvas")
    page.until("!!document.querySelector('.scatter canvas').dataset.drawn")
    assert "Heat map" in page.texts("h2")
    assert page.tell("document.querySelector('.scatter canvas').toDataURL()") != blank


DRAWN = """
(() => {
  let canvas = document.querySelector('.parallel canvas');
  let lines = [...document.querySelectorAll('.parallel svg g')];
  let [left, right] = lines.map(g => g.transform.baseVal[0].matrix.e);
  let ratio = devicePixelRatio;
  let [x, height] = [Math.round((left + right) / 2 * ratio), canvas.height];
  let column = canvas.getContext('2d').getImageData(x, 0, 1, height).data;
  let rows = [...Array(height).keys()].filter(y => column[4 * y + 3] > 40);
  return rows.filter(y => !rows.includes(y - 1)).length;
})()
"""
"""How many lines cross the middle between the two axes."""


@pytest.mark.process
def test_trial_without_a_value_is_not_drawn_on_the_metric_axis(tmp_path: Path) -> None:
    """At its foot, where the best losses are, it would look like one of the best."""
    with Store(tmp_path / "home") as store:
        config = {
            "name": "three",
            "entrypoint": "python3 train.py",
            "hyperparameters": {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}},
            "searcher": {"name": "random", "metric": "error", "max_trials": 3},
        }
        (tmp_path / "three.yaml").write_text(json.dumps(config))
        made = store.experiments.create(
            name="three", config=to_json(load(tmp_path / "three.yaml").config), metric="error"
        )
        with store.lock(made.id):
            for request, (lr, error) in enumerate(((0.0, 0.0), (1.0, 1.0), (0.5, None))):
                trial = store.trials.create(made.id, request, {"lr": lr}, 0)
                run = store.runs.begin(trial.id)
                if error is not None:
                    store.metrics.report(trial.id, run.id, "validation", 1, {"error": error})
                store.runs.end(run.id, "COMPLETED")
                store.trials.update(trial.id, state="COMPLETED")
            store.experiments.update(
                made.id, state=ExperimentState.COMPLETED, started=1.0, ended=2.0
            )
    server = start(tmp_path / "home")
    try:
        with signed_in(server, tmp_path / "profile") as page:
            page.open("/e/1/trials", ".parallel canvas")
            page.until("document.querySelector('.parallel canvas')?.dataset.drawn === '3'")
            assert page.tell("document.querySelectorAll('.parallel svg g').length") == 2
            assert page.tell(DRAWN) == 2
            assert "1 trial without a value" in page.text("main")
    finally:
        stop(server)


def test_importances_are_shares_that_lead_to_their_scatter(page: Page) -> None:
    page.open("/e/2/search", "meter")
    assert {"lr", "width"} == set(
        page.tell("[...document.querySelectorAll('meter')].map(m => m.getAttribute('aria-label'))")
    )
    shares = page.tell(
        "[...document.querySelectorAll('section[aria-label=Importances] .number')].map(e =>"
        " parseInt(e.textContent))"
    )
    assert sum(shares) == 100
    link = "[...document.querySelectorAll('th a')].find(a => a.textContent === 'lr')"
    page.tell(f"{link}.dispatchEvent(new MouseEvent('click', {{bubbles: true, cancelable: true}}))")
    page.until("location.search.includes('x=lr') && !!document.querySelector('.scatter canvas')")


def test_search_page_begins_with_the_best_value_and_history(page: Page) -> None:
    page.open("/e/2/trials", ".history svg")
    one = page.server.get("/experiments/2")
    assert float(page.text(".history strong")) == pytest.approx(one["best"], rel=1e-3)
    assert page.tell("document.querySelectorAll('.history circle').length") >= 1
    assert page.tell(
        "document.querySelector('.scatter canvas').getAttribute('aria-label')"
    ).startswith("best over lr")
    page.open("/e/2/search", ".timeline rect")
    count = len(page.server.get("/experiments/2/trials")["columns"]["id"])
    assert page.tell("document.querySelectorAll('.timeline rect').length") == count


@pytest.mark.parametrize("id", [1, 2])
def test_curves_have_a_legend_of_their_trials(page: Page, id: int) -> None:
    entries = "figure[aria-label='Learning curves'] .legend li"
    page.open(f"/e/{id}/trials", entries)
    trials = page.server.get(f"/experiments/{id}/trials")["columns"]["id"]
    assert page.texts(entries) == [f"trial {each}" for each in sorted(trials)]


def test_created_and_duration_are_on_a_screen_of_1400(page: Page) -> None:
    page.open("/", width=1400)
    headings = "[...document.querySelectorAll('main thead th')]"
    names = page.texts("main thead th")
    ends = page.tell(f"{headings}.map(th => th.getBoundingClientRect().right)")
    for name in ("created", "duration"):
        assert 0 < ends[names.index(name)] <= 1400, (names, ends)


def test_numbers_of_a_column_align_right_with_equal_decimals(page: Page) -> None:
    page.open("/e/2/trials?cols=id,lr")
    cells = page.texts(".rows td.number")
    assert len({len(each.partition(".")[2]) for each in cells}) == 1, cells
    assert (
        page.tell("getComputedStyle(document.querySelector('.rows td.number')).textAlign")
        == "right"
    )


def test_trials_are_grouped_by_a_hyperparameter(page: Page) -> None:
    page.open("/e/2/trials?group=width", ".groups tbody tr")
    trials = page.server.get("/experiments/2/trials")
    assert sum(map(int, page.texts(".groups td:nth-child(2)"))) == len(trials["columns"]["id"])


def test_the_comparison_of_an_experiment_is_of_its_best_trials(page: Page) -> None:
    page.open("/e/1/compare", "section table th a")
    trials = page.server.get("/experiments/1/trials")["columns"]
    best = sorted(trials["id"], key=lambda id: trials["best"][trials["id"].index(id)])
    assert [each for each in page.texts("section table th a") if "trial" in each] == [
        f"trial {id}" for id in best
    ]


def test_a_view_is_kept_by_its_name_in_the_browser(page: Page) -> None:
    page.open("/?q=bred&sort=name")
    page.click("Views")
    page.type("name of this view", "mine")
    page.click("Keep")
    page.until("[...document.querySelectorAll('.menu a')].some(a => a.textContent === 'mine')")
    page.open("/")
    page.click("Views")
    page.tell(
        "[...document.querySelectorAll('.menu a')].find(a => a.textContent === 'mine')"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
    )
    page.until("document.querySelector('[aria-label=filter]').value === 'bred'")
    page.until("location.search === '?q=bred&sort=name'")
    page.click("×")
    page.until("![...document.querySelectorAll('.menu a')].some(a => a.textContent === 'mine')")


def test_several_experiments_are_labelled_and_archived_at_once(page: Page) -> None:
    page.open("/?sort=id")
    for id in (1, 2):
        page.tell(f"document.querySelector('[aria-label=\"choose {id}\"]').click()")
    page.click("Label or move")
    page.type("labels to add, separated by commas", "several")
    page.click("Save")
    page.until("document.querySelectorAll('.rows a.label').length === 3")
    assert page.server.get("/experiments/2")["labels"] == ["paper", "several"]
    page.until("!document.querySelector('.rows input:checked')")
    page.server.ask("/api/v1/experiments/1", "PATCH", {"labels": []})
    page.server.ask("/api/v1/experiments/2", "PATCH", {"labels": ["paper"]})
    for id in (1, 2):
        page.tell(f"document.querySelector('[aria-label=\"choose {id}\"]').click()")
    page.click("Archive")
    page.until("document.querySelector('.tabled .counted').textContent === '1 of 3'")
    for id in (1, 2):
        page.server.ask(f"/api/v1/experiments/{id}", "PATCH", {"archived": False})


def test_several_experiments_are_deleted_at_once(page: Page, home: Path) -> None:
    with Store(home) as store:
        config = to_json(load(CONFIG).config)
        made = [
            store.experiments.create(
                name=name, config=config, metric="error", entrypoint="python3 train.py"
            ).id
            for name in ("one", "another")
        ]
        for id in made:
            store.experiments.update(id, state=ExperimentState.CANCELED, started=1.0, ended=2.0)
    page.open("/?sort=id", f"[aria-label='choose {made[-1]}']")
    for id in made:
        page.tell(f"document.querySelector('[aria-label=\"choose {id}\"]').click()")
    page.click("Delete")
    page.until("document.querySelector('dialog')?.textContent.includes('Delete 2 experiments?')")
    page.click("Delete them")
    page.until(f"!document.querySelector('[aria-label=\"choose {made[-1]}\"]')")
    with Store(home) as store:
        left = {each.experiment.id for each in store.experiments.list()}
    assert {1, 2} <= left
    assert not left & {*made}


def test_too_few_trials_to_compare_are_said_with_their_number(page: Page) -> None:
    page.open("/e/1/search", "section[aria-label=Importances] .empty")
    assert "4 can be compared at 2 batches, and it takes 8" in page.text(
        "section[aria-label=Importances] .empty"
    )


def test_logs_of_all_trials_are_merged_and_the_drivers_is_apart(page: Page) -> None:
    page.open("/e/1/logs", ".log article")
    headings = page.texts(".log h3")
    logs = page.server.get("/experiments/1/logs")["logs"]
    assert [each["started"] for each in logs] == sorted(each["started"] for each in logs)
    assert [each.split(" rank ")[0] for each in headings] == [
        f"trial {e['trial']} run {e['run']}" for e in logs
    ]
    assert {each["trial"] for each in logs} == {1, 2, 3, 4}
    assert all(re.search(r"\d\d:\d\d:\d\d – .*\d\d:\d\d:\d\d", each) for each in headings), headings
    assert page.text(".log").count("training with") == len(logs)
    page.type("only lines with", "no such line")
    page.until("!document.querySelector('.log article')")
    page.open("/e/1/logs?of=driver", "section[aria-label='driver of experiment 1']")


def test_a_line_that_was_redrawn_is_shown_as_it_stood_last(page: Page, home: Path) -> None:
    with (home / "experiments/1/trials/1/run-1/rank-0.log").open("a") as log:
        log.write("  0%|   |\r 33%|#  |\r100%|###|\r\n")
    for view in ("/e/1/logs", "/t/1/logs"):
        page.open(view, ".log pre")
        page.until("document.querySelector('.log').textContent.includes('100%|###|')")
        assert "33%" not in page.text(".log")


def test_code_is_shown_with_differences_from_another_experiment(page: Page) -> None:
    page.open("/e/2/code?file=train.py", ".code pre")
    assert "core.init()" in page.text(".code")
    assert len(page.texts(".code .line")) == len(MEASURED.splitlines())
    assert "import" in page.texts(".code .keyword")
    assert '"lr"' in page.texts(".code .string")
    page.open("/e/2/code?file=train.py&with=1", ".code .added")
    assert len(page.texts(".code .added")) == len(page.texts(".code .gone")) == 2
    assert "gpu_util" in page.text(".code .added")


def test_checkpoints_have_their_sizes_and_the_best_is_marked(page: Page) -> None:
    page.open("/e/1/checkpoints")
    assert "on the disk" in page.text("main")
    page.until("document.querySelectorAll('.rows .best').length === 1")
    assert page.tell(
        "[...document.querySelectorAll('.rows tbody tr[aria-rowindex]')].every(r => /\\d+"
        " (B|kB)/.test(r.textContent))"
    )


def test_trial_page_shows_how_to_load_and_marks_the_best(page: Page) -> None:
    page.open("/t/1/metrics", ".columns table")
    page.until("!!document.querySelector('.columns .best')")
    assert "top_checkpoint().load()" in page.text(".copied pre")
    page.until(
        "document.querySelector('.legend')?.parentElement.parentElement.textContent.includes('best"
        " validation')"
    )


def test_a_metric_has_a_log_axis_smoothing_and_time(page: Page) -> None:
    page.open("/t/1/metrics", ".plot canvas")
    page.until("document.querySelector('.plot canvas')?.dataset.drawn >= 1")
    before = page.tell("document.querySelector('.plot canvas').toDataURL()")
    page.tell(
        "[...document.querySelectorAll('figure label')].find(l =>"
        " l.textContent.includes('log')).querySelector('input').click()"
    )
    page.until("location.search.includes('log=')")
    page.until(f"document.querySelector('.plot canvas').toDataURL() !== {json.dumps(before)}")
    page.open("/t/1/metrics?by=seconds&smooth=0.5", ".plot canvas")
    page.until(
        "document.querySelector('.plot canvas')?.getAttribute('aria-label').includes('as reported')"
    )


def test_curves_of_an_experiment_are_over_time_and_smoothed(page: Page) -> None:
    canvas = "document.querySelector('figure[aria-label=\"Learning curves\"] canvas')"
    drawn = set()
    for query in ("", "?by=seconds", "?by=seconds&smooth=0.9"):
        page.open(f"/e/2/trials{query}", "figure[aria-label='Learning curves'] canvas")
        page.until(f"Number({canvas}?.dataset.drawn) >= 1")
        drawn.add(page.tell(f"{canvas}.toDataURL()"))
    assert len(drawn) == 3


def test_what_a_trial_says_of_its_machine_has_a_page_of_its_own(page: Page) -> None:
    first = page.server.get("/experiments/2/trials")["columns"]["id"][0]
    page.open(f"/t/{first}/system", "figure")
    assert page.texts("figcaption b") == ["gpu_util"]
    page.open(f"/t/{first}/metrics", "figure")
    assert "gpu_util" not in page.texts("figcaption b")
    page.open("/t/1/system", "main .empty")
    for way in ("trainer.fit(profiling_enabled=True)", "context.profiler.on()"):
        assert way in page.text("main .empty")


def test_a_loss_and_its_validation_are_lines_of_one_chart(page: Page) -> None:
    first = page.server.get("/experiments/2/trials")["columns"]["id"][0]
    page.open(f"/t/{first}/metrics", "figure .legend li")
    assert page.texts("figcaption b").count("loss, val_loss") == 1
    lines = "figure[aria-label='loss, val_loss'] .legend li:not(.event)"
    page.until(f"document.querySelectorAll({json.dumps(lines)}).length === 2")
    assert page.texts(lines) == ["training", "validation"]


def test_what_a_trial_logged_is_seen_at_a_position(page: Page) -> None:
    """What it wrote is text, whatever is in it; the address has the position."""
    page.open("/t/1/media", ".media img")
    assert page.texts(".media figcaption b") == ["said/at each", "seen", "table"]
    page.until("document.querySelector('.media img').naturalWidth === 2")
    page.until("!!document.querySelector('.media td')")
    assert page.texts(".media th") == ["<i>name</i>", "value"]
    cells = page.texts(".media td")
    assert (cells[0], cells[2:]) == ("<b>x</b>", ["", "NaN"])
    last = page.server.get("/trials/1")["batches"]
    shown = "document.querySelector('.media pre')?.textContent === '<script>alert(4)</script> at "
    page.until(f"{shown}{last}'")
    page.tell("document.querySelector('[aria-label=\"previous position\"]').click()")
    page.until(f"{shown}{last - 1}'")
    assert page.tell("location.search") == f"?at={last - 1}"
    slider = "document.querySelector('[aria-label=position]')"
    page.tell(
        f"({slider}.value = 0, {slider}.dispatchEvent(new Event('input', {{bubbles: true}})))"
    )
    page.until(f"{shown}1'")
    assert page.tell("location.search") == "?at=1"
    assert page.texts(".media .empty") == ["Nothing yet at this position."] * 2
    assert page.tell("problems") == []


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
            page.until(
                "/Experiment 2 waits for .*held by experiment"
                " 1/.test(document.querySelector('main').innerText)"
            )
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
    page.until(
        "!document.querySelector('[aria-busy]') && !!document.querySelector('canvas, svg, .rows"
        " tbody a')"
    )
    page.tell("new Promise(done => setTimeout(done, 200))")
    page.save(within, button)
    assert page.tell("saved[0].called").endswith(name)
    head = (
        "saved[0].arrayBuffer().then(b => String.fromCharCode(...new Uint8Array(b).slice(0, 40)))"
    )
    assert str(page.tell(head)).startswith(begins)


def test_controls_have_names_and_content_has_roles(page: Page) -> None:
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
            "[...document.querySelectorAll('canvas')].every(c => c.closest('[role=img],"
            " [aria-label]'))"
        ), view
        assert page.tell(
            "document.querySelectorAll('main').length === 1 &&"
            " document.querySelectorAll('h1').length === 1"
        ), view
        assert page.tell("document.documentElement.lang") == "en"
