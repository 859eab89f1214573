"""`--config key.path=value` changes one key."""

from __future__ import annotations

from typing import Any

import pytest

from det_core.config import Const, Extensions
from det_core.errors import ConfigError
from det_driver.config import load
from det_driver.config._layers import override
from det_driver.config._source import from_mapping

SOUND = "entrypoint: m:T\nsearcher: {name: single, metric: loss, max_length: 1}\n"


def overridden(raw: dict[str, Any], options: list[str]) -> dict[str, Any]:
    """Return what the options make of `raw`, before it is read."""
    source, _ = from_mapping(raw)
    if problems := override(source, options, Extensions()):
        raise ConfigError(*problems)
    return source.data


@pytest.mark.parametrize(
    ("option", "changed"),
    [
        ("max_restarts=3", {"max_restarts": 3}),
        ("hyperparameters.lr=1e-3", {"hyperparameters": {"lr": 0.001}}),
        ("hyperparameters.a.b.c=true", {"hyperparameters": {"a": {"b": {"c": True}}}}),
        ("hyperparameters.relu=relu", {"hyperparameters": {"relu": "relu"}}),
        ("hyperparameters.layers=8,16,relu", {"hyperparameters": {"layers": [8, 16, "relu"]}}),
        ("hyperparameters.quoted='1,2'", {"hyperparameters": {"quoted": "1,2"}}),
        ("labels=a,b", {"labels": ["a", "b"]}),
        ("labels=[a]", {"labels": ["a"]}),
        ("labels=a", {"labels": ["a"]}),
        ("labels=1, 2", {"labels": ["1", "2"]}),
        ("labels=null", {"labels": None}),
        ("distributed.hosts=a:2", {"distributed": {"hosts": ["a:2"]}}),
        (
            "environment.environment_variables=A=1",
            {"environment": {"environment_variables": ["A=1"]}},
        ),
        ("integrations.webhooks.webhook_id=3", {"integrations": {"webhooks": {"webhook_id": [3]}}}),
        ('searcher={"name": "grid", "metric": "x"}', {"searcher": {"name": "grid", "metric": "x"}}),
        ("data.path=s3://a?b=c", {"data": {"path": "s3://a?b=c"}}),
        ("data.empty=", {"data": {"empty": None}}),
        ("data.none=null", {"data": {"none": None}}),
        ("data.note=a: b", {"data": {"note": "a: b"}}),
        ("name=123", {"name": "123"}),
        ("description=Fast, cheap and good", {"description": "Fast, cheap and good"}),
        ("description='Fast, cheap'", {"description": "Fast, cheap"}),
        ("description=null", {"description": None}),
        ("entrypoint=python3 train.py --sizes 1,2", {"entrypoint": "python3 train.py --sizes 1,2"}),
        ("searcher.metric=7", {"searcher": {"metric": "7"}}),
        (" max_restarts = 3 ", {"max_restarts": 3}),
    ],
)
def test_a_value_is_yaml_json_or_a_list_with_commas(option: str, changed: dict) -> None:
    assert overridden({}, [option]) == changed


def test_the_last_one_wins_and_the_original_is_left_alone() -> None:
    raw = {"searcher": {"name": "single", "max_length": {"epochs": 3}}}
    changed = overridden(
        raw, ["searcher.max_length.epochs=4", "searcher.max_length=5", "searcher.name=grid"]
    )
    assert changed == {"searcher": {"name": "grid", "max_length": 5}}
    assert raw == {"searcher": {"name": "single", "max_length": {"epochs": 3}}}


def test_a_number_in_the_path_points_into_a_list() -> None:
    raw = {"bind_mounts": [{"host_path": "/a"}, {"host_path": "/b"}]}
    assert overridden(raw, ["bind_mounts.1.host_path=/c"])["bind_mounts"][1] == {"host_path": "/c"}


def test_a_type_that_a_searcher_gives_is_known() -> None:
    raw = {"searcher": {"name": "adaptive_asha"}}
    changed = overridden(raw, ["searcher.time_metric=12", "searcher.bracket_rungs=3"])
    assert changed["searcher"] == {
        "name": "adaptive_asha",
        "time_metric": "12",
        "bracket_rungs": [3],
    }


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("max_restarts", "--config 'max_restarts': give key.path=value"),
        ("=3", "--config '': give key.path=value"),
        ("a..b=3", "--config 'a..b': give key.path=value"),
        (
            "name.first=3",
            "--config name.first: name is 'x', which holds no 'first'; set name itself",
        ),
        (
            "labels.5=a",
            "--config labels.5: labels is a list of 1; give a number below that, not '5'",
        ),
        (
            "labels.last=a",
            "--config labels.last: labels is a list of 1; give a number below that, not 'last'",
        ),
        ("data.x=.nan", "--config data.x: data.x is nan; give a finite number"),
        ("data.x=1,.inf", "--config data.x: data.x[1] is inf; give a finite number"),
        ("data.x={1: 2}", "--config data.x: the key 1 is not text; put it in quotes"),
    ],
)
def test_a_bad_option_is_named(option: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        overridden({"name": "x", "labels": ["a"]}, [option])
    assert refusal.value.problems == (problem,)


def test_an_option_that_is_a_hyperparameter_names_its_place() -> None:
    with pytest.raises(ConfigError) as refusal:
        overridden({"hyperparameters": {"lr": 0.1, "name": "x"}}, ["lr=0.2", "name=y"])
    (problem,) = refusal.value.problems
    assert problem == "--config lr: unknown key; did you mean hyperparameters.lr?"


def test_an_option_that_is_not_yaml_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--config data\.x:\d+:\d+: not valid YAML"):
        overridden({}, ["data.x=[1, "])


def test_bad_options_are_reported_together_with_file_errors() -> None:
    with pytest.raises(ConfigError) as refusal:
        load(
            SOUND + "debug: 1\n",
            name="c.yaml",
            overrides=["nope", "searcher.max_length=-5", "sercher.x=1"],
        )
    assert refusal.value.problems == (
        "--config 'nope': give key.path=value",
        "--config sercher.x: unknown key 'sercher'; did you mean 'searcher'?",
        (
            "--config searcher.max_length: searcher.max_length is -5; give a positive number of"
            " batches"
        ),
        "c.yaml:3:8: debug is 1; give true or false",
    )


def test_a_secret_is_not_repeated() -> None:
    option = 'checkpoint_storage={"type": "s3", "bucket": "b", "secret_key": 12345}'
    with pytest.raises(ConfigError) as refusal:
        load(SOUND, overrides=[option])
    assert "12345" not in str(refusal.value)


def test_a_constant_takes_the_place_of_a_range() -> None:
    text = SOUND + "hyperparameters: {lr: {type: log, minval: -3, maxval: -1}}\n"
    assert load(text, overrides=["hyperparameters.lr=0.1"]).config.hyperparameters == {
        "lr": Const(0.1)
    }
