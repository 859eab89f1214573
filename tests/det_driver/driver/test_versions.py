"""A driver meets a worker of another protocol, in a process of its own."""

from __future__ import annotations

import textwrap
from importlib.metadata import version

import pytest

from det_driver.store import Store
from det_node.protocol import PROTOCOL

CONFIG = (
    "{name: old, entrypoint: python3 train.py, max_restarts: 3, searcher: {name: single, metric:"
    " error}}\n"
)
WORKER = """
    import sys
    from det_core import core
    from det_node import protocol, worker

    protocol.PROTOCOL = 99
    {then}
"""
SENTENCE = (
    f"the worker has det-core {version('det-training-core')} (protocol 99), but its driver det-core"
    f" {version('det-training-core')} (protocol {PROTOCOL}); install the same version of det for"
    " both"
)


@pytest.mark.sample
@pytest.mark.parametrize("then", ["sys.exit(worker.main(['model_def:Trial']))", "core.init()"])
def test_worker_of_another_protocol_fails_without_a_retry(det, then: str) -> None:
    det.cwd.joinpath("train.py").write_text(textwrap.dedent(WORKER.format(then=then)))
    det.cwd.joinpath("const.yaml").write_text(CONFIG)
    done = det("run", "const.yaml", status=2)
    assert f"trial 1: {SENTENCE}" in done.stderr
    with Store.reader(det.home) as store:
        (trial,) = store.trials.list(1)
        assert (trial.exit_reason, trial.restarts, len(store.runs.list(trial.id))) == (
            SENTENCE,
            0,
            1,
        )
