"""The last figures, kept in results.json.

A benchmark that is run with `--record` writes its own, and README shows them.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).with_name("results.json")


def recorded() -> dict[str, dict[str, float]]:
    """Return the figures of each benchmark, by whose they are."""
    found: dict[str, dict[str, float]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def record(benchmark: str, figures: dict[str, float]) -> None:
    """Write a benchmark's figures in the place of those that it has for the same names."""
    found = recorded()
    found[benchmark] = {**found.get(benchmark, {}), **figures}
    FILE.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", encoding="utf-8")
