"""Somebody who reads a page of documentation and does what it says, in an empty directory.

See tests/repo/test_docs.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.support.distributions import lay_out_project, on_path

SECONDS = 240

FENCE = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml|sh))\n")
INSTALLED = re.compile(r"the tests install (\S+) from its source$")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->\n$")
UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
SAVED = re.compile(rf"^(.* batch \S+ +checkpoint):? \S*{UUID}\n?", re.MULTILINE)
TOKEN = re.compile(rf"(?P<any>\.\.\.)|(?P<uuid>{UUID})|(?P<space>\s+)|(?P<text>.)", re.DOTALL)
PORT = "8080"
"""The port of a server on a page. A reader takes one that is free."""
PATTERNS = {"any": "(?s:.*?)", "uuid": UUID, "space": r"\s+"}

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
    parts = [
        PATTERNS.get(str(m.lastgroup)) or re.escape(m[0]) for m in TOKEN.finditer(expected.strip())
    ]
    return re.compile("".join(parts))


def shows(expected: str, output: str) -> bool:
    """Return whether a page shows what was printed.

    A checkpoint is told of when it is written, in whichever line that is.
    """
    return all(line in SAVED.findall(output) for line in SAVED.findall(expected)) and bool(
        pattern(SAVED.sub("", expected)).fullmatch(SAVED.sub("", output).strip())
    )


class Reader:
    """Reads in a home of its own.

    A shell's directory and environment are kept from one block to the next.
    """

    def __init__(self, home: Path, cwd: Path) -> None:
        self.cwd = cwd
        self._home = home
        bin = Path(sys.executable).parent
        outside = {k: v for k, v in os.environ.items() if not k.startswith("DET_")}
        self.env = {
            **outside,
            "PATH": f"{bin}{os.pathsep}{outside['PATH']}",
            "HOME": str(home.parent),
            "DET_HOME": str(home),
        }
        self._python: subprocess.Popen[str] | None = None
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self._port = str(found.getsockname()[1])

    def reads(self, page: Path) -> None:
        """Do what a page says, from top to bottom; what is seen has to be what it shows."""
        output = None
        for block in blocks(page):
            at = f"{page.name}:{block.line}"
            if block.not_run:
                self.skips(block)
                output = None
            elif block.language == "text" and block.follows and output is not None:
                assert shows(block.text, output), f"{at} says\n{block.text}\nbut it is\n{output}"
                output = None
            else:
                try:
                    output = self.does(block)
                except AssertionError as error:
                    raise AssertionError(f"{at}: {error}") from error

    def skips(self, block: Block) -> None:
        """Leave out a block that is not to be run here.

        What it would have installed may be there as a source.
        """
        if plugin := INSTALLED.search(block.not_run):
            self.installs(self.cwd / plugin[1])

    def installs(self, plugin: Path) -> None:
        """Install a plugin from its source tree."""
        self.env |= on_path(lay_out_project(self._home.parent / "site", plugin))

    def does(self, block: Block) -> str | None:
        """Run a block; return what it printed, or None where there was nothing to run."""
        name = FILE.match(block.text)
        if name and block.language in ("python", "yaml"):
            (self.cwd / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (self.cwd / name[1]).write_text(block.text)
            return None
        match block.language:
            case "sh":
                return self._seen(self.shell(block.text))
            case "python":
                return self._seen(self._exec(block.text))
            case "yaml":
                self.checks(block.text)
            case "toml":
                tomllib.loads(block.text)
            case "json":
                json.loads(block.text)
            case "text" | "{toctree}" | "{eval-rst}":
                pass
            case other:
                raise AssertionError(f"a block in {other!r} cannot be run")
        return None

    def checks(self, text: str) -> None:
        """Hold a fragment of YAML to be a configuration, or some of its keys, that det accepts.

        Of several documents each.
        """
        import yaml

        from det_core import Plugins
        from det_core.hooks import extensions_of
        from det_driver.config import load

        extensions = extensions_of(Plugins.installed(strict=True))
        for document in yaml.safe_load_all(text):
            load(document, complete=False, extensions=extensions)

    def shell(self, text: str, seconds: float = SECONDS) -> str:
        """Run commands as they stand and return what they printed."""
        where, variables = self._home.parent / "cwd", self._home.parent / "variables"
        process = subprocess.Popen(
            [
                "bash",
                "-euo",
                "pipefail",
                "-c",
                f"trap 'pwd > {where}; env -0 > {variables}' EXIT\n"
                + re.sub(rf"\b{PORT}\b", self._port, text),
            ],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        assert process.returncode == 0, f"status {process.returncode}\n{output}"
        self.cwd = Path(where.read_text().strip())
        self.env = dict(each.split("=", 1) for each in variables.read_text().split("\0") if each)
        return output

    def leaves(self) -> None:
        if self._python is not None:
            self._python.communicate(timeout=60)

    def _seen(self, output: str) -> str:
        output = output.replace(f":{self._port}", f":{PORT}")
        return output.replace(str(self._home), "/home/you/.det").replace(
            str(self._home.parent), "/home/you"
        )

    def _exec(self, text: str) -> str:
        if self._python is None:
            self._python = subprocess.Popen(
                ["python3", "-u", "-c", INTERPRETER],
                env=self.env,
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
        raise AssertionError("the interpreter ended\n" + "".join(lines))
