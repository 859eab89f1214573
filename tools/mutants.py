"""Mutation testing: `nox -s mutants`, or `python -m tools.mutants [TARGET ...]` from the root.

Cosmic Ray makes the mutants: one change of one place each. A target of `tests/mutants.toml` is a
module with the tests that have to notice them. Each mutant is tested in a fork of one warm process
that has imported what is not this repository's, and is put in place as it is imported: the files
are left alone, so that others may go on working with the tree.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import IO, Any

from tools.mutation import Mutant, mutants

CONFIGURATION = Path("tests/mutants.toml")
SHARE = 0.95  # of the mutants that are not excused, how many have to be noticed
MEMORY = 6 * 2**30  # bytes of address space for one mutant


@dataclass(frozen=True)
class Target:
    """A module, the tests that have to notice its mutants, and the mutants that are excused.

    The tests have pytest's options with them.
    """

    name: str
    source: Path
    tests: list[str]
    options: list[str]
    excused: list[dict[str, Any]]

    @property
    def module(self) -> str:
        """The module's name: what follows `src` in its path."""
        parts = self.source.with_suffix("").parts
        return ".".join(parts[parts.index("src") + 1 :])


def targets(file: Path = CONFIGURATION) -> list[Target]:
    """Read the targets and, of each, the excuses."""
    document = tomllib.loads(file.read_text())
    found = []
    for name, table in document["target"].items():
        excused = [excuse for excuse in document.get("excused", []) if excuse["target"] == name]
        found.append(
            Target(name, Path(table["source"]), table["tests"], table.get("options", []), excused)
        )
    unknown = {excuse["target"] for excuse in document.get("excused", [])} - {
        target.name for target in found
    }
    if unknown:
        raise SystemExit(f"{file}: no target is called {', '.join(sorted(unknown))}")
    return found


# Testing one


class _Loader(SourceFileLoader):
    def __init__(self, module: str, path: str, code: str) -> None:
        super().__init__(module, path)
        self._mutated = code

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._mutated, self.path, "exec", dont_inherit=True)


@dataclass(frozen=True)
class _Finder:
    """Puts a mutant in the place of its module."""

    target: Target
    code: str

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self.target.module:
            return None
        file = str(self.target.source.absolute())
        return importlib.util.spec_from_file_location(
            name, file, loader=_Loader(name, file, self.code)
        )


@dataclass(frozen=True)
class Limits:
    """How long the tests of one mutant may take, in seconds of a processor and of the clock."""

    processor: float = 600
    clock: float = 1200


def start(
    target: Target, code: str, limits: Limits, out: IO[str], modules: Path | None = None
) -> int:
    """Run a target's tests on a text of its module, in a fork; return its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        seconds = int(limits.processor) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        # Typeshed asks for a class of its own.
        sys.meta_path.insert(0, _Finder(target, code))  # type: ignore[arg-type]
        import pytest

        status = int(
            pytest.main(
                [
                    "-x",
                    "-q",
                    "-p",
                    "no:cacheprovider",
                    "-p",
                    "no:randomly",
                    *target.options,
                    *target.tests,
                ]
            )
        )
        if modules:
            modules.write_text(
                json.dumps([name for name, each in sys.modules.items() if not _is_ours(each)])
            )
        sys.stdout.flush()
    finally:
        os._exit(status)


def warm(target: Target) -> Limits:
    """Test the module as it is, and import what its tests import of others.

    Return how long a mutant may take.
    """
    with tempfile.TemporaryDirectory(prefix="det-mutants-") as folder:
        modules, log = Path(folder) / "modules", Path(folder) / "log"
        began, before = time.monotonic(), os.times()
        with log.open("w") as out:
            pid = start(target, target.source.read_text(), Limits(), out, modules)
            status = os.waitpid(pid, 0)[1]
        if status:
            raise SystemExit(
                f"{target.name}: the tests fail without a mutant:\n{log.read_text()[-4000:]}"
            )
        names = json.loads(modules.read_text())
    spent = os.times()
    for name in names:
        with suppress(Exception):  # made by a test, or by another module as it was imported
            importlib.import_module(name)
    processor = (
        spent.children_user + spent.children_system - before.children_user - before.children_system
    )
    return Limits(1 + 3 * processor, 60 + 10 * (time.monotonic() - began))


def _is_ours(module: object) -> bool:
    """Tell whether a module is one of this repository's.

    The environment may lie in the repository, and does not count.
    """
    file = Path(getattr(module, "__file__", None) or "/")
    return file.is_relative_to(Path.cwd()) and not file.is_relative_to(sys.prefix)


def survivors(target: Target, chosen: Sequence[Mutant], workers: int) -> list[Mutant]:
    """Test mutants, some at a time; print and return those that no test notices."""
    limits = warm(target)
    left, running, found = list(chosen), dict[int, tuple[Mutant, float]](), []
    with open(os.devnull, "w") as out:
        while left or running:
            if left and len(running) < workers:
                mutant = left.pop(0)
                running[start(target, mutant.code, limits, out)] = mutant, time.monotonic()
                continue
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in running:
                mutant, _ = running.pop(pid)
                _end(pid)
                if status == 0:
                    found.append(mutant)
                    _show(target, None)
                    print(
                        f"{target.source}:{mutant.line}\n  - {mutant.before}\n  + {mutant.after}",
                        flush=True,
                    )
                _show(
                    target,
                    f"{len(chosen) - len(left) - len(running)} of {len(chosen)},"
                    f" {len(found)} not noticed",
                )
                continue
            for each, (_, began) in running.items():
                if time.monotonic() - began > limits.clock:
                    _end(each)
            time.sleep(0.01)
    _show(target, None)
    return found


def _end(pid: int) -> None:
    """End what a mutant has left running; its group is its own."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _show(target: Target, text: str | None) -> None:
    if sys.stderr.isatty():
        print(
            f"\r\x1b[K{target.name}: {text}" if text else "\r\x1b[K",
            end="",
            file=sys.stderr,
            flush=True,
        )


# The verdict


def excused(target: Target, made: Iterable[Mutant]) -> tuple[list[Mutant], list[str]]:
    """Return the mutants that are excused, and the excuses of which no mutant exists any more."""
    found, stale = [], []
    by_change: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in made:
        by_change.setdefault((mutant.before, mutant.after), []).append(mutant)
    for excuse in target.excused:
        for after in excuse["becomes"]:
            those = by_change.get((excuse["line"], after), [])
            found += those
            if not those:
                stale.append(
                    f"{target.name}: excused, but no mutant any more: {excuse['line']}  ->  {after}"
                )
    return found, stale


def main(arguments: Sequence[str] | None = None) -> None:
    """Test the mutants of some targets or of all.

    Print a table, and fail where too few are noticed.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description="test the tests")
    parser.add_argument(
        "targets", nargs="*", help="names of tests/mutants.toml; all of them if none is given"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="how many mutants are tested at once"
    )
    parser.add_argument("--only", default="", help="only mutants of lines with this text")
    parser.add_argument("--list", action="store_true", help="list the mutants and test none")
    options = parser.parse_args(arguments)
    known = targets()
    unknown = set(options.targets) - {target.name for target in known}
    if unknown:
        parser.error(
            f"no target {', '.join(sorted(unknown))} in {CONFIGURATION}:"
            f" {', '.join(t.name for t in known)}"
        )
    failures: list[str] = []
    rows = []
    _settle_hypothesis()
    # What is compiled once serves all mutants, and stays out of the tree.
    kept = tempfile.TemporaryDirectory(prefix="det-mutants-")
    sys.pycache_prefix, sys.dont_write_bytecode = kept.name, False
    for target in known:
        if options.targets and target.name not in options.targets:
            continue
        made = mutants(target.source.read_text())
        pardoned, stale = excused(target, made)
        failures += stale
        chosen = [
            mutant for mutant in made if mutant not in pardoned and options.only in mutant.before
        ]
        if options.list:
            print(*(f"{target.name}:{m.line}: {m.before}  ->  {m.after}" for m in chosen), sep="\n")
            continue
        began = time.monotonic()
        left = survivors(target, chosen, options.workers)
        noticed = len(chosen) - len(left)
        share = noticed / len(chosen) if chosen else 1.0
        seconds = time.monotonic() - began
        rows.append(
            f"{target.name:14}{len(made):8}{noticed:9}{len(pardoned):9}{len(left):10}"
            f"{share:9.1%}{seconds:8.0f} s"
        )
        if share < SHARE:
            failures.append(
                f"{target.name}: {share:.1%} of its mutants are noticed, and {SHARE:.0%} have to be"
            )
    if rows:
        print(
            f"\n{'target':14}{'mutants':>8}{'noticed':>9}{'excused':>9}{'survived':>10}"
            f"{'share':>9}{'time':>10}"
        )
        print(*rows, sep="\n")
    if failures:
        raise SystemExit("\n".join(failures))


def _settle_hypothesis() -> None:
    """Let properties try the same examples each time, and not look for the smallest that fails."""
    from hypothesis import Phase, settings

    settings.register_profile(
        "mutants", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
    )
    settings.load_profile("mutants")


if __name__ == "__main__":
    main()
