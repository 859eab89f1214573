"""Names of Determined that det lacks, each with what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from det_core.errors import DetError

C = TypeVar("C")

_SERVER = (
    "users and workspaces are those of a server: det server user, det server workspace; labels"
    " stand in for projects"
)
_SORTED = (
    "list_experiments(), list_trials() and list_checkpoints() return lists; sort them with sorted()"
)
_SCRIPT = (
    "call determined.core.init(defaults=, unmanaged=), which records a script that det run did not"
    " start as an experiment"
)
_BATCHES = (
    "for torch_batch_process, loop over a DataLoader.get_data_loader(skip=, num_replicas=, rank=) "
    "under determined.core.init()"
)
_PACHYDERM = "keep the commit in data of the configuration, which get_config() has"

ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("determined", ("cli", "common"), "use determined.experimental.client, and the command det"),
    (
        "determined",
        ("horovod",),
        "import horovod.torch or horovod.tensorflow; a trial needs neither",
    ),
    ("determined", ("lightning",), "use det_lightning.DetCallback with Lightning's own Trainer"),
    (
        "determined",
        ("searcher",),
        (
            "write a searcher that the driver runs: searcher.name custom, and a class derived from"
            " det_driver.search.Searcher"
        ),
    ),
    ("determined.experimental", ("core_v2",), _SCRIPT),
    (
        "determined.experimental.client",
        (
            "CheckpointOrderBy",
            "CheckpointSortBy",
            "ExperimentOrderBy",
            "ExperimentSortBy",
            "ModelOrderBy",
            "ModelSortBy",
            "OrderBy",
            "TrialOrderBy",
            "TrialSortBy",
        ),
        _SORTED,
    ),
    (
        "determined.experimental.client",
        ("DownloadMode",),
        "Checkpoint.download() takes a directory and nothing else",
    ),
    (
        "determined.experimental.client",
        (
            "Project",
            "User",
            "Workspace",
            "add_oauth_client",
            "create_user",
            "create_workspace",
            "delete_workspace",
            "get_session_username",
            "get_user_by_id",
            "get_user_by_name",
            "get_workspace",
            "list_oauth_clients",
            "list_users",
            "list_workspaces",
            "remove_oauth_client",
            "whoami",
        ),
        _SERVER,
    ),
    ("determined.experimental.client", ("logout",), "use det logout"),
    (
        "determined.experimental",
        ("ModelOrderBy", "ModelSortBy", "OrderBy", "TrialOrderBy", "TrialSortBy"),
        _SORTED,
    ),
    ("determined.experimental", ("Project",), _SERVER),
    (
        "determined.experimental",
        ("checkpoint", "metrics", "model"),
        "use determined.experimental.client",
    ),
    ("determined.experimental", ("detached", "unmanaged"), _SCRIPT),
    ("determined.experimental", ("inference",), _BATCHES),
    (
        "determined.experimental",
        ("test_one_batch",),
        "use det check, or create(local=True, test=True)",
    ),
    ("determined.keras", ("TFKerasContext",), "use TFKerasTrialContext or TFKerasNativeContext"),
    ("determined.launch", ("deepspeed",), "use determined.launch.torch_distributed"),
    ("determined.pytorch", ("experimental",), _BATCHES),
    ("determined", ("tensorpack",), "use PyTorch, Keras or Estimator, whose trials det trains"),
    (
        "determined.pytorch",
        ("dsat",),
        "search over the settings of DeepSpeed with searcher.name adaptive_asha",
    ),
    (
        "determined.pytorch",
        ("deepspeed",),
        "use a PyTorchTrial on several slots, or Lightning's DeepSpeed strategy",
    ),
    (
        "determined.tensorboard.metric_writers",
        ("tensorflow",),
        "use tf.summary.create_file_writer()",
    ),
)
"""Modules, their names that are gone, and what to use instead. The documentation has the same
table."""

GONE = MappingProxyType(
    {f"{module}.{name}": instead for module, names, instead in ROWS for name in names}
)

_CLIENT = "determined.experimental.client"
METHODS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        f"{_CLIENT}.Determined",
        (
            "add_oauth_client",
            "create_user",
            "create_workspace",
            "delete_workspace",
            "get_session_username",
            "get_user_by_id",
            "get_user_by_name",
            "get_workspace",
            "list_oauth_clients",
            "list_users",
            "list_workspaces",
            "remove_oauth_client",
            "whoami",
        ),
        _SERVER,
    ),
    (f"{_CLIENT}.Determined", ("logout",), "use det logout"),
    (f"{_CLIENT}.Experiment", ("set_notes",), "use set_description()"),
    (f"{_CLIENT}.Experiment", ("move_to_project",), _SERVER),
    (
        f"{_CLIENT}.Experiment",
        ("delete_tensorboard_files",),
        (
            "delete() deletes them with all else; alone they are in the experiment's directory"
            " below $DET_HOME"
        ),
    ),
    (f"{_CLIENT}.Experiment", ("get_pachyderm_config",), _PACHYDERM),
    (f"{_CLIENT}.Model", ("move_to_workspace",), _SERVER),
    (f"{_CLIENT}.Checkpoint", ("get_pachyderm_commit",), _PACHYDERM),
    (
        f"{_CLIENT}.Checkpoint",
        ("remove_files",),
        "delete() deletes all of its files; export() writes its model alone",
    ),
    (
        f"{_CLIENT}.Checkpoint",
        ("from_json", "get_type", "load_from_path", "parse_metadata"),
        "use client.get_checkpoint(uuid).load(), or load_trial_from_checkpoint_path() and its like",
    ),
)
"""Methods that are gone and raise a DetError, and what to use instead. The documentation has the
same table."""


def refuse_method(name: str, called: str | None = None) -> NoReturn:
    """Raise DetError for a method that is gone, and say what to use instead.

    `called` is the name in the message, by default `name`.
    """
    instead = next(
        text for cls, names, text in METHODS for each in names if f"{cls}.{each}" == name
    )
    raise DetError(f"{called or name} is not in det; {instead}")


def with_refusals(cls: type[C]) -> type[C]:
    """Add to a class those of its methods that are gone.

    They accept all arguments and raise DetError.
    """
    for owner, names, _ in METHODS:
        for name in names if owner == f"{cls.__module__}.{cls.__qualname__}" else ():
            setattr(cls, name, staticmethod(_refusal(f"{owner}.{name}")))
    return cls


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        refuse_method(name)

    return refused


def refuse(name: str) -> None:
    """Raise ImportError for a name that is gone, and say what to use instead.

    Other names are ignored.
    """
    if name in GONE:
        raise ImportError(f"{name} is not in det; {GONE[name]}", name=name)


class GoneFinder(MetaPathFinder):
    """Refuses to import modules that are gone.

    It is the last finder, for modules not found otherwise.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Return None, or raise ImportError."""
        refuse(fullname)


def watch() -> None:
    """Install the finder that refuses modules that are gone."""
    if not any(isinstance(finder, GoneFinder) for finder in sys.meta_path):
        sys.meta_path.append(GoneFinder())
