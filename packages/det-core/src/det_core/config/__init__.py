"""The configuration of an experiment, typed and frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..support.lazy import lazy

if TYPE_CHECKING:
    from ._engines import ENGINES as ENGINES
    from ._engines import Ssh as Ssh
    from ._experiment import ExperimentConfig as ExperimentConfig
    from ._experiment import LogPolicy as LogPolicy
    from ._experiment import Optimizations as Optimizations
    from ._experiment import Profiling as Profiling
    from ._experiment import is_trial_entrypoint as is_trial_entrypoint
    from ._extensions import SECTIONS as SECTIONS
    from ._extensions import Extensions as Extensions
    from ._plain import MASK as MASK
    from ._plain import Notice as Notice
    from ._plain import find_secrets as find_secrets
    from ._plain import from_json as from_json
    from ._plain import hparams_with_secrets as hparams_with_secrets
    from ._plain import masked as masked
    from ._plain import masked_hparams as masked_hparams
    from ._plain import parse as parse
    from ._plain import secret_masker as secret_masker
    from ._plain import to_builtins as to_builtins
    from ._plain import to_json as to_json
    from ._plain import with_secrets as with_secrets
    from ._plain import without_effect as without_effect
    from ._plain import without_secrets as without_secrets
    from ._resources import BindMount as BindMount
    from ._searchers import RANGES as RANGES
    from ._searchers import SEARCHERS as SEARCHERS
    from ._searchers import UNITS as UNITS
    from ._searchers import AdaptiveAsha as AdaptiveAsha
    from ._searchers import AsyncHalving as AsyncHalving
    from ._searchers import Auto as Auto
    from ._searchers import Categorical as Categorical
    from ._searchers import Combined as Combined
    from ._searchers import Const as Const
    from ._searchers import Custom as Custom
    from ._searchers import Double as Double
    from ._searchers import ExploreFunction as ExploreFunction
    from ._searchers import Grid as Grid
    from ._searchers import Hyperband as Hyperband
    from ._searchers import Hyperparameter as Hyperparameter
    from ._searchers import Int as Int
    from ._searchers import Length as Length
    from ._searchers import Log as Log
    from ._searchers import Pbt as Pbt
    from ._searchers import Random as Random
    from ._searchers import ReplaceFunction as ReplaceFunction
    from ._searchers import Rungs as Rungs
    from ._searchers import SearcherConfig as SearcherConfig
    from ._searchers import Single as Single
    from ._storage import S3 as S3
    from ._storage import STORAGES as STORAGES
    from ._storage import Azure as Azure
    from ._storage import Directory as Directory
    from ._storage import Gcs as Gcs
    from ._storage import Hdfs as Hdfs
    from ._storage import SharedFs as SharedFs
    from ._storage import StorageConfig as StorageConfig

lazy(__name__)
