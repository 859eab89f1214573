"""Print what the page of `det ui` costs and how quick it is, beside the Optuna dashboard.

Both are in a headless Chromium.

The first home holds a search of 200 real trials (digits), which runs with the page open and
without, in turns; the other one, written by the driver's own store, a search of 10,000 trials with
100 validations each, of which the first trial reported 10⁶ training rows, and a log of 1 GB.
`--optuna PYTHON` names the interpreter of an environment with optuna-dashboard, which is given the
same real search. Where cores are few, server, browser and this script share them: what is printed
is an upper bound.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.repo.browser import Browser  # noqa: E402

from det_driver.client import Client  # noqa: E402
from det_driver.config import load  # noqa: E402
from det_driver.driver import create  # noqa: E402
from det_driver.store import ExperimentState, Store, TrialState  # noqa: E402
from det_web.events import AT_ONCE  # noqa: E402

DET = (sys.executable, "-m", "det_driver.cli")
SEARCH = """
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters:
  lr: {{type: log, minval: -4, maxval: 0}}
  momentum: {{type: double, minval: 0, maxval: 0.99}}
  hidden: {{type: int, minval: 8, maxval: 512}}
  dropout: {{type: double, minval: 0, maxval: 0.7}}
  weight_decay: {{type: log, minval: -6, maxval: -1}}
  global_batch_size: 64
  workers: 0
searcher: {{name: random, metric: accuracy, smaller_is_better: false, max_trials: {trials}, max_length: 40}}
min_validation_period: 10
scheduling_unit: 10
checkpoint_policy: none
reproducibility: {{experiment_seed: 1}}
"""
SYNTHETIC = """
name: synthetic
entrypoint: model_def:Trial
hyperparameters:
  lr: {type: log, minval: -5, maxval: 0}
  momentum: {type: double, minval: 0, maxval: 1}
  units: {type: int, minval: 8, maxval: 512}
  layers: {type: int, minval: 1, maxval: 8}
  dropout: {type: double, minval: 0, maxval: 0.7}
  decay: {type: log, minval: -6, maxval: -1}
  activation: {type: categorical, vals: [relu, tanh, gelu]}
searcher: {name: random, metric: loss, max_trials: 10000, max_length: 1000}
"""
IN_THE_PAGE = """
window.when = wanted => new Promise(done => {
  let look = () => wanted() ? requestAnimationFrame(() => setTimeout(() => done(performance.now()))) : requestAnimationFrame(look);
  look();
});
window.asked = new Promise(done => addEventListener('load', done));
"""
"""`when` gives the page's clock once something is true and has been painted."""
ROWS = "document.querySelectorAll('.rows tbody a').length"


class Asked:
    """A server in a process, and a browser that is signed in to it."""

    def __init__(self, home: Path, browser: Browser) -> None:
        self.browser, self.began = browser, time.time()
        command = [*DET, "ui", "--port", "0", "--no-browser"]
        self.process = subprocess.Popen(
            command, env=environ(home), stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r":(\d+)/login\?token=(\S+)", self.process.stdout.readline())
        assert found is not None
        self.port = int(found[1])
        self.address = f"http://127.0.0.1:{self.port}"
        status, headers, _ = self.get(f"/login?token={found[2]}", cookie="")
        assert status == 303
        self.cookie = headers["set-cookie"].partition(";")[0]
        browser.set_cookie(*self.cookie.split("=", 1), self.address)

    def get(self, path: str, cookie: str | None = None) -> tuple[int, Any, bytes]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            headers = {
                "Cookie": self.cookie if cookie is None else cookie,
                "Accept-Encoding": "gzip",
            }
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def timed(self, path: str) -> tuple[float, int]:
        """Return the milliseconds of an answer, the best of three, and its bytes as sent."""
        took = []
        for _ in range(3):
            began = time.perf_counter()
            status, _, body = self.get(f"/api/v1{path}")
            took.append(1000 * (time.perf_counter() - began))
            assert status == 200, body
        return min(took), len(body)

    def opened(self, path: str, wanted: str) -> float:
        """Open a view; return after how many milliseconds something of it was painted."""
        self.browser.open(self.address + path, 1300)
        return float(self.browser.evaluate(f"when(() => {wanted})"))

    def acted(self, action: str, wanted: str) -> float:
        """Do something in the page; return the milliseconds until what is wanted was painted."""
        return float(
            self.browser.evaluate(
                f"(async () => {{ let pressed = performance.now(); {action}; return await when(()"
                f" => {wanted}) - pressed }})()"
            )
        )

    def cpu(self) -> float:
        """The seconds of the processor that the server has used."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=30)


def environ(home: Path) -> dict[str, str]:
    found = {**os.environ, "DET_HOME": str(home), "DET_SLOTS_TOTAL": "1", "DISPLAY": ""}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def peak(pid: int) -> float:
    """The most memory that a process has had, in MB."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else math.nan


def said(what: str, value: float, goal: float | None, unit: str = "ms", more: str = "") -> None:
    aim = "" if goal is None else f" (goal: {goal:g}){'' if value <= goal else '  NOT REACHED'}"
    print(f"  {what}: {value:.3g} {unit}{aim}{more}", flush=True)


@contextmanager
def browsing(scratch: Path) -> Iterator[Browser]:
    profile = Path(tempfile.mkdtemp(dir=scratch))
    with Browser(profile) as browser:
        browser.before_scripts(IN_THE_PAGE)
        yield browser


# The homes


def real(home: Path, scratch: Path, trials: int, rounds: int) -> None:
    """Run the search with the page open, and without, in turns; print what the page costs it."""
    file = scratch / "digits.yaml"
    file.write_text(SEARCH.format(trials=trials))
    print(f"A search of {trials} real trials, in one slot")
    took: dict[bool, list[float]] = {True: [], False: []}
    used, lasted = 0.0, 0.0
    for number in range(1, 2 * rounds + 1):
        shown = number % 2 == 0
        with browsing(scratch) as browser:
            if shown:
                server = Asked(home, browser)
                browser.open(f"{server.address}/", 1300)
            command = [*DET, "run", str(file), str(ROOT / "examples/digits_torch"), "-q"]
            driver = subprocess.Popen(command, env=environ(home), stdout=subprocess.DEVNULL)
            if shown:
                while not (home / f"experiments/{number}/trials").exists():
                    time.sleep(0.01)
                browser.open(f"{server.address}/e/{number}/trials", 1300)
            assert driver.wait() == 0
            if shown:
                used, lasted = used + server.cpu(), lasted + time.time() - server.began
                server.close()
        with Store.reader(home) as store:
            row = store.experiments.get(number)
            took[shown].append((row.ended or 0) - (row.started or 0))
    ratio = min(took[True]) / min(took[False])
    print(
        f"  without: {', '.join(f'{each:.1f}' for each in took[False])} s; "
        f"with: {', '.join(f'{each:.1f}' for each in took[True])} s"
    )
    said(
        "6. how much longer it takes with the page open, best against best",
        100 * (ratio - 1),
        2,
        "%",
    )
    said("   the server's processor meanwhile", 100 * used / lasted, None, "%")


def synthetic(home: Path, scratch: Path, trials: int, rows: int) -> None:
    file = scratch / "synthetic.yaml"
    file.write_text(SYNTHETIC)
    chance = random.Random(1)
    began = time.time()
    with Store(home) as store:
        id = create(store, load(file).config, None)
        with store.lock(id):
            for first in range(0, trials, 500):
                with store.transaction():
                    for number in range(first, min(first + 500, trials)):
                        hparams = {
                            "lr": 10 ** chance.uniform(-5, 0),
                            "momentum": chance.random(),
                            "units": chance.randint(8, 512),
                            "layers": chance.randint(1, 8),
                            "dropout": chance.uniform(0, 0.7),
                            "decay": 10 ** chance.uniform(-6, -1),
                            "activation": chance.choice(["relu", "tanh", "gelu"]),
                        }
                        trial = store.trials.create(id, number, hparams, number).id
                        run = store.runs.begin(trial, 0, first=True)
                        if number == 0:
                            for at in range(1, rows + 1):
                                loss = (
                                    1 / (1 + at / 1e4)
                                    + chance.random() / 10
                                    + 5 * (at == 123_457)
                                    - 3 * (at == 765_433)
                                )
                                store.metrics.report(trial, run.id, "training", at, {"loss": loss})
                            run.log_dir.mkdir(parents=True)
                            line = (
                                b"epoch 1 batch 00000 loss 0.123456 accuracy 0.98765 learning rate"
                                b" 0.001\n"
                            )
                            with (run.log_dir / "rank-0.log").open("wb") as log:
                                for _ in range(1 << 10):
                                    log.write(line * ((1 << 20) // len(line)))
                                log.write(b"the last line\n")
                        level = abs(math.log10(hparams["lr"]) + 2.5) + chance.random()
                        for at in range(10, 1001, 10):
                            store.metrics.report(
                                trial, run.id, "validation", at, {"loss": level + 10 / at}
                            )
                        store.trials.update(
                            trial,
                            state=TrialState.COMPLETED,
                            ended=time.time(),
                            batches=1000 if number else rows,
                        )
                        store.runs.end(run.id, "completed")
            store.experiments.update(
                id, state=ExperimentState.COMPLETED, started=began, ended=time.time(), progress=1.0
            )
    print(
        f"A home of {trials} trials × 100 validations, {rows} training rows and a log of 1 GB, "
        f"written in {time.time() - began:.0f} s"
    )


# What is measured


def measured(home: Path, scratch: Path, trials: int, rows: int) -> None:
    with browsing(scratch) as browser:
        server = Asked(home, browser)
        listed = f"{ROWS} > 0"
        server.opened("/", listed)
        said("1. start to painted list", 1000 * (time.time() - server.began), 1000)
        said("   the same view again", server.opened("/", listed), None)
        script = gzip.decompress(server.get("/static/app.js")[2])
        said(
            "   the bundle",
            len(script) / 1000,
            120,
            "kB",
            f", compressed {len(server.get('/static/app.js')[2]) / 1000:.1f} kB (goal: 45)",
        )
        drawn = (
            f"document.querySelector('.parallel canvas')?.dataset.drawn === '{trials}' && {ROWS}"
            " > 10"
        )
        server.opened("/e/1/trials", drawn)  # the first one reads the trials
        said(
            "2. table and parallel coordinates of all trials",
            server.opened("/e/1/trials", drawn),
            1500,
        )
        counted = "document.querySelector('.counted').textContent"
        handle = "document.querySelector('.handle[data-axis=lr]')"
        pointer = (
            f"let box = {handle}.getBoundingClientRect(), at = (kind, y) => new PointerEvent(kind,"
            " {clientX: box.x + 20, clientY: box.y + y, bubbles: true})"
        )
        brush = [
            server.acted(
                f"{pointer}; let was = {counted}; {handle}.dispatchEvent(at('pointerdown', 20));"
                f" window.dispatchEvent(at('pointermove', {60 + 20 * k}))",
                f"{counted} !== was && {counted}.includes(' of ')",
            )
            for k in range(5)
            if browser.evaluate(
                "window.dispatchEvent(new PointerEvent('pointerup', {clientY: 0})) && true"
            )
        ]
        said(
            "   a brush, until the table follows",
            statistics.median(brush),
            100,
            more=f", at most {max(brush):.0f}",
        )
        server.opened("/e/1/trials", drawn)
        order = "document.querySelector('.rows tbody a').textContent"
        button = "[...document.querySelectorAll('.rows th button')].find(b => b.title === '{}')"
        sort = [
            server.acted(f"let was = {order}; {button.format(name)}.click()", f"{order} !== was")
            for name in ("lr", "momentum", "units", "lr", "decay")
        ]
        said("   a sort", statistics.median(sort), 100, more=f", at most {max(sort):.0f}")
        frames = browser.evaluate("""(async () => {
          let box = document.querySelector('.rows'), took = [], before = performance.now();
          for (let i = 0; i < 120; i++) {
            box.scrollTop += 290;
            await new Promise(requestAnimationFrame);
            let now = performance.now(); took.push(now - before); before = now;
          }
          return took.slice(5).sort((a, b) => a - b);
        })()""")
        said("   a frame while scrolling, 95th percentile", frames[int(0.95 * len(frames))], 33)
        series = "/trials/1/series?metric=loss&group=training&width=1000"
        for what, query, goal in (
            ("3. first view of the curve", "", 300),
            ("   a zoom", "&from=400000&to=500000", 150),
        ):
            took, size = server.timed(series + query)
            said(
                f"{what} of {rows} points, the server's time",
                took,
                goal,
                more=f", {size / 1000:.0f} kB (goal: 100)",
            )
        curve = Client(home).get_trial(1).series("loss", "training", 1000)
        assert rows < 10**6 or (max(curve.y) > 5 and min(curve.y) < -2.5), "an extreme is lost"
        server.opened("/t/1/metrics", "document.querySelector('.plot canvas')?.dataset.drawn >= 1")
        commit_to_pixel(server, home)
        browser.open(f"{server.address}/e/1/trials", 1300)
        time.sleep(3)
        before, began = server.cpu(), time.time()
        time.sleep(20)
        said(
            "   the server's processor with an idle page",
            100 * (server.cpu() - before) / (time.time() - began),
            0.1,
            "%",
        )
        said(
            "5. a log of 1 GB, opened at its end: the server",
            server.timed("/trials/1/log?offset=-65536")[0],
            None,
        )
        tail = "document.querySelector('.log')?.textContent.includes('the last line')"
        server.opened("/t/1/logs", tail)
        said("   the page of it, loaded anew", server.opened("/t/1/logs", tail), None)
        server.opened("/t/1/metrics", "document.querySelector('.plot canvas')?.dataset.drawn >= 1")
        tab = (
            "[...document.querySelectorAll('main nav a')].find(a => a.textContent ==="
            " 'logs').click()"
        )
        said("   and from the trial's page", server.acted(tab, tail), 200)
        said("6. the server's memory, at most", peak(server.process.pid), 150, "MB")
        server.close()


def commit_to_pixel(server: Asked, home: Path) -> None:
    """Change a row as often as changes are told as they come.

    Print how long it takes to be seen, and how much is sent for it.
    """
    with Store(home) as store:
        server.opened("/", f"{ROWS} > 0")
        time.sleep(1)
        took = []
        for number in range(AT_ONCE):
            name = f"renamed-{number}"
            server.browser.evaluate(
                "window.seen = 0, when(() => document.querySelector('.rows"
                f" tbody').textContent.includes('{name}')).then(at => window.seen ="
                " performance.timeOrigin + at), 0"
            )
            store.experiments.update(1, name=name)
            committed = 1000 * time.time()
            while not (seen := server.browser.evaluate("window.seen")):
                time.sleep(0.01)
            took.append(seen - committed)
            time.sleep(0.05 * (number % 5))
        said(
            "4. commit to pixel, median",
            statistics.median(took),
            500,
            more=f", at most {max(took):.0f}",
        )
        path = "/experiments/1/trials"
        whole = server.get(f"/api/v1{path}")[2]
        version = re.search(rb'"version":"([^"]+)"', gzip.decompress(whole))
        assert version is not None
        with store.lock(1):
            store.trials.update(77, progress=0.5, batches=1001)
        changed = server.get(f"/api/v1{path}?since={version[1].decode()}")[2]
        said(
            "   sent for one trial that changed",
            len(changed) / 1000,
            1,
            "kB",
            f"; all of them are {len(whole) / 1000:.0f} kB",
        )


# The peer

STUDY = """
import json, sys, optuna
from optuna.distributions import FloatDistribution, IntDistribution
optuna.logging.disable_default_handler()
study = optuna.create_study(storage=sys.argv[1], study_name="digits", direction="maximize")
rows = json.load(sys.stdin)
of = {"hidden": IntDistribution(8, 512), "lr": FloatDistribution(1e-4, 1, log=True), "momentum": FloatDistribution(0, 0.99),
      "dropout": FloatDistribution(0, 0.7), "weight_decay": FloatDistribution(1e-6, 0.1, log=True)}
study.add_trials([optuna.trial.create_trial(params={k: each["hparams"][k] for k in of}, distributions=of,
    value=each["value"], intermediate_values={int(k): v for k, v in each["curve"]}) for each in rows])
"""
SENT = "performance.getEntries().reduce((sum, each) => sum + (each.transferSize || 0), 0)"


def beside_optuna(home: Path, scratch: Path, python: Path) -> None:
    """Show the same search in both.

    Of each print the bytes sent, the time to the first picture, the memory.
    """
    import json
    import socket

    rows = []
    for trial in Client(home).get_experiment(1).list_trials():
        curve = trial.series("accuracy", "validation", 1000)
        rows.append(
            {
                "hparams": trial.hparams,
                "value": max(curve.y),
                "curve": [*zip(curve.x, curve.y, strict=True)],
            }
        )
    storage = f"sqlite:///{scratch}/study.db"
    subprocess.run([python, "-c", STUDY, storage], input=json.dumps(rows), text=True, check=True)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    print(
        f"The same search of {len(rows)} trials, by whom: bytes sent, time to the first picture,"
        " memory"
    )
    with browsing(scratch) as browser:
        server = Asked(home, browser)
        ready = time.time() - server.began
        took = server.opened(
            "/e/1/trials",
            f"document.querySelector('.parallel canvas')?.dataset.drawn === '{len(rows)}'",
        )
        sent = browser.evaluate(SENT)
        print(
            f"  det: {sent / 1e6:.3f} MB, {took:.0f} ms after {ready:.2f} s of starting,"
            f" {peak(server.process.pid):.0f} MB"
        )
        server.close()
    with browsing(scratch) as browser:
        began = time.time()
        command = [str(python.with_name("optuna-dashboard")), storage, "--port", str(port)]
        dashboard = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: _answers(port))
        ready = time.time() - began
        browser.open(f"http://127.0.0.1:{port}/dashboard/studies/1", 1300)
        took = browser.evaluate("when(() => document.querySelector('.js-plotly-plot .trace'))")
        sent = browser.evaluate(SENT)
        print(
            f"  Optuna's dashboard: {sent / 1e6:.3f} MB, {took:.0f} ms after {ready:.2f} s of"
            f" starting, {peak(dashboard.pid):.0f} MB"
        )
        dashboard.terminate()
        dashboard.wait()


def _answers(port: int) -> bool:
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", "/dashboard")
            return connection.getresponse().status == 200
    except OSError:
        return False


def until(done: Callable[[], bool]) -> None:
    deadline = time.time() + 60
    while not done():
        assert time.time() < deadline
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", type=int, default=200, help="trials of the real search")
    parser.add_argument(
        "--rounds",
        type=int,
        default=2,
        help="how often it runs with the page, and as often without",
    )
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--optuna", type=Path, metavar="PYTHON", help="the interpreter that has optuna-dashboard"
    )
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, shared by server, browser, search and this script")
    with tempfile.TemporaryDirectory(prefix="det-bench-") as made:
        scratch = Path(made)
        if options.trials:
            synthetic(scratch / "synthetic", scratch, options.trials, options.rows)
            measured(scratch / "synthetic", scratch, options.trials, options.rows)
        if options.real:
            real(scratch / "home", scratch, options.real, options.rounds)
            if options.optuna:
                beside_optuna(scratch / "home", scratch, options.optuna)


if __name__ == "__main__":
    main()
