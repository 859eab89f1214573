"""YAML is read by version 1.2, safely, with the place of everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from det_core.errors import ConfigError
from det_driver.config import load
from det_driver.config._yaml import parse_yaml, scalar

SOUND = "entrypoint: m:T\nsearcher: {name: single, metric: loss, max_length: 1}\n"


def data(text: str) -> object:
    return load(SOUND + "data:\n  x: " + text).config.data["x"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-1E6", -1e6),
        ("1.", 1.0),
        (".5", 0.5),
        ("0x1F", 31),
        ("0o17", 15),
        ("012", 12),
        ("1_000", 1000),
        ("+3", 3),
        ("1:30", "1:30"),
        ("yes", "yes"),
        ("on", "on"),
        ("NO", "NO"),
        ("True", True),
        ("~", None),
        ("", None),
        ("2024-01-31", "2024-01-31"),
        ("'1'", "1"),
        ('"1e-3"', "1e-3"),
        ("1e", "1e"),
        (".", "."),
        ("=", "="),
        ("!!str 1", "1"),
        ("!!int '7'", 7),
        ("[1, a, {b: 2.5}]", [1, "a", {"b": 2.5}]),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    read = data(text)
    assert read == value
    assert type(read) is type(value)


def test_a_scalar_alone_is_read_the_same_way() -> None:
    assert [scalar(text) for text in ("1e-3", "off", "null", "", "7", "<<")] == [
        0.001,
        "off",
        None,
        None,
        7,
        "<<",
    ]


def test_anchors_and_merges_work_and_the_own_key_wins() -> None:
    config = load(
        SOUND + "data:\n  a: &a {x: 1, y: 2}\n  b: &b {y: 3, z: 4}\n  c: {<<: [*a, *b], x: 5}\n"
    ).config
    assert config.data["c"] == {"x": 5, "y": 2, "z": 4}


def test_places_are_known_for_keys_and_values() -> None:
    document = parse_yaml("a:\n  - b: 1\n  - 2\n", "x.yaml")
    assert document.keys[("a", 0, "b")] == (2, 5)
    assert document.values[("a", 0, "b")] == (2, 8)
    assert document.values[("a", 1)] == (3, 5)


def test_a_bomb_of_aliases_does_not_go_off() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match="aliases unfold to more than 200000 values; write less"):
        load("\n".join(lines))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
@pytest.mark.parametrize("depth", [100, 1_000_000])
def test_bottomless_nesting_is_refused(opening: str, depth: int) -> None:
    """Left alone, PyYAML's C loader recurses until the process dies."""
    with pytest.raises(ConfigError, match="nested more than 64 deep; flatten it"):
        load("\n" + opening * depth)


def test_nesting_through_aliases_counts_too() -> None:
    nested = "{x: " * 8 + "%s" + "}" * 8
    text = "a0: &a0 " + nested % 1 + "\n"
    text += "".join(f"a{n}: &a{n} {nested % f'*a{n - 1}'}\n" for n in range(1, 9))
    with pytest.raises(ConfigError, match="is nested more than 64 deep; flatten it"):
        load(text)


def test_a_file_is_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "const.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SOUND.encode())
    assert load(path) == load(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path / "nope.yaml")
    expected = (
        f"cannot read the configuration '{tmp_path}/nope.yaml': No such file or directory; name a"
        " YAML file"
    )
    assert refusal.value.problems == (expected,)


def test_a_directory_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory; name a YAML file"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load(name)


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "const.yaml"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8 text at byte 6; save it as UTF-8"):
        load(path)


def test_a_control_character_is_refused() -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        load("name: a\x01b\n")


@pytest.mark.process
def test_without_the_c_loader_the_same_is_read() -> None:
    code = """
import yaml
del yaml.CSafeLoader, yaml.CSafeDumper
from det_driver.config import load, to_yaml
from det_core.errors import ConfigError
loaded = load("entrypoint: m:T\\nsearcher: {name: single, metric: on, max_length: 1e3}\\n", name="c")
assert load(to_yaml(loaded.config)).config == loaded.config
print(loaded.config.searcher.metric, loaded.config.searcher.max_length)
for text in ("a: " + "[" * 5000, "entrypoint: m:T\\nsearcher: {name: single, metric: on, max_length: -1}\\n"):
    try:
        load(text)
    except ConfigError as refusal:
        print(refusal)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "on 1000 batches",
        "<config>:1:67: nested more than 64 deep; flatten it",
        "<config>:2:50: searcher.max_length is -1; give a positive number of batches",
    ]
