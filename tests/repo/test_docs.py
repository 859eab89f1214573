"""Every block of every page runs, and shows what it says.

A page is one visit to an empty directory. `sh` blocks are run by bash, `python` blocks by one
interpreter, in their order; a `python` or `yaml` block whose first line is a comment with a file's
name is written to that file. A `text` block right after one that ran is its output: `...` stands
for anything, a uuid for any other, `/home/you` for the home directory; digits are compared as they
are given. A block under `<!-- not run: REASON -->` is not run. A page that says `<!-- needs:
MODULE, ... -->` is left out where one of them is not installed.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.repo.reader import FENCE, Block, Reader, blocks, pattern

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "packages/*/README.md", "examples/**/README.md")
    for path in ROOT.glob(pattern)
    if "_build" not in path.parts
)
NEEDS = re.compile(r"^<!-- needs: (.+) -->$", re.MULTILINE)


@pytest.fixture
def reader(det) -> Iterator[Reader]:
    reader = Reader(det.home, det.cwd)
    yield reader
    reader.leaves()


def needed(page: Path) -> list[str]:
    """Return the modules that a page needs beyond what det brings."""
    return [
        each.strip()
        for line in NEEDS.findall(page.read_text(encoding="utf-8"))
        for each in line.split(",")
    ]


def titled(page: Path) -> str:
    """Return a page's path, with what it needs, so that `-k needs` chooses pages by it."""
    return "-".join([str(page.relative_to(ROOT)), *(f"needs-{module}" for module in needed(page))])


MARKS = {"README.md": pytest.mark.end_to_end} | dict.fromkeys(
    # What they show is trained by other tests, too.
    ("docs/guides/large-models.md", "docs/guides/using-a-model.md", "docs/guides/hugging-face.md"),
    pytest.mark.thorough,
)
TO_READ = [pytest.param(page, marks=MARKS.get(str(page.relative_to(ROOT)), ())) for page in PAGES]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", TO_READ, ids=titled)
def test_the_blocks_of_the_page_run_and_show_what_it_says(page: Path, reader: Reader) -> None:
    missing = [module for module in needed(page) if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"it needs {', '.join(missing)}")
    if page.parent.parent.name == "packages":
        pytest.importorskip(page.parent.name.replace("-", "_"))
    if page.parent.parent.name == "examples":  # an example is read where it is
        shutil.copytree(
            page.parent,
            reader.cwd,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    if page.parent.parent.name == "plugins":
        pytest.importorskip(page.parent.name.removeprefix("det-"))
        reader.installs(page.parent)
    reader.reads(page)


def test_output_is_compared_with_the_digits_that_are_given() -> None:
    said = pattern(
        "batch 76 loss=0.25...  checkpoint 6a3f1c9e-0000-4000-8000-000000000000\n...\nend\n"
    )
    assert said.fullmatch(
        "batch 76   loss=0.251  checkpoint 11111111-2222-4333-8444-555555555555\nmore\nend"
    )
    for wrong in ("0.26", "0.2", "1.25"):
        assert not said.fullmatch(
            f"batch 76 loss={wrong} checkpoint 11111111-2222-4333-8444-555555555555\nmore\nend"
        )
    assert not said.fullmatch(
        "batch 77 loss=0.25 checkpoint 6a3f1c9e-0000-4000-8000-000000000000\nmore\nend"
    )
    assert not said.fullmatch(
        "batch 76 loss=none checkpoint 6a3f1c9e-0000-4000-8000-000000000000\nmore\nend"
    )


def test_a_block_that_fails_is_noticed(reader: Reader) -> None:
    for language, text in (("sh", "false\ntrue\n"), ("python", "1 / 0\n")):
        with pytest.raises(AssertionError):
            reader.does(Block(language, text, 1, "", False))


LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    broken = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert broken == []


def test_pages_of_the_documentation_lead_to_each_other_only() -> None:
    """What is built of them has nothing else."""
    docs = ROOT / "docs"
    links = [
        (page, link)
        for page in docs.glob("**/*.md")
        for link in LINK.findall(FENCE.sub("", page.read_text()))
    ]
    assert [
        (page, link)
        for page, link in links
        if not (page.parent / link).resolve().is_relative_to(docs)
    ] == []


def test_every_page_of_the_documentation_is_in_the_index() -> None:
    docs = ROOT / "docs"
    listed = re.findall(
        r"^[\w./-]+$", (docs / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = [
        str(p.relative_to(docs).with_suffix(""))
        for p in PAGES
        if p.is_relative_to(docs) and p.name != "index.md"
    ]
    assert sorted(listed) == sorted(pages)


def test_every_promise_names_a_test_that_is_there() -> None:
    rows = [
        line
        for line in (ROOT / "docs/guides/failures.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    promises = [row for row in rows if not row.startswith(("| what happens", "|---"))]
    named = [re.fullmatch(r"\| .+ \| .+ \| `(\S+\.py)::(test_\w+)` \|", row) for row in promises]
    assert len(named) > 30
    for row, found in zip(promises, named, strict=True):
        assert found, row
        assert f"def {found[2]}(" in (ROOT / "tests" / found[1]).read_text(encoding="utf-8"), row


def test_every_row_of_a_runs_state_names_a_test_that_is_there() -> None:
    page = (ROOT / "docs/guides/checkpoints.md").read_text(encoding="utf-8")
    section = page.partition("## The state of a run, listed once")[2].partition("\n## ")[0]
    rows = [
        line
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| state |")
    ]
    assert len(rows) >= 12
    for row in rows:
        found = re.fullmatch(r"\| .+ \| `(\S+\.py)::(test_\w+)` \|", row)
        assert found, row
        assert f"def {found[2]}(" in (ROOT / "tests" / found[1]).read_text(encoding="utf-8"), row


def test_every_situation_names_tests_that_are_there() -> None:
    """Those of PyTorch have one each."""
    page = (ROOT / "docs/development/situations.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    assert len(rows) >= 25
    for row in rows:
        cell = row.removesuffix("|").rpartition("|")[2]
        names = re.findall(r"`(\S+\.py)(?:::(test_\w+))?`", cell)
        assert len(names) == cell.count("`") / 2, row
        assert names or "pytorch/pytorch#" not in row, row
        for path, test in names:
            text = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in text, row


def test_gallery_lists_every_example_and_has_its_pictures() -> None:
    text = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == {
        p.name for p in (ROOT / "examples").iterdir() if p.is_dir()
    }
    for name in re.findall(r"^## (\w+)$", text, re.MULTILINE):
        assert f"](images/{name}.webp)" in text


STARTS = {
    "torch": "the loop you have",
    "keras": "the script you have",
    "estimator": "the script you have",
}


def test_index_starts_from_existing_code_with_pytorch_first() -> None:
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (?!---|what)(.+) \|$", text.partition("## I come from")[0], re.MULTILINE
    )
    assert rows[0].startswith("a training loop in PyTorch")
    pages = {
        name: {"torch": "pytorch", "lightning": "../from-lightning"}.get(name, name)
        for name in frameworks()
    }
    for name, page in pages.items():
        guide = (ROOT / f"docs/guides/{page}.md").read_text(encoding="utf-8")
        heading = STARTS.get(name, "the script stays a script")
        assert f"\n## {heading[0].upper()}{heading[1:]}\n" in guide, (
            f"{page}.md does not begin with what one has"
        )
        assert any(f"{page.removeprefix('../')}.md" in row for row in rows), (
            f"no row leads to {page}.md"
        )


def frameworks() -> list[str]:
    """Return the frameworks that packages of this repository have a trial class for."""
    return sorted(
        path.parents[2].name.removeprefix("det-")
        for path in ROOT.glob("packages/*/src/det_*/trial.py")
    )


def test_what_is_said_to_be_installed_can_be() -> None:
    """Blocks that install are run by `nox -s newcomer` only.

    Here it is checked that what they name is there, and enough.

    As long as nothing is published, what a package of this repository needs of the others has to be
    named with it.
    """
    projects = {
        path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for path in ROOT.glob("packages/*/pyproject.toml")
    }
    folders = {about["name"]: folder for folder, about in projects.items()}
    extras = {folder: about.get("optional-dependencies", {}) for folder, about in projects.items()}
    needs = {
        folder: {
            folders[name] for name in re.findall(r"\bdet-[\w-]+", " ".join(about["dependencies"]))
        }
        for folder, about in projects.items()
    }
    for page in PAGES:
        named: set[str] = set()
        for block in blocks(page):
            for line in re.findall(
                r"pip install (.+)", block.text if block.language == "sh" else ""
            ):
                found = {}
                for path in re.findall(r"\./packages/[\w-]+(?:\[[\w,]+\])?", line):
                    name, _, extra = path.removeprefix("./packages/").rstrip("]").partition("[")
                    found[name] = set(extra.split(",")) - {""}
                for name, chosen in found.items():
                    assert name in extras, f"{page}: {name}"
                    assert chosen <= set(extras[name]), f"{page}: {name} has no extra {chosen}"
                    named.add(name)
                    assert needs[name] <= named | set(found), f"{page}: {name} needs {needs[name]}"
                if not page.is_relative_to(
                    ROOT / "packages"
                ):  # whose pages are for an index, too; det-testing brings det plugin new
                    assert not re.search(
                        r"(?<![\w./-])det-(?!testing)\w+", line.partition(" #")[0]
                    ), f"{page}: {line}"
