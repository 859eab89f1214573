"""`det check --determinism`: train a few batches twice, and once from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from det_core.config import ExperimentConfig, to_json
from det_core.hooks import Plugins

from ..check import first_choice
from ..driver import environment_of
from ._compare import Difference, of_replays
from ._spec import Replay, Seen, train
from ._verify import CAUSES, RESUMED


def check_determinism(
    config: ExperimentConfig,
    code: Path,
    plugins: Plugins,
    scratch: Path,
    environ: Mapping[str, str],
    batches: int = 8,
) -> tuple[Difference, str] | None:
    """Train `batches` batches twice, and once from a checkpoint in the middle.

    Returns the first difference and its cause, or None.
    """
    hparams, seed = first_choice(config, plugins, code)
    first = Replay(
        entrypoint=str(config.entrypoint),
        config=to_json(config),
        hparams=hparams,
        seed=seed,
        code=str(code),
        scratch=str(scratch / "once"),
        batches=batches,
        every=max(1, batches // 2),
    )
    variables = environment_of(environ, config, gpus=False)
    once = train(first, variables)
    saved = {
        str(at): str(scratch / "once" / "checkpoints" / uuid)
        for at, uuid in once.checkpoints.items()
    }

    def again(name: str, checkpoint: str | None) -> Seen:
        replay = msgspec.structs.replace(
            first,
            scratch=str(scratch / name),
            against=saved,
            checkpoint=checkpoint,
            warm=False if checkpoint else None,
        )
        if checkpoint:
            place = Path(replay.scratch) / "checkpoints"
            place.mkdir(parents=True)
            (scratch / "once" / "checkpoints" / checkpoint).rename(place / checkpoint)
            saved.pop(str(first.every))
        return train(replay, variables)

    if found := of_replays(once, again("twice", None), 0.0, batches):
        return found, CAUSES[found.what]
    if found := of_replays(once, again("resumed", once.checkpoints[first.every]), 0.0, batches):
        return found, RESUMED
    return None
