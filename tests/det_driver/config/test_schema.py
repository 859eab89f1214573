"""The JSON Schema says what the reader does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from det_core.config import SEARCHERS, STORAGES, ExperimentConfig
from det_core.config.fields import fields_of
from det_driver.config import schema

whole = schema()


def parts(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
        for inner in part.values():
            yield from parts(inner)
    for inner in part if isinstance(part, list) else ():
        yield from parts(inner)


def test_it_is_json_of_the_2020_12_draft() -> None:
    assert json.loads(json.dumps(whole)) == whole
    assert whole["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_reference_leads_somewhere() -> None:
    references = {part["$ref"] for part in parts(whole) if "$ref" in part}
    assert references
    assert all(reference.removeprefix("#/$defs/") in whole["$defs"] for reference in references)


def test_every_key_is_there_with_what_it_means() -> None:
    assert set(whole["properties"]) == set(fields_of(ExperimentConfig))
    for section in [whole, *whole["$defs"].values()]:
        for key, property_ in section.get("properties", {}).items():
            assert property_.get("description") or "const" in property_, key


def test_unknown_keys_are_refused_but_for_a_custom_searcher() -> None:
    for name, section in [("root", whole), *whole["$defs"].items()]:
        if "properties" in section:
            assert section["additionalProperties"] is (name == "Custom"), name


def test_what_a_complete_configuration_needs_is_required() -> None:
    assert whole["required"] == ["entrypoint", "searcher"]
    assert whole["$defs"]["Random"]["required"] == ["max_trials", "metric", "name"]
    assert whole["$defs"]["Int"]["required"] == ["maxval", "minval", "type"]


def test_bounds_choices_and_defaults_are_told() -> None:
    properties = whole["properties"]
    assert properties["max_restarts"]["anyOf"] == [{"type": "integer", "minimum": 0}, {"type": "null"}]
    assert properties["max_restarts"]["default"] == 5
    assert properties["checkpoint_policy"]["anyOf"][0] == {"enum": ["best", "all", "none"]}
    assert whole["$defs"]["Log"]["properties"]["base"]["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0}
    assert whole["$defs"]["Categorical"]["properties"]["vals"] == {
        "description": "The values to choose from.",
        "type": "array",
        "items": {},
        "minItems": 1,
    }


def test_every_searcher_and_storage_is_told_by_its_name() -> None:
    for key, tag, known in (("searcher", "name", SEARCHERS), ("checkpoint_storage", "type", STORAGES)):
        section = whole["properties"][key]
        union = section if "oneOf" in section else section["anyOf"][0]
        names = {
            whole["$defs"][part["$ref"].removeprefix("#/$defs/")]["properties"][tag]["const"] for part in union["oneOf"]
        }
        assert names == set(known)
