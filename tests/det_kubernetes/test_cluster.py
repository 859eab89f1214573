"""Who det is to a cluster, and what it says where it may not do what it has to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.clusters.kubernetes import why_no_kubernetes
from tests.support.clusters.kubernetes_api import Api

from det_core.errors import DetError
from det_driver.engines import AllocationRequest
from det_kubernetes import KubernetesSettings
from det_kubernetes.cluster import Cluster
from det_kubernetes.objects import job_of

why_not = why_no_kubernetes()
pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(why_not), reason=why_not)]
SETTINGS = KubernetesSettings(image="det:1")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    made = Api(tmp_path, "127.0.0.1")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def cluster(api: Api, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cluster]:
    """Return what connects to the cluster, as a user of those credentials."""

    def connect(**user: Any) -> Cluster:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(**user)))
        return Cluster(SETTINGS)

    return connect


def test_a_token_opens_it(cluster: Callable[..., Cluster]) -> None:
    assert cluster().find("det-1") == {}


def test_a_certificate_opens_it(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    files = {
        "client-certificate": str(tmp_path / "det.crt"),
        "client-key": str(tmp_path / "det.key"),
    }
    assert cluster(**files).find("det-1") == {}


@pytest.mark.parametrize("version", ["v1beta1", "v1"])
def test_a_program_that_gets_tokens_opens_it(
    cluster: Callable[..., Cluster], api: Api, version: str
) -> None:
    said = json.dumps({"kind": "ExecCredential", "status": {"token": api.token}})
    program = {"command": sys.executable, "args": ["-c", f"print({said!r})"]}
    assert (
        cluster(exec={"apiVersion": f"client.authentication.k8s.io/{version}", **program}).find(
            "det-1"
        )
        == {}
    )


def test_a_program_that_gets_no_token_is_quoted(cluster: Callable[..., Cluster]) -> None:
    program = {"command": "sh", "args": ["-c", "echo log in first >&2; exit 1"]}
    told = cluster(exec={"apiVersion": "client.authentication.k8s.io/v1beta1", **program})
    with pytest.raises(
        DetError, match=r"the credentials for Kubernetes cannot be had: .*log in first"
    ):
        told.find("det-1")


@pytest.mark.parametrize(
    "user",
    [{"token": "nobody's"}, {"client-certificate": "stranger"}],
    ids=["token", "certificate"],
)
def test_a_stranger_is_refused(
    cluster: Callable[..., Cluster], user: dict[str, str], tmp_path: Path
) -> None:
    files = {
        "client-certificate": str(tmp_path / "stranger.crt"),
        "client-key": str(tmp_path / "stranger.key"),
    }
    with pytest.raises(DetError, match="Kubernetes refuses: Unauthorized"):
        cluster(**(files if "client-certificate" in user else user)).find("det-1")


def test_what_it_may_not_do_is_said(cluster: Callable[..., Cluster], api: Api) -> None:
    api.refuses = lambda verb, plural: (
        ' in API group "" in the namespace "research"' if plural == "pods" else ""
    )
    with pytest.raises(
        DetError, match=r"pods is forbidden: .*; the README of det-kubernetes has a role"
    ):
        cluster().find("det-1")


def test_where_there_is_no_cluster_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(
        DetError,
        match=r"there is no way to a cluster of Kubernetes here .*nothing not found.*KUBECONFIG",
    ):
        Cluster(SETTINGS)


def test_what_the_cluster_refuses_is_quoted(cluster: Callable[..., Cluster], api: Api) -> None:
    wrong = KubernetesSettings(image="det:1", pod_spec={"spec": {"nodeSelectr": {}}})
    job = job_of(AllocationRequest(name="det-1-a", slots=1), "det-1", wrong, ["python3"])
    said = cluster().give(job, b"")
    assert said.startswith("the cluster refuses the Job det-1-a: ")
    assert "nodeSelectr" in said
    assert api.sent == []


def test_a_job_is_given_once_however_often_it_is_tried(
    cluster: Callable[..., Cluster], api: Api
) -> None:
    told, job = (
        cluster(),
        job_of(AllocationRequest(name="det-1-a", slots=1, nodes=3), "det-1", SETTINGS, ["python3"]),
    )
    assert [told.give(job, b"key"), told.give(job, b"key")] == ["", ""]
    [name] = told.find("det-1")
    assert name == "det-1-a"
    assert told.find("det-1")[name].machines == 3
    assert [each["spec"]["suspend"] for each in api.sent[:3] if each["kind"] == "Job"] == [
        True,
        False,
    ]
    [secret] = api.all("secrets")
    [made] = api.all("jobs")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]


def test_a_server_that_is_down_is_no_answer(cluster: Callable[..., Cluster], api: Api) -> None:
    told = cluster()
    api.stop()
    with pytest.raises(ConnectionError, match=r"the API server of Kubernetes does not answer \("):
        told.find("det-1")
    api.start()
    assert told.find("det-1") == {}
