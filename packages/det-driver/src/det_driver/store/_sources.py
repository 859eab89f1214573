"""What an experiment has taken up of the recordings of scripts, each from its own home."""

from __future__ import annotations

import msgspec

from det_driver.store._databases import Databases
from det_driver.store._schema import dump, load_object


class SourceState(msgspec.Struct, frozen=True):
    """Where the next record of a recording belongs.

    - `trials`: the numbers of its trials in its own home, with those in this experiment.
    - `trial`: the trial of the script that runs, by its number in this experiment.
    - `run`: the run of that script, once it has begun, and `ended` whether it has ended.
    - `runs`: the last run of each trial that this recording has begun.
    - `host`: the machine that the script runs on.
    """

    trials: dict[int, int] = {}
    trial: int | None = None
    run: int | None = None
    runs: dict[int, int] = {}
    ended: bool = False
    host: str = ""


class ScriptSource(msgspec.Struct, frozen=True):
    """A recording: its last event that was taken up, with the digest, and the state after it."""

    seq: int = 0
    digest: str = ""
    state: SourceState = SourceState()


_state = msgspec.json.Decoder(SourceState)


def state_of(text: str) -> SourceState:
    """Return a state from its text. Raises ValueError for what is none."""
    return msgspec.convert(load_object(text), _state.type, strict=False)


class ScriptSources:
    """The recordings that the experiment whose lock is held has taken up."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def get(self, id: str) -> ScriptSource:
        """Return how far a recording is taken up. One that is new has no event."""
        database = self._databases.held()
        row = database.row("SELECT seq, digest, state FROM sources WHERE id = ?", (id,))
        if row is None:
            return ScriptSource()
        with database.decoding():
            return ScriptSource(int(row[0]), str(row[1]), state_of(row[2]))

    def put(self, id: str, source: ScriptSource) -> None:
        """Record how far a recording is taken up."""
        row = id, source.seq, source.digest, dump(msgspec.to_builtins(source.state))
        self._databases.held().put(
            "INSERT OR REPLACE INTO sources (id, seq, digest, state) VALUES (?, ?, ?, ?)", row
        )
