"""What an agent keeps on its machine.

Whatever goes wrong with it is its run's failure, and names the path.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from det_node.agent import Ended, Relay, RunSpec, pack
from det_node.agent._files import OwnFiles
from det_node.agent._processes import Processes

pytestmark = pytest.mark.process


@pytest.fixture
def code(tmp_path: Path) -> tuple[str, bytes]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model_def.py").write_bytes(b"#" * 100_000)
    return pack(tmp_path / "code")


@pytest.fixture
def full() -> Iterator[None]:
    """Let no file grow beyond a page, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def spec(digest: str, tmp_path: Path) -> RunSpec:
    return RunSpec(
        run_id=7,
        entrypoint="true",
        trial_class=False,
        code_dir=tmp_path / "elsewhere",
        log_dir=tmp_path / "logs",
        variables={},
        code=digest,
    )


def test_failed_unpacking_ends_the_run_and_is_retried_later(
    code: tuple[str, bytes], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    files, ends = OwnFiles(tmp_path / "cache"), list[Ended]()
    files.add_code(*code)
    relay = Relay()
    processes = Processes(relay, ends.append, lambda: 0, print, print)
    request.getfixturevalue("full")
    processes.start(spec(code[0], tmp_path), files.with_own_directories)
    relay.close()
    (ended,) = ends
    assert ended.run == 7
    assert str(tmp_path / "cache" / "code" / code[0]) in ended.unstartable
    assert "File too large" in ended.unstartable
    assert list((tmp_path / "cache" / "code").iterdir()) == []  # it takes no room that others need
    assert files.codes == ()
    resource.setrlimit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1:] * 2)
    assert (
        files.with_own_directories(spec(code[0], tmp_path)).code_dir / "model_def.py"
    ).stat().st_size == 100_000


def test_code_that_is_no_archive_or_never_came_is_said(
    code: tuple[str, bytes], tmp_path: Path
) -> None:
    files, ends = OwnFiles(tmp_path / "cache"), list[Ended]()
    relay = Relay()
    processes = Processes(relay, ends.append, lambda: 0, print, print)
    processes.start(spec(code[0], tmp_path), files.with_own_directories)
    files.add_code(code[0], b"no tar" * 200)
    processes.start(spec(code[0], tmp_path), files.with_own_directories)
    relay.close()
    assert "never came" in ends[0].unstartable
    assert "cannot be unpacked" in ends[1].unstartable
    assert all(str(tmp_path / "cache") in ended.unstartable for ended in ends)
