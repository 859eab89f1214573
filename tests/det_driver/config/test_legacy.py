"""Old spellings are read with a notice, and what cannot be honoured is named."""

from __future__ import annotations

import msgspec
import pytest

from det_core.config import AdaptiveAsha, Extensions, Length, Notice, Pbt, SharedFs, Single
from det_core.errors import ConfigError
from det_driver.config import load
from det_driver.search import make, simulate

SMALL = {"entrypoint": "m:T", "searcher": {"name": "single", "metric": "loss", "max_length": 100}}


def test_steps_are_read_as_batches() -> None:
    loaded = load(
        {"entrypoint": "m:T", "searcher": {"name": "single", "metric": "loss", "max_steps": 3}}
    )
    assert loaded.config.searcher == Single(metric="loss", max_length=Length("batches", 300))
    message = "old spellings, read as today's: searcher.max_steps as searcher.max_length"
    assert loaded.notices == (Notice(message, ("searcher.max_steps",)),)
    assert str(loaded.notices[0]) == message


def test_steps_are_as_long_as_the_file_says() -> None:
    section = {"name": "adaptive_asha", "metric": "loss", "max_trials": 4, "target_trial_steps": 8}
    loaded = load({"entrypoint": "m:T", "batches_per_step": 10, "searcher": section})
    assert isinstance(loaded.config.searcher, AdaptiveAsha)
    assert loaded.config.searcher.max_length == Length("batches", 80)
    assert loaded.config.scheduling_unit == 10
    assert loaded.notices[0].keys == ("searcher.target_trial_steps", "batches_per_step")


def test_periods_beside_steps_are_steps_too() -> None:
    periods = {
        "min_validation_period": 2,
        "min_checkpoint_period": {"epochs": 1},
        "batches_per_step": 10,
    }
    loaded = load(
        {"entrypoint": "m:T", "searcher": {"name": "single", "metric": "loss", "max_steps": 3}}
        | periods
    )
    assert loaded.config.min_validation_period == Length("batches", 20)
    assert loaded.config.min_checkpoint_period == Length("epochs", 1)
    assert "min_validation_period: 2 as 20 batches" in loaded.notices[0].message
    del periods["batches_per_step"]  # a step was a hundred batches then
    periods["min_checkpoint_period"] = 3
    loaded = load(
        {"entrypoint": "m:T", "searcher": {"name": "single", "metric": "loss", "max_steps": 3}}
        | periods
    )
    assert loaded.config.min_validation_period == Length("batches", 200)
    assert loaded.config.min_checkpoint_period == Length("batches", 300)
    assert load(SMALL | {"min_validation_period": 2}).config.min_validation_period == Length(
        "batches", 2
    )


OLD_SEARCH = """\
entrypoint: m:T
hyperparameters: {{lr: {{type: log, minval: -3, maxval: -1}}}}
searcher: {{name: {name}, metric: loss, max_length: {{batches: 256}}, {more}}}
"""


@pytest.mark.parametrize(
    ("name", "more", "trials", "said"),
    [
        ("adaptive_simple", "max_trials: 16", 16, ()),
        (
            "adaptive",
            "budget: {batches: 2560}, train_stragglers: false",
            297,
            (
                "searcher.train_stragglers as nothing",
                "c.yaml:3:78: searcher.budget: {'batches': 2560} as max_trials: 297",
            ),
        ),
    ],
)
def test_obsolete_searchers_are_read_as_adaptive_asha(
    name: str, more: str, trials: int, said: tuple[str, ...]
) -> None:
    loaded = load(OLD_SEARCH.format(name=name, more=more), name="c.yaml")
    assert loaded.config.searcher == AdaptiveAsha(
        metric="loss", max_trials=trials, max_length=Length("batches", 256)
    )
    (notice,) = loaded.notices
    assert f"c.yaml:3:18: searcher.name: {name} as adaptive_asha" in notice.message
    assert all(words in notice.message for words in said)


@pytest.mark.parametrize(
    "more", ["mode: aggressive", "mode: conservative", "divisor: 3", "bracket_rungs: [4, 1]"]
)
def test_a_budget_buys_as_many_trials_as_train_for_it(more: str) -> None:
    budget = 20_000
    loaded = load(
        OLD_SEARCH.format(name="adaptive", more=f"budget: {budget}, {more}"), name="c.yaml"
    )
    assert isinstance(loaded.config.searcher, AdaptiveAsha)
    units = simulate(make(loaded.config.searcher, loaded.config.hyperparameters, seed=1)).units
    assert 0.7 * budget < units < 1.4 * budget  # promoting as results come in trains somewhat more


@pytest.mark.parametrize(
    "more", ["", "budget: {epochs: 3}", "budget: many", "budget: 10, divisor: {}", "budget: [1]"]
)
def test_old_search_without_a_number_of_trials_is_refused(more: str) -> None:
    with pytest.raises(ConfigError, match=r"searcher\.max_trials is missing"):
        load(OLD_SEARCH.format(name="adaptive", more=more), name="c.yaml")


def test_rounds_of_steps_are_read_as_batches() -> None:
    section = {
        "name": "pbt",
        "metric": "loss",
        "population_size": 2,
        "num_rounds": 2,
        "steps_per_round": 2,
    }
    searcher = load(SMALL | {"searcher": section}).config.searcher
    assert isinstance(searcher, Pbt)
    assert searcher.length_per_round == Length("batches", 200)


def test_gpu_is_read_as_cuda() -> None:
    environment = {"image": {"gpu": "i"}, "environment_variables": {"gpu": ["A=1"]}}
    loaded = load(SMALL | {"environment": environment})
    assert loaded.config.environment.image.cuda == "i"
    assert loaded.config.environment.environment_variables.cuda == ("A=1",)
    assert "environment.image.gpu as environment.image.cuda" in loaded.notices[0].message


def test_an_action_with_a_type_is_read_as_text() -> None:
    loaded = load(
        SMALL | {"log_policies": [{"pattern": "x", "action": {"type": "cancel_retries"}}]}
    )
    assert loaded.config.log_policies[-1].action == "cancel_retries"
    assert loaded.notices[0].keys == ("log_policies[0].action.type",)


def test_a_checkpoint_path_is_read_as_the_storage_path() -> None:
    storage = {"type": "shared_fs", "host_path": "/a", "checkpoint_path": "b"}
    loaded = load(SMALL | {"checkpoint_storage": storage})
    assert loaded.config.checkpoint_storage == SharedFs(host_path="/a", storage_path="b")
    assert loaded.notices[0].keys == ("checkpoint_storage.checkpoint_path",)


def test_error_in_an_old_key_points_at_where_it_is_written() -> None:
    with pytest.raises(ConfigError) as refusal:
        load(
            "entrypoint: m:T\nsearcher:\n  name: single\n  metric: loss\n  max_steps: many\n",
            name="c.yaml",
        )
    assert refusal.value.problems == (
        (
            "c.yaml:5:14: searcher.max_length is 'many'; give a number of batches, {batches: n},"
            " {records: n} or {epochs: n}"
        ),
    )


def test_all_cluster_only_settings_are_named_in_one_notice() -> None:
    loaded = load(
        SMALL
        | {
            "workspace": "w",
            "project": "p",
            "bind_mounts": [{"host_path": "/a", "container_path": "b"}],
            "resources": {
                "resource_pool": "pool",
                "priority": 3,
                "slots_per_trial": 2,
                "agent_label": "x",
            },
            "environment": {
                "image": "i",
                "force_pull_image": True,
                "environment_variables": ["A=1"],
            },
            "retention_policy": {"log_retention_days": 3},
            "integrations": {"webhooks": {"webhook_id": [1]}},
            "slurm": {"gpu_type": "a100"},
            "pbs": {"slots_per_node": 2},
            "security": {"kerberos": {"config_file": "x"}},
            "internal": {"native": {"command": ["x"]}},
            "tensorboard_storage": {"type": "shared_fs"},
            "optimizations": {"mixed_precision": "O1"},
            "log_policies": [{"name": "x", "pattern": "y", "action": "exclude_node"}],
        }
    )
    (notice,) = loaded.notices
    assert set(notice.keys) == {
        "workspace",
        "project",
        "bind_mounts",
        "resources.resource_pool",
        "resources.agent_label",
        "environment.image",
        "environment.force_pull_image",
        "retention_policy",
        "integrations.webhooks.webhook_id",
        "slurm",
        "pbs",
        "security",
        "internal",
        "tensorboard_storage",
        "optimizations.mixed_precision",
        "log_policies[0].action exclude_node",
    }
    assert notice.message.startswith("accepted, but without effect in det: ")


def test_a_key_that_says_what_holds_anyway_is_not_named() -> None:
    assert (
        load(
            SMALL | {"resources": {"resource_pool": ""}, "bind_mounts": [], "project": None}
        ).notices
        == ()
    )


def test_preemption_timeout_and_max_slots_give_no_notice() -> None:
    """Both settings have effect in det."""
    told = {"preemption_timeout": 90, "resources": {"max_slots": 2}}
    assert load(SMALL | told).notices == ()


def test_error_in_an_old_key_of_an_option_points_at_the_option() -> None:
    text = "entrypoint: m:T\nsearcher: {name: single, metric: loss}\n"
    with pytest.raises(ConfigError) as refusal:
        load(text, name="c.yaml", overrides=["searcher.max_steps=0"])
    assert refusal.value.problems == (
        "--config searcher.max_steps: searcher.max_length is 0; give a positive number of batches",
    )


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an engine for Slurm."""

    partition: str | None = None
    nice: int | None = None
    gres: str | None = None
    slots_per_node: int | None = None
    sbatch_args: tuple[str, ...] = ()


def test_slurm_section_is_read_as_the_settings_of_that_engine() -> None:
    section = {"slots_per_node": 4, "gpu_type": "a100", "sbatch_args": ["--exclusive"]}
    extensions = Extensions(engines={"slurm": lambda: Cluster})
    loaded = load(SMALL | {"slurm": section, "engine": {"name": "slurm"}}, extensions=extensions)
    engine = loaded.config.engine
    assert (engine.gres, engine.slots_per_node, engine.sbatch_args) == (
        "gpu:a100",
        4,
        ("--exclusive",),
    )
    (notice,) = loaded.notices
    assert notice.keys == ("slurm.slots_per_node", "slurm.gpu_type", "slurm.sbatch_args")
    assert "slurm.gpu_type as engine.gres" in notice.message


def test_pool_and_priority_are_passed_to_engines_that_have_them() -> None:
    told = SMALL | {
        "resources": {"resource_pool": "gpu", "priority": 7},
        "engine": {"name": "slurm"},
    }
    loaded = load(told, extensions=Extensions(engines={"slurm": lambda: Cluster}))
    assert (loaded.config.engine.partition, loaded.config.engine.nice) == ("gpu", 7)
    assert loaded.notices[0].keys == ("resources.resource_pool", "resources.priority")
    own = told | {"engine": {"name": "slurm", "partition": "cpu"}}
    assert (
        load(own, extensions=Extensions(engines={"slurm": lambda: Cluster})).config.engine.partition
        == "cpu"
    )
    told["engine"] = {"name": "kubernetes", "image": "det:cpu"}
    assert (
        load(told, extensions=Extensions(engines={"kubernetes": lambda: Pods})).config.engine.queue
        == "gpu"
    )


class Pods(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an engine for Kubernetes."""

    image: str
    queue: str | None = None
    resource: str | None = None
    grace_period: int = 600
    pod_spec: dict[str, object] = {}


@pytest.mark.parametrize(("resource", "image"), [(None, "det:cpu"), ("nvidia.com/gpu", "det:cuda")])
def test_image_and_pod_spec_are_passed_to_the_kubernetes_engine(
    resource: str | None, image: str
) -> None:
    pod = {"spec": {"imagePullSecrets": [{"name": "registry"}]}}
    environment = {"image": {"cpu": "det:cpu", "cuda": "det:cuda"}, "pod_spec": pod}
    chosen = {"name": "kubernetes"} | ({"resource": resource} if resource else {})
    told = SMALL | {"preemption_timeout": 90, "environment": environment, "engine": chosen}
    loaded = load(told, extensions=Extensions(engines={"kubernetes": lambda: Pods}))
    engine = loaded.config.engine
    assert (engine.image, engine.pod_spec, engine.grace_period) == (image, pod, 90)
    (notice,) = loaded.notices
    assert notice.keys == ("environment.image", "environment.pod_spec")
