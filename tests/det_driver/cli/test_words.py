"""What people type who know other tools."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest

from det_core.storage import MANIFEST
from det_driver.cli import main
from det_driver.cli._console import Settings
from det_driver.cli._main import _COMMANDS, _GROUPS, det
from det_driver.cli._words import ALIASES, BELOW, INSTEAD, WITHIN
from det_driver.store import Store


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DET_MASTER", raising=False)
    with Store(tmp_path / "home") as store:
        for name, metric in (("one", "loss"), ("two", "accuracy")):
            id = store.experiments.create(name=name, config="{}", metric=metric).id
            with store.lock(id):
                for request, value in enumerate((0.25, 0.5)):
                    trial = store.trials.create(id, request, {}, 0)
                    run = store.runs.begin(trial.id)
                    store.metrics.report(
                        trial.id, run.id, "validation", 1, {metric: value, "f1": 1 - value}
                    )
    return tmp_path / "home"


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str, object]:
    """Return what a command prints, what it says on stderr, and its status."""
    with pytest.raises(SystemExit) as end:
        main(list(words))
    return *capsys.readouterr(), end.value.code


@pytest.mark.parametrize("word", ["ls", "ps", "status"])
def test_other_words_for_a_command_run_it(
    home: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    out, err, status = typed(capsys, word)
    assert (out.splitlines()[0].split()[:2], err, status) == (["id", "name"], "", 0)
    assert (
        typed(capsys, word, "--lmit")[1]
        == "det: no such option '--lmit'; did you mean '--limit'?\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("shell lst", "no such command 'lst'; did you mean 'list'?"),
        (
            "set 1 maxslots 3",
            "invalid value for '{priority|weight|max-slots}': 'maxslots' is not one of 'priority',"
            " 'weight', 'max-slots'; did you mean 'max-slots'?",
        ),
        (
            "set 1 max-slots zero",
            "max-slots: 'zero' is not a whole number of 1 or more, or none for no limit",
        ),
        ("set 1 priority zero", "priority: 'zero' is not a whole number from 1 to 99"),
    ],
)
def test_a_mistake_in_a_word_is_told_the_nearest(
    home: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert typed(capsys, *words.split()) == ("", f"det: {said}\n", 2)


def test_every_alias_leads_to_a_command() -> None:
    assert set(ALIASES.values()) <= _COMMANDS.keys()
    assert not ALIASES.keys() & (_COMMANDS.keys() | INSTEAD.keys())


@pytest.mark.parametrize("word", INSTEAD)
def test_a_word_that_is_no_command_is_answered_with_what_to_use(
    home: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    out, err, status = typed(capsys, word, "1")
    assert (out, status) == ("", 2)
    assert err == f"det: no such command {word!r}; use {INSTEAD[word]}\n"


@pytest.mark.parametrize(
    ("command", "word"), [(c, word) for c, words in WITHIN.items() for word in words]
)
def test_determineds_subcommand_is_answered_unless_a_file_has_it(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    word: str,
) -> None:
    monkeypatch.chdir(home.parent)
    out, err, status = typed(capsys, command, word, "1")
    name = f"{command} {word}" if word[0] != "-" else word
    kind = "command" if word[0] != "-" else "option"
    assert (out, status) == ("", 2)
    assert err == f"det: no such {kind} {name!r}; use {WITHIN[command][word]}\n"
    (home.parent / word).write_text("")
    assert "; use " not in typed(capsys, command, word, *["--code"] * (command == "run"))[1]


@pytest.mark.parametrize(
    ("path", "word"), [(path, word) for path, words in BELOW.items() for word in words]
)
def test_determineds_word_below_a_command_is_answered(
    home: Path, capsys: pytest.CaptureFixture[str], path: str, word: str
) -> None:
    out, err, status = typed(capsys, *path.split(), word, "1")
    kind, name = ("option", word) if word[0] == "-" else ("command", f"{path} {word}")
    assert (out, status) == ("", 2)
    assert err == f"det: no such {kind} {name!r}; use {BELOW[path][word]}\n"


@pytest.mark.parametrize("words", ["cmd run --gpus 2 ls", "shell start --gpus=2 sh"])
def test_an_unknown_option_of_a_task_is_no_program(
    home: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """An option that is none would be started, and wait for slots."""
    path = " ".join(words.split()[:2])
    said = f"det: no such option '--gpus'; see det {path} --help\n"
    assert typed(capsys, *words.split()) == ("", said, 2)


def test_what_is_named_in_an_answer_exists(home: Path) -> None:
    """Each `det COMMAND` of an answer is one, and each option after it one of its options."""
    context = click.Context(det, obj=Settings.read({"DET_HOME": str(home)}))
    for answer in [
        *INSTEAD.values(),
        *(text for words in (*WITHIN.values(), *BELOW.values()) for text in words.values()),
    ]:
        for name, rest in re.findall(r"\bdet ([a-z]+)([^,;]*)", answer):
            # They come with other packages.
            if name in ("ui", "server"):
                continue
            command = det.get_command(context, name)
            assert command is not None, answer
            inner = rest.split()
            if isinstance(command, click.Group):
                command = command.commands[inner[0]]
            known = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in inner if word.startswith("-")} <= known, answer


def test_determined_login_options_name_a_server(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    wanted = "det: you are not signed in to http://master:8080; sign in: det login"
    for option in ("-m", "--master"):
        assert typed(capsys, option, "http://master:8080", "-u", "me", "list")[1].startswith(wanted)
    monkeypatch.setenv("DET_MASTER", "http://master:8080")
    assert typed(capsys, "list")[1].startswith(wanted)
    out, err, status = typed(capsys, "-m", "", "list")
    assert (out.split()[:2], err, status) == (["id", "name"], "", 0)
    assert "is plain http to another machine" in typed(capsys, "user", "login", "me")[1]
    monkeypatch.delenv("DET_MASTER")
    assert typed(capsys, "user", "login", "me")[1:] == (
        "det: which server? sign in to one with: det login URL\n",
        2,
    )
    assert typed(capsys, "user", "logout")[1:] == ("det: you are not signed in to a server\n", 2)


def test_a_misspelt_alias_is_told_the_nearest(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(capsys, "statsu")[1] == "det: no such command 'statsu'; did you mean 'status'?\n"


def test_help_lists_every_command_once_in_its_group(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _, _ = typed(capsys, "--help")
    for title, names in _GROUPS.items():
        section = out.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [name for name in names if name in _COMMANDS] == [
            name for name in re.findall(r"(?m)^  ([a-z]\S*)", section) if name in _COMMANDS
        ]
    listed = re.findall(r"(?m)^  ([a-z][\w-]*)  ", out)
    assert _COMMANDS.keys() <= set(listed)
    assert len(listed) == len(set(listed))


def test_a_metric_is_a_column_for_filters_by_its_name(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [
        line.split()[0]
        for line in typed(capsys, "show", "1", "--filter", "loss<0.3")[0].splitlines()[-1:]
    ] == ["1"]
    assert typed(capsys, "show", "1", "--filter", "f1>0.6")[0].splitlines()[-1].split()[0] == "1"
    assert typed(capsys, "show", "1", "--sort", "f1")[0].splitlines()[-1].split()[0] == "1"
    assert (
        "there is no column 'f2'; known: loss, f1, "
        in typed(capsys, "show", "1", "--filter", "f2>0.6")[1]
    )
    found = [
        line.split()[1] for line in typed(capsys, "list", "--filter", "loss<1")[0].splitlines()[1:]
    ]
    assert found == ["one"]


def test_checkpoints_are_removed_by_the_words_of_determined(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for uuid in ("aaaa", "bbbb"):
        place = home / "checkpoints" / uuid
        place.mkdir(parents=True)
        (place / MANIFEST).write_text(f'{{"name": "{uuid}"}}')
        with Store(home) as store, store.lock(1):
            config = json.dumps(
                {
                    "name": "one",
                    "entrypoint": "true",
                    "searcher": {"name": "single", "metric": "loss"},
                }
            )
            store.experiments.update(1, config=config)
            store.checkpoints.record(uuid, 1, 1, 1, storage="", size=1)
    refused = typed(capsys, "checkpoint", "rm", "aaaa", "--glob", "*")
    assert (refused[0], refused[2], "a checkpoint is whole, or deleted" in refused[1]) == (
        "",
        2,
        True,
    )
    out, err, status = typed(capsys, "checkpoint", "rm", "aaaa,bbbb", "--yes")
    assert (out, err, status) == ("deleted checkpoint aaaa\ndeleted checkpoint bbbb\n", "", 0)
