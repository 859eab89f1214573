"""A configuration can be written, printed without its secrets, and read back."""

from __future__ import annotations

import json
import re

import pytest

from det_core.config import (
    Extensions,
    find_secrets,
    from_json,
    hparams_with_secrets,
    masked,
    masked_hparams,
    to_builtins,
    to_json,
    with_secrets,
    without_secrets,
)
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
        "access_key": "AKIA123",
        "secret_key": "hidden",
        "endpoint_url": "https://me:rosebud@store.example.com",
        "limit_bytes": 1000,
        "credentials": {"aws": ["number-one", 2]},
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
    assert without_secrets("AKIA123 hidden rosebud number-one", config) == " ".join(
        ["********"] * 4
    )


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
        *(
            (f"{name}=x1", f"{name}=********")
            for name in (
                *("API_TOKENS", "SECRET1", "secretKey", "accessKey", "OPENAI_APIKEY", "MYSQL_PWD"),
                *("DB_PASS", "GITHUB_PAT", "JWT", "AUTHORIZATION", "CREDS", "COOKIE", "NPM_AUTH"),
            )
        ),
        *(
            (f"{name}=x1", f"{name}=x1")
            for name in (
                *("author", "AUTHORS", "tokenizer", "max_tokens", "num_tokens", "pass_rate"),
                *("PATH", "KEYBOARD", "passes", "n_token", "pattern"),
            )
        ),
        ("C=Name=x;AccountKey=k==;Suffix=y", "C=Name=x;AccountKey=********"),
        ("SAS=https://x.net/c?sv=1&sig=k%3D", "SAS=https://x.net/c?sv=1&sig=********"),
        ("U=https://s3/x?X-Amz-Signature=k", "U=https://s3/x?X-Amz-Signature=********"),
        ("U=https://0123456789abcdef@host/1", "U=https://********@host/1"),
        ("U=ssh://git@github.com/x", "U=ssh://git@github.com/x"),
        ("U=pg://u:a/b@h/d", "U=pg://u:********@h/d"),
        ("U=pg://u:a@b@h/d", "U=pg://u:********@h/d"),
        ("U=http://host:8080/a@b", "U=http://host:8080/a@b"),
        *(
            (f"A=run --{name} x", f"A=run --{name} ********")
            for name in ("db-pass", "pat", "id-token", "pw", "wandb-key", "cookie")
        ),
        *((f"{name}=x", f"{name}=********") for name in ("db_pass", "pat", "pw", "token")),
        ("A=run --tokens 3 --n-pass 3", "A=run --tokens 3 --n-pass 3"),
        ("A=run --token t --lr 3", "A=run --token ******** --lr 3"),
        ("A=run --tokenizer t --pad-token [PAD]", "A=run --tokenizer t --pad-token [PAD]"),
    ],
)
def test_variables_that_sound_secret_are_masked(text: str, shown: str) -> None:
    config = load(FULL.replace("A=1", f"'{text}'")).config
    assert masked(config)["environment"]["environment_variables"]["cpu"] == [shown]
    assert load(masked(config)).config.entrypoint == ("python3", "train.py")


COMMANDS = {
    'train.py --password "correct horse" --lr 3': 'train.py --password "********" --lr 3',
    "train.py '--password=correct horse' --lr 3": "train.py '--password=********' --lr 3",
    "train.py --token=hf_abc --lr 3": "train.py --token=******** --lr 3",
    "train.py --db-pass x_x db_pass=y_y --pat z_z": (
        "train.py --db-pass ******** db_pass=******** --pat ********"
    ),
    r"train.py --password correct\ horse --lr 3": "train.py --password ******** --lr 3",
    'train.py --conn "Server=x;Password=my pass" --lr 3': (
        'train.py --conn "Server=x;Password=********" --lr 3'
    ),
    "HF_TOKEN=hf_abc python train.py": "HF_TOKEN=******** python train.py",
    "train.py --token hf_abc; echo done": "train.py --token ********; echo done",
    'bash -c "API_KEY=abc train.py --pat z_z" --name "y"': (
        'bash -c "API_KEY=******** train.py --pat ********" --name "y"'
    ),
    'train.py --password "correct horse': "train.py --password ********",
    "it's train.py --token hf_abc # isn't it": "it's train.py --token ******** # isn't it",
    "train.py --token $HF_TOKEN --api-key=${KEY}": "train.py --token $HF_TOKEN --api-key=${KEY}",
    "train.py --token --lr 3": "train.py --token --lr 3",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_in_a_command_the_words_that_are_secrets_are_masked(command: str) -> None:
    config = load({"entrypoint": command}, complete=False).config
    shown = masked(config)
    assert shown["entrypoint"] == COMMANDS[command]
    assert from_json(json.dumps(with_secrets(shown, find_secrets(config)))) == config
    assert without_secrets("T=hf_abc", config) == (
        "T=********" if "hf_abc" in command else "T=hf_abc"
    )


def test_many_quotes_in_a_command_are_read() -> None:
    for text in ('"' * 9999, "'\"" * 9999, '\\"' * 9999, "\"' " * 9999):
        masked(load({"entrypoint": f"train.py {text} x"}, complete=False).config)


def test_config_file_text_loses_only_its_secrets() -> None:
    config = load(FULL).config
    expected = (
        FULL.replace("sesame", "********")
        .replace("hunter2", "********")
        .replace("open", "********")
    )
    assert without_secrets(FULL, config, shortest=1) == expected


def test_texts_of_the_code_lose_whole_words_only() -> None:
    """What is short, or a part of another word, has another meaning there."""
    config = load(OWN.replace("key-three", "mean").replace("key-six", "sesame")).config
    assert masked(config)["data"]["password"] == "********"
    text = '{"mean": 1, "sesames": 2, "a_sesame": 3, "text": "A\\nsesame"} open(sesame)'
    assert without_secrets(text, config) == (
        '{"mean": 1, "sesames": 2, "a_sesame": 3, "text": "A\\n********"} open(********)'
    )


def test_names_that_models_use_are_no_names_of_secrets() -> None:
    named = {"token": "mean", "tokens": ["a"], "pw": "x", "pw_act": "relu", "id_token": "[ID]"}
    config = from_json(json.dumps({"data": named, "hyperparameters": named}))
    assert masked(config) == to_builtins(config)


OWN = """
entrypoint: [python3, train.py, --api-key, key-one, --lr, '0.1']
name: at https://me:key-two@host
data: {password: key-three, pad_token: "[PAD]", service: {credentials: {type: a, key: key-four}}}
hyperparameters:
  dsn: postgres://me:key-five@host/d
  api_key: {type: const, val: key-six}
  db: {passwords: {type: categorical, vals: [key-seven, key-eight]}, size: 3}
  tokenizer: bert
searcher: {name: single, metric: loss, max_length: {batches: 1}}
"""


def test_secrets_among_ones_own_settings_are_masked_and_restored() -> None:
    """In data and hyperparameters the name decides, and a pad_token is no secret."""
    config = load(OWN, extensions=Extensions(open=True)).config
    shown = masked(config)
    assert re.findall("key-[a-z]+", json.dumps(shown)) == []
    assert shown["entrypoint"] == ["python3", "train.py", "--api-key", "********", "--lr", "0.1"]
    assert shown["data"]["pad_token"] == "[PAD]"
    assert shown["hyperparameters"]["tokenizer"] == {"type": "const", "val": "bert", "when": None}
    assert from_json(json.dumps(with_secrets(shown, find_secrets(config)))) == config
    assert re.findall("key-[a-z]+", without_secrets(OWN, config)) == []


def test_hyperparameters_of_a_trial_are_masked_and_restored() -> None:
    config = load(OWN, extensions=Extensions(open=True)).config
    given = {
        "dsn": "postgres://me:key-five@host/d",
        "api_key": "key-six",
        "db": {"passwords": "key-eight", "size": 3},
        "tokenizer": "bert",
    }
    shown = masked_hparams(given, config)
    assert shown == given | {"dsn": "postgres://me:********@host/d", "api_key": "********"}
    assert hparams_with_secrets(shown, config) == given
    assert hparams_with_secrets(given, config) == given
    assert masked_hparams(given | {"api_key": "other"}, config)["api_key"] == "other"


def test_every_secret_of_one_text_is_found() -> None:
    config = load(OWN.replace("key-two@host", "key-two@host, token=key-nine")).config
    assert re.findall("key-[a-z]+", without_secrets("key-two key-nine", config)) == []
