"""Saved models: those that exporters write after each validation, and those in each checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_core import TrialError
from det_keras.bundles import check_records

from .build import Parts

EXPORTS = "export"
EVENTS = "eval"
_FINAL: Any = tf.estimator.FinalExporter
_BEST: Any = tf.estimator.BestExporter


class Exports:
    """Calls the exporters of an evaluation's spec.

    They write to `model_dir/export`, which checkpoints contain. A `FinalExporter` exports after
    every validation, because each may be the last. Its newest model replaces the previous one.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.exporters = _listed(parts.evaluate.exporters)

    def __call__(self, checkpoint: str, metrics: Mapping[str, Any], position: int) -> None:
        """Call the exporters with the model of a checkpoint and its metrics."""
        # Hooks such as stop_if_no_decrease_hook read the event too.
        if self.exporters or self._parts.hooks():
            self._write_event(metrics, position)
        for exporter in self.exporters:
            place = self._parts.model_dir / EXPORTS / exporter.name
            final = isinstance(exporter, _FINAL)
            if final:
                shutil.rmtree(place, ignore_errors=True)
            exporter.export(self._parts.estimator, str(place), checkpoint, dict(metrics), final)

    def save(self, path: Path) -> None:
        """Copy the exports into a checkpoint."""
        for name in (EXPORTS, EVENTS):
            if (self._parts.model_dir / name).is_dir():
                shutil.copytree(self._parts.model_dir / name, path / name)

    def load(self, path: Path) -> None:
        """Restore the earlier exports.

        From them an exporter knows the best metrics and the number of models.
        """
        for file in (path / EVENTS).rglob("*.tfevents.*"):
            check_records(file)
        for name in (EXPORTS, EVENTS):
            if (path / name).is_dir():
                shutil.copytree(path / name, self._parts.model_dir / name, dirs_exist_ok=True)
        for exporter in self.exporters:
            if isinstance(exporter, _BEST) and (path / EXPORTS / exporter.name).is_dir():
                # Otherwise it exports in each process once, even if an earlier model was better.
                exporter._has_exported = True

    def _write_event(self, metrics: Mapping[str, Any], position: int) -> None:
        """Write the metrics of an evaluation where a `BestExporter` reads earlier ones."""
        numbers = {
            name: value for name, value in metrics.items() if getattr(value, "shape", None) == ()
        }
        values = [
            tf.compat.v1.Summary.Value(tag=name, simple_value=float(value))
            for name, value in numbers.items()
        ]
        with tf.Graph().as_default():
            # TensorFlow names files by the second. The suffix keeps a second evaluation in the same
            # second from replacing the first.
            place = self._parts.estimator.eval_dir()
            writer = tf.compat.v1.summary.FileWriter(place, filename_suffix=f".{position}")
            writer.add_summary(tf.compat.v1.Summary(value=values), position)
            writer.close()


def save_models(parts: Parts, checkpoint: str, path: Path) -> None:
    """Write a saved model for each of the trial's receivers, into a folder of its name."""
    for name, receiver in parts.receivers.items():
        folder = path / name
        if folder.exists() or Path(name).name != name:
            raise TrialError(
                f"build_serving_input_receiver_fns names a model {name!r}; give it another name"
            )
        made = parts.estimator.export_saved_model(str(path), receiver, checkpoint_path=checkpoint)
        (Path(made.decode() if isinstance(made, bytes) else made)).rename(folder)


def _listed(exporters: Any) -> list[Any]:
    if exporters is None:
        return []
    return list(exporters) if isinstance(exporters, (list, tuple, set, frozenset)) else [exporters]
