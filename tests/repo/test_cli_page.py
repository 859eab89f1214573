"""Every command and option is on the page, and says what it is for."""

from __future__ import annotations

import runpy
from pathlib import Path

writer = runpy.run_path(str(Path(__file__).with_name("cli_page.py")))


def test_the_page_says_what_the_commands_say() -> None:
    """Where this fails, run tests/repo/cli_page.py."""
    assert writer["PAGE"].read_text(encoding="utf-8") == writer["render"]()


def test_every_command_and_option_has_help() -> None:
    silent = [
        f"{name} {option.name}"
        for name, command, _ in writer["commands"]()
        for option in writer["options"](command)
        if not option.help
    ]
    silent += [
        option.option_strings
        for option in writer["launch_options"](writer["parser"]())
        if not option.help
    ]
    silent += [name for name, command, _ in writer["commands"]() if not command.help]
    assert silent == []


def test_every_command_is_tested() -> None:
    text = "".join(path.read_text() for path in Path(__file__).parents[1].glob("det_*/**/*.py"))
    names = [name.split()[1:] for name, _, _ in writer["commands"]() if name != "det"]
    untested = [words for words in names if ", ".join(f'"{word}"' for word in words) not in text]
    assert untested == []
