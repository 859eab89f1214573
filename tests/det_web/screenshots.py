"""Makes the pictures of docs/guides/page.md anew, from real runs.

python -m tests.det_web.screenshots, or nox -s screenshots.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.det_web.browsing import Page, signed_in
from tests.det_web.conftest import det, start, stop

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "guides" / "images"
MOST_BYTES, MOST_TOGETHER = 100_000, 500_000
WIDTH = 1100
DRAWN = "document.querySelector('{} canvas')?.dataset.drawn >= 1"
VIEWS = {
    "list": (
        "/?cols=id,name,state,progress,trials,best,metric,searcher,labels",
        "!!document.querySelector('.rows tbody a')",
    ),
    "experiment": ("/e/1/trials", f"{DRAWN.format('.parallel')} && {DRAWN.format('.scatter')}"),
    "trial": ("/t/{best}/metrics", DRAWN.format(".plot")),
    "compare": ("/compare?t=1,2,3,4", DRAWN.format(".plot")),
    "dark": (
        "/e/1/search",
        "!!document.querySelector('svg .bar') || !!document.querySelector('.plot canvas')",
    ),
}
"""What is shown, and when it is there."""
SEARCHES = {"digits": ("adaptive_asha", 24, "[paper]"), "digits, at random": ("random", 8, "[]")}
CONFIG = """
name: "{name}"
labels: {labels}
description: "Digits: **which learning rate** does a small network want?"
entrypoint: model_def:DigitsTrial
hyperparameters:
  lr: {{type: log, minval: -4, maxval: 0}}
  momentum: {{type: double, minval: 0, maxval: 0.99}}
  hidden: {{type: int, minval: 8, maxval: 512}}
  dropout: {{type: double, minval: 0, maxval: 0.7}}
  global_batch_size: 64
  workers: 0
searcher: {{name: {searcher}, metric: accuracy, smaller_is_better: false, max_trials: {trials}, max_length: 160}}
min_validation_period: 10
scheduling_unit: 10
reproducibility: {{experiment_seed: 1}}
"""


def make(page: Page, images: Path) -> None:
    """Photograph each view of a home whose first experiment is a search."""
    best = page.server.get("/experiments/1")["best_trial"]
    for name, (path, there) in VIEWS.items():
        page.open(path.format(best=best), "main :is(a, button)", WIDTH)
        page.until(there)
        if name == "dark":
            page.press("d")
            page.until("document.documentElement.dataset.theme === 'dark'")
        page.until("!document.querySelector('[aria-busy]')")
        page.tell(
            "document.querySelector('nav .home').style.visibility = 'hidden'"
        )  # it names a machine
        page.tell("new Promise(done => requestAnimationFrame(() => setTimeout(done, 400)))")
        page.browser.photograph(images / f"{name}.webp")
        if name == "dark":
            page.press("d")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        for name, (searcher, trials, labels) in SEARCHES.items():
            file = place / "search.yaml"
            file.write_text(
                CONFIG.format(name=name, searcher=searcher, trials=trials, labels=labels)
            )
            done = det(
                place / "home",
                place,
                "run",
                str(file),
                str(ROOT / "examples" / "digits_torch"),
                "-q",
            )
            assert done.returncode == 0, done.stderr
        server = start(place / "home")
        try:
            with signed_in(server, place / "profile") as page:
                make(page, IMAGES)
        finally:
            stop(server)
    sizes = {name: (IMAGES / f"{name}.webp").stat().st_size for name in VIEWS}
    sys.stdout.write(f"{sizes}\n")


if __name__ == "__main__":
    main()
