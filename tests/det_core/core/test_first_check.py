"""What is tried of a script before it trains: its storage, its first checkpoint, its metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from det_core import StorageError
from det_core.core._train import Steps, TrainContext
from det_core.storage import LocalStorage
from det_core.train.host import Target
from det_core.train.local import LocalHost
from det_core.train.saving import check_storage


class Listening(LocalHost):
    def __init__(self) -> None:
        super().__init__(Target(n=None))
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


class Lossy(LocalStorage):
    """Loses the end of each file, as a full disk behind a cache does."""

    def commit(self, uuid: str) -> None:
        super().commit(uuid)
        for file in Path(self.url(uuid)).glob("check"):
            file.write_bytes(file.read_bytes()[:-1])


def train_context(tmp_path: Path, steps: Steps | None = None) -> tuple[TrainContext, list[str]]:
    host, storage = Listening(), LocalStorage(tmp_path)
    return TrainContext(host, storage, steps or Steps(), None, 0, "error"), host.notices


def test_a_checked_storage_holds_nothing_afterwards(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "checkpoints")
    check_storage(storage)
    assert [*storage.list()] == []


def test_a_storage_that_cannot_be_written_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(StorageError, match="checkpoints"):
        check_storage(LocalStorage(tmp_path / "checkpoints"))


def test_a_storage_that_loses_bytes_fails_the_check(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"does not give back what was stored there: .*check"):
        check_storage(Lossy(tmp_path))


def test_first_validation_without_the_metric_is_noticed_once(tmp_path: Path) -> None:
    train, notices = train_context(tmp_path)
    train.report_training_metrics(1, {"loss": 1.0})
    assert not notices
    train.report_validation_metrics(1, {"accuracy": 0.5, "loss": 1.0})
    train.report_validation_metrics(2, {"accuracy": 0.5})
    (notice,) = notices
    assert "searcher.metric is 'error'" in notice
    assert "has 'accuracy', 'loss'; report it, or name one of these" in notice


@pytest.mark.parametrize(
    ("metrics", "steps"),
    [({"error": 0.5}, Steps()), ({"accuracy": 0.5}, Steps(operations=True))],
    ids=["reported", "completes operations"],
)
def test_nothing_is_noticed_of_a_metric_that_comes(
    tmp_path: Path, metrics: dict[str, Any], steps: Steps
) -> None:
    train, notices = train_context(tmp_path, steps)
    train.report_validation_metrics(1, metrics)
    train.report_validation_metrics(2, {"accuracy": 0.5})
    assert not notices


def test_nothing_is_noticed_where_the_searcher_has_no_metric(tmp_path: Path) -> None:
    """As for a command on slots, which `det cmd` starts."""
    host = Listening()
    train = TrainContext(host, LocalStorage(tmp_path), Steps(), None, 0, "")
    train.report_validation_metrics(1, {"accuracy": 0.5})
    assert not host.notices
