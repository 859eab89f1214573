"""Two ranks, in processes, over each backend: one gradient, one set of weights.

The checks themselves are in `checks.py`.
"""

from __future__ import annotations

import json
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from det_testing._play import together

pytestmark = pytest.mark.process

CHECKS = Path(__file__).with_name("checks.py")
NAMES = [line[4:].partition("(")[0] for line in CHECKS.read_text().split("@check\n")[1:]]


@pytest.fixture(scope="module", params=["native", "horovod"])
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each rank found, by the checks' names."""
    if request.param == "horovod" and find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    folder.joinpath("key").write_text(secrets.token_hex(32))
    together(
        [[sys.executable, str(CHECKS), request.param, str(folder), str(rank)] for rank in range(2)],
        folder,
    )
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks(found: list[dict[str, Any]], name: str) -> None:
    for rank, results in enumerate(found):
        assert results[name] == "", f"rank {rank}"
