"""What holds for any configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from det_core.config import (
    SEARCHERS,
    STORAGES,
    ExperimentConfig,
    Extensions,
    from_json,
    masked,
    to_builtins,
    to_json,
)
from det_core.config.fields import Type, base_of, choices_of, fields_of, is_struct, item_of, type_of
from det_core.errors import ConfigError
from det_driver.config import load, schema, to_yaml
from det_driver.config._layers import merge

SAMPLES = ("/a/b", "x/y", "4GiB", "A=1", "a:B")
validator = Draft202012Validator(schema())
quick = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))

# A character 0 is refused.
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
word = st.text("abcxyz_", min_size=1, max_size=6)
number = st.floats(-1e6, 1e6) | st.integers(-(2**40), 2**40)
plain = st.recursive(
    st.none() | st.booleans() | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(word, inner, max_size=3),
    max_leaves=8,
)
length = st.integers(1, 10**6) | st.builds(
    lambda unit, n: {unit: n},
    st.sampled_from(["batches", "records", "epochs"]),
    st.integers(1, 999),
)
period = length | st.just(0)


def ordered(
    kind: str, values: st.SearchStrategy[Any], **keys: Any
) -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.lists(values, min_size=2, max_size=2, unique=True).map(sorted)
    count = st.integers(1, 5)
    return st.builds(
        lambda b, n: {"type": kind, "minval": b[0], "maxval": b[1], "count": n, **keys},
        bounds,
        count,
    )


bare = (
    st.none() | st.booleans() | number | text | st.lists(plain, max_size=1)
)  # longer ones are asked about in a search
hyperparameter = st.recursive(
    bare
    | st.builds(lambda value: {"type": "const", "val": value}, plain)
    | ordered("int", st.integers(-1000, 1000))
    | ordered("int", st.integers(1, 1000), log=True)
    | ordered("int", st.integers(-1000, 1000), step=1, when=None)
    | ordered("double", st.floats(-1e3, 1e3, allow_subnormal=False))
    | ordered("log", st.integers(-9, 9))
    | st.builds(
        lambda vals: {"type": "categorical", "vals": vals}, st.lists(plain, min_size=1, max_size=3)
    ),
    lambda inner: st.dictionaries(word, inner, max_size=3),
    max_leaves=6,
)


def value_of(type_: Type) -> st.SearchStrategy[Any]:
    """Values that the reader takes for a type.

    Made from the structs, so that no field can be forgotten.
    """
    kinds: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "length": lambda: length,
        "period": lambda: period,
        "hyperparameters": lambda: st.dictionaries(word, hyperparameter, max_size=3),
        "searcher": lambda: searcher,
        "checkpoint_storage": lambda: storage,
        "engine": lambda: engine,
        "log_policies": lambda: st.lists(policy, max_size=2, unique_by=lambda p: p["name"]),
        "plugins": lambda: st.just({}),
        "device": lambda: of_struct(type_.arm) | st.sampled_from(["/a:b", "/a:/b:r"]),
        "image": lambda: word | of_struct(type_.arm),
        "environment_variables": lambda: variables | st.fixed_dictionaries({"cuda": variables}),
    }
    if "kind" in type_.marks:
        return kinds[type_.marks["kind"]]()
    return st.one_of([of_arm(arm, type_) for arm in type_.arms])


engine = st.sampled_from([{"name": "local"}, {"name": "ssh", "hosts": ["node1", "node2"]}])
variables = st.lists(st.builds("{}={}".format, word, word), max_size=2)
policy = st.fixed_dictionaries({"name": word, "pattern": word})


def of_arm(arm: Any, type_: Type) -> st.SearchStrategy[Any]:
    base, bounds = base_of(arm), type_.bounds
    if is_struct(arm):
        return of_struct(arm)
    if base is Annotated:
        return value_of(type_of(arm))
    if base is list:
        return st.lists(value_of(item_of(arm)), max_size=2)
    if base is dict:
        return st.dictionaries(
            word.filter(lambda key: not key.startswith("save")), value_of(item_of(arm)), max_size=2
        )
    if base is bool:
        return st.booleans()
    if base is int:
        return st.integers(bounds.get("ge", -5), bounds.get("le", 1000))
    if base is float:
        return st.floats(bounds.get("ge", bounds.get("gt", 0) + 0.5), bounds.get("le", 100))
    if base is str:
        fitting = [sample for sample in SAMPLES if re.search(bounds.get("pattern", ""), sample)]
        return st.sampled_from(fitting) if "pattern" in bounds else word
    if choices_of(arm):
        return st.sampled_from(choices_of(arm))
    return plain


def of_struct(struct: Any, **fixed: Any) -> st.SearchStrategy[dict[str, Any]]:
    fields = {
        key: f
        for key, f in fields_of(struct).items()
        if key not in fixed and "rest" not in f.type.marks
    }
    # these are expressions
    for key in ("constraints", "stop_when"):
        fields.pop(key, None)
    required = {key: value_of(f.type) for key, f in fields.items() if f.required}
    optional = {key: value_of(f.type) | st.none() for key, f in fields.items() if not f.required}
    pinned = {key: st.just(value) for key, value in fixed.items() if value is not None}
    return st.fixed_dictionaries(required | pinned, optional=optional)


def without(*names: str) -> dict[str, None]:
    return dict.fromkeys(names)


halving = without("max_time", "time_metric", "stop_once")
searcher = st.one_of(
    *(
        of_struct(SEARCHERS[name], name=name, max_length=5)
        for name in ("single", "random", "grid", "hyperband")
    ),
    *(
        of_struct(SEARCHERS[name], name=name, max_length=5, **halving)
        for name in ("adaptive_asha", "async_halving")
    ),
    of_struct(SEARCHERS["pbt"], name="pbt"),
    of_struct(SEARCHERS["custom"], name="custom", entrypoint="a:B", budget=3),
)
storage = st.one_of(
    [
        of_struct(
            STORAGES[name], type=name, **({"storage_path": "x/y"} if name == "shared_fs" else {})
        )
        for name in ("s3", "gcs", "hdfs", "directory", "shared_fs")
    ]
    + [
        of_struct(
            STORAGES["azure"],
            type="azure",
            connection_string="x",
            **without("account_url", "credential"),
        )
    ]
)
config = of_struct(ExperimentConfig, entrypoint="m:T", **without("profiling", "searcher")).flatmap(
    lambda rest: st.builds(lambda section: rest | {"searcher": section}, searcher)
)


@quick
@given(config)
def test_what_loads_goes_round_through_json_and_yaml(raw: dict[str, Any]) -> None:
    read = load(raw).config
    assert from_json(to_json(read)) == read
    assert load(to_builtins(read)).config == read
    assert load(to_yaml(read)).config == read
    assert to_yaml(load(to_builtins(read)).config) == to_yaml(read)


@quick
@given(config)
def test_the_schema_takes_what_the_reader_takes(raw: dict[str, Any]) -> None:
    assert not list(validator.iter_errors(raw))


@quick
@given(config)
def test_merging_with_itself_changes_nothing(raw: dict[str, Any]) -> None:
    once = merge(raw, raw, Extensions())
    assert load(once).config == load(raw).config
    assert merge(once, raw, Extensions()) == once


@quick
@given(config, config)
def test_the_user_wins(template: dict[str, Any], user: dict[str, Any]) -> None:
    merged = merge(template, user, Extensions())
    for key, value in user.items():
        if value is not None and not isinstance(value, dict | list):
            assert merged[key] == value
    assert merged["searcher"]["name"] == user["searcher"]["name"]
    for key, value in user["searcher"].items():
        assert value is None or isinstance(value, dict) or merged["searcher"][key] == value
    assert set(merged) == set(template) | set(user)


@quick
@given(config)
def test_merging_with_nothing_changes_nothing(raw: dict[str, Any]) -> None:
    assert load(raw, template={}).config == load({}, template=raw).config == load(raw).config


@quick
@given(config)
def test_no_secret_is_printed(raw: dict[str, Any]) -> None:
    secret = "sesame-open-up"
    raw = raw | {
        "checkpoint_storage": {
            "type": "s3",
            "bucket": "b",
            "secret_key": secret,
            "access_key": secret,
        }
    }
    read = load(raw).config
    assert secret not in to_yaml(read, masked=True)
    assert secret not in repr(masked(read))
    assert secret in to_json(read)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=2)
    | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=8,
)
known = st.sampled_from(
    sorted(
        {
            *fields_of(ExperimentConfig),
            *(key for struct in SEARCHERS.values() for key in fields_of(struct)),
            "name",
            "type",
        }
    )
)
some_name = st.sampled_from(
    [*SEARCHERS, *STORAGES, "const", "int", "log", "categorical", "batches", "adaptive"]
)
messy = st.recursive(
    anything | some_name,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(known, inner, max_size=4),
    max_leaves=20,
)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what `call` returns, or None where it refuses in one line for each mistake."""
    try:
        return call()
    except ConfigError as refusal:
        problems = refusal.problems
    assert problems
    assert all("\n" not in problem for problem in problems)
    return None


@pytest.mark.slow
@settings(quick, max_examples=500)
@given(st.dictionaries(known, messy, max_size=8), st.dictionaries(known, messy, max_size=3))
def test_whatever_it_is_given_it_reads_it_or_says_what_is_wrong(raw: Any, template: Any) -> None:
    for call in (lambda: load(raw), lambda: load(raw, template=template)):
        outcome(call)


@quick
@given(config, known, messy)
def test_config_with_one_spoilt_part_is_read_or_refused(raw: Any, key: str, value: Any) -> None:
    for spoilt in (raw | {key: value}, raw | {"searcher": raw["searcher"] | {key: value}}):
        loaded = outcome(lambda spoilt=spoilt: load(spoilt))
        if loaded is not None:
            assert from_json(to_json(loaded.config)) == loaded.config


@quick
@given(st.text(max_size=60) | st.text("abc:{}[]-&*!#'\"\n \t|>?%@`<,1.", max_size=60))
def test_any_text_is_read_or_refused(written: str) -> None:
    outcome(lambda: load("\n" + written))


@quick
@given(st.lists(st.text("ab.=,{}[]'\"1", max_size=12), max_size=3))
def test_any_option_is_taken_or_refused(options: list[str]) -> None:
    raw = {"entrypoint": "m:T", "searcher": {"name": "single", "metric": "a", "max_length": 1}}
    outcome(lambda: load(raw, overrides=options))
