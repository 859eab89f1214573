"""Code that cannot be copied or imported: one line, status 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from det_core import Plugins
from det_core.checkpoint.code import MAX_BYTES
from det_core.support.installation import how_to_install

SOUND_MODEL = "Trial = Sound"


def too_large(cwd: Path) -> None:
    with cwd.joinpath("data.bin").open("wb") as file:
        file.truncate(MAX_BYTES + 1)


def link_out(cwd: Path) -> None:
    cwd.joinpath("outside").symlink_to("/etc/hostname")


def link_around(cwd: Path) -> None:
    cwd.joinpath("around").symlink_to(".")


def patterns_in_latin_1(cwd: Path) -> None:
    cwd.joinpath(".detignore").write_bytes("größe\n".encode("latin-1"))


COPIES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a directory that is not there": (
        lambda cwd: None,
        "nowhere",
        "the code directory nowhere is not a directory; name the one that holds your model",
    ),
    "a file in its place": (
        lambda cwd: None,
        "model_def.py",
        "the code directory model_def.py is not a directory; name the one that holds your model",
    ),
    "too large": (
        too_large,
        ".",
        (
            "the code directory . holds 96 MiB, more than 96; the largest file is data.bin (96"
            " MiB); list what is not code in .detignore"
        ),
    ),
    "a link that leads out": (
        link_out,
        ".",
        (
            "outside is a link that leads out of the code directory; copy the file, or list it in"
            " .detignore"
        ),
    ),
    "a link to nothing, elsewhere": (
        lambda cwd: (cwd / "data").symlink_to("/no/where"),
        ".",
        (
            "data is a link to /no/where, which is not there; mend or remove it, or list it in"
            " .detignore"
        ),
    ),
    "a link that goes round": (
        link_around,
        ".",
        "around is a link to a directory around it; remove it, or list it in .detignore",
    ),
    "patterns that are not text": (
        patterns_in_latin_1,
        ".",
        ".detignore is not UTF-8 text; write one pattern on each line",
    ),
}


@pytest.mark.parametrize("title", COPIES)
def test_code_that_cannot_be_copied_leaves_no_experiment(project: Any, title: str) -> None:
    spoil, directory, line = COPIES[title]
    project.model(SOUND_MODEL)
    spoil(project.cwd)
    done = project.quick("run", "const.yaml", directory)
    assert (done.returncode, done.stderr, done.stdout) == (2, f"det: {line}\n", "")
    assert project.json("list") == []
    assert not list(project.home.glob("experiments/*"))


def test_code_that_cannot_be_read_is_one_line(project: Any) -> None:
    project.model(SOUND_MODEL)
    project.write("secret.py", "").chmod(0)
    done = project.quick("run", "const.yaml", ".", mighty=False)
    line = (
        "det: the code directory . cannot be read: Permission denied: secret.py; change its mode,"
        " or list it in .detignore\n"
    )
    assert (done.returncode, done.stderr) == (2, line)
    assert project.json("list") == []


ENTRYPOINTS: dict[str, tuple[str, str, str]] = {
    "a module that is not there": (
        SOUND_MODEL,
        "nowhere:Trial",
        (
            "entrypoint 'nowhere:Trial': no module named 'nowhere' in {code} (it has model_def.py,"
            " sound.py)"
        ),
    ),
    "a class that is not there": (
        "class Trail(Sound):\n    pass",
        "model_def:Trial",
        (
            "entrypoint 'model_def:Trial': model_def has no 'Trial'; did you mean 'Trail'? it"
            " defines: Trail"
        ),
    ),
    "a function": (
        "def Trial(context):\n    pass",
        "model_def:Trial",
        "entrypoint 'model_def:Trial' is no class but of type function; name a trial class",
    ),
    "a class that is no trial": (
        "class Trial:\n    pass",
        "model_def:Trial",
        (
            "model_def.Trial is not a trial of an installed framework; derive it from one of:"
            f" {{trials}}, or install its plugin, as in: {how_to_install('det-torch')}"
        ),
    ),
    "a module that .detignore leaves out": (
        SOUND_MODEL,
        "ignored:Trial",
        (
            "entrypoint 'ignored:Trial': no module named 'ignored' in {code} (it has model_def.py,"
            " sound.py)"
        ),
    ),
    "a trial that lacks methods": (
        (
            "class Trial(PyTorchTrial):\n    def train_batch(self, batch, epoch_idx, batch_idx):\n "
            "       pass"
        ),
        "model_def:Trial",
        (
            "Trial does not define build_training_data_loader, build_validation_data_loader; every"
            " PyTorchTrial must"
        ),
    ),
}


@pytest.mark.parametrize("title", ENTRYPOINTS)
def test_an_entrypoint_that_is_no_trial_is_one_line(project: Any, title: str) -> None:
    model, entrypoint, line = ENTRYPOINTS[title]
    project.model(model)
    project.write("ignored.py", "from model_def import Trial\n")
    project.write(".detignore", "ignored.py\n")
    done = project.quick(
        "run", "const.yaml", "--in-process", "--quiet", "--config", f"entrypoint={entrypoint}"
    )
    code = project.home / "experiments" / "1" / "code"
    trials = ", ".join(
        each.trial.replace(":", ".") for each in Plugins.installed().frameworks().values()
    )
    assert (done.returncode, done.stderr) == (
        2,
        f"det: trial 1: {line.format(code=code, trials=trials)}\n",
    )


def test_missing_framework_error_names_the_package_to_install(project: Any) -> None:
    project.write(
        "model_def.py", "from det_jax import JaxTrial\n\n\nclass Trial(JaxTrial):\n    pass\n"
    )
    done = project.quick("run", "const.yaml", "--in-process", "--quiet")
    line = (
        "entrypoint 'model_def:Trial' imports det_jax, which is not installed. Install the package"
        " that brings it"
    )
    assert (done.returncode, done.stderr) == (2, f"det: trial 1: {line}\n")


def test_check_says_the_same_and_makes_no_store(project: Any) -> None:
    project.model("class Trail(Sound):\n    pass")
    done = project.quick("check", "const.yaml")
    assert (done.returncode, done.stdout) == (2, "const.yaml is valid\n")
    assert (
        done.stderr
        == "det: entrypoint 'model_def:Trial': model_def has no 'Trial'; did you mean 'Trail'? it"
        " defines: Trail\n"
    )
    assert not project.home.exists()
