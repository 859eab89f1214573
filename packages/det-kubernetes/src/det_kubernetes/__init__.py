"""det-kubernetes: experiments whose trials train in Jobs of a Kubernetes cluster. Experimental."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from .config import KubernetesSettings as KubernetesSettings
    from .engine import KubernetesEngine as KubernetesEngine

__version__ = "0.1.0"

lazy(__name__)
