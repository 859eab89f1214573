"""What a server refuses that runs code as the users of its machine, or would."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.det_server.conftest import OF_ANN

from det_core.errors import DetError
from det_driver.accounts import FILE
from det_driver.provenance import set_user
from det_driver.remote import pack
from det_driver.store import Store
from det_server import Users
from det_server.command import server
from det_server.submit import Submissions, Uploads


def refusal(*words: str) -> str:
    """Return the sentence with which a command of the server ends."""
    result = CliRunner().invoke(server, [*words], obj=None)
    assert isinstance(result.exception, (DetError, click.ClickException)), result.output
    return str(result.exception)


def test_a_home_keeps_how_its_code_runs(home: Path, users: Users) -> None:
    words = ("start", "--home", str(home), "--run-as-users")
    assert "without TLS another user of this machine may get a session" in refusal(*words)
    assert "choose an empty --home" in refusal(*words, "--behind-proxy")
    (home / FILE).touch()
    assert "give --run-as-users" in refusal("start", "--home", str(home))


def test_a_unit_with_another_user_than_root_is_refused(tmp_path: Path) -> None:
    said = refusal("install", "--user", "nobody", "--home", str(tmp_path), "--", "--run-as-users")
    assert said == (
        "--run-as-users needs root, and the server would run as nobody; give --user root"
    )


def test_only_the_owner_replaces_code(home: Path, users: Users, tmp_path: Path) -> None:
    (home / FILE).touch()
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print('of bob')\n")
    packed = io.BytesIO()
    pack(code, packed)
    data = packed.getvalue()
    digest, uploads = hashlib.sha256(data).hexdigest(), Uploads(home)
    with Store(home) as store:
        set_user(store.experiment_dir(OF_ANN), "ann")
        place = store.code_dir(OF_ANN) / "train.py"
    submissions = Submissions(home, uploads, {})
    for user in ("bob", "root", "ann"):
        uploads.write(user, digest, 0, len(data), data)
    for user in ("bob", "root"):
        with pytest.raises(DetError, match="its owner, who alone may replace it"):
            submissions.replace_code(user, OF_ANN, digest)
    assert "of bob" not in place.read_text()
    submissions.replace_code("ann", OF_ANN, digest)
    assert "of bob" in place.read_text()
