"""det-web: the page of det, the web API that it is made from, and the API's document; `det ui` serves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.lazy import lazy

if TYPE_CHECKING:
    from .app import make_app as make_app
    from .openapi import document as document

__version__ = "0.1.0"

lazy(__name__)
