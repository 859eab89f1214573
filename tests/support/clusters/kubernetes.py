"""A cluster of Kubernetes in network namespaces.

It has a fake API server, its controllers, and kubelets that run pods as real processes.

Pods have the network of their node, and see what this machine has installed; Secrets and empty
directories are mounted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.clusters.hosts import Cluster, inside, joined, prefix, why_no_network
from tests.support.clusters.kubernetes_api import Api, decoded, now

from det_node.process import kill_below

IMAGE = "registry.example/det:1"
TURN_SECONDS, GONE_SECONDS, BYTES = 0.05, 1.0, 2048
JOB_NAME, INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
QUEUE = "kueue.x-k8s.io/queue-name"
Object = dict[str, Any]


def why_no_kubernetes() -> str:
    """Say why there can be no cluster here, or nothing where there can."""
    if os.geteuid() != 0:
        return "pods in namespaces need root"
    missing = [name for name in ("nsenter", "openssl") if shutil.which(name) is None]
    return f"there is no {missing[0]}" if missing else why_no_network()


@dataclass(kw_only=True)
class KubernetesCluster(Cluster):
    """`nodes` have so many CPUs each; a queue of Kueue's admits as many as `quota` says."""

    api: Api
    quota: dict[str, int] = field(default_factory=dict)
    no_pods: str = ""
    """Why none can be created."""
    lost: dict[str, float] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def environ(self) -> dict[str, str]:
        return {"KUBECONFIG": str(self.api.kubeconfig())}

    def pods(self, *phases: str) -> dict[str, str]:
        """Return the node of each pod, of those phases where any are given."""
        found = [
            pod
            for pod in self.api.all("pods")
            if not phases or pod["status"].get("phase") in phases
        ]
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in found}

    def drain(self, node: str) -> None:
        """Have nothing on a node any more, and nothing new; pods have their grace."""
        with self.api.changed("nodes", node) as found:
            found["spec"]["unschedulable"] = True
        for name, there in self.pods("Running").items():
            if there == node:
                self.api.delete("pods", name, None, None)

    def lose(self, node: str) -> None:
        """Cut the cable of a node: what is there goes on, and nobody hears of it."""
        self.cut(node)
        self.lost[node] = time.monotonic()
        with self.api.changed("nodes", node) as found:
            found["status"]["conditions"] = [
                {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
            ]

    def down(self) -> None:
        """Have no API server; controllers and kubelets go on."""
        self.api.stop()

    def up(self) -> None:
        with inside(self.head):
            self.api.start()

    def expire(self, job: str) -> None:
        """Have a Job's time over."""
        with self.api.changed("jobs", job) as found:
            found["status"]["began"] = 0.0

    def take_back(self, job: str) -> None:
        """Have Kueue preempt a Job: it waits again, and its quota is gone."""
        with self.api.changed("jobs", job) as found:
            self.quota[found["metadata"]["labels"][QUEUE]] = 0
            found["spec"]["suspend"] = True

    def work(self) -> None:
        """Be the controllers, the scheduler and the kubelets."""
        while not self.over.wait(TURN_SECONDS):
            with self.api.lock:
                for job in self.api.all("jobs"):
                    self._queue(job)
                    self._control(job)
                for pod in self.api.all("pods"):
                    if "nodeName" not in pod["spec"]:
                        self._place(pod)
                    elif pod["spec"]["nodeName"] not in self.lost:
                        self._tend(pod)
                    elif time.monotonic() > self.lost[pod["spec"]["nodeName"]] + GONE_SECONDS:
                        self._take_away(pod)  # by the taint of its node

    def _take_away(self, pod: Object) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            self.api.delete("pods", pod["metadata"]["name"], None, None)

    # Controllers

    def _queue(self, job: Object) -> None:
        name, queue = job["metadata"]["name"], job["metadata"]["labels"].get(QUEUE)
        if not queue or not job["spec"]["suspend"] or "deletionTimestamp" in job["metadata"]:
            return
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
        }
        about = {"name": f"job-{name[-30:]}", "ownerReferences": [owner]}
        if ("workloads", about["name"]) not in self.api.objects:
            labels = {"kueue.x-k8s.io/job-uid": owner["uid"]}
            self.api.put(
                {
                    "apiVersion": "kueue.x-k8s.io/v1beta2",
                    "kind": "Workload",
                    "metadata": about | {"labels": labels},
                }
            )
        running = [
            j
            for j in self.api.all("jobs")
            if j["metadata"]["labels"].get(QUEUE) == queue and not j["spec"]["suspend"]
        ]
        used = sum(
            j["spec"]["parallelism"] * _cpus(j["spec"]["template"])
            for j in running
            if not _finished(j)
        )
        more = (
            used
            + job["spec"]["parallelism"] * _cpus(job["spec"]["template"])
            - self.quota.get(queue, 0)
        )
        message = (
            "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor"
            f" any, {more} more needed"
        )
        said = {
            "type": "QuotaReserved",
            "status": "False" if more > 0 else "True",
            "reason": "Pending",
            "message": message,
        }
        self.api.objects["workloads", about["name"]]["status"] = {"conditions": [said]}
        if more <= 0:
            job["spec"]["suspend"], job["managed"] = False, {"others": ["spec.suspend"]}

    def _control(self, job: Object) -> None:
        name, spec, status = job["metadata"]["name"], job["spec"], job["status"]
        pods = [
            pod for pod in self.api.all("pods") if pod["metadata"]["labels"].get(JOB_NAME) == name
        ]
        for pod in pods:
            ended = pod["status"].get("phase") in ("Succeeded", "Failed")
            index = pod["metadata"]["annotations"][INDEX]
            if ended and not spec["suspend"]:
                status.setdefault("done" if pod["status"]["phase"] == "Succeeded" else "bad", {})[
                    index
                ] = True
            if ended and "deletionTimestamp" in pod["metadata"]:
                self.api.gone("pods", pod["metadata"]["name"])
        pods = [pod for pod in pods if ("pods", pod["metadata"]["name"]) in self.api.objects]
        running = [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        if "deletionTimestamp" in job["metadata"] and not pods:
            self.api.gone("jobs", name)
        late = time.time() > status.get("began", time.time()) + spec.get(
            "activeDeadlineSeconds", 1e9
        )
        wrong = (
            ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
            if status.get("bad")
            else None
        )
        wrong = (
            ("DeadlineExceeded", "Job was active longer than specified deadline") if late else wrong
        )
        if "deletionTimestamp" in job["metadata"] or spec["suspend"] or wrong:
            for pod in pods if "deletionTimestamp" in job["metadata"] else running:
                self._take_away(pod)
            if wrong and not running and not _finished(job):
                status["conditions"] = [
                    {"type": "Failed", "status": "True", "reason": wrong[0], "message": wrong[1]}
                ]
            return
        if _finished(job):
            return
        status.setdefault("began", time.time())
        done, there = (
            set(status.get("done", ())),
            {pod["metadata"]["annotations"][INDEX] for pod in pods},
        )
        if len(done) == spec["completions"]:
            status["conditions"] = [
                {
                    "type": "Complete",
                    "status": "True",
                    "reason": "CompletionsReached",
                    "message": "",
                }
            ]
        for index in (str(k) for k in range(spec["parallelism"])):
            if index not in there | done:
                self._create(job, index)

    def _create(self, job: Object, index: str) -> None:
        name, template = job["metadata"]["name"], job["spec"]["template"]
        if self.no_pods:
            about = {
                "involvedObject": {"name": name},
                "reason": "FailedCreate",
                "message": self.no_pods,
                "type": "Warning",
            }
            self.api.put(
                {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"{name}.1"}} | about
            )
            return
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        labels = template["metadata"]["labels"] | {JOB_NAME: name, INDEX: index}
        about = {"labels": labels, "annotations": {INDEX: index}, "ownerReferences": [owner]}
        metadata = {"name": f"{name}-{index}-{os.urandom(2).hex()}"} | about
        pod = self.api.put(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        )
        pod["status"]["phase"] = "Pending"

    def _place(self, pod: Object) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            pod["status"]["phase"] = "Failed"
            return
        nodes = [node for node in self.api.all("nodes") if not node["spec"].get("unschedulable")]
        nodes = [node for node in nodes if node["metadata"]["name"] not in self.lost]
        wanted = pod["spec"].get("nodeSelector", {}).items()
        for node in (node for node in nodes if wanted <= node["metadata"]["labels"].items()):
            name = node["metadata"]["name"]
            there = [
                p
                for p in self.api.all("pods")
                if p["spec"].get("nodeName") == name
                and p["status"]["phase"] in ("Pending", "Running")
            ]
            if sum(map(_cpus, there)) + _cpus(pod) <= int(node["status"]["allocatable"]["cpu"]):
                pod["spec"]["nodeName"] = name
                pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
                return
        message = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient cpu."
        said = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
        }
        pod["status"]["conditions"] = [said]

    # Kubelets

    def _tend(self, pod: Object) -> None:
        name, status, ends = pod["metadata"]["name"], pod["status"], pod["metadata"].get("ends")
        process = self.processes.get(name)
        if status["phase"] in ("Succeeded", "Failed"):
            if ends is not None and "ownerReferences" not in pod["metadata"]:
                self.api.gone("pods", name)
        elif process is None:
            if ends is not None:
                status["phase"] = "Failed"
            elif why := self._why_not(pod):
                self._report(pod, waiting={"reason": why[0], "message": why[1]})
            else:
                self.processes[name] = self._start(pod)
                status["phase"] = "Running"
                self._report(pod, running={"startedAt": now()})
        elif process.poll() is not None:
            code = process.returncode if process.returncode >= 0 else 128 - process.returncode
            said = self._log(name).read_bytes()[-BYTES:].decode(errors="replace") if code else ""
            reason = "Error" if code else "Completed"
            self._report(
                pod,
                terminated={
                    "exitCode": code,
                    "reason": reason,
                    "message": said,
                    "finishedAt": now(),
                },
            )
            status["phase"] = "Failed" if code else "Succeeded"
        elif ends is not None and "told" not in pod:
            pod["told"] = True
            process.terminate()
        elif ends is not None and time.time() > ends:
            kill_below(process.pid)
            process.kill()

    def _report(self, pod: Object, **state: Object) -> None:
        container = pod["spec"]["containers"][0]
        about = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": "running" in state,
        }
        pod["status"]["containerStatuses"] = [about | {"restartCount": 0, "state": state}]

    def _why_not(self, pod: Object) -> tuple[str, str] | None:
        image = pod["spec"]["containers"][0]["image"]
        if image != IMAGE:
            return "ImagePullBackOff", f'Back-off pulling image "{image}"'
        secrets = [v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v]
        there = all(("secrets", name) in self.api.objects for name in secrets)
        return None if there else ("ContainerCreating", f'secret "{secrets[0]}" not found')

    def _log(self, pod: str) -> Path:
        return self.directory / f"{pod}.log"

    def _start(self, pod: Object) -> subprocess.Popen[bytes]:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        lines = [
            f"hostname {name}",
            *(f"mount -t tmpfs none {each}" for each in self.hidden),
            "mount -t tmpfs none /run",
        ]
        sources = {}
        for volume in pod["spec"]["volumes"]:
            source = sources[volume["name"]] = self.directory / "volumes" / name / volume["name"]
            source.mkdir(parents=True)
            if "secret" in volume:
                for file, data in decoded(
                    self.api.objects["secrets", volume["secret"]["secretName"]]
                ).items():
                    (source / file).write_bytes(data)
        for mount in container["volumeMounts"]:
            lines += [
                f"mkdir -p {mount['mountPath']}",
                f"mount --bind {sources[mount['name']]} {mount['mountPath']}",
            ]
        environ = {
            "PATH": os.environ["PATH"],
            "HOSTNAME": name,
            "JOB_COMPLETION_INDEX": pod["metadata"]["annotations"][INDEX],
        }
        environ |= {each["name"]: each["value"] for each in container["env"]}
        words = [
            re.sub(r"\$\((\w+)\)", lambda m: environ[m[1]], word) for word in container["command"]
        ]
        script = "\n".join(["set -e", *lines, 'exec "$@"'])
        host = self.host(pod["spec"]["nodeName"])
        with self._log(name).open("wb") as log:
            return subprocess.Popen(
                [*prefix(host, "-m", "-u"), "sh", "-c", script, "sh", *words],
                env=environ,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _cpus(pod: Object) -> int:
    return sum(int(each["resources"]["requests"]["cpu"]) for each in pod["spec"]["containers"])


def _finished(job: Object) -> bool:
    return bool(job["status"].get("conditions"))


@contextmanager
def kubernetes_cluster(
    directory: Path, nodes: int, hidden: Sequence[Path] = (), cpus: int = 1
) -> Iterator[KubernetesCluster]:
    """Make a cluster in a directory.

    In the place of each of `hidden`, pods have an empty one of their own.
    """
    directory.mkdir()
    with ExitStack() as stack:
        network = stack.enter_context(joined(nodes + 1))
        api = Api(directory, network.names[0])
        names = [f"node-{k + 1}" for k in range(nodes)]
        made = KubernetesCluster(network, directory, hidden, names, api=api)
        for name in made.nodes:
            labels, status = {"kubernetes.io/hostname": name}, {"allocatable": {"cpu": str(cpus)}}
            ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
            api.put(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": labels},
                    "spec": {},
                }
            )
            api.objects["nodes", name]["status"] = status | ready
        made.up()
        thread = threading.Thread(target=made.work, name="kubernetes")
        thread.start()
        try:
            yield made
        finally:
            made.over.set()
            thread.join()
            made.down()
            for process in made.processes.values():
                kill_below(process.pid)
                process.kill()
                process.wait(timeout=20)
