"""What does not run on a server that runs code as the users of its machine."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from det_core.errors import DetError
from det_driver.accounts import FILE, check_allowed, find_account, run_as_users
from det_driver.config import load
from det_driver.driver import create
from det_driver.store import Store
from det_node.task import NOTEBOOK, task_words


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("environment: {requirements: [numpy]}", "environment.requirements"),
        ("environment: {python: /bin/python}", "environment.python"),
        ("environment: {python: '3.12'}", "environment.python"),
        ("environment: {container: docker, image: {cpu: x, cuda: x}}", "environment.container"),
        ("engine: {name: ssh, hosts: [a]}", "engine.name ssh"),
        (f"entrypoint: {task_words(NOTEBOOK, ['unix'], directory=None)}", "a notebook"),
        ("distributed: {hosts: ['a:1']}", "distributed.hosts"),
        ("searcher: {name: custom, metric: loss, entrypoint: 'm:C'}", "searcher.name custom"),
        (
            "searcher: {name: combined, metric: loss, sampler: m:C, max_trials: 2,"
            " max_length: {batches: 4}}",
            "a searcher.sampler of your own",
        ),
    ],
)
def test_what_root_would_run_is_refused(text: str, named: str) -> None:
    content = "" if text.startswith("entrypoint") else "entrypoint: python3 train.py\n"
    content += (
        ""
        if text.startswith("searcher")
        else "searcher: {name: single, metric: loss, max_length: {batches: 4}}\n"
    )
    config = load(f"{content}{text}\n").config
    with pytest.raises(DetError, match=f"and {named} is not for such a server"):
        check_allowed(config, "local")


def test_other_engines_are_refused() -> None:
    config = load({"entrypoint": "x"}, complete=False).config
    check_allowed(config, "local")
    for engine in ("slurm", "in-process", "ray"):
        with pytest.raises(DetError, match=f"the engine {engine} is not for such a server"):
            check_allowed(config, engine)


def test_only_accounts_of_people_run_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DetError, match="has no user 'nobody-of-this-name'"):
        find_account("nobody-of-this-name")
    with pytest.raises(DetError, match="'root' is one of the system"):
        find_account("root")
    with pytest.raises(DetError, match="'daemon' is one of the system"):
        find_account("daemon")

    def entry(name: str, directory: Path, uid: int = 5000) -> Callable[[str], pwd.struct_passwd]:
        values = (name, "x", uid, uid, "", str(directory), "/bin/sh")
        return lambda asked: pwd.struct_passwd(values)

    monkeypatch.setattr(pwd, "getpwnam", entry("ann", tmp_path / "gone"))
    with pytest.raises(DetError, match=r"home directory of 'ann', .*gone, cannot be used"):
        find_account("ann")
    monkeypatch.setattr(pwd, "getpwnam", entry("ann", tmp_path))
    with pytest.raises(DetError, match="is not theirs"):
        find_account("ann")
    with pytest.raises(DetError, match="has no user 'Ann'"):
        find_account("Ann")


def test_it_needs_root_and_a_home_that_is_roots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DetError, match="--run-as-users needs root"):
        run_as_users(tmp_path)


def test_nobodys_code_runs_in_such_a_home(tmp_path: Path) -> None:
    """Neither that of who has the home, nor that of an owner without an account."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / FILE).touch()
    code = tmp_path / "code"
    code.mkdir()
    code.joinpath("train.py").touch()
    text = (
        "entrypoint: python3 train.py\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 4}}\n"
    )
    config = load(text).config
    origins: Sequence[dict[str, Any]] = (
        {},
        {"user": "nobody-of-this-name"},
        {"submitted": {"by": "root", "key": "1"}},
    )
    with Store(tmp_path / "home") as store:
        for origin in origins:
            with pytest.raises(DetError, match="system user"):
                create(store, config, code, origin=origin)
        assert not store.experiments.list(archived=None, unread={})
