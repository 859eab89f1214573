"""`det run --json`: a line for each event, as the schema on the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "events.md"
TRAIN = """
from det_core import core
with core.init() as context:
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("w")
    context.train.report_training_metrics(1, {"loss": float("nan"), "high": float("inf"), "text": "t"})
    context.train.report_validation_metrics(1, {"error": context.info.trial.hparams["net"]["x"] / 2})
    raise SystemExit(context.info.trial.hparams["net"]["x"] == 3 and 7)
"""
CONFIG = """
name: events
entrypoint: python3 train.py
hyperparameters: {net: {x: {type: int, minval: 1, maxval: 3, count: 3}, y: same}}
searcher: {name: grid, metric: error}
max_restarts: 0
"""


def schema() -> dict[str, Any]:
    return json.loads(
        re.search(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    )


def wrong(value: Any, rule: dict[str, Any], rules: dict[str, Any]) -> list[str]:
    """Return what is wrong with a value by the words of JSON Schema that the page uses.

    An unknown word is wrong, too.
    """
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": int | float,
        "boolean": bool,
        "null": type(None),
    }
    found = []
    for word, told in rule.items():
        match word:
            case "$ref":
                found += wrong(value, rules[told.rpartition("/")[2]], rules)
            case "anyOf":
                if all(wrong(value, each, rules) for each in told):
                    found.append(f"{value!r} is none of {told}")
            case "type":
                if not isinstance(value, kinds[told]) or (
                    isinstance(value, bool) and told != "boolean"
                ):
                    found.append(f"{value!r} is no {told}")
            case "enum":
                found += [] if value in told else [f"{value!r} is not in {told}"]
            case "properties":
                found += [
                    w
                    for name, each in told.items()
                    if name in value
                    for w in wrong(value[name], each, rules)
                ]
            case "required":
                found += [f"{name} is missing" for name in told if name not in value]
            case "additionalProperties":
                extra = {
                    name: inner
                    for name, inner in value.items()
                    if name not in rule.get("properties", {})
                }
                rest = [] if told is not False else [f"{name} is not known" for name in extra]
                found += rest or [
                    w
                    for each in extra.values()
                    if isinstance(told, dict)
                    for w in wrong(each, told, rules)
                ]
            case "title" | "description" | "default" | "discriminator" | "$defs" | "$schema":
                pass
            case _:
                found.append(f"{word} is a word that this test does not know")
    return found


def test_the_events_of_a_real_run_are_those_of_the_schema(det):
    det.cwd.joinpath("train.py").write_text(TRAIN)
    det.cwd.joinpath("c.yaml").write_text(CONFIG)
    lines = det("run", "c.yaml", "--json", env={"DET_SLOTS_TOTAL": "1"}).stdout.splitlines()
    events = [json.loads(line, parse_constant=lambda bare: 1 / 0) for line in lines]
    whole = schema()
    for event in events:
        kind = [
            rule
            for rule in whole["$defs"].values()
            if rule["properties"].get("event", {}).get("enum") == [event["event"]]
        ]
        assert len(kind) == 1, event
        assert wrong(event, kind[0], whole["$defs"]) == []
        assert wrong(event, {"anyOf": whole["anyOf"]}, whole["$defs"]) == []
    assert wrong(events[0] | {"more": 1}, {"anyOf": whole["anyOf"]}, whole["$defs"]) != []
    kinds = [event["event"] for event in events]
    assert kinds[0] == "experiment_started"
    assert kinds[1:6] == [
        "run_started",
        "checkpoint_saved",
        "metrics_reported",
        "metrics_reported",
        "run_finished",
    ]
    assert kinds[-1] == "experiment_finished"
    assert {"chosen": {"net.x": events[1]["hparams"]["net"]["x"]}}.items() <= events[1].items()
    training = next(event for event in events if event.get("group") == "training")
    assert training["metrics"] == {"loss": "NaN", "high": "Infinity", "text": "t"}
    failed = next(event for event in events if event.get("state") == "ERROR")
    assert failed["reason"] == "the process exited with status 7"
    last = events[-1]
    assert (last["state"], last["best_metric"], last["best_hparams"]) == (
        "COMPLETED",
        0.5,
        {"net.x": 1},
    )
    assert last["trials"] == {"COMPLETED": 2, "ERROR": 1}
    assert Path(last["checkpoint"]["path"], "weights").is_file()
