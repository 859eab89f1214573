"""The reference page says what the structs say."""

from __future__ import annotations

import runpy
from pathlib import Path

import yaml

from det_core.config import ENGINES, RANGES, SEARCHERS, STORAGES, ExperimentConfig
from det_core.config.fields import base_of, fields_of, is_struct, item_of
from det_driver.config import docs_of, load

writer = runpy.run_path(str(Path(__file__).with_name("configuration_page.py")))
page = writer["PAGE"].read_text(encoding="utf-8")


def every_struct():
    waiting = [
        ExperimentConfig,
        *RANGES.values(),
        *SEARCHERS.values(),
        *STORAGES.values(),
        *ENGINES.values(),
    ]
    while waiting:
        struct = waiting.pop()
        yield struct
        for field in fields_of(struct).values():
            for arm in field.type.arms:
                inner = item_of(arm).arm if base_of(arm) is list else arm
                if is_struct(inner) and inner.__name__ not in (
                    "Length",
                    "SearcherConfig",
                    "StorageConfig",
                ):
                    waiting.append(inner)


def test_every_key_is_on_the_page() -> None:
    lines = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    written = {key.rpartition(".")[2] for key in lines}
    for struct in every_struct():
        assert {k for k, f in fields_of(struct).items() if "rest" not in f.type.marks} <= written, (
            struct
        )


def test_every_field_says_what_it_means() -> None:
    for struct in every_struct():
        assert set(docs_of(struct)) == {field.name for field in fields_of(struct).values()}, struct


def test_the_page_is_up_to_date() -> None:
    """Where this fails, run tests/det_driver/config/configuration_page.py."""
    assert page == writer["render"]()


def test_the_examples_on_the_page_load() -> None:
    blocks = [block.split("```")[0] for block in page.split("```yaml\n")[1:]]
    assert len(blocks) == 2
    assert load(blocks[0]).notices == ()
    assert load(blocks[0] + blocks[1]).config.hyperparameters["layers"].count == 4
    assert set(yaml.safe_load(blocks[1])) == {"hyperparameters"}
