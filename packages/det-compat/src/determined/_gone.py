"""What Determined had and det has not, and what to use in its place."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from types import MappingProxyType

_REGISTRY = "there is no model registry; keep the uuid of a Checkpoint, or what its download() gives"

ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("determined", ("cli", "common"), "use determined.experimental.client, and the command det"),
    ("determined", ("horovod",), "import horovod.torch or horovod.tensorflow; a trial needs neither"),
    ("determined", ("lightning",), "use det_lightning.DetCallback with Lightning's own Trainer"),
    (
        "determined",
        ("searcher",),
        "write a searcher that the driver runs: searcher.name custom, and a class derived from det_driver.search.Searcher",
    ),
    (
        "determined.experimental",
        ("core_v2",),
        "run the script with det run and call determined.core.init(), which needs no server outside of it either",
    ),
    (
        "determined.experimental.client",
        (
            "CheckpointOrderBy",
            "CheckpointSortBy",
            "ExperimentOrderBy",
            "ExperimentSortBy",
            "OrderBy",
            "TrialOrderBy",
            "TrialSortBy",
        ),
        "list_experiments(), list_trials() and list_checkpoints() return lists; sort them with sorted()",
    ),
    ("determined.experimental.client", ("DownloadMode",), "Checkpoint.download() takes a directory and nothing else"),
    (
        "determined.experimental.client",
        (
            "Model",
            "ModelOrderBy",
            "ModelSortBy",
            "ModelVersion",
            "create_model",
            "get_model",
            "get_models",
            "list_models",
        ),
        _REGISTRY,
    ),
    (
        "determined.experimental.client",
        ("Project", "User", "Workspace", "get_workspace", "list_users", "list_workspaces", "logout", "whoami"),
        "there are no users, workspaces and projects; the store is a directory of yours, $DET_HOME",
    ),
    (
        "determined.experimental.client",
        ("TrialMetrics", "stream_trials_metrics", "stream_trials_training_metrics", "stream_trials_validation_metrics"),
        "use Trial.iter_metrics(group)",
    ),
    ("determined.keras", ("TFKerasContext",), "use TFKerasTrialContext or TFKerasNativeContext"),
    ("determined.launch", ("deepspeed",), "use determined.launch.torch_distributed"),
    (
        "determined.pytorch",
        ("experimental",),
        "for torch_batch_process, loop over a DataLoader.get_data_loader(skip=, num_replicas=, rank=) under determined.core.init()",
    ),
    ("determined.pytorch", ("deepspeed",), "use a PyTorchTrial on several slots, or Lightning's DeepSpeed strategy"),
    ("determined.tensorboard.metric_writers", ("tensorflow",), "use tf.summary.create_file_writer()"),
)
"""Modules, names of theirs that are gone, and what to use instead. The documentation has the same table."""

GONE = MappingProxyType({f"{module}.{name}": instead for module, names, instead in ROWS for name in names})


def refuse(name: str) -> None:
    """Raise ImportError for a name that is gone, and say what to use instead; do nothing for any other."""
    if name in GONE:
        raise ImportError(f"{name} is not in det; {GONE[name]}", name=name)


class GoneFinder(MetaPathFinder):
    """Asked last for a module that nothing else has found, refuses those that are gone."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Return None, or raise ImportError."""
        refuse(fullname)


def watch() -> None:
    """Let imports of modules that are gone say so, from now on."""
    if not any(isinstance(finder, GoneFinder) for finder in sys.meta_path):
        sys.meta_path.append(GoneFinder())
