"""The configuration of an experiment: typed, frozen, read once at the edge."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._dump import masked, to_builtins, to_json, to_yaml
    from ._entrypoint import is_trial_entrypoint
    from ._experiment import (
        Distributed,
        ExperimentConfig,
        Integrations,
        Kerberos,
        LogPolicy,
        Optimizations,
        Pachyderm,
        Profiling,
        Reproducibility,
        RetentionPolicy,
        Security,
        Webhooks,
    )
    from ._extensions import Extensions
    from ._hyperparameters import Categorical, Const, Double, Hyperparameter, Int, Log
    from ._length import Length, Unit
    from ._load import Loaded, from_json, load, parse
    from ._merge import merge
    from ._notices import Notice
    from ._overrides import apply_overrides
    from ._resources import (
        BindMount,
        Device,
        Environment,
        EnvironmentVariables,
        Image,
        Pbs,
        ProxyPort,
        RegistryAuth,
        Resources,
        Slurm,
    )
    from ._schema import schema
    from ._searchers import (
        AdaptiveAsha,
        AsyncHalving,
        Custom,
        ExploreFunction,
        Grid,
        Hyperband,
        Pbt,
        Random,
        ReplaceFunction,
        SearcherConfig,
        Single,
    )
    from ._storage import S3, Azure, Directory, Gcs, Hdfs, SharedFs, StorageConfig

_HOMES = {
    "_dump": (
        "masked",
        "to_builtins",
        "to_json",
        "to_yaml",
    ),
    "_entrypoint": ("is_trial_entrypoint",),
    "_experiment": (
        "Distributed",
        "ExperimentConfig",
        "Integrations",
        "Kerberos",
        "LogPolicy",
        "Optimizations",
        "Pachyderm",
        "Profiling",
        "Reproducibility",
        "RetentionPolicy",
        "Security",
        "Webhooks",
    ),
    "_extensions": ("Extensions",),
    "_hyperparameters": (
        "Categorical",
        "Const",
        "Double",
        "Hyperparameter",
        "Int",
        "Log",
    ),
    "_length": (
        "Length",
        "Unit",
    ),
    "_load": (
        "Loaded",
        "from_json",
        "load",
        "parse",
    ),
    "_merge": ("merge",),
    "_notices": ("Notice",),
    "_overrides": ("apply_overrides",),
    "_resources": (
        "BindMount",
        "Device",
        "Environment",
        "EnvironmentVariables",
        "Image",
        "Pbs",
        "ProxyPort",
        "RegistryAuth",
        "Resources",
        "Slurm",
    ),
    "_schema": ("schema",),
    "_searchers": (
        "AdaptiveAsha",
        "AsyncHalving",
        "Custom",
        "ExploreFunction",
        "Grid",
        "Hyperband",
        "Pbt",
        "Random",
        "ReplaceFunction",
        "SearcherConfig",
        "Single",
    ),
    "_storage": (
        "Azure",
        "Directory",
        "Gcs",
        "Hdfs",
        "S3",
        "SharedFs",
        "StorageConfig",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "S3",
    "AdaptiveAsha",
    "AsyncHalving",
    "Azure",
    "BindMount",
    "Categorical",
    "Const",
    "Custom",
    "Device",
    "Directory",
    "Distributed",
    "Double",
    "Environment",
    "EnvironmentVariables",
    "ExperimentConfig",
    "ExploreFunction",
    "Extensions",
    "Gcs",
    "Grid",
    "Hdfs",
    "Hyperband",
    "Hyperparameter",
    "Image",
    "Int",
    "Integrations",
    "Kerberos",
    "Length",
    "Loaded",
    "Log",
    "LogPolicy",
    "Notice",
    "Optimizations",
    "Pachyderm",
    "Pbs",
    "Pbt",
    "Profiling",
    "ProxyPort",
    "Random",
    "RegistryAuth",
    "ReplaceFunction",
    "Reproducibility",
    "Resources",
    "RetentionPolicy",
    "SearcherConfig",
    "Security",
    "SharedFs",
    "Single",
    "Slurm",
    "StorageConfig",
    "Unit",
    "Webhooks",
    "apply_overrides",
    "from_json",
    "is_trial_entrypoint",
    "load",
    "masked",
    "merge",
    "parse",
    "schema",
    "to_builtins",
    "to_json",
    "to_yaml",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: a worker needs the structs, and no reader of YAML."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'det_core.config' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
