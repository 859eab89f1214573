"""det-server: serves a home to a team, with users, roles, sessions and tokens (`det server`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from .app import create_app as create_app
    from .users import Role as Role
    from .users import User as User
    from .users import Users as Users
    from .users import Workspace as Workspace

__version__ = "0.1.0"

lazy(__name__)
