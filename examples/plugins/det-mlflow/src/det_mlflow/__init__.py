"""Tells MLflow of det's trials."""

__version__ = "0.1.0"
__all__: list[str] = []
