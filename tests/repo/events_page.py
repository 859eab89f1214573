"""Writes docs/reference/events.md from the events' own types: python tests/repo/events_page.py."""

from __future__ import annotations

import inspect
import json
import re
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import msgspec

from det_driver.cli._events import EVENTS, BestCheckpoint

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
HEAD = """\
# Events

`det run --json` and `det resume --json` print a line of JSON for each thing that happens, when it happens; `event` says of which
kind it is. All have `time`, in unix seconds, and `experiment`, its number. Positions (`batches`) count from the trial's start. What
is no finite number is text: `"NaN"`, `"Infinity"`, `"-Infinity"`. The last line is `experiment_finished`, with what was learnt.
Later versions may add kinds and fields; the schema below is that of this one.
"""


def schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(reduce(or_, EVENTS)),
    }


def render() -> str:
    parts = [HEAD]
    for kind in (*EVENTS, BestCheckpoint):
        name = kind.__struct_config__.tag or "`checkpoint` of `experiment_finished`"
        heading = f"`{name}`" if kind in EVENTS else name
        described = _described(kind)
        rows = [
            f"| `{field}` | {described[field]} |"
            for field in kind.__struct_fields__
            if field in described
        ]
        parts += [
            f"## {heading}\n",
            f"{inspect.cleandoc(kind.__doc__ or '')}\n",
            "| field | meaning |\n|---|---|",
        ]
        parts[-1] += "\n" + "\n".join(rows) + "\n"
    parts += ["## The schema\n", f"```json\n{json.dumps(schema(), indent=1)}\n```\n"]
    return "\n".join(parts)


def _described(kind: type) -> dict[str, str]:
    """Return the text below each field of a class."""
    return dict(
        re.findall(r'^    (\w+): [^\n]*\n    """(.*?)"""', inspect.getsource(kind), re.MULTILINE)
    )


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
