"""A configuration can be written, printed without its secrets, and read back."""

from __future__ import annotations

import json

import pytest

from det_core.config import from_json, masked, to_builtins, to_json, without_secrets
from det_core.errors import ConfigError
from det_driver.config import load, to_yaml

FULL = """
name: full
entrypoint: [python3, train.py]
data: {url: "s3://x", yes: "on", number: "1e-3", date: "2024-01-31", nothing: null, empty: "", list: [1, [2.5, {a: b}]]}
hyperparameters:
  lr: {type: log, minval: -4, maxval: -1}
  nested: {deep: {type: categorical, vals: [1, a, null]}}
  constant: {type: const, val: {type: adam}}
searcher: {name: custom, metric: loss, entrypoint: "a:B", budget: 1e6}
checkpoint_storage: {type: s3, bucket: b, access_key: open, secret_key: sesame}
environment:
  environment_variables: {cpu: [A=1]}
  registry_auth: {username: me, password: hunter2}
log_policies: [{name: CUDA OOM, pattern: null}, {pattern: x, action: cancel_retries}]
min_validation_period: {epochs: 1}
"""


def test_a_configuration_goes_through_json_and_yaml_unchanged() -> None:
    config = load(FULL).config
    assert from_json(to_json(config)) == config
    assert from_json(to_json(config).encode()) == config
    assert load(to_yaml(config)).config == config
    assert load(to_builtins(config)).config == config


def test_json_is_plain() -> None:
    plain = json.loads(to_json(load(FULL).config))
    assert plain["searcher"]["name"] == "custom"
    assert plain["searcher"]["budget"] == 1e6
    assert plain["min_validation_period"] == {"epochs": 1}
    assert plain["hyperparameters"]["lr"] == {
        "type": "log",
        "minval": -4.0,
        "maxval": -1.0,
        "base": 10.0,
        "count": None,
        "when": None,
    }


def test_secrets_are_masked_when_printed() -> None:
    config = load(FULL).config
    printed = to_yaml(config, masked=True)
    assert "sesame" not in printed
    assert "hunter2" not in printed
    assert "open" not in printed
    assert masked(config)["checkpoint_storage"]["secret_key"] == "********"
    assert masked(config)["environment"]["registry_auth"]["username"] == "me"
    assert masked(config)["environment"]["registry_auth"]["auth"] is None


def test_only_secret_keys_of_a_free_map_are_masked() -> None:
    layer = {
        "type": "s3",
        "bucket": "records",
        "access_key": "AKIA",
        "secret_key": "hidden",
        "endpoint_url": "https://me:word@store.example.com",
        "limit_bytes": 1000,
        "credentials": {"aws": ["one", 2]},
    }
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 1}}
    config = load({"entrypoint": "m:T", "searcher": searcher, "data_layer": layer}).config
    shown = masked(config)["data_layer"]
    assert shown == layer | {
        "access_key": "********",
        "secret_key": "********",
        "endpoint_url": "https://me:********@store.example.com",
        "credentials": {"aws": ["********", 2]},
    }
    assert without_secrets("AKIA hidden word one", config) == "******** ******** ******** ********"


@pytest.mark.parametrize(
    "storage",
    [
        {"type": "azure", "container": "c", "connection_string": "sesame"},
        {"type": "azure", "container": "c", "account_url": "https://a", "credential": "sesame"},
        {"type": "s3", "bucket": "c", "access_key": "sesame"},
    ],
)
def test_every_storage_masks_its_own_secrets(storage: dict) -> None:
    raw = {"entrypoint": "m:T", "searcher": {"name": "single", "metric": "a", "max_length": 1}}
    assert "sesame" not in to_yaml(load(raw | {"checkpoint_storage": storage}).config, masked=True)


def test_what_is_stored_and_broken_is_an_error_of_ours() -> None:
    with pytest.raises(ConfigError, match="the stored configuration is not JSON"):
        from_json("{")
    with pytest.raises(ConfigError, match="the configuration is an empty list"):
        from_json("[]")
    with pytest.raises(ConfigError, match="unknown key 'sercher'"):
        from_json('{"sercher": 1}')


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("HF_TOKEN=hf_1234", "HF_TOKEN=********"),
        ("AWS_SECRET_ACCESS_KEY=a=b c", "AWS_SECRET_ACCESS_KEY=********"),
        ("PGPASSWORD=x", "PGPASSWORD=********"),
        ("HTTPS_PROXY=http://me:pass@proxy:80", "HTTPS_PROXY=http://me:********@proxy:80"),
        ("TOKENIZERS_PARALLELISM=false", "TOKENIZERS_PARALLELISM=false"),
        ("OMP_NUM_THREADS=1", "OMP_NUM_THREADS=1"),
        ("HF_TOKEN", "HF_TOKEN"),
    ],
)
def test_variables_that_sound_secret_are_masked(text: str, shown: str) -> None:
    config = load(FULL.replace("A=1", f"'{text}'")).config
    assert masked(config)["environment"]["environment_variables"]["cpu"] == [shown]
    assert load(masked(config)).config.entrypoint == ("python3", "train.py")


def test_config_file_text_loses_only_its_secrets() -> None:
    config = load(FULL).config
    expected = (
        FULL.replace("sesame", "********")
        .replace("hunter2", "********")
        .replace("open", "********")
    )
    assert without_secrets(FULL, config) == expected
