"""What is sent to a cluster is what its schemas allow, whatever the settings are."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from tests.support.clusters.kubernetes_api import VERSIONS, decoded

from det_core.config import Extensions
from det_core.errors import ConfigError
from det_driver.config import load
from det_driver.engines import AllocationRequest
from det_kubernetes import KubernetesSettings
from det_kubernetes.objects import job_of, secret_of, unborn

ALL = KubernetesSettings(
    image="registry.example/det:1",
    queue="research",
    priority_class="low",
    service_account="trainer",
    node_selector={"pool": "a100"},
    tolerations=({"key": "spot", "operator": "Exists", "effect": "NoSchedule"},),
    resource="nvidia.com/gpu",
    cpus_per_slot=4,
    memory="32Gi",
    time_limit=3600,
    grace_period=120,
)
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"annotations": {"team": "vision"}, "labels": {"cost": "42"}},
    "spec": {
        "restartPolicy": "Always",
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
        "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "determined-container",
                "env": [{"name": "TOKENIZERS_PARALLELISM", "value": "false"}],
                "resources": {"requests": {"ephemeral-storage": "10Gi", "cpu": "64"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
    },
}


def job(settings: KubernetesSettings, nodes: int = 2) -> dict[str, Any]:
    return job_of(
        AllocationRequest(name="det-1-a", slots=2, nodes=nodes),
        "det-1",
        settings,
        ["python3", "-m", "det_node.agent"],
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("pod", [{}, POD], ids=["plain", "with-a-pod"])
def test_what_is_sent_is_valid_strictly(version: str, pod: dict[str, Any]) -> None:
    for settings in (ALL, KubernetesSettings(image="det:1")):
        whole = job(
            type(settings)(
                **{name: getattr(settings, name) for name in settings.__struct_fields__}
                | {"pod_spec": pod}
            )
        )
        for each in (whole, unborn(whole), secret_of(whole, "uid", b"{}\n")):
            kubernetes_validate.validate(each, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found_out() -> None:
    wrong = job(
        KubernetesSettings(image="det:1", pod_spec={"spec": {"nodeSelectr": {"pool": "a"}}})
    )
    with pytest.raises(kubernetes_validate.ValidationError, match="nodeSelectr"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_a_job_starts_each_agent_once_and_tells_it_its_number() -> None:
    spec = job(ALL)["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert (spec["backoffLimit"], spec["podReplacementPolicy"], spec["activeDeadlineSeconds"]) == (
        0,
        "Failed",
        3600,
    )
    pod = spec["template"]["spec"]
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 120)
    [agent] = pod["containers"]
    assert agent["command"] == [
        "python3",
        "-m",
        "det_node.agent",
        "/run/det/start/start",
        "$(JOB_COMPLETION_INDEX)",
    ]
    assert agent["resources"] == {
        "requests": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "2"},
        "limits": {"memory": "32Gi", "nvidia.com/gpu": "2"},
    }


def test_what_starts_an_agent_is_in_its_secret_and_nowhere_else() -> None:
    whole = job(ALL)
    secret = secret_of(whole, "the-uid", b"the key of the experiment")
    assert decoded(secret) == {"start": b"the key of the experiment"}
    assert secret["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "det-1-a", "uid": "the-uid"}
    ]
    [volume] = [each for each in whole["spec"]["template"]["spec"]["volumes"] if "secret" in each]
    assert volume["secret"] == {"secretName": "det-1-a"}


def test_a_job_is_born_in_no_queue_and_suspended() -> None:
    label = "kueue.x-k8s.io/queue-name"
    for settings, suspended in ((ALL, True), (KubernetesSettings(image="det:1"), False)):
        whole = job(settings)
        assert whole["spec"]["suspend"] is suspended
        assert unborn(whole)["spec"]["suspend"] is True
        assert label not in unborn(whole)["metadata"]["labels"]
    assert job(ALL)["metadata"]["labels"][label] == "research"


def test_pods_have_a_token_only_where_there_is_a_service_account() -> None:
    assert (
        job(KubernetesSettings(image="det:1"))["spec"]["template"]["spec"][
            "automountServiceAccountToken"
        ]
        is False
    )
    pod = job(ALL)["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "trainer"
    assert "automountServiceAccountToken" not in pod


def test_a_pod_to_start_from_is_laid_under_what_det_needs() -> None:
    template = job(KubernetesSettings(image="det:1", memory="1Gi", pod_spec=POD))["spec"][
        "template"
    ]
    assert template["metadata"]["annotations"] == {"team": "vision"}
    assert template["metadata"]["labels"]["cost"] == "42"
    pod, [agent] = template["spec"], template["spec"]["containers"]
    assert pod["restartPolicy"] == "Never"
    assert [each["name"] for each in pod["volumes"]] == [
        "det-start",
        "det-files",
        "det-shm",
        "data",
    ]
    assert pod["initContainers"] == POD["spec"]["initContainers"]
    assert agent["name"] == "determined-container"
    assert agent["env"][-1] == {"name": "TOKENIZERS_PARALLELISM", "value": "false"}
    assert agent["resources"]["requests"] == {
        "ephemeral-storage": "10Gi",
        "cpu": "2",
        "memory": "1Gi",
    }
    assert {"name": "data", "mountPath": "/data"} in agent["volumeMounts"]


def test_shared_memory_is_a_pods_own_where_it_has_some() -> None:
    own = {
        "name": "determined-container",
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = job(KubernetesSettings(image="det:1", pod_spec={"spec": {"containers": [own]}}))["spec"][
        "template"
    ]["spec"]
    paths = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    assert sorted(paths) == ["/dev/shm", "/run/det/files", "/run/det/start"]


def test_tolerations_of_both_hold() -> None:
    whole = job(KubernetesSettings(image="det:1", tolerations=ALL.tolerations, pod_spec=POD))
    assert [each["key"] for each in whole["spec"]["template"]["spec"]["tolerations"]] == [
        "spot",
        "gpu",
    ]


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_pod_that_sets_what_is_dets_own_is_refused(kind: str) -> None:
    own = {"name": "determined-container", "image": "mine:1", "args": ["--fast"], "env": []}
    wanted = (
        "pod_spec sets image, args of determined-container, which is det's own: give engine.image"
        " for its image"
    )
    with pytest.raises(ValueError, match=wanted):
        KubernetesSettings(image="det:1", pod_spec={"spec": {kind: [own]}})
    settings = {"name": "kubernetes", "image": "det:1", "pod_spec": {"spec": {kind: [own]}}}
    with pytest.raises(ConfigError, match=f"engine: {wanted}"):
        load(
            {"entrypoint": "a:B", "engine": settings},
            extensions=Extensions(engines={"kubernetes": lambda: KubernetesSettings}),
            complete=False,
        )
