"""Plugins bring settings of their own; the caller passes them."""

from __future__ import annotations

import datetime
from enum import Enum
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct, defstruct

from det_core.config import Extensions, SearcherConfig, from_json, masked, to_json
from det_core.errors import ConfigError
from det_driver.config import load, schema
from det_driver.config._layers import merge

SMALL = {"entrypoint": "m:T", "searcher": {"name": "single", "metric": "loss", "max_length": 100}}


class Tpe(SearcherConfig, frozen=True, kw_only=True):
    """Settings that say nothing of their name."""

    max_trials: Annotated[int, Meta(ge=1)]
    """How many."""
    startup: int = 10
    """How many at random."""


class Tagged(SearcherConfig, frozen=True, kw_only=True, tag="gp"):
    """Settings that do."""


class Ftp(Struct, frozen=True, kw_only=True):
    """Settings that derive from nothing."""

    host: str
    mode: Literal["active", "passive"] = "passive"
    ports: list[int] = []
    note: int | None = 5


class Colour(Enum):
    """A type that only msgspec knows how to read."""

    RED = "red"


class Painted(Struct, frozen=True, kw_only=True):
    """Settings of types that the configuration itself has no use for."""

    colour: Colour = Colour.RED
    since: datetime.date | None = None
    size: Annotated[str, Meta(max_length=3)] | Annotated[int, Meta(lt=9)] = 1


class Picky(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Settings with a check and with keys that are not names."""

    low_end: int = 0
    high_end: int = 1

    def __post_init__(self) -> None:
        if self.low_end >= self.high_end:
            raise ValueError("low-end must be below high-end")


class Moon(Struct, frozen=True, kw_only=True):
    """A plugin's engine."""

    crater: str
    landers: int = 1


EXTENSIONS = Extensions(
    searchers={"tpe": lambda: Tpe, "cma": lambda: Tpe, "gp": lambda: Tagged},
    storages={"ftp": lambda: Ftp},
    engines={"moon": lambda: Moon},
    plugins={"picky": lambda: Picky, "painted": lambda: Painted},
)


def test_a_plugins_searcher_is_read_and_carries_its_name() -> None:
    raw = SMALL | {"searcher": {"name": "tpe", "metric": "loss", "max_trials": 3}}
    config = load(raw, extensions=EXTENSIONS).config
    assert isinstance(config.searcher, Tpe)
    assert (config.searcher.name, config.searcher.max_trials, config.searcher.metric) == (
        "tpe",
        3,
        "loss",
    )
    assert config.searcher.__struct_config__.tag == "tpe"
    assert from_json(to_json(config), extensions=EXTENSIONS) == config


def test_one_struct_may_serve_several_names_and_may_name_itself() -> None:
    for name in ("cma", "gp"):
        section = {"name": name, "metric": "loss"} | ({"max_trials": 3} if name == "cma" else {})
        config = load(SMALL | {"searcher": section}, extensions=EXTENSIONS).config
        assert config.searcher.name == name


def test_a_plugins_storage_and_settings_are_read() -> None:
    raw = SMALL | {
        "checkpoint_storage": {"type": "ftp", "host": "h", "ports": [1]},
        "plugins": {"picky": {"low-end": -1}},
    }
    config = load(raw, extensions=EXTENSIONS).config
    assert isinstance(config.checkpoint_storage, Ftp)
    assert config.checkpoint_storage.type == "ftp"
    assert config.checkpoint_storage.ports == [1]
    assert config.plugins == {"picky": Picky(low_end=-1)}
    assert from_json(to_json(config), extensions=EXTENSIONS) == config
    assert masked(config)["plugins"] == {"picky": {"low-end": -1, "high-end": 1}}


def test_a_plugins_engine_is_read_and_carries_its_name() -> None:
    config = load(
        SMALL | {"engine": {"name": "moon", "crater": "Tycho"}}, extensions=EXTENSIONS
    ).config
    assert isinstance(config.engine, Moon)
    assert (config.engine.name, config.engine.crater, config.engine.landers) == ("moon", "Tycho", 1)
    assert from_json(to_json(config), extensions=EXTENSIONS) == config


def test_null_is_a_value_where_a_plugin_says_so() -> None:
    raw = SMALL | {"checkpoint_storage": {"type": "ftp", "host": "h", "note": None}}
    config = load(raw, extensions=EXTENSIONS).config
    assert config.checkpoint_storage.note is None
    assert from_json(to_json(config), extensions=EXTENSIONS) == config


def test_types_that_only_msgspec_knows_are_read_and_written() -> None:
    section = {"colour": "red", "since": "2024-01-31", "size": "abc"}
    config = load(SMALL | {"plugins": {"painted": section}}, extensions=EXTENSIONS).config
    assert config.plugins["painted"] == Painted(since=datetime.date(2024, 1, 31), size="abc")
    assert from_json(to_json(config), extensions=EXTENSIONS) == config


def test_settings_of_a_plugin_may_be_left_empty() -> None:
    assert load(SMALL | {"plugins": {"picky": None}}, extensions=EXTENSIONS).config.plugins == {
        "picky": Picky()
    }


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        (
            {"searcher": {"name": "tpee"}},
            (
                "searcher.name is 'tpee'; did you mean 'tpe'? known: adaptive_asha, async_halving,"
                " auto, cma, "
            ),
        ),
        (
            {"searcher": {"name": "tpe", "metric": "a"}},
            "searcher.max_trials is missing; give a whole number, 1 or more",
        ),
        (
            {"checkpoint_storage": {"type": "ftp", "host": "h", "mode": "activ"}},
            "checkpoint_storage.mode is 'activ'; did you mean 'active'?",
        ),
        ({"plugins": {"picky": {"low-end": 7}}}, "plugins.picky: low-end must be below high-end"),
        (
            {"plugins": {"picky": {"low_end": 7}}},
            "unknown key 'plugins.picky.low_end'; did you mean 'low-end'?",
        ),
        (
            {"plugins": {"painted": {"colour": "blue"}}},
            "plugins.painted.colour is 'blue': Invalid enum value 'blue'",
        ),
        (
            {"plugins": {"painted": {"size": 9}}},
            "plugins.painted.size is 9; give a whole number below 9",
        ),
        (
            {"plugins": {"painted": {"size": "long"}}},
            "plugins.painted.size is 'long'; give text of at most 3 characters",
        ),
        (
            {"plugins": {"painted": {"size": True}}},
            "plugins.painted.size is true; give text of at most 3 characters or a ",
        ),
        ({"plugins": {"picky": 7}}, "plugins.picky is 7; give a map of settings"),
        (
            {"plugins": {"pikcy": {}}},
            "no installed plugin takes settings as 'pikcy'; did you mean 'picky'?",
        ),
        (
            {"plugins": []},
            "plugins is an empty list; give a map of plugins' names to their settings",
        ),
    ],
)
def test_mistakes_in_a_plugins_settings_are_named_like_any_other(
    section: dict, problem: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(SMALL | section, extensions=EXTENSIONS)
    assert len(refusal.value.problems) == 1
    assert refusal.value.problems[0].startswith(problem)


def test_a_struct_is_loaded_only_when_it_is_named() -> None:
    def explode() -> type[Struct]:
        raise AssertionError("loaded")

    load(
        SMALL,
        extensions=Extensions(
            searchers={"x": explode}, storages={"x": explode}, plugins={"x": explode}
        ),
    )


def test_stored_config_is_readable_without_its_plugins() -> None:
    raw = SMALL | {
        "searcher": {"name": "tpe", "metric": "loss", "max_trials": 3},
        "checkpoint_storage": {"type": "ftp", "host": "h"},
        "plugins": {"picky": {}},
    }
    stored = to_json(load(raw, extensions=EXTENSIONS).config)
    config = from_json(stored)
    assert (config.searcher.name, config.searcher.metric) == ("tpe", "loss")
    assert config.searcher.smaller_is_better
    assert (config.checkpoint_storage.type, config.plugins) == (
        "ftp",
        {"picky": {"low-end": 0, "high-end": 1}},
    )
    assert from_json(to_json(config), extensions=EXTENSIONS) == from_json(
        stored, extensions=EXTENSIONS
    )
    with pytest.raises(ConfigError, match=r"searcher\.name is 'tpe'"):
        from_json(stored, extensions=Extensions())


def test_settings_of_plugins_merge_key_by_key() -> None:
    template = {
        "plugins": {"picky": {"low-end": -3, "high-end": 2}, "other": 1},
        "checkpoint_storage": {"type": "ftp", "host": "h"},
    }
    user = {
        "plugins": {"picky": {"high-end": 5}, "other": 2},
        "checkpoint_storage": {"type": "ftp", "mode": "active"},
    }
    assert merge(template, user, EXTENSIONS) == {
        "plugins": {"picky": {"low-end": -3, "high-end": 5}, "other": 2},
        "checkpoint_storage": {"type": "ftp", "host": "h", "mode": "active"},
    }


def test_the_schema_has_the_plugins_settings_too() -> None:
    definitions = schema(EXTENSIONS)["$defs"]
    assert definitions["Tpe"]["properties"]["max_trials"] == {
        "description": "How many.",
        "type": "integer",
        "minimum": 1,
    }
    assert definitions["Picky"]["properties"]["low-end"]["default"] == 0


def test_text_with_a_plugins_searcher_is_read_from_yaml() -> None:
    text = "entrypoint: python x.py\nsearcher: {name: gp, metric: loss}\n"
    assert load(text, extensions=EXTENSIONS).config.searcher.name == "gp"


def test_schema_of_a_struct_without_source_has_no_descriptions() -> None:
    made = defstruct("Made", [("depth", int, 3)], frozen=True)
    assert schema(Extensions(plugins={"made": lambda: made}))["$defs"]["Made"]["properties"] == {
        "depth": {"type": ["integer", "null"], "default": 3}
    }
