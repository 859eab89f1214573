"""Secrets in code are found by name and by content, and what is none is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from det_driver.remote import describe_secrets, find_secrets


def write(code: Path, name: str, text: str = "x") -> None:
    file = code / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    "name",
    [
        *(".env", ".env.production", "prod.env", "conf/.netrc", "id_rsa", "keys/id_ed25519"),
        *(".aws/credentials", "home/.aws/credentials", "server.p12", ".git-credentials"),
    ],
)
def test_files_are_secrets_by_their_names(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    assert list(find_secrets(tmp_path)) == [name]


# The tokens are put together here, so that nobody's search for secrets finds this file.
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("-----BEGIN OPENSSH " + "PRIVATE KEY-----\nb3Bl\n", "a private key"),
        ("-----BEGIN " + "PRIVATE KEY-----\n", "a private key"),
        ('key = "AKIA' + 'IOSFODNN7EXAMPLE"', "keys of AWS"),
        ("aws_secret_access_key = " + "a/b+" * 10, "keys of AWS"),
        ("TOKEN='ghp_" + "a1" * 18 + "'", "a token of GitHub"),
        ("hf_" + "a" * 34, "a token of Hugging Face"),
        ("sk-ant-" + "b" * 30, "a key of OpenAI or Anthropic"),
        ("url: https://hooks.slack.com/services/" + "T0/B0/" + "x" * 24, "a webhook of Slack"),
        ("AIza" + "c" * 35, "a key of Google"),
    ],
)
def test_tokens_are_found_by_their_beginning(tmp_path: Path, text: str, what: str) -> None:
    write(tmp_path, "train.py", f"import os\n{text}\n")
    assert find_secrets(tmp_path) == {"train.py": what}


def test_code_without_secrets_is_not_warned_about(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "task-ghp_x = 1  # hf_token, sk-learn, AKIA\n")
    write(tmp_path, ".env.example", "TOKEN=\n")
    write(tmp_path, "ca.pem", "-----BEGIN CERTIFICATE-----\n")
    write(tmp_path, "id_rsa.pub")
    write(tmp_path, "env.py", "import environment\n")
    assert find_secrets(tmp_path) == {}


def test_what_detignore_lists_is_not_warned_about(tmp_path: Path) -> None:
    write(tmp_path, ".env")
    write(tmp_path, ".detignore", ".env\n")
    assert find_secrets(tmp_path) == {}


def test_a_warning_names_files_and_the_way_out() -> None:
    found = [(f"{n}.env", "passwords or tokens") for n in range(7)]
    said = describe_secrets(found)
    assert "0.env (passwords or tokens)" in said
    assert said.endswith("and 2 more; to leave them out, list them in .detignore")
