"""A script that starts no ranks itself: `torchrun` or `horovodrun` do."""

from __future__ import annotations

import sys
from pathlib import Path

from det_core import DistributedContext
from det_torch import Batch, Trainer, init
from det_torch.testing import OneVarTrial

HPARAMS = {"spread": 0.5, "global_batch_size": 4}

if sys.argv[1] == "horovod":
    import horovod.torch as hvd

    hvd.init()
    distributed = DistributedContext.from_horovod(hvd)
else:
    distributed = DistributedContext.from_torch_distributed()
with distributed, init(hparams=HPARAMS, distributed=distributed) as context:
    trainer = Trainer(OneVarTrial(context), context)
    trainer.fit(max_length=Batch(4), checkpoint_policy="none")
    result = trainer.fit(max_length=Batch(8))
    weight = result.validation[-1].metrics["weight"]
    print(
        f"rank {context.distributed.rank} has weight {weight:.6f} by"
        f" {type(context.backend).__name__}"
    )
left = [each.read_text() for each in Path("/proc/self/task").glob("*/comm")]
print(
    f"rank {context.distributed.rank} leaves {sum('gloo' in name for name in left)} threads of Gloo"
)
