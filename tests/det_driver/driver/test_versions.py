"""A driver meets a worker of another protocol, in a process of its own."""

from __future__ import annotations

import textwrap
from importlib.metadata import version

import pytest

from det_core.protocol import PROTOCOL
from det_driver.store import Store

CONFIG = "{name: old, entrypoint: python3 train.py, max_restarts: 3, searcher: {name: single, metric: error}}\n"
WORKER = """
    import sys
    from det_core import core, protocol, worker

    protocol.PROTOCOL = 99
    {then}
"""
SENTENCE = (
    f"the worker has det-core {version('det-core')} (protocol 99), but its driver det-core {version('det-core')} "
    f"(protocol {PROTOCOL}); install the same version of det-core for both"
)


@pytest.mark.parametrize("then", ["sys.exit(worker.main(['model_def:Trial']))", "core.init()"])
def test_a_worker_of_another_protocol_is_a_mistake_and_not_tried_again(det, then: str) -> None:
    det.cwd.joinpath("train.py").write_text(textwrap.dedent(WORKER.format(then=then)))
    det.cwd.joinpath("const.yaml").write_text(CONFIG)
    done = det("run", "const.yaml", status=2)
    assert f"trial 1: {SENTENCE}" in done.stderr
    with Store.reader(det.home) as store:
        (trial,) = store.trials.list(1)
        assert (trial.exit_reason, trial.restarts, len(store.runs.list(trial.id))) == (SENTENCE, 0, 1)
