"""What trials log beside their metrics: how it is encoded, where it lies, and what is refused."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from det_core.errors import ArgumentError
from det_core.train.media import Media, find_file, find_media

RAMP = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3)


@pytest.fixture
def media(tmp_path: Path) -> Media:
    return Media(tmp_path)


def read_pixels(file: Path) -> Any:
    """Return the pixels of an image, as Pillow finds them."""
    image = pytest.importorskip("PIL.Image")
    return np.asarray(image.open(file))


def names(place: Path) -> list[str]:
    return [each.path for each in find_media(place / "media")]


def refused(log: Any, *given: Any) -> str:
    with pytest.raises(ArgumentError) as error:
        log(*given)
    line, _, text = str(error.value).partition(": ")
    assert re.fullmatch(r"test_media\.py:\d+", line)
    return text


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 1), (6, 4, 3), (6, 4, 4), (1, 1), (1, 300, 3)])
def test_an_array_is_a_png_of_the_same_pixels(
    media: Media, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    array = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    media.log_image("seen", array, 7)
    assert (
        read_pixels(tmp_path / "media/seen/7.png")
        == array.squeeze(-1 if shape[-1:] == (1,) else ())
    ).all()


@pytest.mark.parametrize(
    ("array", "pixels"),
    [
        (np.array([[0.0, 0.5, 1.0]]), [[0, 128, 255]]),
        (np.array([[0.0, 0.25]], np.float16), [[0, 64]]),
        (np.array([[-1e-4, 1.0001]], np.float32), [[0, 255]]),
        (np.array([[True, False]]), [[255, 0]]),
        (np.array([[0, 255]], np.int64), [[0, 255]]),
        (RAMP[::-1, ::2], RAMP[::-1, ::2].tolist()),
    ],
)
def test_numbers_of_any_type_become_pixels(
    media: Media, tmp_path: Path, array: Any, pixels: Any
) -> None:
    media.log_image("seen", array, 0)
    assert read_pixels(tmp_path / "media/seen/0.png").tolist() == pixels


def test_images_of_pillow_and_files_are_kept(media: Media, tmp_path: Path) -> None:
    """Files and bytes are kept as they are; of two files at one position the last one stays."""
    image = pytest.importorskip("PIL.Image")
    picture = image.fromarray(RAMP)
    media.log_image("picture", picture, 1)
    media.log_image("cmyk", picture.convert("CMYK"), 1)
    written = io.BytesIO()
    picture.save(written, "JPEG")
    (tmp_path / "given.jpeg").write_bytes(written.getvalue())
    media.log_image("file", tmp_path / "given.jpeg", 1)
    media.log_image("bytes", RAMP, 2)
    media.log_image("bytes", written.getvalue(), 2)
    assert names(tmp_path) == ["bytes/2.jpg", "cmyk/1.png", "file/1.jpg", "picture/1.png"]
    assert (tmp_path / "media/file/1.jpg").read_bytes() == written.getvalue()
    assert (read_pixels(tmp_path / "media/picture/1.png") == RAMP).all()


def test_a_figure_of_matplotlib_is_drawn(media: Media, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=50)
    figure.subplots().plot([1, 2, 3])
    media.log_image("curve", figure, 5)
    assert read_pixels(tmp_path / "media/curve/5.png").shape[:2] == (50, 100)


@pytest.mark.parametrize(
    ("image", "says"),
    [
        (
            np.zeros((3, 6, 5)),
            r"float64 of shape \(3, 6, 5\)\): give numpy\.moveaxis\(image, 0, -1\)\. ",
        ),
        (
            np.zeros((2, 6, 4, 3)),
            r"of shape \(2, 6, 4, 3\)\): give one image of the batch, such as image\[0\]$",
        ),
        (
            np.zeros((6, 4, 2)),
            r"give an array of height x width, or of .* channels\. In a torch tensor",
        ),
        (np.zeros((0, 4)), r"of shape \(0, 4\)"),
        (np.array([[0.0, np.nan]]), "give an image without NaN and infinity"),
        (np.array([[0.0, 255.0]]), r"from 0 to 255\): give values from 0 to 1\. Floats"),
        (np.array([[-5, 300]]), "int64 of shape .* from -5 to 300"),
        (np.array([["a"]]), "give an array of uint8, or of floats"),
        (np.zeros((2, 2), complex), "give an array of uint8, or of floats"),
        ("nowhere.png", r"image='nowhere.png'\): give a file that can be read \(No such file"),
        ("odd\0name", "give a file that can be read"),
        (b"<svg onload=alert(1)>", "21 bytes.*give a PNG or JPEG file"),
        ([[0, 1]], "give an array, a torch tensor, a PIL image"),
        (None, r"image=None\): give an array, a torch tensor"),
    ],
)
def test_what_is_no_image_is_refused_at_the_callers_line(
    media: Media, tmp_path: Path, image: Any, says: str
) -> None:
    assert re.search(says, refused(media.log_image, "seen", image, 0))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "a/..",
        "/etc/x",
        "a//b",
        "a/",
        ".hidden",
        "a\0",
        "a\n",
        "a%2Fb",
        "a\\b",
        "<b>",
        "x" * 201,
        None,
        3,
    ],
)
def test_a_name_that_cannot_be_a_folder_is_refused(media: Media, tmp_path: Path, name: Any) -> None:
    assert "a name of at most 200 bytes" in refused(media.log_text, name, "text", 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("batches", [-1, 1.5, True, 2**63, "3"])
def test_a_position_that_cannot_be_meant_is_refused(media: Media, batches: Any) -> None:
    assert "a whole number of batches" in refused(media.log_text, "seen", "text", batches)


def test_names_have_parts_and_letters_of_any_script(media: Media, tmp_path: Path) -> None:
    for name in ("validation/confusion (top 5)", "größe", "a.b=1"):
        media.log_text(name, "text", 3)
    assert [each.name for each in find_media(tmp_path / "media")] == [
        "a.b=1",
        "größe",
        "validation/confusion (top 5)",
    ]
    assert all(path.parent.parent == tmp_path / "media" for path in tmp_path.rglob("*.txt"))


@pytest.mark.parametrize(
    "data",
    [
        {"class": ["cat", "dog"], "recall": [0.5, float("nan")], "n": [2**60, None]},
        [{"class": "cat", "recall": 0.5, "n": 2**60}, {"class": "dog", "recall": float("nan")}],
        {
            "class": np.array(["cat", "dog"]),
            "recall": np.array([0.5, np.nan]),
            "n": [np.int64(2**60), None],
        },
    ],
)
def test_a_table_is_columns_and_rows(media: Media, tmp_path: Path, data: Any) -> None:
    """Numbers that a browser cannot hold are written as text."""
    media.log_table("recall", data, 4)
    assert json.loads((tmp_path / "media/recall/4.json").read_text()) == {
        "columns": ["class", "recall", "n"],
        "rows": [["cat", 0.5, str(2**60)], ["dog", "NaN", None]],
    }


def test_a_data_frame_is_a_table(media: Media, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    media.log_table("frame", pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}), 1)
    assert json.loads((tmp_path / "media/frame/1.json").read_text())["rows"] == [[1, "x"], [2, "y"]]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"a": [1, 2], "b": [1]}, "columns of 'a': 2, 'b': 1.*give columns of one length"),
        ({}, "give columns of one length"),
        ({"a": "text"}, r"data\['a'\]='text'\): give a list of cells"),
        ({"a": 5}, "give a list of cells"),
        ({"a": [[1, 2]]}, "give one number or text in each cell"),
        ({"a": [np.zeros(2)]}, "give one number or text in each cell"),
        ("text", "give a dict of columns"),
        ([1, 2], "give a dict of columns"),
    ],
)
def test_what_is_no_table_is_refused(media: Media, data: Any, says: str) -> None:
    assert re.search(says, refused(media.log_table, "seen", data, 0))


def test_a_text_is_kept_as_it_is(media: Media, tmp_path: Path) -> None:
    media.log_text("said", "<script>\n\udc80ü", 0)
    assert (tmp_path / "media/said/0.txt").read_text(encoding="utf-8") == "<script>\n\\udc80ü"
    assert "give text" in refused(media.log_text, "said", 5, 0)


def test_another_run_replaces_what_lies_at_the_same_position(tmp_path: Path) -> None:
    """What a killed run was about to write is removed."""
    for batches in (10, 20):
        Media(tmp_path).log_text("said", f"first run at {batches}", batches)
    (tmp_path / "media/said/.30.txt").write_text("half")
    Media(tmp_path).log_text("said", "second run", 20)
    assert sorted(path.name for path in (tmp_path / "media/said").iterdir()) == ["10.txt", "20.txt"]
    assert (tmp_path / "media/said/20.txt").read_text() == "second run"


def test_what_is_too_much_is_not_kept_and_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit counts what an earlier run wrote, and not what is replaced."""
    Media(tmp_path).log_text("said", "x" * 60, 1)
    media = Media(tmp_path, most_bytes=100)
    media.log_text("said", "x" * 50, 2)
    assert names(tmp_path) == ["said/1.txt"]
    media.log_text("said", "x" * 100, 1)
    for batches in (2, 3):
        media.log_text("said", "x", batches)
    assert names(tmp_path) == ["said/1.txt"]
    said = capsys.readouterr().err
    assert re.match(
        r"det: test_media\.py:\d+: this is one too many: images, tables and texts of a trial may"
        r" have",
        said,
    )
    assert said.count("training goes on") == 1
    media.log_text("said", "x", 1)
    media.log_text("said", "x", 2)
    assert names(tmp_path) == ["said/1.txt", "said/2.txt"]


def test_there_is_a_limit_of_files_and_of_each_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    media = Media(tmp_path, most_files=2)
    for batches in range(4):
        media.log_text("said", "x", batches)
    media.log_text("long", "x" * (17 << 20), 0)
    assert names(tmp_path) == ["said/0.txt", "said/1.txt"]
    said = capsys.readouterr().err
    assert "or 2 files; log fewer" in said
    assert "'long' has 17 MiB, and one may have 16 MiB" in said


def test_a_folder_that_cannot_be_written_ends_no_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "media").write_text("in the way")
    Media(tmp_path).log_text("said", "x", 0)
    assert re.search(r"'said' cannot be written: .*\. It is not kept", capsys.readouterr().err)


def test_links_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    media = tmp_path / "media"
    Media(tmp_path).log_text("said", "x", 1)
    (tmp_path / "secret.txt").write_text("secret")
    (media / "said/2.txt").symlink_to(tmp_path / "secret.txt")
    (media / "linked").symlink_to(media / "said")
    for foreign in ("said/a.txt", "said/01.txt", "said/3.html", "said/\u0661.txt", "4.txt"):
        (media / foreign).write_text("x")
    os.mkfifo(media / "said/5.txt")
    assert names(tmp_path) == ["said/1.txt"]
    assert find_file(media, "said/1.txt") == media / "said/1.txt"
    odd = (
        "said/2.txt",
        "said/3.html",
        "said/5.txt",
        "linked/1.txt",
        "../secret.txt",
        "said/../../secret.txt",
        "/etc/hosts",
    )
    assert [
        find_file(media, path)
        for path in (*odd, "", "said", "4.txt", "a\0/1.txt", f"{'x' * 300}/1.txt")
    ] == [None] * 12
    (tmp_path / "other").symlink_to(media)
    assert list(find_media(tmp_path / "other")) == []
    assert find_file(tmp_path / "other", "said/1.txt") is None


def test_file_of_another_machine_is_stored_as_logged(tmp_path: Path) -> None:
    there, here = Media(tmp_path / "there"), Media(tmp_path / "here")
    there.log_image("a/b", RAMP, 3)
    there.log_text("said", "x", 4)
    for each in find_media(tmp_path / "there/media"):
        here.keep(each.path, (tmp_path / "there/media" / each.path).read_bytes())
    assert names(tmp_path / "here") == names(tmp_path / "there") == ["a%2Fb/3.png", "said/4.txt"]
    assert (tmp_path / "here/media/said/4.txt").read_text() == "x"
    here.keep("a%2Fb/3.jpg", b"\xff\xd8\xff")
    assert names(tmp_path / "here") == ["a%2Fb/3.jpg", "said/4.txt"]


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "../1.txt",
        "/tmp/1.txt",
        "a/../1.txt",
        "a/b/1.txt",
        "a/01.txt",
        "a/1.sh",
        "",
    ],
)
def test_a_path_of_another_machine_leads_out_of_no_folder(tmp_path: Path, path: str) -> None:
    Media(tmp_path).keep(path, b"x")
    assert [*tmp_path.rglob("*")] == []


def test_media_without_a_directory_only_checks_arguments() -> None:
    Media(None).log_image("seen", RAMP, 0)
    assert "give an array" in refused(Media(None).log_image, "seen", 5, 0)
