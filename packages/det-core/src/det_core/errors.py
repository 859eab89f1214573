"""What can go wrong, and whose mistake it is.

DetError                 a mistake in what was asked: one line on stderr, status 2, no traceback
├── ConfigError          the configuration: holds every problem found, each with its place
├── PluginError          a plugin that does not load, contradicts another or is missing
├── EntrypointError      an entrypoint that does not import or is not a trial class
├── TrialError           a trial that breaks the contract of its framework's API
├── MetricError          a metric that is missing, not a number, or not the kind that is needed
├── CheckpointError      a checkpoint of another framework or trial, or one that cannot be read
│   └── CheckpointDamaged  its files are not those that were written: missing, cut short or altered
├── ArgumentError        an argument of the Core API that cannot be meant
├── StorageError         checkpoint storage that is full, or refuses what was asked
│   └── StorageUnreachable  checkpoint storage that cannot be reached now: it is waited for
└── StoreError           the store of experiments: unknown ids, a newer schema
    ├── ExperimentBusy   another driver holds the experiment
    └── StoreUnwritable  a full disk, another process's lock, a read-only or damaged file

InvalidHP                raised by user code: this choice of hyperparameters cannot work
"""

from __future__ import annotations

from collections.abc import Iterable


class DetError(Exception):
    """An error with a message for the user: what is wrong, which value, and what to do."""


class ConfigError(DetError):
    """The configuration is wrong.

    `problems` has one line for each mistake, all of those found in one reading.
    """

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class PluginError(DetError):
    """A plugin could not be loaded, contradicts another one, or is not installed."""


class EntrypointError(DetError):
    """The entrypoint does not import, or it does not name a trial class."""


class TrialError(DetError):
    """A trial breaks the contract of its framework's API."""


class MetricError(DetError):
    """A metric is missing, is not a number, or is not of the kind that is needed."""


class CheckpointError(DetError):
    """A checkpoint is missing, cut short, altered, or was written by another framework."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint's files are not those that were written.

    One is missing, cut short or altered, or there are too many.
    """


class StorageError(DetError):
    """Checkpoint storage cannot be reached, is full, or refuses what was asked."""


class StorageUnreachable(StorageError):
    """Checkpoint storage cannot be reached now. It is worth waiting for.

    For example, a server is down, or a file system is not mounted.
    """


class ArgumentError(DetError, ValueError, TypeError):
    """An argument of the Core API is wrong. The message names it and the line of the caller."""


class StoreError(DetError):
    """The store of experiments does not hold what was requested, or cannot be used."""


class ExperimentBusy(StoreError):
    """Another driver holds the experiment."""


class StoreUnwritable(StoreError):
    """The store cannot be written now, and the user made no mistake.

    Its disk is full or read-only, its file is damaged, or another process holds its lock.
    """


class InvalidHP(Exception):
    """Raise in a trial to say that its hyperparameters cannot work. The searcher may try others."""


def shown(value: object, most: int = 80) -> str:
    """Return the `repr` of a value for a message, cut, even where its `__repr__` raises."""
    try:
        return f"{value!r:.{most}}"
    except Exception as wrong:
        return f"<{type(value).__name__}, whose __repr__ raised {type(wrong).__name__}>"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, or None."""
    import difflib

    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name, with the most similar known one.

    For example `; did you mean 'loss'?`. Empty if none is similar.
    """
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""
