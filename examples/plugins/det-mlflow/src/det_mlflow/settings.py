"""What may stand under `plugins.mlflow`."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where MLflow keeps what it is told; by default where MLflow itself would."""

    tracking_uri: str | None = None
    """Such as `sqlite:////home/you/mlflow.db`, or a server's address.

    By default `MLFLOW_TRACKING_URI`.
    """
    experiment: str | None = None
    """The name of the experiment in MLflow; by default that of det's."""
    artifact_location: str | None = None
    """Where artifacts go, for an experiment that MLflow does not have yet."""
    logs: bool = True
    """Whether the logs of each run are kept as artifacts."""
