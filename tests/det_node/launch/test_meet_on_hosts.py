"""Ranks on several hosts, which det started, meet over Horovod.

In network namespaces, where the machine allows them.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.process

SCRIPT = """
    import json, os, sys
    from det_core import DistributedContext
    from det_horovod import available, meet
    rank, chief = int(sys.argv[1]), sys.argv[2]
    host, local, here = [(0, 0, 2), (0, 1, 2), (1, 0, 1)][rank]
    with DistributedContext(rank=rank, size=3, local_rank=local, local_size=here, cross_rank=host, cross_size=2,
                            chief_ip=chief, key=bytes(range(32)), start_timeout=60) as control, meet(control, timeout=60):
        said = [os.environ[f"HOROVOD_{name}"] for name in ("GLOO_IFACE", "HOSTNAME", "CROSS_RANK", "CROSS_SIZE")]
        said.append(os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"].partition(":")[0] == chief)
        if available("torch"):
            import torch
            import horovod.torch as hvd
            hvd.init()
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3
            control.barrier()
            hvd.shutdown()
        control.barrier()
    print(json.dumps(said))
    """


def test_interface_and_address_are_those_that_the_hosts_share(hosts, tmp_path):
    hosts.agent += " unshare --uts sh -c 'hostname {host}; exec \"$@\"' agent"
    script = tmp_path / "rank.py"
    script.write_text(textwrap.dedent(SCRIPT))
    one, two = hosts.names
    ranks = [
        subprocess.Popen(
            [
                *(w.replace("{host}", host) for w in shlex.split(hosts.agent)),
                sys.executable,
                script,
                str(rank),
                one,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate((one, one, two))
    ]
    try:
        said = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert said == [
        ["eth7", "host0", "0", "2", True],
        ["eth7", "host0", "0", "1", True],
        ["eth7", "host1", "1", "2", True],
    ]
