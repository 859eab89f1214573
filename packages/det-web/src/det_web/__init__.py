"""det-web: the web page of det, its web API and the API's OpenAPI document (`det ui`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from .app import make_app as make_app
    from .openapi import document as document

__version__ = "0.1.0"

lazy(__name__)
