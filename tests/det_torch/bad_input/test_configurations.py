"""A configuration or a command line that is wrong.

Every mistake is a line, the status is 2, and no store is made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from det_core.hooks import Plugins

CLASS = "entrypoint: model_def:Trial\n"
SOUND = CLASS + "searcher: {name: single, metric: error, max_length: 4}\n"
SEARCHERS = ", ".join(sorted(Plugins.installed().searchers()))


class Wrong(NamedTuple):
    """A configuration, and what is said of it.

    `const.yaml:` stands before each line that begins with a digit.
    """

    title: str
    config: str | bytes
    lines: tuple[str, ...]
    arguments: tuple[str, ...] = ()


ROWS = (
    Wrong(
        "a length that is text",
        CLASS + "searcher: {name: single, metric: error, max_length: ten}\n",
        (
            (
                "2:53: searcher.max_length is 'ten'; give a number of batches, {batches: n},"
                " {records: n} or {epochs: n}"
            ),
        ),
    ),
    Wrong(
        "a length that is negative",
        CLASS + "searcher: {name: single, metric: error, max_length: -5}\n",
        ("2:53: searcher.max_length is -5; give a positive number of batches",),
    ),
    Wrong(
        "an unknown searcher",
        CLASS + "searcher: {name: singel, metric: error}\n",
        (f"2:18: searcher.name is 'singel'; did you mean 'single'? known: {SEARCHERS}",),
    ),
    Wrong(
        "an unknown key, with the nearest",
        SOUND + "max_restart: 1\n",
        ("3:1: unknown key 'max_restart'; did you mean 'max_restarts'?",),
    ),
    Wrong(
        "several mistakes at once",
        "entrypoint: ''\nsearcher: {name: single, metric: error, max_length: 0}\nscheduling_unit:"
        " many\n",
        (
            "1:13: entrypoint is empty; give module:Class, or a command such as python3 train.py",
            "2:53: searcher.max_length is 0; give a positive number of batches",
            "3:18: scheduling_unit is 'many'; give a whole number, 1 or more",
        ),
    ),
    Wrong(
        "a key that is there twice",
        SOUND + CLASS,
        ("3:1: the key 'entrypoint' is given twice, first in line 1; keep one",),
    ),
    Wrong(
        "what is not YAML",
        "searcher: [1\nb: 2\n",
        ("2:2: not valid YAML: while parsing a flow sequence, did not find expected ',' or ']'",),
    ),
    Wrong(
        "an empty file",
        "",
        (
            (
                "const.yaml: entrypoint is missing; name your trial class as module:Class, or a"
                " command such as python3 train.py"
            ),
            (
                "const.yaml: searcher is missing; give at least {name: single, metric:"
                " validation_loss, max_length: {epochs: 1}}"
            ),
        ),
    ),
    Wrong(
        "a binary file",
        b"\xff\xfe\x00\x01",
        ("const.yaml: not UTF-8 text at byte 0; save it as UTF-8",),
    ),
    Wrong(
        "control characters",
        "a: \x00\n",
        ("const.yaml: not valid YAML: control characters are not allowed",),
    ),
    Wrong(
        "a tag that makes an object of Python's",
        SOUND + "data: !!python/object/apply:os.system [exit]\n",
        (
            (
                "3:7: data has the tag !!python/object/apply:os.system, which does not fit; write"
                " the value without a tag"
            ),
        ),
    ),
    Wrong(
        "no searcher's metric",
        CLASS + "searcher: {name: single, max_length: 4}\n",
        (
            (
                "2:1: searcher.metric is missing; name the validation metric that ranks the trials,"
                " such as validation_loss"
            ),
        ),
    ),
    Wrong(
        "an override out of range",
        SOUND,
        ("--config max_restarts: max_restarts is -1; give a whole number, 0 or more",),
        ("--config", "max_restarts=-1"),
    ),
    Wrong(
        "an override without a value",
        SOUND,
        ("--config 'wibble': give key.path=value",),
        ("--config", "wibble"),
    ),
    Wrong(
        "an override of an unknown key",
        SOUND,
        (
            (
                "--config searcher.max_lenght: unknown key 'searcher.max_lenght'; did you mean"
                " 'max_length'?"
            ),
        ),
        ("--config", "searcher.max_lenght=3"),
    ),
    Wrong(
        "a batch size that is text",
        SOUND,
        (
            (
                "--config hyperparameters.global_batch_size: hyperparameters.global_batch_size is"
                " 'many'; give a positive whole number"
            ),
        ),
        ("--config", "hyperparameters.global_batch_size=many"),
    ),
    Wrong(
        "a template that is not there",
        SOUND,
        (
            (
                "cannot read the configuration 'nowhere.yaml': No such file or directory; name a"
                " YAML file"
            ),
        ),
        ("--template", "nowhere.yaml"),
    ),
    Wrong(
        "a grid without counts",
        CLASS
        + "searcher: {name: grid, metric: error, max_length: 1}\n"
        + "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n",
        (
            (
                "3:19: hyperparameters.lr.count is missing; a grid needs to know how many values to"
                " take"
            ),
        ),
    ),
    Wrong(
        "more slots than the machine has",
        SOUND,
        (
            (
                "resources.slots_per_trial is 64, but this machine has 2 CPU slots and no GPU; ask"
                " for 2 at most"
            ),
        ),
        ("--config", "resources.slots_per_trial=64"),
    ),
    Wrong(
        "a storage that is incomplete",
        SOUND + "checkpoint_storage: {type: s3}\n",
        ("3:1: checkpoint_storage.bucket is missing; name the bucket",),
    ),
    Wrong(
        "options that contradict each other",
        SOUND,
        ("--detach and --in-process contradict each other; choose one; see det run --help",),
        ("--detach", "--in-process"),
    ),
)


@pytest.mark.parametrize("row", ROWS, ids=[row.title for row in ROWS])
def test_a_wrong_configuration_is_a_line_for_each_mistake(project: Any, row: Wrong) -> None:
    data = row.config if isinstance(row.config, bytes) else row.config.encode()
    project.cwd.joinpath("const.yaml").write_bytes(data)
    done = project.quick("run", "const.yaml", *row.arguments)
    wanted = ["det: " + (f"const.yaml:{line}" if line[0].isdigit() else line) for line in row.lines]
    assert (done.returncode, done.stderr.splitlines(), done.stdout) == (2, wanted, "")
    assert not project.home.exists()


COMMANDS = (
    (("run",), "missing argument 'CONFIG'; see det run --help"),
    (("rnu", "const.yaml"), "no such command 'rnu'; did you mean 'run'?"),
    (
        ("run", "nowhere.yaml"),
        "cannot read the configuration 'nowhere.yaml': No such file or directory; name a YAML file",
    ),
    (("run", "."), "cannot read the configuration '.': Is a directory; name a YAML file"),
    (
        ("check", "nowhere.yaml"),
        "cannot read the configuration 'nowhere.yaml': No such file or directory; name a YAML file",
    ),
    (
        ("show", "one"),
        "'one' is no number of an experiment; give the number from det list",
    ),
    (("show", "1"), "no store in {home}; det run makes one"),
    (("metrics", "1"), "no store in {home}; det run makes one"),
    (("list",), "no experiments in {home} yet; start one with: det run CONFIG"),
)


@pytest.mark.parametrize(
    ("arguments", "line"), COMMANDS, ids=[" ".join(arguments) for arguments, _ in COMMANDS]
)
def test_a_wrong_command_is_one_line(project: Any, arguments: tuple[str, ...], line: str) -> None:
    done = project.quick(*arguments)
    assert (done.returncode, done.stderr) == (2, f"det: {line.format(home=project.home)}\n")
    assert not project.home.exists()
