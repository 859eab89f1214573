"""Knowledge of streaming libraries: how they save a position, what they cannot save, and which
files they leave.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, final

_SEGMENT = re.compile(
    r"\d{6}_(locals|barrier|next_epoch|cache_usage|shard_states|shard_access_times|resume"
    r"|epoch_shape|epoch_data)"
)


def keeps_place_in_iterators(loader: Any) -> bool:
    """Return whether `get_state` and `set_state` read and set the position.

    The loader has them, or its iterators, as in Grain.
    """
    if all(callable(getattr(loader, name, None)) for name in ("get_state", "set_state")):
        return True
    return any(base.__module__.partition(".")[0] == "grain" for base in type(loader).__mro__)


@final
class PlacedLoader:
    """Gives a loader with `get_state` and `set_state` the methods `state_dict` and
    `load_state_dict`.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._open: Any = loader if hasattr(loader, "get_state") else None
        self._state: Any = None

    def __iter__(self) -> Iterator[Any]:
        opened: Any = iter(self.loader)
        self._open = opened if hasattr(opened, "get_state") else self.loader
        if self._state is not None:
            self._open.set_state(self._state)
            self._state = None
        return opened  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def state_dict(self) -> dict[str, Any]:
        return {"place": self._open.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state["place"]


def caveat(holder: Any) -> str | None:
    """Return a sentence that says what the state of a loader lacks, or None if it is complete."""
    # An attribute of Hugging Face's datasets, seen in 5.2.0.
    link = getattr(holder, "_ex_iterable", None)
    while link is not None:
        if type(link).__name__.startswith("BufferShuffled"):
            return (
                "the training data is shuffled by the buffer of Hugging Face's datasets, whose"
                " records are no part of its state: after a restart those that were in it are"
                " missed; shuffle shards only, or a map-style dataset"
            )
        link = getattr(link, "ex_iterable", None)
    return None


def ranks_known_to(loader: Any) -> int:
    """Return the number of ranks among which a dataset of a known library shards itself, or 1 if it
    does not.
    """
    dataset = getattr(loader, "dataset", loader)
    # litdata 0.2.76, Hugging Face's datasets 5.2.0 (split_dataset_by_node),
    # MosaicML's streaming 0.14.2
    homes = (
        ("distributed_env", "world_size"),
        ("_distributed", "world_size"),
        ("_unique_rank_world", "num_ranks"),
    )
    found = [getattr(getattr(dataset, home, None), count, None) for home, count in homes]
    return max((each for each in found if isinstance(each, int)), default=1)


# Only what is the user's own is removed there.
def clean_shared_memory(place: Path = Path("/dev/shm")) -> list[str]:  # nosec B108
    """Remove segments that killed processes of MosaicML's streaming left in shared memory.

    The library does not start while they exist.

    Segments are removed only if they belong to this user and no living process has them open.
    Returns their names.
    """
    with suppress(OSError):
        found = [
            path
            for path in place.iterdir()
            if _SEGMENT.fullmatch(path.name) and path.stat().st_uid == os.getuid()
        ]
        if not found:
            return []
        used = set(_open_files())
        stale = [path for path in found if str(path) not in used]
        for path in stale:
            path.unlink(missing_ok=True)
        return sorted(path.name for path in stale)
    return []


def _open_files() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                if "/" in line:
                    yield line[line.index("/") :]
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with suppress(OSError):
                    yield str(descriptor.readlink())
