"""What a configuration holds when little is said, and what reading it takes along."""

from __future__ import annotations

import subprocess
import sys

import pytest

from det_core.config import (
    Categorical,
    Const,
    Custom,
    Directory,
    Double,
    Int,
    Length,
    Log,
    LogPolicy,
    Pbt,
    Single,
    StorageConfig,
    from_json,
    to_json,
)
from det_core.errors import ConfigError
from det_driver.config import load

SMALL = {"entrypoint": "m:T", "searcher": {"name": "single", "metric": "loss", "max_length": 100}}


def test_defaults_are_those_of_the_reference() -> None:
    config = load(SMALL).config
    assert config.searcher == Single(metric="loss", max_length=Length("batches", 100))
    assert config.searcher.name == "single"
    assert (config.max_restarts, config.scheduling_unit, config.checkpoint_policy) == (
        5,
        100,
        "best",
    )
    assert config.min_validation_period == config.min_checkpoint_period == Length("batches", 0)
    assert config.checkpoint_storage is None
    assert config.name is None
    assert config.reproducibility.experiment_seed is None
    assert (config.resources.slots_per_trial, config.resources.max_slots) == (1, None)
    assert (
        config.optimizations.aggregation_frequency,
        config.optimizations.average_training_metrics,
    ) == (1, True)
    assert (config.optimizations.precision, config.optimizations.compile) == ("fp32", False)
    assert config.distributed.backend == "auto"
    assert [policy.name for policy in config.log_policies] == ["CUDA OOM", "ECC Error"]


def test_every_kind_of_hyperparameter_is_read() -> None:
    config = load("""
        entrypoint: m:T
        searcher: {name: single, metric: loss, max_length: 1}
        hyperparameters:
          type: top-level names may be anything
          bare: 0.1
          list: [1, two]
          nothing: null
          const: {type: const, val: {type: adam}}
          int: {type: int, minval: 1, maxval: 8, count: 3}
          double: {type: double, minval: 0, maxval: 1}
          log: {type: log, minval: -4, maxval: -1}
          categorical: {type: categorical, vals: [8, relu, null, [1]]}
          nested: {deep: {lr: 1e-3}, empty: {}}
        """).config
    assert config.hyperparameters == {
        "type": Const("top-level names may be anything"),
        "bare": Const(0.1),
        "list": Const([1, "two"]),
        "nothing": Const(None),
        "const": Const({"type": "adam"}),
        "int": Int(1, 8, 3),
        "double": Double(0.0, 1.0),
        "log": Log(-4.0, -1.0, 10.0),
        "categorical": Categorical((8, "relu", None, [1])),
        "nested": {"deep": {"lr": Const(0.001)}, "empty": {}},
    }
    assert isinstance(config.hyperparameters["double"].minval, float)


@pytest.mark.parametrize(
    ("written", "length"),
    [
        (5, Length("batches", 5)),
        (1e3, Length("batches", 1000)),
        ({"batches": 5}, Length("batches", 5)),
        ({"records": 640}, Length("records", 640)),
        ({"epochs": 3}, Length("epochs", 3)),
        ({"epochs": 3, "batches": None}, Length("epochs", 3)),
    ],
)
def test_lengths_are_batches_records_or_epochs(written: object, length: Length) -> None:
    config = load(SMALL | {"min_validation_period": written}).config
    assert config.min_validation_period == length


@pytest.mark.parametrize("entrypoint", ["python3 train.py", ["python3", "train.py"]])
def test_a_script_needs_no_length(entrypoint: object) -> None:
    config = load(
        {"entrypoint": entrypoint, "searcher": {"name": "single", "metric": "loss"}}
    ).config
    assert config.searcher == Single(metric="loss")
    assert config.entrypoint == (entrypoint if isinstance(entrypoint, str) else tuple(entrypoint))


def test_a_custom_searcher_keeps_its_own_keys() -> None:
    section = {
        "name": "custom",
        "metric": "loss",
        "entrypoint": "mine:Search",
        "budget": 3,
        "options": [1],
    }
    config = load(SMALL | {"searcher": section}).config
    assert config.searcher == Custom(
        metric="loss", entrypoint="mine:Search", options={"budget": 3, "options": [1]}
    )


def test_population_based_training_has_its_defaults() -> None:
    section = {
        "name": "pbt",
        "metric": "loss",
        "population_size": 4,
        "num_rounds": 2,
        "length_per_round": 10,
    }
    searcher = load(SMALL | {"searcher": section}).config.searcher
    assert isinstance(searcher, Pbt)
    assert searcher.replace_function.truncate_fraction == 0.2
    assert searcher.explore_function.perturb_factor == 0.2


def test_storage_is_told_by_its_type() -> None:
    config = load(
        SMALL | {"checkpoint_storage": {"type": "directory", "container_path": "/tmp/x"}}
    ).config
    assert config.checkpoint_storage == Directory(container_path="/tmp/x")
    assert config.checkpoint_storage.type == "directory"


def test_untyped_storage_section_keeps_its_settings() -> None:
    for section in ({"save_trial_latest": 3}, {"type": None, "save_trial_latest": 3}):
        config = load(SMALL | {"checkpoint_storage": section}).config
        assert config.checkpoint_storage == StorageConfig(save_trial_latest=3)
        assert config.checkpoint_storage.type is None
        assert from_json(to_json(config)) == config
    assert load(SMALL, overrides=["checkpoint_storage.save_trial_latest=3"]).config == config


def test_a_device_is_a_map_or_text() -> None:
    written = {"host_path": "/dev/a", "container_path": "/dev/b", "mode": "r"}
    devices = load(
        SMALL | {"resources": {"devices": ["/dev/a:/dev/b:r", written, "/dev/a:c"]}}
    ).config.resources.devices
    assert devices[0] == devices[1]
    assert (devices[2].container_path, devices[2].mode) == ("c", "mrw")


@pytest.mark.parametrize("inside", [None, "a/b", "/data/a"])
def test_a_storage_path_may_be_relative_or_below_the_directory(inside: str | None) -> None:
    storage = {"type": "shared_fs", "host_path": "/data", "storage_path": inside}
    assert (
        load(SMALL | {"checkpoint_storage": storage}).config.checkpoint_storage.storage_path
        == inside
    )


def test_one_image_and_one_list_of_variables_stand_for_all_slots() -> None:
    environment = load(
        SMALL | {"environment": {"image": "i", "environment_variables": ["A=1"]}}
    ).config.environment
    assert (environment.image.cpu, environment.image.rocm) == ("i", "i")
    assert environment.environment_variables.cuda == ("A=1",)


def test_a_log_policy_is_added_changed_or_switched_off_by_name() -> None:
    policies = load(
        SMALL
        | {
            "log_policies": [
                {"name": "CUDA OOM", "action": "cancel_retries"},
                {"name": "ECC Error", "pattern": None},
                {"name": "mine", "pattern": "boom", "action": "cancel_retries"},
            ]
        }
    ).config.log_policies
    assert policies == (
        LogPolicy(name="CUDA OOM", pattern=".*CUDA out of memory.*", action="cancel_retries"),
        LogPolicy(name="ECC Error", pattern=None),
        LogPolicy(name="mine", pattern="boom", action="cancel_retries"),
    )


def test_null_leaves_a_key_at_its_default() -> None:
    assert (
        load(SMALL | {"max_restarts": None, "resources": None, "labels": None}).config
        == load(SMALL).config
    )


def test_incomplete_config_may_lack_entrypoint_and_searcher() -> None:
    assert load({"hyperparameters": {"lr": 1}}, complete=False).config.searcher is None
    with pytest.raises(ConfigError, match=r"searcher\.metric is missing"):
        load({"searcher": {"name": "single"}}, complete=False)


@pytest.mark.process
def test_importing_takes_nothing_heavy_along() -> None:
    code = (
        "import sys\nfrom det_core.config import ExperimentConfig, from_json\nfrom"
        " det_driver.config import load\nprint(sorted({'torch', 'numpy', 'fsspec', 'rich', 'click',"
        " 'tensorflow', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            {"x": "\ud800"},
            "data.x is '\\ud800', with half a character (a surrogate); write it in full",
        ),
        (
            {"\ud800": 1},
            "the key '\\ud800' of data holds half a character (a surrogate); write it in full",
        ),
        ({"x": 10**400}, "data.x is a number of 1329 bits; give a number that fits in 64 bits"),
        (
            {"x": {1, 2}},
            "data.x is a Python set; give text, a number, true, false, null, a list or a map",
        ),
        ({1: "x"}, "the key 1 of data is not text; put it in quotes"),
        (
            {"x": "a\0b"},
            "data.x is 'a\\x00b', with the character 0, which no path or variable may have",
        ),
    ],
)
def test_a_mapping_may_hold_only_what_json_can(data: object, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(SMALL | {"data": data})
    assert refusal.value.problems == (problem,)


def test_a_mapping_that_holds_itself_is_refused() -> None:
    endless: dict[str, object] = {}
    endless["x"] = endless
    with pytest.raises(ConfigError, match=r"data\.x\.x is nested more than 64 deep; flatten it"):
        load(SMALL | {"data": endless})


def test_tuples_and_subclasses_of_plain_types_are_read_as_plain() -> None:
    class Text(str):
        pass

    config = load(SMALL | {"data": {"x": (1, (2,)), "y": Text("a")}}).config
    assert config.data == {"x": [1, [2]], "y": "a"}
    assert type(config.data["y"]) is str


def test_long_text_is_cut_short_in_an_error() -> None:
    with pytest.raises(ConfigError) as refusal:
        load(SMALL | {"checkpoint_policy": "x" * 500})
    assert refusal.value.problems == (
        f"checkpoint_policy is '{'x' * 60}…'; give one of best, all, none",
    )


def test_a_mapping_may_have_a_name_for_errors() -> None:
    with pytest.raises(ConfigError) as refusal:
        load(SMALL | {"debug": 1, "data": {"x": {1}}}, name="notebook")
    assert refusal.value.problems == (
        "notebook: data.x is a Python set; give text, a number, true, false, null, a list or a map",
        "notebook: debug is 1; give true or false",
    )
