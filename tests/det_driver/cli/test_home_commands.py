"""`det rm`, `det export`, `det import` and `det home`, and what drivers say of a home."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from det_driver.store import ExperimentState, Store, network_file_system


@pytest.fixture
def home(det: Any) -> Path:
    """A home with two experiments.

    A trial of the second started from the first's older checkpoint.
    """
    with Store(det.home) as store:
        for name, source in (("one", None), ("two", "one-a")):
            id = store.experiments.create(name=name, config="{}", metric="loss").id
            with store.lock(id):
                trial = store.trials.create(id, 0, {}, 0, source_checkpoint=source)
                run = store.runs.begin(trial.id)
                for batches, letter in enumerate("ab", 1):
                    saved = det.home / "checkpoints" / f"{name}-{letter}"
                    saved.mkdir(parents=True)
                    (saved / "weights").write_text(letter)
                    (saved / "manifest.json").write_text(json.dumps({"uuid": saved.name}))
                    store.checkpoints.record(
                        saved.name, trial.id, run.id, batches, storage="", size=1
                    )
                store.runs.end(run.id, "COMPLETED")
                store.experiments.update(id, state=ExperimentState.COMPLETED, started=1.0)
    home: Path = det.home
    return home


def test_rm_deletes_checkpoints_that_no_other_experiment_needs(det: Any, home: Path) -> None:
    done = det("rm", "1", "--yes")

    assert (
        done.stdout
        == "deleted experiment 1\nkept, as other experiments start from them, or as they came with"
        " det import or det migrate: one-a\n"
    )
    assert sorted(path.name for path in (home / "checkpoints").iterdir()) == [
        "one-a",
        "two-a",
        "two-b",
    ]
    assert [row["experiment"]["id"] for row in det.json("list")] == [2]
    assert not (home / "experiments" / "1").exists()
    assert (
        det("show", "1", status=2).stderr
        == f"det: no experiment 1; det list shows those in {home}\n"
    )


def test_checkpoints_are_kept_where_that_is_asked_for(det: Any, home: Path) -> None:
    assert (
        det("rm", "1", "2", "--yes", "--keep-checkpoints").stdout
        == "deleted experiment 1\ndeleted experiment 2\n"
    )
    assert len([*(home / "checkpoints").iterdir()]) == 4
    assert det.json("list") == []


def test_deleting_asks_first(det: Any, home: Path) -> None:
    done = det("rm", "1", "2", status=130)
    assert "delete 1 (one), 2 (two) for good? [y/N]" in done.stdout
    assert len(det.json("list")) == 2


def test_rm_deletes_nothing_if_one_experiment_has_a_driver(det: Any, home: Path) -> None:
    with Store(home) as store, store.lock(2):
        done = det("rm", "1", "2", "--yes", status=2)
    assert done.stderr == "det: experiment 2 is being driven; stop it first: det pause 2\n"
    assert len(det.json("list")) == 2


def test_an_experiment_goes_to_another_home_and_comes_back(
    det: Any, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "two.tar"
    fresh = {"DET_HOME": str(tmp_path / "fresh")}
    assert (
        det("export", "2", file).stdout == f"exported experiment 2 with 3 checkpoints to {file}\n"
    )
    first = det("import", file, env=fresh)
    assert (first.stdout.partition(";")[0], first.stderr) == ("imported experiment 2 (two)", "")
    det("rm", "2", "--yes")
    assert det("import", file).stdout == "imported experiment 2 (two); look at it: det show 2\n"
    assert det("import", file).stdout == "imported experiment 3 (two); look at it: det show 3\n"
    assert [c["uuid"] for c in det.json("checkpoint", "list", "2")] == ["two-a", "two-b"]
    assert det("checkpoint", "delete", "two-a", "--yes").stdout == "deleted checkpoint two-a\n"
    assert det("import", home / "index.db", status=2).stderr.startswith(
        f"det: {home}/index.db is no whole export of"
    )
    lean = tmp_path / "lean.tar"
    assert (
        det("export", "3", lean, "--no-checkpoints").stdout
        == f"exported experiment 3 with 0 checkpoints to {lean}\n"
    )
    assert lean.stat().st_size < file.stat().st_size
    assert "did you mean 'export'" in det("exprot", "1", "x", status=2).stderr


def test_home_repair_rebuilds_the_index_and_names_failures(det: Any, home: Path) -> None:
    """Directories whose experiments cannot be read are named."""
    (home / "experiments" / "1" / "experiment.db").write_text(
        "no database, but long enough to be looked at" * 20
    )
    (home / "index.db").unlink()

    done = det("home", "repair")

    assert done.stdout == f"{home}/index.db is made again of 1 experiment\n"
    assert f"det: {home}/experiments/1 holds no experiment that can be read\n" in done.stderr
    with closing(sqlite3.connect(home / "index.db")) as raw:
        assert raw.execute("SELECT id FROM experiments").fetchall() == [(2,)]


MOUNTS = r"""
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /shared rw shared:1 - nfs4 server:/x rw
31 22 0:41 / /with\040space rw - fuse.sshfs user@host:/ rw
32 30 0:42 / /shared/local rw - xfs /dev/sdb rw
33 22 0:43 / /share rw - lustre x@tcp:/y rw
34 22 0:44 / /bound rw - fuse /disk rw
35 22 8:3 / /usb rw - fuseblk /dev/sdc rw
"""


def test_file_systems_of_other_machines_are_known_by_their_types(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.lstrip())

    def kind(place: str) -> str:
        return network_file_system(Path(place), mounts)

    assert (kind("/shared/me/.det"), kind("/with space/x"), kind("/share")) == (
        "nfs4",
        "fuse.sshfs",
        "lustre",
    )
    assert (kind("/bound"), kind("/usb")) == ("fuse", "")
    assert (kind("/home/me"), kind("/shared/local/x"), kind("/shared2")) == ("", "", "")
    assert network_file_system(tmp_path, tmp_path / "missing") == ""
    assert network_file_system(tmp_path) == ""
