"""The Horovod strategy: by its name, without det's trials."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.strategies import StrategyRegistry

from det_core import DetError
from det_horovod import available
from det_lightning.horovod import HorovodStrategy

SCRIPT = """
import lightning.pytorch as pl
import torch
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset

import det_lightning.horovod


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(self.layer.weight, float(self.rank_of_start()))
        self.mean = torchmetrics.MeanMetric()

    def rank_of_start(self):
        import horovod.torch as hvd

        return hvd.rank() if hvd.is_initialized() else 0

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = ((self.layer(x) - x) ** 2).mean()
        self.mean(loss.detach())
        self.log("loss", loss, sync_dist=True)
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        if self.trainer.world_size > 1:
            gathered = self.all_gather(torch.tensor(float(self.global_rank)))
            assert gathered.tolist() == [0.0, 1.0]
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


size = int(__import__("os").environ.get("HOROVOD_SIZE", "1"))
data = TensorDataset(torch.arange(1.0, 9.0).reshape(8, 1) / 8)
options = {"strategy": "horovod"} if size > 1 else {}
trainer = pl.Trainer(
    accelerator="cpu", devices=1, max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, gradient_clip_val=0.4, accumulate_grad_batches=2, **options,
)
module = Line()
trainer.fit(module, DataLoader(data, batch_size=4 // size))
strategy = trainer.strategy
if trainer.is_global_zero:
    print("weight", module.layer.weight.item(), "mean", trainer.callback_metrics["mean"].item())
"""


def test_it_is_registered_by_its_name() -> None:
    assert StrategyRegistry["horovod"]["strategy"] is HorovodStrategy


def test_a_missing_horovod_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("det_horovod.available", lambda framework: False)
    with pytest.raises(
        DetError,
        match="needs Horovod, built for torch; install it with: det horovod install --with torch",
    ):
        HorovodStrategy().world_size  # noqa: B018


@pytest.mark.process
@pytest.mark.skipif(not available("torch"), reason="Horovod is not installed for torch")
@pytest.mark.timeout(240)
def test_two_ranks_of_a_plain_script_give_the_weight_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clipped, with two batches to a step, sharded by Lightning's own sampler.

    Metrics are those of all ranks.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    runpy.run_path(str(script))
    one = printed(capsys.readouterr().out)
    launch = [
        str(Path(sys.executable).parent / "det"),
        "launch",
        "horovod",
        "-np",
        "2",
        "--",
        sys.executable,
    ]
    done = subprocess.run(
        [*launch, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert printed(done.stdout) == pytest.approx(one, rel=1e-5)


def printed(output: str) -> tuple[float, float]:
    """Return the weight and the metric that the script printed."""
    words = output[output.index("weight") :].split()
    return float(words[1]), float(words[3])


@pytest.mark.skipif(not available("torch"), reason="Horovod is not installed for torch")
def test_one_rank_reduces_to_itself() -> None:
    """The collectives of a strategy over a backend of one rank."""
    from det_torch.backends import Objects

    strategy = HorovodStrategy(Objects())
    value = torch.tensor([1.0, 2.0])
    for op in ("mean", "avg", "sum", "max", "min", torch.distributed.ReduceOp.SUM):
        assert strategy.reduce(value, reduce_op=op).tolist() == [1.0, 2.0]
    assert strategy.reduce("text") == "text"
    assert strategy.all_gather(value).tolist() == [[1.0, 2.0]]
    assert strategy.broadcast({"a": 1}) == {"a": 1}
    assert strategy.reduce_boolean_decision(True)
    with pytest.raises(DetError, match="reduce_op is 'product'"):
        strategy.reduce(value, reduce_op="product")


def test_batch_normalization_over_ranks_is_refused() -> None:
    from lightning.pytorch.plugins import TorchSyncBatchNorm

    from det_lightning.horovod import _refuse_sync

    with pytest.raises(DetError, match="sync_batchnorm needs Lightning's DDP"):
        _refuse_sync(TorchSyncBatchNorm())
