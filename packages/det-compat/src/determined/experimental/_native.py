"""The Native API of Determined, implemented by `det_driver.native`."""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from det_core import DetError
from det_driver import native
from det_driver.native import LocalResult, Mode

from .._masters import use_master


def create(
    trial_def: type,
    config: Mapping[str, Any] | None = None,
    mode: Mode | str = Mode.CLUSTER,
    context_dir: str | Path = "",
    command: str | Sequence[str] | None = None,
    master_url: str | None = None,
    *,
    local: bool = False,
    test: bool = False,
) -> LocalResult | None:
    """Train a trial class as `det_driver.native.create` does.

    `local` means `Mode.LOCAL`, and `test` trains a single batch. `master_url` is the
    server that it is submitted to, after a `det login`. Without one it is ignored, with a warning.
    """
    use_master(master_url)
    return native.create(
        trial_def,
        _short(config or {}) if test else config,
        choose_mode(mode, local),
        context_dir,
        command,
        stacklevel=2,
    )


def create_trial_instance(
    trial_def: type,
    checkpoint_dir: str | Path = "",
    config: Mapping[str, Any] | None = None,
    hparams: Mapping[str, Any] | None = None,
) -> Any:
    """Create a trial in this process, with its data, to inspect it or call its methods.

    `hparams` are by default those of the search's first trial. `checkpoint_dir` is ignored. Raises
    TrialError for a trial that cannot be trained.
    """
    place = native.begin(_short(config or {}), Mode.LOCAL, framework="")
    framework = place.plugins.framework_of(trial_def)
    chosen = place.run.hparams if hparams is None else dict(hparams)
    run = replace(place.run, hparams=chosen, build=place.plugins.build(framework.name))
    adapter: Any = framework.load().create(trial_def, run)
    atexit.register(adapter.close)
    return adapter.trial


def choose_mode(mode: Mode | str, local: bool) -> Mode | str:
    """Return the mode that a script has chosen, by `mode` or `local`."""
    return Mode.LOCAL if local else mode


def no_test(test: bool) -> None:
    """Raise DetError if `test` is true: the script's own `fit` says how long it trains."""
    if test:
        raise DetError(
            "test=True is for trial classes; let the script train a little itself, such as"
            " fit(epochs=1)"
        )


def _short(config: Mapping[str, Any]) -> dict[str, Any]:
    searcher = config.get("searcher") or {}
    kept = {name: searcher[name] for name in ("metric", "smaller_is_better") if name in searcher}
    return {
        **config,
        "searcher": {"metric": "val_loss", **kept, "name": "single", "max_length": {"batches": 1}},
    }
