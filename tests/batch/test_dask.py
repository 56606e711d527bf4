"""The same jobs on a Dask cluster, where the extra `cluster` is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp16conv.batch import Settings, Status, audit_models
from fp16conv.errors import UsageError

distributed = pytest.importorskip("distributed", reason="needs the extra: pip install 'fp16conv[cluster]'")

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_cluster_gives_the_rows_of_a_local_run(samples: Path, tmp_path: Path) -> None:
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    models = [str(tmp_path / "junk.onnx"), str(samples / "digits_cnn.onnx")]
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
    ) as cluster:
        rows = [entry.row for entry in audit_models(models, Settings(scheduler=cluster.scheduler_address))]
    assert [row.path for row in rows] == models
    assert [row.status for row in rows] == [Status.UNREADABLE, Status.OK]
    assert rows[1].operators == 16


def test_a_scheduler_that_is_not_there(monkeypatch: pytest.MonkeyPatch, samples: Path) -> None:
    def refuse(*args: object, **kwargs: object) -> object:
        raise OSError("timed out")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(UsageError, match="does not answer"):
        audit_models([str(samples / "digits_cnn.onnx")], Settings(scheduler="tcp://127.0.0.1:1"))
