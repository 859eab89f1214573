"""What a stranger meets at the root of the repository.

The release workflow, the forms, the containers, the hooks of git.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
FORMS = sorted(
    path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"
)
USES = re.compile(r"uses: (\S+)(.*)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    return yaml.safe_load(read(".github/workflows/release.yml"))["jobs"]


def test_only_what_was_tested_is_published(jobs: dict[str, Any]) -> None:
    assert jobs["build"]["needs"] == "tests"
    assert jobs["test"]["needs"] == "build"
    assert jobs["publish"]["needs"] == ["build", "test"]
    for job in ("test", "publish"):  # the same files, which nobody builds again
        assert any("download-artifact" in step.get("uses", "") for step in jobs[job]["steps"])
        assert not any("release build" in step.get("run", "") for step in jobs[job]["steps"])


def test_the_wheels_of_every_package_are_tested_first(jobs: dict[str, Any]) -> None:
    install = next(
        step["run"] for step in jobs["test"]["steps"] if "pip install" in step.get("run", "")
    )
    named = set(re.findall(r"dist/(det_\w+)-", install))
    for each in jobs["test"]["strategy"]["matrix"]["include"]:
        named |= {wheel.partition("[")[0] for wheel in each["wheels"].split()}
        assert all((ROOT / file).exists() for file in each["suite"].split())
        assert all(f"det-{name}" in NAMES for name in each["packages"].split())
    wheels = {"det-core": "det_training_core"}
    assert sorted(named) == sorted(wheels.get(name, name.replace("-", "_")) for name in NAMES)


def test_publishing_needs_no_token_and_attests_what_it_publishes(jobs: dict[str, Any]) -> None:
    publish = jobs["publish"]
    assert publish["environment"] == "pypi"
    assert publish["permissions"] == {
        "contents": "read",
        "id-token": "write",
        "attestations": "write",
    }
    assert any("attest-build-provenance" in step["uses"] for step in publish["steps"])
    assert publish["steps"][-1]["with"] == {"attestations": True}
    assert "secrets." not in read(".github/workflows/release.yml")
    assert [jobs[job]["permissions"] for job in ("build", "test")] == [
        {"contents": "read"},
        {"contents": "read"},
    ]


def test_foreign_actions_are_pinned_to_commits() -> None:
    for action, comment in USES.findall(read(".github/workflows/release.yml")):
        if action.startswith("./"):
            # A workflow of this repository has no version of its own.
            continue
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action} does not say its version"


def test_commits_are_checked_by_the_ruff_that_the_noxfile_pins() -> None:
    [ruff] = re.findall(r'"ruff==([\d.]+)"', read("noxfile.py"))
    [repository] = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert repository["rev"] == f"v{ruff}"
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff-check", "ruff-format"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_asks_for_something_and_says_what(form: Path) -> None:
    asked = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert asked["name"]
    assert asked["description"]
    assert any(each.get("validations", {}).get("required") for each in asked["body"])
    assert len({each["id"] for each in asked["body"]}) == len(asked["body"])
    assert all(each["attributes"]["label"] for each in asked["body"])


@pytest.mark.parametrize("file", ["Dockerfile", ".devcontainer/devcontainer.json"])
def test_containers_install_packages_that_exist(file: str) -> None:
    text = read(file)
    named = {
        *re.findall(r"\./packages/(det-[a-z]+)", text),
        *re.findall(r'PLUGINS="([^"]*)"', text),
    }
    assert named
    assert {name for each in named for name in each.split()} <= set(NAMES)


def test_dev_container_builds_a_stage_of_the_dockerfile() -> None:
    build = json.loads(read(".devcontainer/devcontainer.json"))["build"]
    assert f" AS {build['target']}\n" in read("Dockerfile")
    assert (ROOT / ".devcontainer" / build["dockerfile"]).resolve() == ROOT / "Dockerfile"


def test_containers_have_a_python_that_the_packages_take() -> None:
    pythons = set(re.findall(r"^FROM python:([\d.]+)-slim", read("Dockerfile"), re.MULTILINE))
    classifiers = tomllib.loads(read("packages/det-torch/pyproject.toml"))["project"]["classifiers"]
    assert {f"Programming Language :: Python :: {python}" for python in pythons} <= set(classifiers)


def test_it_can_be_cited() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(citation)
    assert (
        citation["license"]
        == tomllib.loads(read("packages/det-core/pyproject.toml"))["project"]["license"]
    )


def test_what_is_said_to_be_excluded_is_excluded() -> None:
    needs = tomllib.loads(read("packages/det-lightning/pyproject.toml"))["project"]["dependencies"]
    named = re.findall(r"\d+\.\d+\.\d+", read("SECURITY.md").rpartition("`lightning`")[2])
    assert named == ["2.6.2", "2.6.3"]
    [lightning] = [need for need in needs if need.startswith("lightning")]
    assert all(f"!={version}" in lightning for version in named)
