"""A walk through the pages of a server, as two of its users take it in a browser."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from tests.det_web.browsing import Page
from tests.det_web.test_team import add_run, make_experiment

from det_core.config import to_json
from det_driver.client import Client
from det_driver.config import load
from det_driver.provenance import set_user
from det_driver.store import Store
from det_server import Role, Users

WATCH = """{
  let note = text => sessionStorage.setItem("problems", (sessionStorage.getItem("problems") ?? "") + text + "\\n");
  addEventListener("error", event => note(event.message));
  addEventListener("unhandledrejection", event => note(String(event.reason)));
  addEventListener("securitypolicyviolation", event => note(event.violatedDirective + " " + event.blockedURI));
  let complain = console.error.bind(console), ask = window.fetch.bind(window);
  console.error = (...what) => (note(what.join(" ")), complain(...what));
  window.fetch = async (...what) => {
    let reply = await ask(...what);
    if (!reply.ok) note(reply.status + " " + reply.url);
    return reply;
  };
}"""
"""Keeps what goes wrong in any page of the walk."""
TRAIN = """
import json
import time

from det_core import core

hparams = core.get_cluster_info().trial.hparams
with core.init() as context:
    for batch in range(1, hparams["batches"] + 1):
        time.sleep(hparams["seconds"])
        context.train.report_training_metrics(batch, {"loss": 1 / batch})
        if context.preempt.should_preempt():
            break
    context.train.report_validation_metrics(batch, {"error": 1 / batch})
    with context.checkpoint.store_path({"steps_completed": batch}) as (path, uuid):
        (path / "state.json").write_text(json.dumps(batch))
"""
CONFIG = """
name: digits
project: reading
workspace: vision
entrypoint: python3 train.py
hyperparameters: {batches: 20, seconds: 0}
searcher: {name: single, metric: error}
"""
SHOWN = ("sign_in", "queue", "model", "usage", "users", "alerts")
"""The pictures of the walk, in their order."""
PASSWORDS = {"ann": "a password of Ann", "root": "a password of Root"}


def fill_team(home: Path) -> None:
    """Make a home with an editor and an admin, an experiment that is paused, and two that ended."""
    users = Users(home)
    users.add("ann", Role.EDITOR, PASSWORDS["ann"])
    users.add("root", Role.ADMIN, PASSWORDS["root"])
    with Store(home) as store:
        made = store.experiments.create(
            name="digits", config=to_json(load(CONFIG).config), metric="error", entrypoint="x"
        )
        with store.lock(made.id):
            store.code_dir(made.id).mkdir()
            (store.code_dir(made.id) / "train.py").write_text(TRAIN)
            store.alerts.add("failed", "team", "failed", {"title": "digits has failed"})
            store.alerts.failed(1, "the webhook team did not answer", due=5.0, dead=True)
            store.experiments.update(made.id, state="PAUSED")
    users.note_owner("ann", made.id, made.created)
    for name, first, last in (("ann", 20, 4), ("root", 16, 9)):
        _add_history(home, users, name, first, last)
    (home / "alerts.yaml").touch(0o600)
    hooks = [{"name": "team", "url": "http://127.0.0.1:9/hook"}]
    (home / "alerts.yaml").write_text(json.dumps({"webhooks": hooks}))


def _add_history(home: Path, users: Users, user: str, first: float, last: float) -> None:
    """Add an experiment that ran from some hours ago to some later ones."""
    now = time.time()
    config = CONFIG.replace("name: digits", f"name: search of {user}")
    id = make_experiment(home, config, started=now - 3600 * first)
    add_run(home, id, now - 3600 * first, now - 3600 * last, "COMPLETED")
    with Store(home) as store, store.lock(id):
        store.experiments.update(id, name=f"search of {user}", state="COMPLETED")
        set_user(store.experiment_dir(id), user)
        users.note_owner(user, id, store.experiments.get(id).created)


def walk(page: Page, home: Path, show: Callable[[str], object]) -> None:
    """Sign in, fork, change the queue, register a model, tidy up, and go on as an admin.

    `show` is called with the name of each page of a server that is a picture of the guide.
    """
    page.open("/", "form input[name=password]")
    show("sign_in")
    _sign_in(page, "ann", "not the password")
    page.until("document.querySelector('[role=alert]')?.innerText.includes('password is wrong')")
    _sign_in(page, "ann", PASSWORDS["ann"])
    page.until("location.pathname === '/' && !!document.querySelector('.rows tbody a')")
    ended = _fork(page, 1, "name: digits", "name: read")
    page.until("document.querySelector('main')?.innerText.toLowerCase().includes('completed')")
    runs = _fork(page, 1, "seconds: 0", "seconds: 0.1\n  batches: 100000", gone="  batches: 20\n")
    _change_queue(page, runs, show)
    _register(page, Client(home).get_experiment(ended).list_trials()[0].id, show)
    Client(home).get_experiment(runs).kill()
    page.open("/usage", "main strong")
    page.until("document.querySelector('main')?.innerText.includes('vision')")
    show("usage")
    _tidy(page, home, ended, runs)
    _sign_out(page)
    _admin(page, home, show)
    assert page.tell("sessionStorage.getItem('problems')") is None


def _sign_in(page: Page, name: str, password: str) -> None:
    page.tell(f"document.querySelector('[name=name]').value = {json.dumps(name)}")
    page.tell(f"document.querySelector('[name=password]').value = {json.dumps(password)}")
    page.click("Sign in")


def _sign_out(page: Page) -> None:
    page.open("/login", "button[name=out]")
    page.click("Sign out")
    page.until("!!document.querySelector('form input[name=password]')")
    page.open("/queue", "form input[name=password]")


def _fork(page: Page, id: int, old: str, new: str, *, gone: str = "") -> int:
    """Fork an experiment with an edited configuration, and return the number of the fork."""
    page.open(f"/e/{id}/trials", "main button")
    page.click("Fork")
    page.until("!!document.querySelector('[aria-label=configuration]')")
    written = str(page.tell("document.querySelector('[aria-label=configuration]').value"))
    assert old in written
    assert gone in written
    page.type("configuration", written.replace(gone, "").replace(old, new, 1))
    page.click("Start")
    found = f"(location.pathname.match('/e/([0-9]+)/trials')?.[1] ?? {id})"
    page.until(f"{found} != {id}")
    return int(page.tell(found))


def _change_queue(page: Page, id: int, show: Callable[[str], object]) -> None:
    page.open("/queue", f"[aria-label='change experiment {id}']")
    page.until("!document.querySelector('[aria-busy]')")
    show("queue")
    page.click("Change")
    page.until("document.querySelector('[aria-label=priority]')?.value === '42'")
    page.type("priority", "7")
    page.click("Save")
    page.until("!document.querySelector('dialog')")
    # Its driver takes it over.
    page.until("[...document.querySelectorAll('main td')].some(e => e.textContent === '7')")


def _register(page: Page, trial: int, show: Callable[[str], object]) -> None:
    page.open(f"/t/{trial}/metrics", "[aria-label^='add checkpoint']")
    page.click("Add to a model")
    page.until("!!document.querySelector('datalist')")
    page.type("model: one that is there, or the name of a new one", "digits")
    page.type("aliases, such as production, separated by commas", "production")
    page.click("Add")
    page.until("location.pathname === '/models/digits' && !!document.querySelector('td .label')")
    show("model")


def _choose(page: Page, *ids: int) -> None:
    for id in ids:
        page.until(f"!!document.querySelector('[aria-label=\"choose {id}\"]')")
        page.tell(f"document.querySelector('[aria-label=\"choose {id}\"]').click()")


def _done(page: Page, sentence: str) -> None:
    page.until(f"document.querySelector('main')?.innerText.includes({json.dumps(sentence)})")


def _tidy(page: Page, home: Path, ended: int, killed: int) -> None:
    """Label two experiments, archive one, and delete the other."""
    client = Client(home)
    client.get_experiment(killed).wait()
    # Its driver answers no more once it ends, and a label is refused for that moment.
    deadline = time.monotonic() + 60
    with Store.reader(home) as store:
        while store.experiments.driven(killed):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    page.open("/?sort=id")
    _choose(page, ended, killed)
    page.click("Label or move")
    page.type("labels to add, separated by commas", "first")
    page.click("Save")
    _done(page, "2 experiments labelled.")
    assert list(client.get_experiment(ended).labels) == ["first"]
    _choose(page, ended)
    page.click("Archive")
    _done(page, "1 experiment archived.")
    _choose(page, killed)
    page.click("Delete")
    page.click("Delete them")
    _done(page, "1 experiment deleted.")
    assert {each.id for each in client.list_experiments(archived=None)} == {1, 2, 3, ended}


def _admin(page: Page, home: Path, show: Callable[[str], object]) -> None:
    """Sign in as an admin, limit a user, and look at the alerts."""
    page.open("/users", "form input[name=password]")
    _sign_in(page, "root", PASSWORDS["root"])
    page.until("location.pathname === '/users' && !!document.querySelector('td')")
    change = "document.querySelector('[aria-label=\"change the quota of ann\"]')"
    page.until(f"!!{change}")
    page.tell(f"{change}.click()")
    page.type("quota", "50GiB")
    page.click("Save")
    page.until("!document.querySelector('dialog')")
    page.until("document.querySelector('main')?.innerText.includes('50 GiB')")
    assert {each.user: each.most for each in Users(home).quotas()}["ann"] == 50 * 2**30
    show("users")
    page.open("/alerts", "[aria-label^='send the alerts']")
    show("alerts")
    _sign_out(page)
