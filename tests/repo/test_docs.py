"""Every block of every page runs, and shows what it says.

A page is one visit to an empty directory. `sh` blocks are run by bash, `python` blocks by one interpreter, in their order; a
`python` or `yaml` block whose first line is a comment with a file's name is written to that file. A `text` block right after
one that ran is its output: `...` stands for anything, a decimal number or a uuid for any other, `/home/you` for the
home directory. A block under `<!-- not run: REASON -->` is not run. A page that says `<!-- needs: MODULE, ... -->` is left out
where one of them is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.distributions import lay_out_project, on_path

from det_core import Plugins

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "packages/*/README.md", "examples/**/README.md")
    for path in ROOT.glob(pattern)
    if "_build" not in path.parts
)
SECONDS = 240

FENCE = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml|sh))\n")
NEEDS = re.compile(r"^<!-- needs: (.+) -->$", re.MULTILINE)
INSTALLED = re.compile(r"the tests install (\S+) from its source$")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->\n$")
UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
TOKEN = re.compile(
    rf"(?P<any>\.\.\.)|(?P<uuid>{UUID})|(?P<number>\d+\.\d+(?:e[-+]?\d+)?)|(?P<space>\s+)|(?P<text>.)", re.DOTALL
)
PATTERNS = {"any": "(?s:.*?)", "uuid": UUID, "number": r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", "space": r"\s+"}

INTERPRETER = """
import json, sys
namespace = {"__name__": "__main__"}
for line in sys.stdin:
    code, cwd = json.loads(line)
    __import__("os").chdir(cwd)
    "" in sys.path or sys.path.insert(0, "")
    try:
        exec(compile(code, "block", "exec"), namespace)
    except BaseException:
        __import__("traceback").print_exc(file=sys.stdout)
        print("\\0failed", flush=True)
    else:
        print("\\0done", flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    not_run: str
    follows: bool  # nothing but blank lines between it and the block before


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found, end = [], -1
    for match in FENCE.finditer(text):
        reason = NOT_RUN.search(text[: match.start()])
        found.append(
            Block(
                language=match[1],
                text=match[2],
                line=text.count("\n", 0, match.start()) + 1,
                not_run=reason[1] if reason else "",
                follows=end >= 0 and not text[end : match.start()].strip(),
            )
        )
        end = match.end()
    return found


def pattern(expected: str) -> re.Pattern[str]:
    """Return what output has to match."""
    parts = [PATTERNS.get(str(m.lastgroup)) or re.escape(m[0]) for m in TOKEN.finditer(expected.strip())]
    return re.compile("".join(parts))


class Reader:
    """Somebody who does what a page says."""

    def __init__(self, det) -> None:
        self.cwd = det.cwd
        self._home = det.home
        bin = Path(sys.executable).parent
        outside = {k: v for k, v in os.environ.items() if not k.startswith("DET_")}
        self._env = {
            **outside,
            "PATH": f"{bin}{os.pathsep}{outside['PATH']}",
            "HOME": str(det.home.parent),
            "DET_HOME": str(det.home),
        }
        self._python: subprocess.Popen[str] | None = None

    def installs(self, plugin: Path) -> None:
        """Install a plugin from its source tree."""
        self._env |= on_path(lay_out_project(self._home.parent / "site", plugin))

    def does(self, block: Block) -> str | None:
        """Run a block; return what it printed, or None where there was nothing to run."""
        name = FILE.match(block.text)
        if name and block.language in ("python", "yaml"):
            (self.cwd / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (self.cwd / name[1]).write_text(block.text)
            return None
        match block.language:
            case "sh":
                return self._seen(self._shell(block.text))
            case "python":
                return self._seen(self._exec(block.text))
            case "yaml":
                check_yaml(block.text)
            case "toml":
                tomllib.loads(block.text)
            case "json":
                json.loads(block.text)
            case "text" | "{toctree}" | "{eval-rst}":
                pass
            case other:
                pytest.fail(f"a block in {other!r} cannot be run")
        return None

    def _seen(self, output: str) -> str:
        return output.replace(str(self._home), "/home/you/.det").replace(str(self._home.parent), "/home/you")

    def _shell(self, text: str) -> str:
        where = self._home.parent / "cwd"
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", f"trap 'pwd > {where}' EXIT\n{text}"],
            cwd=self.cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        assert process.returncode == 0, f"status {process.returncode}\n{output}"
        self.cwd = Path(where.read_text().strip())
        return output

    def _exec(self, text: str) -> str:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-u", "-c", INTERPRETER],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps([text, str(self.cwd)]) + "\n")
        self._python.stdin.flush()
        lines = []
        for line in self._python.stdout:
            if line.startswith("\0"):
                assert line == "\0done\n", "".join(lines)
                return "".join(lines)
            lines.append(line)
        pytest.fail("the interpreter ended\n" + "".join(lines))

    def leaves(self) -> None:
        if self._python is not None:
            self._python.communicate(timeout=60)


def check_yaml(text: str) -> None:
    """A configuration, or some of its keys, that det accepts; of several documents each."""
    from det_core.plugins import extensions_of
    from det_driver.config import load

    extensions = extensions_of(Plugins.installed(strict=True))
    for document in yaml.safe_load_all(text):
        load(document, complete=False, extensions=extensions)


@pytest.fixture
def reader(det) -> Iterator[Reader]:
    reader = Reader(det)
    yield reader
    reader.leaves()


def needed(page: Path) -> list[str]:
    """Return the modules that a page needs beyond what det brings."""
    return [each.strip() for line in NEEDS.findall(page.read_text(encoding="utf-8")) for each in line.split(",")]


def titled(page: Path) -> str:
    """Return a page's path, with what it needs, so that `-k needs` chooses the pages that need something."""
    return "-".join([str(page.relative_to(ROOT)), *(f"needs-{module}" for module in needed(page))])


@pytest.mark.parametrize("page", PAGES, ids=titled)
def test_the_blocks_of_the_page_run_and_show_what_it_says(page: Path, reader: Reader) -> None:
    missing = [module for module in needed(page) if importlib.util.find_spec(module) is None]
    if missing:
        pytest.skip(f"it needs {', '.join(missing)}")
    if page.parent.parent.name == "packages":
        pytest.importorskip(page.parent.name.replace("-", "_"))
    if page.parent.parent.name == "examples":  # an example is read where it is
        shutil.copytree(page.parent, reader.cwd, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    if page.parent.parent.name == "plugins":
        pytest.importorskip(page.parent.name.removeprefix("det-"))
        reader.installs(page.parent)
    output = None
    for block in blocks(page):
        at = f"{page.relative_to(ROOT)}:{block.line}"
        if block.not_run:
            output = None
            if plugin := INSTALLED.search(block.not_run):
                reader.installs(reader.cwd / plugin[1])
        elif block.language == "text" and block.follows and output is not None:
            assert pattern(block.text).fullmatch(output.strip()), f"{at} says\n{block.text}\nbut it is\n{output}"
            output = None
        else:
            try:
                output = reader.does(block)
            except AssertionError as error:
                raise AssertionError(f"{at}: {error}") from error


def test_output_is_compared_up_to_numbers_and_names_that_differ_from_run_to_run() -> None:
    said = pattern("batch 76 loss=0.25  checkpoint 6a3f1c9e-0000-4000-8000-000000000000\n...\nend\n")
    assert said.fullmatch("batch 76   loss=0.31  checkpoint 11111111-2222-4333-8444-555555555555\nmore\nend")
    assert not said.fullmatch("batch 77 loss=0.25 checkpoint 6a3f1c9e-0000-4000-8000-000000000000\nmore\nend")
    assert not said.fullmatch("batch 76 loss=none checkpoint 6a3f1c9e-0000-4000-8000-000000000000\nmore\nend")


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


def test_every_page_of_the_documentation_is_in_the_index() -> None:
    docs = ROOT / "docs"
    listed = re.findall(r"^[\w./-]+$", (docs / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [str(p.relative_to(docs).with_suffix("")) for p in PAGES if p.is_relative_to(docs) and p.name != "index.md"]
    assert sorted(listed) == sorted(pages)


STARTS = {"torch": "the loop you have", "keras": "the script you have", "estimator": "the script you have"}


def test_the_index_begins_with_the_code_that_one_has_and_pytorch_first() -> None:
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!---|what)(.+) \|$", text.partition("## I come from")[0], re.MULTILINE)
    assert rows[0].startswith("a training loop in PyTorch")
    pages = {name: {"torch": "pytorch", "lightning": "../from-lightning"}.get(name, name) for name in frameworks()}
    for name, page in pages.items():
        guide = (ROOT / f"docs/guides/{page}.md").read_text(encoding="utf-8")
        heading = STARTS.get(name, "the script stays a script")
        assert f"\n## {heading[0].upper()}{heading[1:]}\n" in guide, f"{page}.md does not begin with what one has"
        assert any(f"{page.removeprefix('../')}.md" in row for row in rows), f"no row leads to {page}.md"


def frameworks() -> list[str]:
    """Return the frameworks that packages of this repository have a trial class for."""
    return sorted(path.parents[2].name.removeprefix("det-") for path in ROOT.glob("packages/*/src/det_*/trial.py"))


def test_what_is_said_to_be_installed_exists() -> None:
    """Blocks that install are not run, as that needs the network; at least what they name must be here."""
    extras = {}
    for project in ROOT.glob("packages/*/pyproject.toml"):
        about = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        extras[about["name"]] = set(about.get("optional-dependencies", {}))
    for page in PAGES:
        for block in blocks(page):
            for line in re.findall(r"pip install (.+)", block.text if block.language == "sh" else ""):
                for path in re.findall(r"\./packages/\S+", line):
                    name, _, extra = path.strip("'\"").removeprefix("./packages/").partition("[")
                    assert name in extras, f"{page}: {path}"
                    assert not extra or set(extra.rstrip("]").split(",")) <= extras[name], f"{page}: {path}"
