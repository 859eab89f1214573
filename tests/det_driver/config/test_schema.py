"""The JSON Schema says what the reader does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from msgspec import Struct
from tests.det_driver.config.test_faulty_configs import FAULTY, SOUND

from det_core.config import RANGES, SEARCHERS, STORAGES, ExperimentConfig, Extensions
from det_core.config.fields import fields_of
from det_driver.config import schema
from det_driver.config._yaml import parse_yaml

whole = schema()
validator = Draft202012Validator(whole)


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
    assert (
        properties["max_restarts"].items()
        >= {
            "type": ["integer", "null"],
            "minimum": 0,
            "default": 5,
        }.items()
    )
    assert properties["checkpoint_policy"]["enum"] == ["best", "all", "none", None]
    assert (
        whole["$defs"]["Log"]["properties"]["base"].items()
        >= {
            "type": ["number", "null"],
            "exclusiveMinimum": 0,
        }.items()
    )
    assert whole["$defs"]["Categorical"]["properties"]["vals"] == {
        "description": "The values to choose from.",
        "type": "array",
        "items": {},
        "minItems": 1,
    }


def test_schema_describes_every_searcher_storage_and_range() -> None:
    sections = (
        (whole["properties"]["searcher"], "name", SEARCHERS),
        (whole["properties"]["checkpoint_storage"], "type", STORAGES),
        (whole["$defs"]["Hyperparameter"]["then"], "type", RANGES),
    )
    for section, tag, known in sections:
        names = section["properties"][tag]
        assert names["enum"] == list(known)
        assert all(names["enumDescriptions"])
        told = {
            each["if"]["properties"][tag]["const"]: each["then"]["$ref"]
            for each in section["then"]["allOf"]
        }
        assert all(
            validator.is_valid({}) is False and told[name].startswith("#/$defs/") for name in known
        )


MISTAKES = [
    (
        "searcher: {name: single, metric: loss, max_length: {epoch: 8}}",
        "searcher.max_length",
        "'epoch'",
    ),
    (
        "searcher: {name: single, metric: loss, max_length: 0}",
        "searcher.max_length",
        "less than the minimum of 1",
    ),
    (
        "searcher: {name: single, metric: loss, max_length: ten}",
        "searcher.max_length",
        "'integer', 'object'",
    ),
    ("searcher: {name: singel, metric: loss}", "searcher.name", "'single'"),
    ("searcher: {metric: loss}", "searcher", "'name' is a required property"),
    (
        "searcher: {name: random, metric: loss, max_trails: 3, max_trials: 3}",
        "searcher",
        "'max_trails'",
    ),
    ("searcher: single", "searcher", "'object'"),
    (
        "hyperparameters: {lr: {type: log, minval: -4}}",
        "hyperparameters.lr",
        "'maxval' is a required property",
    ),
    ("hyperparameters: {net: {lr: {type: lgo}}}", "hyperparameters.net.lr.type", "'log'"),
    ("checkpoint_storage: {type: s3, bukcet: b, bucket: b}", "checkpoint_storage", "'bukcet'"),
    ("checkpoint_storage: {save_trial_bets: 1}", "checkpoint_storage", "'save_trial_bets'"),
    ("checkpoint_policy: bets", "checkpoint_policy", "'best'"),
    ("max_restarts: -1", "max_restarts", "less than the minimum of 0"),
    ("resources: {slots_per_trial: two}", "resources.slots_per_trial", "'integer'"),
    ("resources: {devices: [a]}", "resources.devices.0", "does not match"),
    ("environment: {image: 3}", "environment.image", "'string', 'object'"),
    (
        "min_validation_period: {batches: 1, epochs: 1}",
        "min_validation_period",
        "too many properties",
    ),
    ("wibble: 1", "", "'wibble'"),
]


@pytest.mark.parametrize(("line", "path", "says"), MISTAKES)
def test_one_mistake_is_one_error_at_its_place(line: str, path: str, says: str) -> None:
    """What editors show: no other schema is tried, so that nothing hides it."""
    data = parse_yaml(SOUND, "c").data | parse_yaml(line, "c").data
    (error,) = validator.iter_errors(data)
    assert error.message == best_match(validator.iter_errors(data)).message
    assert (".".join(map(str, error.absolute_path)), says in error.message) == (
        path,
        True,
    ), error.message


def test_schema_finds_no_more_errors_than_the_reader_reports() -> None:
    """What lies between two keys is the reader's alone; a key that is misspelt is missing, too."""
    for faulty in FAULTY:
        if "not valid YAML" not in faulty.problems[0] and isinstance(
            data := parse_yaml(faulty.text, "c").data, dict
        ):
            found = [
                (error.absolute_path, error.validator) for error in validator.iter_errors(data)
            ]
            errors = [
                each
                for each in found
                if each[1] != "required" or (each[0], "additionalProperties") not in found
            ]
            assert len(errors) <= len(faulty.problems), faulty.title


class Luck(Struct):
    """Trusts to luck."""

    odds: float | str = 0.5
    """How likely."""


def test_what_plugins_bring_is_in_it() -> None:
    own = schema(Extensions(searchers={"luck": lambda: Luck}, plugins={"luck": lambda: Luck}))
    data = parse_yaml(SOUND.replace("single", "luck"), "c").data
    searcher = {"name": "luck", "odds": "even"}
    assert Draft202012Validator(own).is_valid(
        data | {"searcher": searcher, "plugins": {"luck": {"odds": 1}}}
    )
    (error,) = Draft202012Validator(own).iter_errors(
        data | {"searcher": searcher, "plugins": {"luck": {"odd": 1}}}
    )
    assert "'odd'" in error.message
    assert not validator.is_valid(data)
