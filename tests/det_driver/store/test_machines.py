"""A home that several machines have.

What one commits the other reads at once, and no log written ahead is left to one of them.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.shared_disk import mounted, why_no_shared_disk

from det_driver.store import SEVERAL, Store, is_shared

OTHER = """
import sys
from det_driver.store import Store
with Store.reader(sys.argv[1]) as store:
    for line in sys.stdin:
        print(store.experiments.driven(1), store.experiments.get(1).progress, flush=True)
"""


def journals(home: Path) -> set[str]:
    return {path.name for path in home.rglob("*") if path.name.endswith(("-wal", "-journal"))}


def test_a_home_that_is_marked_has_no_log_written_ahead(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Store(home) as store:
        made = store.experiments.create(name="before", config="{}")
        assert not is_shared(home)
        assert "index.db-wal" in journals(home)
    (home / SEVERAL).touch()
    with Store(home) as store:
        assert is_shared(home)
        assert is_shared(store.experiment_dir(made.id))
        another = store.experiments.create(name="after", config="{}")
        for each in (made, another):
            with store.lock(each.id):
                store.experiments.update(each.id, progress=0.5, description="x")
                assert journals(home) <= {"index.db-journal", "experiment.db-journal"}
        assert [s.experiment.progress for s in store.experiments.list()] == [0.5, 0.5]
    (home / SEVERAL).unlink()
    with Store(home) as store, store.lock(made.id):
        store.experiments.update(made.id, description="y")
        assert "experiment.db-wal" in journals(home)


@pytest.mark.skipif(bool(why_no_shared_disk()), reason=why_no_shared_disk())
def test_commits_of_one_machine_are_visible_on_another_at_once(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """Each machine has a mount of its own, where a log written ahead cannot be had.

    SQLite says that it is an I/O error.
    """
    disk, here, there = tmp_path / "disk", tmp_path / "here", tmp_path / "there"
    for each in (disk, here, there):
        each.mkdir()
    with mounted(disk, here), mounted(disk, there):
        assert is_shared(here)
        with Store(here) as store:
            made = store.experiments.create(name="x", config="{}")
            reader = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(OTHER), str(there)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

            def asked() -> str:
                assert reader.stdin is not None
                assert reader.stdout is not None
                reader.stdin.write("?\n")
                reader.stdin.flush()
                return reader.stdout.readline().strip()

            with store.lock(made.id):
                for k in range(50):
                    store.experiments.update(made.id, progress=k / 50)
                    assert asked() == f"True {k / 50}"
            assert asked() == "False 0.98"
            reader.communicate(timeout=20)
    assert not is_shared(here)
