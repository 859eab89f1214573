from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.det_migrate.eras import Tables, dump

from det_migrate.migration import Options, migrate
from det_migrate.sources import open_source
from det_migrate.tally import Tally

Migrate = Callable[..., Tally]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def bring(tmp_path: Path, home: Path) -> Migrate:
    """Write a dump of tables, and migrate it into the home.

    What a dry run says before is what is written and left out then.
    """

    def bring(tables: Tables, **options: Any) -> Tally:
        file = tmp_path / "dump.sql"
        file.write_bytes(dump(tables))
        source, chosen = open_source(str(file)), Options(**options)
        said = migrate(source, home, replace(chosen, dry_run=True, verify=False))
        if chosen.dry_run:
            return said
        done = migrate(source, home, chosen)
        verified = done.written.pop("verified", 0)
        assert (said.written, said.left_out) == (done.written, done.left_out)
        done.written["verified"] = verified
        return done

    return bring
