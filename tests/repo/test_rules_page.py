"""The page of rules says what each rule says, and its code is caught and passed as it claims."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.repo.reader import FENCE

from det_driver.config import load
from det_driver.lint import RULES, lint

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rules.md"
SECTIONS = dict(
    re.findall(
        r"^## (DET\d+: .+?)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
)
CONFIG = """
entrypoint: {entrypoint}
hyperparameters: {{global_batch_size: 16, lr: 0.1}}
searcher: {{name: single, metric: loss, smaller_is_better: true, max_length: {{epochs: 1}}}}
"""


def test_the_page_has_each_rule_in_order() -> None:
    assert list(SECTIONS) == sorted(f"{rule.code}: {rule.name}" for rule in RULES.values())


@pytest.mark.parametrize("code", sorted(RULES))
def test_rule_catches_its_bad_example_and_passes_the_good_one(code: str, tmp_path: Path) -> None:
    rule = RULES[code]
    section = SECTIONS[f"{code}: {rule.name}"]
    assert section.strip().startswith(rule.why)
    found = []
    for (_, text), folder in zip(FENCE.findall(section), ("bad", "good"), strict=True):
        name = text.splitlines()[0].removeprefix("# ")
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
        config = load(
            CONFIG.format(
                entrypoint="python3 train.py" if name == "train.py" else "model_def:MyTrial"
            )
        )
        found.append({finding.code for finding in lint(config.config, tmp_path / folder)})
    assert found == [{code}, set()]
