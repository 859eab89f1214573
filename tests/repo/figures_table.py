"""Writes the README's figures from what the benchmarks recorded last.

python tests/repo/figures_table.py.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results.json"
BEGIN, END = (
    "<!-- figures: written by tests/repo/figures_table.py -->\n",
    "<!-- end of figures -->\n",
)
SAID = {
    "step_overhead": (
        "Cost of a training step of a small PyTorch model, relative to a hand-written loop, in"
        " processor instructions (a network of 2,700 weights, whose steps are short: `python"
        " benchmarks/step_overhead.py --instructions`):"
    ),
    "lightning_overhead": (
        "The same cost under Lightning's Trainer, relative to that Trainer without det "
        "(`python benchmarks/lightning_overhead.py --instructions`):"
    ),
    "keras_overhead": (
        "And under Keras's `fit`, relative to `fit` without det, a network of 134,000 weights"
        " (`python benchmarks/keras_overhead.py --steps 1 --instructions`):"
    ),
    "search_throughput": (
        "Throughput of a search whose trials end at once, in trials per second on two cores "
        "(`python benchmarks/search_throughput.py`). Optuna runs all trials in one process, "
        "the others run each trial in a process of its own:"
    ),
}
"""What each benchmark measures; those that have recorded nothing are left out."""
NAMES = {
    "fabric": "Lightning's Fabric",
    "lightning": "Lightning's Trainer",
    "ignite": "Ignite",
    "accelerate": "Accelerate",
    "transformers": "Transformers' Trainer",
}


def tables() -> str:
    """Return a sentence and a table of one line for each benchmark that has been recorded."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    parts = []
    for benchmark, said in SAID.items():
        figures = sorted(
            results.get(benchmark, {}).items(),
            key=lambda figure: (figure[0] != "det", figure[1], figure[0]),
        )
        if figures:
            head = "| " + " | ".join(NAMES.get(name, name) for name, _ in figures) + " |"
            shown = [
                f"{value:.3f}" if benchmark.endswith("overhead") else f"{value:.3g}"
                for _, value in figures
            ]
            table = f"\n\n{head}\n|{'---|' * len(figures)}\n| {' | '.join(shown)} |\n"
            parts.append(said + (table if len(figures) > 1 else f" {shown[0]}.\n"))
    return "\n".join(parts)


def written(text: str) -> str:
    """Return a README with the latest figures in their place."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}{tables()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
