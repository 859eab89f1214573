"""What a user prefers is below what a configuration says, and above the defaults of the home."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from det_core.config import Extensions
from det_core.errors import ConfigError
from det_driver.config import Preferences, load

SMALL: dict[str, Any] = {
    "entrypoint": "model_def:Trial",
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 4}},
}


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an engine."""

    account: str | None = None
    partition: str | None = None
    nice: int | None = None


class Pods(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an engine that needs one of them."""

    image: str
    queue: str | None = None


EXTENSIONS = Extensions(engines={"slurm": lambda: Cluster, "kubernetes": lambda: Pods})
OF_ANN = Preferences(
    "ann",
    {
        "slurm.account": "vision",
        "slurm.nice": "100",
        "slurm.partition": "gpu",
        "kubernetes.queue": "team-a",
        "resources.priority": "60",
    },
)


def read(config: Mapping[str, Any], **more: Any) -> Any:
    given = {"preferences": OF_ANN, "extensions": EXTENSIONS, **more}
    return load(SMALL | config, **given).config


def test_a_configuration_need_not_repeat_what_a_user_prefers() -> None:
    engine = read({"engine": {"name": "slurm"}}).engine
    assert (engine.account, engine.partition, engine.nice) == ("vision", "gpu", 100)
    assert read({}).resources.priority == 60
    assert read({}).engine is None


def test_only_preferences_of_the_chosen_engine_count() -> None:
    engine = read({"engine": {"name": "kubernetes", "image": "det:cpu"}}).engine
    assert (engine.image, engine.queue) == ("det:cpu", "team-a")
    other = Preferences("ann", {"slurm.account": "vision"})
    engine = read({"engine": {"name": "kubernetes", "image": "x"}}, preferences=other).engine
    assert engine.queue is None


def test_a_setting_that_an_engine_needs_may_be_preferred() -> None:
    own = Preferences("ann", {"kubernetes.image": "det:cuda"})
    assert read({"engine": {"name": "kubernetes"}}, preferences=own).engine.image == "det:cuda"


def test_what_a_configuration_says_wins(tmp_path: Path) -> None:
    home = tmp_path / "config.yaml"
    home.write_text("engine: {name: slurm, account: all, partition: cpu}\nresources: {weight: 2}\n")
    found = read({"engine": {"name": "slurm", "partition": "short"}}, defaults=home)
    assert (found.engine.partition, found.engine.account) == ("short", "vision")
    assert (found.resources.priority, found.resources.weight) == (60, 2)
    template = {"engine": {"name": "slurm", "account": "theirs"}}
    found = read({}, template=template, defaults=home)
    assert (found.engine.account, found.engine.partition) == ("theirs", "gpu")
    assert read({}, template={"resources": {"priority": 3}}).resources.priority == 3
    assert read({}, overrides=["engine.nice=5"], defaults=home).engine.nice == 5
    # The home chooses the engine here.
    assert read({}, defaults=home).engine.account == "vision"


def test_a_pool_in_the_words_of_determined_wins_too() -> None:
    said = {"resources": {"resource_pool": "old", "priority": 7}}
    engine = read({"engine": {"name": "slurm"}, **said}).engine
    assert (engine.partition, engine.nice, engine.account) == ("old", 7, "vision")
    engine = read({"engine": {"name": "slurm"}}, template=said).engine
    assert (engine.partition, engine.nice) == ("old", 7)


def test_an_engine_of_the_command_has_its_preferences() -> None:
    assert read({}, engine="slurm").engine.account == "vision"
    assert (
        read({"engine": {"name": "slurm"}}, engine="local").engine.__struct_config__.tag == "local"
    )


def test_it_is_known_which_settings_were_written() -> None:
    given = {
        "engine": {"name": "slurm", "account": None, "nice": 5},
        "resources": {"weight": 1, "resource_pool": "old", "slots_per_trial": 2},
    }
    overrides = ["resources.max_slots=3"]
    found = load(SMALL | given, preferences=OF_ANN, extensions=EXTENSIONS, overrides=overrides)
    assert {*found.written} == {
        *("engine.nice", "engine.partition", "resources.weight", "resources.max_slots")
    }
    template = {"resources": {"priority": 7}}
    found = load(SMALL, template=template, defaults={"resources": {"weight": 2}})
    assert found.written == ("resources.priority",)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("slrm.account", "x", "slrm.account: give resources, kubernetes, local, slurm"),
        ("slurm", "x", "slurm: give resources,"),
        ("account", "x", "account: give resources,"),
        ("slurm.acount", "x", "the default slurm.acount of ann: "),
        ("slurm.nice", "much", "the default slurm.nice of ann: "),
        ("resources.priority", "100", "the default resources.priority of ann: "),
        ("resources.slots_per_trial", "8", "resources.slots_per_trial: users have defaults for"),
        ("searcher.name", "random", "searcher.name: give resources,"),
    ],
)
def test_a_preference_that_cannot_be_is_refused(key: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Preferences("ann", {key: value}).check(EXTENSIONS)
    (said,) = refused.value.problems
    assert said.startswith(problem), said


def test_possible_preferences_are_checked_without_a_word() -> None:
    OF_ANN.check(EXTENSIONS)
    Preferences("ann", {}).check(EXTENSIONS)


def test_a_preference_that_has_become_wrong_is_named() -> None:
    wrong = Preferences("ann", {"slurm.nice": "much"})
    with pytest.raises(ConfigError) as refused:
        read({"engine": {"name": "slurm"}}, preferences=wrong)
    assert "the default slurm.nice of ann: " in str(refused.value)
