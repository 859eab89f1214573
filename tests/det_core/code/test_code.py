"""Which files are the user's code, and copies of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from det_core import DetError
from det_core.checkpoint import code
from det_core.checkpoint.code import code_files, copy_code


def tree(root: Path, *files: str, ignore: str | None = None) -> Path:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
    if ignore is not None:
        (root / ".detignore").write_text(ignore)
    return root


def names(root: Path) -> list[str]:
    return [file.as_posix() for file in code_files(root)]


def test_everything_is_code_but_what_never_is(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "model_def.py",
        "data/labels.csv",
        "__pycache__/model_def.cpython-311.pyc",
        ".git/HEAD",
        "x.pyc",
        ".venv/bin/python",
    )
    assert names(tmp_path) == ["data/labels.csv", "model_def.py"]


@pytest.mark.parametrize(
    ("ignore", "kept"),
    [
        ("*.bin", ["a.py", "keep/c.py", "keep/deep/d.txt"]),
        ("/a.py", ["b.bin", "keep/b.bin", "keep/c.py", "keep/deep/d.txt"]),
        ("keep/", ["a.py", "b.bin"]),
        ("*.bin\n!keep/b.bin", ["a.py", "keep/b.bin", "keep/c.py", "keep/deep/d.txt"]),
        ("keep/\n!keep/c.py", ["a.py", "b.bin"]),
        ("keep/*\n!keep/c.py", ["a.py", "b.bin", "keep/c.py"]),
        ("**/deep", ["a.py", "b.bin", "keep/b.bin", "keep/c.py"]),
        ("# a comment\n\n   \n*.py   ", ["b.bin", "keep/b.bin", "keep/deep/d.txt"]),
        ("deep/d.txt", ["a.py", "b.bin", "keep/b.bin", "keep/c.py", "keep/deep/d.txt"]),
        ("keep/**/d.txt", ["a.py", "b.bin", "keep/b.bin", "keep/c.py"]),
        ("[ab].*", ["keep/c.py", "keep/deep/d.txt"]),
        ("", ["a.py", "b.bin", "keep/b.bin", "keep/c.py", "keep/deep/d.txt"]),
    ],
)
def test_detignore_means_what_gitignore_means(tmp_path: Path, ignore: str, kept: list[str]) -> None:
    """As git itself says of the same tree."""
    tree(tmp_path, "a.py", "b.bin", "keep/b.bin", "keep/c.py", "keep/deep/d.txt", ignore=ignore)
    assert [name for name in names(tmp_path) if name != ".detignore"] == kept
    assert gits_answer(tmp_path, ignore) == kept


def gits_answer(root: Path, ignore: str) -> list[str]:
    (root / ".gitignore").write_text(ignore)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    command = ["git", "ls-files", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    return sorted(
        name for name in listing.stdout.split() if name not in {".gitignore", ".detignore"}
    )


def test_what_is_always_ignored_can_be_taken_back(tmp_path: Path) -> None:
    tree(tmp_path, "model.pyc", ignore="!*.pyc")
    assert "model.pyc" in names(tmp_path)


def test_a_directory_that_is_ignored_is_not_even_read(tmp_path: Path) -> None:
    """It may be huge, or forbidden, or hold links that lead anywhere."""
    tree(tmp_path, "a.py", "data/x", ignore="data/")
    (tmp_path / "data" / "out").symlink_to("/etc")
    assert names(tmp_path) == [".detignore", "a.py"]


def test_a_link_that_leads_out_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a.py")
    (root / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(
        DetError,
        match=(
            r"passwd is a link that leads out of the code directory; copy the file, or list it in"
            r" \.detignore"
        ),
    ):
        code_files(root)


def test_a_link_to_what_is_not_there_is_said_to_be_broken(tmp_path: Path) -> None:
    """Also where it would lead out. Within the directory it is left out, as an editor's lock is."""
    root = tree(tmp_path / "code", "a.py")
    (root / "lock").symlink_to("nowhere")
    assert names(root) == ["a.py"]
    (root / "data").symlink_to("/data/nowhere")
    with pytest.raises(
        DetError, match=r"data is a link to /data/nowhere, which is not there; mend or remove it"
    ):
        code_files(root)


def test_a_link_to_a_directory_outside_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a.py")
    (root / "etc").symlink_to("/etc")
    with pytest.raises(DetError, match="etc is a link that leads out"):
        code_files(root)


def test_a_link_that_leads_out_may_be_ignored(tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a.py", ignore="passwd")
    (root / "passwd").symlink_to("/etc/passwd")
    assert "a.py" in names(root)


def test_links_within_the_tree_are_followed(tmp_path: Path) -> None:
    """To a file, and to a directory, whose files are found under both names."""
    root = tree(tmp_path / "code", "a.py", "pkg/b.py")
    (root / "c.py").symlink_to("a.py")
    (root / "alias").symlink_to("pkg")
    assert names(root) == ["a.py", "alias/b.py", "c.py", "pkg/b.py"]
    copy_code(root, tmp_path / "copy")
    assert (tmp_path / "copy" / "c.py").read_text() == "a.py"
    assert (tmp_path / "copy" / "alias" / "b.py").read_text() == "pkg/b.py"


def test_a_link_to_a_directory_around_it_is_refused(tmp_path: Path) -> None:
    """Following it would never end."""
    root = tree(tmp_path / "code", "pkg/b.py")
    (root / "pkg" / "self").symlink_to("..")
    with pytest.raises(
        DetError,
        match=r"pkg/self is a link to a directory around it; remove it, or list it in \.detignore",
    ):
        code_files(root)


def test_links_that_lead_into_one_another_are_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a/a.py", "b/b.py")
    (root / "a" / "x").symlink_to("../b")
    (root / "b" / "y").symlink_to("../a")
    with pytest.raises(DetError, match="a/x/y is a link to a directory around it"):
        code_files(root)


def test_what_is_neither_file_nor_directory_is_passed_over(tmp_path: Path) -> None:
    """Such as the lock of an editor, a link to nothing."""
    root = tree(tmp_path / "code", "a.py")
    (root / ".#a.py").symlink_to("me@host.1234:5678")
    os.mkfifo(root / "pipe")
    assert names(root) == ["a.py"]


def test_the_directory_may_itself_be_a_link(tmp_path: Path) -> None:
    tree(tmp_path / "code", "a.py")
    (tmp_path / "here").symlink_to("code")
    assert names(tmp_path / "here") == ["a.py"]


@pytest.mark.parametrize("kind", ["file", "nothing"])
def test_what_is_no_directory_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "model_def.py"
    if kind == "file":
        place.touch()
    with pytest.raises(
        DetError, match=r"model_def\.py is not a directory; name the one that holds your model"
    ):
        code_files(place)


def test_a_copy_holds_the_bytes_the_modes_and_the_times(tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a.py", "bin/run.sh", "naïve dir/ü.txt")
    (root / "bin" / "run.sh").chmod(0o775)
    os.utime(root / "a.py", ns=(1, 2_000_000_003))
    size = copy_code(root, tmp_path / "copy")
    assert names(tmp_path / "copy") == names(root)
    assert size == sum((root / name).stat().st_size for name in names(root))
    assert (tmp_path / "copy" / "bin" / "run.sh").stat().st_mode & 0o7777 == 0o775
    assert (tmp_path / "copy" / "a.py").stat().st_mtime_ns == 2_000_000_003


def test_a_target_inside_the_source_is_not_copied_into_itself(tmp_path: Path) -> None:
    """Neither the first time nor when earlier copies lie there."""
    root = tree(tmp_path / "code", "a.py")
    for number in range(3):
        copy_code(root, root / "runs" / str(number))
    assert not (root / "runs" / "2" / "runs" / "2").exists()
    assert (root / "runs" / "2" / "a.py").is_file()


def test_too_much_code_names_the_largest_file(tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a.py")
    (root / "weights.bin").write_bytes(bytes(3 * 2**20))
    with pytest.raises(
        DetError,
        match=(
            r"holds 3 MiB, more than 2; the largest file is weights\.bin \(3 MiB\); list what is"
            r" not code in \.detignore"
        ),
    ):
        copy_code(root, tmp_path / "copy", max_bytes=2 * 2**20)
    assert not (tmp_path / "copy").exists()


def test_what_is_removed_during_a_copy_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that run in the same directory make and remove temporary files there."""
    source = tree(tmp_path / "source", "model.py", "b.tmp", "scratch/part")
    scan, find = os.scandir, code.code_files

    def scan_and_remove(path: Any) -> Any:
        entries: Any = scan(path)
        if path == source:
            entries = list(entries)
            shutil.rmtree(source / "scratch")
        return entries

    def find_and_remove(root: Path) -> list[Path]:
        monkeypatch.setattr(os, "scandir", scan_and_remove)
        files = find(root)
        monkeypatch.undo()
        (source / "b.tmp").unlink()
        return files

    monkeypatch.setattr(code, "code_files", find_and_remove)
    code.copy_code(source, tmp_path / "target")
    assert [p.name for p in (tmp_path / "target").rglob("*")] == ["model.py"]


def test_an_empty_directory_can_be_copied(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    assert copy_code(tmp_path / "code", tmp_path / "copy") == 0
    assert (tmp_path / "copy").is_dir()


def test_patterns_that_are_no_text_are_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a.py")
    (root / ".detignore").write_bytes(b"\xff\xfe")
    with pytest.raises(DetError, match=r"\.detignore is not UTF-8 text"):
        code_files(root)


NOBODY = 65534
AS_NOBODY = f"""
import os, sys
from pathlib import Path
from det_core.checkpoint.code import copy_code
from det_core import DetError
import pathspec
pathspec.GitIgnoreSpec.from_lines([])  # all that is imported is imported as root, who may read it
if os.getuid() == 0:
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
try:
    copy_code(Path(sys.argv[1]), Path(sys.argv[2]))
except DetError as error:
    print(error)
"""


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "code", "a.py", ignore="a\n!\n")
    with pytest.raises(
        DetError, match=r"\.detignore holds a pattern that gitignore does not know: "
    ):
        code_files(root)


@pytest.mark.process
@pytest.mark.parametrize("what", ["file", "directory", "patterns"])
def test_what_cannot_be_read_is_named(tmp_path: Path, what: str) -> None:
    """In a process of a user who is not root, whom permissions do not bind."""
    root = tree(tmp_path / "code", "a.py", "secret/key", ignore="")
    closed = {
        "file": root / "secret" / "key",
        "directory": root / "secret",
        "patterns": root / ".detignore",
    }[what]
    for place in (tmp_path, *tmp_path.parents):
        if place.is_relative_to(tmp_path.parents[1]):
            place.chmod(0o755)
    closed.chmod(0)
    (tmp_path / "copies").mkdir()
    (tmp_path / "copies").chmod(0o777)
    try:
        command = [sys.executable, "-c", AS_NOBODY, str(root), str(tmp_path / "copies" / "one")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        closed.chmod(0o755)
    assert done.stderr == ""
    assert done.stdout.startswith(f"the code directory {root}")
    assert "cannot be read: Permission denied: " in done.stdout
    assert str(closed) in done.stdout


def test_what_runs_left_in_the_directory_is_no_code(tmp_path: Path) -> None:
    """Or each checkpoint of a script that uses several storages would hold all those before it."""
    tree(
        tmp_path,
        "model.py",
        "old/6f1d/code/model.py",
        "old/6f1d/weights",
        "tb/events.out.tfevents.17.host.1.0",
    )
    (tmp_path / "old" / "6f1d" / "manifest.json").write_text('{"uuid": "6f1d"}')
    assert names(tmp_path) == ["model.py"]


@pytest.mark.parametrize(
    "manifest", ['{"name": "an extension of a browser"}', '["6f1d"]', "no JSON"]
)
def test_a_manifest_of_something_else_is_code(tmp_path: Path, manifest: str) -> None:
    tree(tmp_path, "6f1d/page.html")
    (tmp_path / "6f1d" / "manifest.json").write_text(manifest)
    assert names(tmp_path) == ["6f1d/manifest.json", "6f1d/page.html"]
