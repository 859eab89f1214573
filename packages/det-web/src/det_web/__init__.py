"""det-web: the page of det (`app`), and the document of the web API that it is made from (`openapi`); `det ui` serves both."""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
