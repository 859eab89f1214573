"""Saved models: those of exporters, behind each validation, and those that each checkpoint holds."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import TrialError

from .build import Parts

EXPORTS = "export"
EVENTS = "eval"
_FINAL: Any = tf.estimator.FinalExporter
_BEST: Any = tf.estimator.BestExporter


class Exports:
    """Calls the exporters of an evaluation's spec; what they write lies in `model_dir/export`, and goes into checkpoints.

    A `FinalExporter` exports behind every validation, as each may be the last; its newest model takes the place of the one before.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._exporters = _listed(parts.evaluate.exporters)

    def __call__(self, checkpoint: str, metrics: Mapping[str, Any], position: int) -> None:
        """Export the model of a checkpoint, as its evaluation's metrics deserve."""
        if not self._exporters:
            return
        self._write_event(metrics, position)
        for exporter in self._exporters:
            place = self._parts.model_dir / EXPORTS / exporter.name
            final = isinstance(exporter, _FINAL)
            if final:
                shutil.rmtree(place, ignore_errors=True)
            exporter.export(self._parts.estimator, str(place), checkpoint, dict(metrics), final)

    def save(self, path: Path) -> None:
        """Copy what was exported into a checkpoint."""
        for name in (EXPORTS, EVENTS):
            if (self._parts.model_dir / name).is_dir():
                shutil.copytree(self._parts.model_dir / name, path / name)

    def load(self, path: Path) -> None:
        """Take up what had been exported, by which an exporter knows what was the best, and how many models there are."""
        for name in (EXPORTS, EVENTS):
            if (path / name).is_dir():
                shutil.copytree(path / name, self._parts.model_dir / name, dirs_exist_ok=True)
        for exporter in self._exporters:
            if isinstance(exporter, _BEST) and (path / EXPORTS / exporter.name).is_dir():
                exporter._has_exported = True  # else it exports anew in each process, whatever was better before

    def _write_event(self, metrics: Mapping[str, Any], position: int) -> None:
        """Note an evaluation where a `BestExporter` looks for earlier ones."""
        numbers = {name: value for name, value in metrics.items() if getattr(value, "shape", None) == ()}
        values = [tf.compat.v1.Summary.Value(tag=name, simple_value=float(value)) for name, value in numbers.items()]
        with tf.Graph().as_default():
            writer = tf.compat.v1.summary.FileWriter(self._parts.estimator.eval_dir())
            writer.add_summary(tf.compat.v1.Summary(value=values), position)
            writer.close()


def save_models(parts: Parts, checkpoint: str, path: Path) -> None:
    """Write a saved model for each of the trial's receivers, into a folder of its name."""
    for name, receiver in parts.receivers.items():
        folder = path / name
        if folder.exists() or Path(name).name != name:
            raise TrialError(f"build_serving_input_receiver_fns names a model {name!r}; give it another name")
        made = parts.estimator.export_saved_model(str(path), receiver, checkpoint_path=checkpoint)
        (Path(made.decode() if isinstance(made, bytes) else made)).rename(folder)


def _listed(exporters: Any) -> list[Any]:
    if exporters is None:
        return []
    return list(exporters) if isinstance(exporters, (list, tuple, set, frozenset)) else [exporters]
