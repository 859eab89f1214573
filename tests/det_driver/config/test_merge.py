"""A template lies under a person's file, and each kind of value merges in its own way."""

from __future__ import annotations

from pathlib import Path

import pytest

from det_core.config import S3, Extensions, Length, Random
from det_core.errors import ConfigError
from det_driver.config import load
from det_driver.config._layers import merge

SOUND = "entrypoint: m:T\nsearcher: {name: single, metric: loss, max_length: 1}\n"


@pytest.mark.parametrize(
    ("template", "user", "merged"),
    [
        pytest.param({"name": "a"}, {"name": "b"}, {"name": "b"}, id="the user wins"),
        pytest.param({"name": "a"}, {"name": None}, {"name": "a"}, id="null is no value"),
        pytest.param(
            {"name": None}, {"name": "b"}, {"name": "b"}, id="null in the template neither"
        ),
        pytest.param(
            {"resources": {"max_slots": 2, "slots_per_trial": 2}},
            {"resources": {"slots_per_trial": 4}},
            {"resources": {"max_slots": 2, "slots_per_trial": 4}},
            id="sections merge key by key",
        ),
        pytest.param(
            {"data": {"a": {"x": 1, "y": [1]}, "b": 1}},
            {"data": {"a": {"x": None, "y": [2]}}},
            {"data": {"a": {"x": None, "y": [2]}, "b": 1}},
            id="data merges at any depth, its lists are replaced and its nulls are values",
        ),
        pytest.param(
            {"labels": ["a", "b"]},
            {"labels": ["c", "a"]},
            {"labels": ["b", "c", "a"]},
            id="labels are joined",
        ),
        pytest.param(
            {
                "bind_mounts": [
                    {"host_path": "/a", "container_path": "x"},
                    {"host_path": "/b", "container_path": "y"},
                ]
            },
            {"bind_mounts": [{"host_path": "/c", "container_path": "x"}]},
            {
                "bind_mounts": [
                    {"host_path": "/b", "container_path": "y"},
                    {"host_path": "/c", "container_path": "x"},
                ]
            },
            id="bind mounts are joined by container path",
        ),
        pytest.param(
            {"resources": {"devices": [{"host_path": "/a", "container_path": "x"}]}},
            {"resources": {"devices": [{"host_path": "/c", "container_path": "y"}]}},
            {
                "resources": {
                    "devices": [
                        {"host_path": "/a", "container_path": "x"},
                        {"host_path": "/c", "container_path": "y"},
                    ]
                }
            },
            id="devices are joined",
        ),
        pytest.param(
            {"resources": {"devices": ["/a:x", {"host_path": "/b", "container_path": "y"}]}},
            {"resources": {"devices": ["/c:y:r"]}},
            {"resources": {"devices": ["/a:x", "/c:y:r"]}},
            id="devices that are text, too",
        ),
        pytest.param(
            {"checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 2}},
            {"checkpoint_storage": {"save_trial_best": 3}},
            {"checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 3}},
            id="a storage without a type is the template's",
        ),
        pytest.param(
            {"environment": {"environment_variables": ["A", "B"]}},
            {"environment": {"environment_variables": {"cuda": ["A=2"]}}},
            {
                "environment": {
                    "environment_variables": {
                        "cpu": ["A", "B"],
                        "cuda": ["A", "B", "A=2"],
                        "rocm": ["A", "B"],
                    }
                }
            },
            id="environment variables are joined, for each kind of slot, the user's last",
        ),
        pytest.param(
            {"environment": {"image": "base"}},
            {"environment": {"image": {"cuda": "mine"}}},
            {"environment": {"image": {"cpu": "base", "cuda": "mine", "rocm": "base"}}},
            id="images merge by kind of slot",
        ),
        pytest.param(
            {"environment": {"proxy_ports": [{"proxy_port": 1}], "add_capabilities": ["A"]}},
            {"environment": {"proxy_ports": [{"proxy_port": 2}], "add_capabilities": ["B"]}},
            {
                "environment": {
                    "proxy_ports": [{"proxy_port": 1}, {"proxy_port": 2}],
                    "add_capabilities": ["B"],
                }
            },
            id="proxy ports are joined, other lists replaced",
        ),
        pytest.param(
            {"log_policies": [{"name": "a", "pattern": "x"}, {"name": "b", "pattern": "y"}]},
            {
                "log_policies": [
                    {"name": "a", "action": "cancel_retries"},
                    {"name": "c", "pattern": "z"},
                ]
            },
            {
                "log_policies": [
                    {"name": "b", "pattern": "y"},
                    {"name": "a", "pattern": "x", "action": "cancel_retries"},
                    {"name": "c", "pattern": "z"},
                ]
            },
            id="log policies merge by name",
        ),
        pytest.param(
            {"checkpoint_storage": {"type": "s3", "bucket": "b", "save_trial_best": 3}},
            {"checkpoint_storage": {"type": "gcs", "bucket": "c"}},
            {"checkpoint_storage": {"type": "gcs", "bucket": "c", "save_trial_best": 3}},
            id="of another type of storage only what all types share is taken",
        ),
        pytest.param(
            {"checkpoint_storage": {"type": "s3", "bucket": "b", "prefix": "p"}},
            {"checkpoint_storage": {"save_trial_best": 3, "prefix": "q"}},
            {
                "checkpoint_storage": {
                    "type": "s3",
                    "bucket": "b",
                    "prefix": "q",
                    "save_trial_best": 3,
                }
            },
            id="a storage without a type takes the template's",
        ),
        pytest.param(
            {
                "searcher": {
                    "name": "random",
                    "metric": "loss",
                    "max_trials": 3,
                    "max_length": {"epochs": 3},
                }
            },
            {"searcher": {"name": "single", "max_length": 5}},
            {"searcher": {"name": "single", "metric": "loss", "max_length": 5}},
            id="searchers likewise",
        ),
        pytest.param(
            {"searcher": {"name": "single", "max_length": {"epochs": 3}}},
            {"searcher": {"name": "single", "max_length": {"batches": 5}}},
            {"searcher": {"name": "single", "max_length": {"batches": 5}}},
            id="lengths are replaced whole",
        ),
        pytest.param(
            {
                "hyperparameters": {
                    "lr": {"type": "log", "minval": -3, "maxval": -1},
                    "opt": {"a": 1, "b": 2},
                }
            },
            {
                "hyperparameters": {
                    "lr": {"type": "double", "minval": 0},
                    "opt": {"b": {"type": "const", "val": 3}},
                }
            },
            {
                "hyperparameters": {
                    "lr": {"type": "double", "minval": 0},
                    "opt": {"a": 1, "b": {"type": "const", "val": 3}},
                }
            },
            id="hyperparameters are replaced whole unless both are nested",
        ),
        pytest.param(
            {
                "searcher": {"name": "nope", "metric": "a"},
                "wibble": 1,
                "resources": 3,
                "plugins": {"a": 1, "b": {}},
            },
            {"searcher": 5, "resources": {"max_slots": 1}, "plugins": {"a": {}, "b": {"x": 1}}},
            {
                "searcher": 5,
                "wibble": 1,
                "resources": {"max_slots": 1},
                "plugins": {"a": {}, "b": {"x": 1}},
            },
            id="what is wrong is kept, to be reported when it is read",
        ),
    ],
)
def test_values_merge_by_their_kind(template: dict, user: dict, merged: dict) -> None:
    assert merge(template, user, Extensions()) == merged


def test_merging_puts_old_spellings_right_first() -> None:
    template = {"environment": {"image": {"gpu": "a"}}}
    config = load(SOUND + "environment: {image: {cuda: b}}\n", template=template).config
    assert config.environment.image.cuda == "b"


def test_what_is_no_map_cannot_be_merged() -> None:
    with pytest.raises(ConfigError, match="the configuration is a list; give a map"):
        load([1], template={})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="template: the key 1 is not text"):
        load(SOUND, template={1: 2})  # type: ignore[dict-item]


def test_a_template_completes_a_file(tmp_path: Path) -> None:
    template = tmp_path / "team.yaml"
    template.write_text(
        "searcher: {metric: loss, max_length: {epochs: 2}}\ncheckpoint_storage: {type: s3, bucket:"
        " b}\n"
    )
    config = load(
        "entrypoint: m:T\nsearcher: {name: random, max_trials: 3}\n", template=template
    ).config
    assert config.searcher == Random(metric="loss", max_trials=3, max_length=Length("epochs", 2))
    assert config.checkpoint_storage == S3(bucket="b")


def test_a_template_of_another_searcher_gives_what_all_share() -> None:
    template = {"searcher": {"name": "single", "metric": "loss", "max_length": {"epochs": 2}}}
    config = load(
        "entrypoint: x.py\nsearcher: {name: random, max_trials: 3}\n", template=template
    ).config
    assert config.searcher == Random(metric="loss", max_trials=3)


def test_errors_in_template_and_file_are_reported_once_together(tmp_path: Path) -> None:
    template = tmp_path / "team.yaml"
    template.write_text("max_restarts: -1\nbind_mounts:\n- {host_path: a, container_path: x}\n")
    user = (
        "entrypoint: m:T\nbind_mounts:\n- {host_path: b, container_path: y}\nsearcher: {name:"
        " single, metric: loss}\n"
    )
    with pytest.raises(ConfigError) as refusal:
        load(user, template=template, name="const.yaml", overrides=["scheduling_unit=0"])
    assert refusal.value.problems == (
        f"{template}:1:15: max_restarts is -1; give a whole number, 0 or more",
        f"{template}:3:15: bind_mounts[0].host_path is 'a'; give an absolute path",
        "--config scheduling_unit: scheduling_unit is 0; give a whole number, 1 or more",
        "const.yaml:3:15: bind_mounts[0].host_path is 'b'; give an absolute path",
        (
            "const.yaml:4:1: searcher.max_length is missing; say how long m:T trains, such as"
            " {epochs: 3}"
        ),
    )


def test_missing_key_of_a_template_section_points_at_the_section(tmp_path: Path) -> None:
    template = tmp_path / "team.yaml"
    template.write_text("checkpoint_storage:\n  type: s3\n")
    with pytest.raises(ConfigError) as refusal:
        load(SOUND, template=template, name="const.yaml")
    assert refusal.value.problems == (
        f"{template}:1:1: checkpoint_storage.bucket is missing; name the bucket",
    )
