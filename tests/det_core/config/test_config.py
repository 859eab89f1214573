"""The structs, and reading a mapping where no driver is."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

import det_core.config
from det_core.config import (
    ExperimentConfig,
    Extensions,
    Length,
    LogPolicy,
    Notice,
    Single,
    from_json,
    is_trial_entrypoint,
    parse,
    to_json,
)
from det_core.errors import ConfigError

SMALL = {"entrypoint": "m:T", "searcher": {"name": "single", "metric": "loss", "max_length": 100}}


def test_a_configuration_cannot_be_changed() -> None:
    config = parse(SMALL).config
    with pytest.raises(AttributeError, match="immutable"):
        config.name = "other"  # type: ignore[misc]
    assert msgspec.structs.replace(config, name="other").name == "other"


def test_a_length_says_itself_in_words() -> None:
    assert str(Length("epochs", 3)) == "3 epochs"


@pytest.mark.parametrize("entrypoint", ["m:T", "model_def:Outer.Inner", "a.b_c:T1"])
def test_a_module_and_a_class_are_a_trial(entrypoint: str) -> None:
    assert is_trial_entrypoint(entrypoint)


@pytest.mark.parametrize(
    "entrypoint", [None, "python3 train.py", "train.py", "m:", ":T", "a:b:c", "a b:C", ["m:T"]]
)
def test_anything_else_is_a_command(entrypoint: object) -> None:
    assert not is_trial_entrypoint(entrypoint)  # type: ignore[arg-type]


def test_the_public_names_are_those_that_are_there_in_order() -> None:
    names = det_core.config.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))
    assert all(hasattr(det_core.config, name) for name in names)


@pytest.mark.process
def test_importing_takes_nothing_heavy_along() -> None:
    code = (
        "import sys, det_core.config\nprint(sorted({'torch', 'numpy', 'fsspec', 'rich', 'click',"
        " 'det_driver', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.process
def test_importing_is_quick() -> None:
    """The best of three.

    The budget is 60 ms of processor time for the package itself, without msgspec.
    """
    code = (
        "import time, typing, msgspec, det_core.errors\n"
        "begun = time.process_time()\n"
        "import det_core.config\n"
        "print(time.process_time() - begun)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    assert min(float(run.stdout) for run in runs) < 0.060


def test_mapping_may_omit_all_required_settings() -> None:
    assert parse({}).config == ExperimentConfig()
    assert parse(
        {"entrypoint": "m:T", "searcher": None, "labels": None}
    ).config == ExperimentConfig(entrypoint="m:T")


def test_all_mistakes_in_a_mapping_are_reported_together() -> None:
    wrong = {
        "max_restart": 1,
        "labels": ["a", 1],
        "searcher": {
            "name": "random",
            "metric": "loss",
            "max_trials": 0,
            "max_length": {"epochs": 0},
        },
        "checkpoint_storage": {"type": "s3", "secret_key": 5},
        "min_validation_period": {"batches": 1, "epochs": 1},
        "plugins": {"nope": {}},
        "environment": {"ports": {"a": 70000}, "image": 3},
        "resources": 4,
    }
    with pytest.raises(ConfigError) as refusal:
        parse(wrong, name="exp_conf")
    assert refusal.value.problems == (
        "exp_conf: unknown key 'max_restart'",
        "exp_conf: labels[1] is 1; Expected `str`, got `int`",
        "exp_conf: searcher.max_trials is 0; Expected `int` >= 1",
        "exp_conf: searcher.max_length.epochs is 0; give a number of epochs, 1 or more",
        "exp_conf: checkpoint_storage.bucket is missing",
        (
            "exp_conf: checkpoint_storage.secret_key is not what it takes; Expected `str | null`,"
            " got `int`"
        ),
        (
            "exp_conf: min_validation_period has batches and epochs; give exactly one of batches,"
            " records or epochs"
        ),
        "exp_conf: resources is 4; Expected `object`, got `int`",
        "exp_conf: environment.image is 3; Expected `str | null`, got `int`",
        "exp_conf: environment.ports.a is 70000; Expected `int` <= 65535",
        "exp_conf: no installed plugin takes settings as 'nope'",
    )


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        ([1], "the configuration is a list; give a map"),
        (
            {"data": {"x": {1}}},
            "the configuration is not plain data: Object of type set is not JSON serializable",
        ),
        (
            {"data": {"x": float("nan")}},
            "the configuration is not plain data: Out of range float values",
        ),
    ],
)
def test_what_is_no_plain_map_is_refused(mapping: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse(mapping)
    assert str(refusal.value).startswith(problem)


def test_what_has_no_effect_is_named_in_a_notice() -> None:
    message = "accepted, but without effect in det: workspace, resources.resource_pool"
    notices = parse(SMALL | {"workspace": "w", "resources": {"resource_pool": "p"}}).notices
    assert notices == (Notice(message, ("workspace", "resources.resource_pool")),)


def test_a_mapping_is_read_by_kind() -> None:
    config = parse(
        {
            "searcher": {"name": "single", "metric": "loss", "max_length": {"epochs": 2}},
            "log_policies": [{"name": "CUDA OOM", "action": "cancel_retries"}],
            "environment": {"environment_variables": ["A=1"]},
        }
    ).config
    assert config.searcher == Single(metric="loss", max_length=Length("epochs", 2))
    assert config.log_policies[0] == LogPolicy(
        name="CUDA OOM", pattern=".*CUDA out of memory.*", action="cancel_retries"
    )
    assert config.environment.environment_variables.cpu == ("A=1",)


def test_stored_configuration_loads_without_its_plugins() -> None:
    config = parse(SMALL).config
    assert from_json(to_json(config)) == config
    stored = to_json(config).replace('"single"', '"tpe"')
    assert from_json(stored).searcher.name == "tpe"
    with pytest.raises(
        ConfigError, match=r"searcher\.name is 'tpe'; no such name; known: adaptive_asha, "
    ):
        from_json(stored, extensions=Extensions())


def test_stored_half_of_a_character_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^the stored configuration .*surrogates not allowed"):
        from_json(to_json(parse(SMALL).config).replace('"single"', '"\\ud800"'))
