"""Every example is complete and right."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from det_driver.config import load, schema
from det_driver.lint import lint

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "plugins"
)
CONFIGS = sorted((ROOT / "examples").glob("*/*.yaml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_configuration_is_valid_and_needs_no_notice(config: Path) -> None:
    loaded = load(config)
    assert loaded.notices == ()
    assert loaded.config.name


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_example_keeps_every_rule(config: Path, tmp_path: Path) -> None:
    """And one that is broken in its code would be seen."""
    assert lint(load(config).config, config.parent) == []
    shutil.copytree(config.parent, tmp_path / "code")
    [code] = (tmp_path / "code").glob("*.py")
    code.write_text(code.read_text() + "\nIMAGES = '/data/images'\n")
    assert [each.code for each in lint(load(config).config, tmp_path / "code")] == ["DET203"]


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.name.startswith("native_")], ids=lambda p: p.name
)
def test_the_script_that_is_its_own_experiment_keeps_every_rule(example: Path) -> None:
    wanted = "{entrypoint: python3 train.py, hyperparameters: {global_batch_size: 32}}"
    assert lint(load(wanted, complete=False).config, example) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_has_code_a_configuration_and_a_readme(example: Path) -> None:
    assert (example / "const.yaml").is_file() or example.name.startswith(
        "native_"
    )  # whose script says it
    assert list(example.glob("*.py"))
    assert (example / "README.md").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.thorough
def test_demo_learns_digits_and_prints_a_working_load_command(det) -> None:
    """As `nox -s demo`, for fewer epochs."""
    printed = det(
        "run", ROOT / "examples/digits_torch/const.yaml", "--config", "searcher.max_length.epochs=6"
    ).stdout
    accuracy = re.search(r"best accuracy ([\d.]+)", printed)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.96
    assert Path(
        re.search(r"best checkpoint: (\S+) \(batch \d+\)", printed)[1], "manifest.json"
    ).is_file()
    command = re.search(r"^load it: (.+)$", printed, re.MULTILINE)[1]
    done = subprocess.run(
        ["bash", "-c", command], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert "DigitsTrial" in done.stdout, done.stderr


def test_the_schema_for_editors_is_json() -> None:
    assert json.loads(json.dumps(schema()))["type"] == "object"
