"""Configurations whose bytes somebody has changed.

Each is read or refused, and does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.crafted import CANARY, mutations, reads_safely

from det_core.errors import ConfigError
from det_driver.config import load, mask_text

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/*.yaml"))
TAGS = [
    f"!!python/object/apply:{CANARY}.run []",
    "!!python/object/apply:os.system ['true']",
    f"!!python/name:{CANARY}.run",
    f"!!python/module:{CANARY}",
    "!!python/object/new:subprocess.Popen [['true']]",
]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # What reading imports is imported before it is watched.
    mask_text(EXAMPLES[0].read_text())
    return tmp_path_factory.mktemp("scratch")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.sampled_from(EXAMPLES), mutate=mutations())
def test_a_configuration_of_other_bytes_is_read_or_refused(
    scratch: Path, which: Path, mutate: Callable[[bytes], bytes]
) -> None:
    file = scratch / "config.yaml"
    file.write_bytes(mutate(which.read_bytes()))
    reads_safely(lambda: load(file), scratch, ConfigError)
    text = file.read_bytes().decode(errors="replace")
    assert reads_safely(lambda: mask_text(text), scratch, ())


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_that_would_run_something_is_refused(scratch: Path, tag: str) -> None:
    file = scratch / "config.yaml"
    file.write_text(f"name: {tag}\n")
    assert not reads_safely(lambda: load(file), scratch, ConfigError)
