"""What can go wrong, and whose mistake it is.

DetError                 a mistake in what was asked: one line on stderr, exit status 2, no traceback
├── ConfigError          the configuration; holds every problem found, each with its place
├── PluginError          a plugin that does not load, contradicts another or is missing
├── EntrypointError      an entrypoint that does not import or is not a trial class
├── TrialError           a trial that breaks the contract of its framework's API
├── MetricError          a metric that is missing, not a number, or not the kind that is needed
├── CheckpointError      a checkpoint that is missing, cut short, altered or another framework's
├── StorageError         checkpoint storage that cannot be reached or is full
└── StoreError           the store of experiments: unknown ids, a newer schema
    ├── ExperimentBusy   another driver holds the experiment
    └── StoreUnwritable  a full disk, another process's lock, a read-only or damaged file

InvalidHP                raised by user code: this choice of hyperparameters cannot work
"""

from __future__ import annotations

from collections.abc import Iterable


class DetError(Exception):
    """A mistake in what was asked; its message names the thing, the value and the way out."""


class ConfigError(DetError):
    """The configuration is wrong.

    `problems` holds one line for each mistake, all of those found in one reading.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class PluginError(DetError):
    """A plugin could not be loaded, contradicts another one, or is not installed."""


class EntrypointError(DetError):
    """The entrypoint does not import, or what it names is not a trial class."""


class TrialError(DetError):
    """A trial breaks the contract of its framework's API."""


class MetricError(DetError):
    """A metric is missing, is not a number, or is not of the kind that is needed."""


class CheckpointError(DetError):
    """A checkpoint is missing, cut short, altered, or was written by another framework."""


class StorageError(DetError):
    """Checkpoint storage cannot be reached, is full, or refuses what was asked."""


class StoreError(DetError):
    """The store of experiments does not hold what was asked for, or cannot be used."""


class ExperimentBusy(StoreError):
    """Another driver holds the experiment."""


class StoreUnwritable(StoreError):
    """The store cannot be written now, by nobody's mistake: its disk is full or read-only, or another process holds its lock."""


class InvalidHP(Exception):
    """Raise in a trial to say that its hyperparameters cannot work; the searcher may try others instead."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was most likely meant to be."""
    import difflib

    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return what ends a sentence about a name that nobody knows, `; did you mean 'loss'?`; empty where none is near."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""
