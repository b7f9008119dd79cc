"""Against the real API server with the real operator, and with its faults."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from api_server import RIGHTS, Operator, Plane, Wire
from waiting import until

from flux_minicluster import (
    Invalid,
    JobFailed,
    Lost,
    MiniCluster,
    NameTaken,
    NotAllowed,
    OperatorMissing,
    Result,
    Unschedulable,
    bridge,
    models,
)
from flux_minicluster.follow import Follower, Limits
from flux_minicluster.screen import Silent
from flux_minicluster.target import Access, Target


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane without the custom resource."""
    plane = Plane(tmp_path_factory.mktemp("plane"))
    yield plane
    plane.close()


@pytest.fixture(scope="module")
def installed(plane: Plane) -> Plane:
    plane.install()
    return plane


@pytest.fixture(scope="module")
def operator(installed: Plane) -> Iterator[Operator]:
    operator = Operator(installed)
    yield operator
    operator.stop()


class Person:
    """Who runs jobs, with the rights that the page names, in a namespace of their own."""

    def __init__(self, plane: Plane, namespace: str, rights: dict[str, str]) -> None:
        self.plane = plane
        self.namespace = namespace
        self.kubeconfig: Path = plane.account(namespace, rights)
        self._threads = ThreadPoolExecutor()

    def run(self, **arguments: Any) -> Future[Result]:
        arguments.setdefault("kubeconfig", self.kubeconfig)
        return self._threads.submit(MiniCluster.run, "app:1", ["true"], stream=False, **arguments)

    def lead(self, name: str) -> dict[str, Any]:
        return self.plane.pods(self.namespace, name)[0]

    def names(self) -> list[str]:
        text = self.plane.kubectl("-n", self.namespace, "get", "miniclusters", "-o", "json")
        return [it["metadata"]["name"] for it in json.loads(text)["items"]]


@pytest.fixture
def person(installed: Plane, operator: Operator, request: pytest.FixtureRequest) -> Person:
    namespace = re.sub("[^a-z0-9]+", "-", request.node.name)[5:60].strip("-")
    return Person(installed, namespace, RIGHTS)


def test_cluster_without_the_custom_resource_has_no_operator(plane: Plane) -> None:
    with pytest.raises(OperatorMissing, match="custom resource is missing"):
        MiniCluster.run("app:1", ["true"], kubeconfig=plane.kubeconfig)


def test_minicluster_without_an_operator_is_deleted(installed: Plane) -> None:
    """No operator runs yet: the fixture `operator` comes after this test."""

    async def follow() -> None:
        async with Target.open(Access("default", kubeconfig=installed.kubeconfig)) as target:
            uid = (await target.cluster("mc"))["metadata"]["uid"]
            await Follower(target, "mc", uid, Silent(), Limits(operator=1.0)).follow()

    MiniCluster("app:1", ["true"], name="mc", kubeconfig=installed.kubeconfig).create()
    with pytest.raises(OperatorMissing, match="nothing has processed it for 1 s"):
        bridge.block(follow())
    assert installed.kubectl("get", "miniclusters", "-A", "-o", "name") == ""


@pytest.mark.parametrize("code", [0, 7, 255])
def test_person_with_the_named_rights_runs_a_job(person: Person, code: int) -> None:
    run = person.run(name="mc", size=2, check=False)
    pods = person.plane.pods(person.namespace, "mc", 2)
    for pod in pods:
        person.plane.run_pod(person.namespace, pod)
    person.plane.end_pod(person.namespace, pods[0], code)
    result = run.result(120)
    assert (result.exit_code, result.ok) == (code, code == 0)
    assert result.reason == ("Completed" if code == 0 else "NonZeroExitCode")
    # The operator deletes it. This person may not.
    until(lambda: not person.names())


def test_refused_spec_names_its_fields(person: Person) -> None:
    with pytest.raises(Invalid) as caught:
        MiniCluster.run("app:1", ["true"], size=0, tasks=-1, kubeconfig=person.kubeconfig)
    assert {it.field for it in caught.value.problems} == {"spec.size", "spec.tasks"}
    with pytest.raises(Invalid) as caught:
        MiniCluster.run(spec={"sise": 1, "containers": [{"image": "a", "command": "b"}]}, kubeconfig=person.kubeconfig)
    assert caught.value.field == "spec.sise"
    # A CEL rule about two fields: the test looks for the field in the message.
    with pytest.raises(Invalid, match="maxSize"):
        spec = {"size": 4, "maxSize": 2, "containers": [{"image": "a", "command": "b"}]}
        MiniCluster.run(spec=spec, kubeconfig=person.kubeconfig)
    assert person.names() == []


def test_name_that_is_taken_is_refused(person: Person) -> None:
    MiniCluster("app:1", name="mc", kubeconfig=person.kubeconfig).create()
    with pytest.raises(NameTaken, match="the name is taken"):
        MiniCluster("app:1", name="mc", kubeconfig=person.kubeconfig).create()


def test_typed_spec_comes_back_as_it_was_sent(person: Person) -> None:
    spec = models.MiniClusterSpec(
        size=2,
        max_size=4,
        containers=[models.Container(image="a", command="b", environment={"A": "1"}, run_flux=True)],
        logging=models.Logging(quiet=True),
    )
    cluster = MiniCluster.from_spec(spec, name="mc", kubeconfig=person.kubeconfig).create()
    text = person.plane.kubectl("-n", person.namespace, "get", "minicluster", "mc", "-o", "json")
    stored = models.MiniCluster.model_validate_json(text)
    assert stored.spec.max_size == 4 and stored.spec.containers[0].environment == {"A": "1"}
    cluster.scale(3)
    with pytest.raises(Invalid, match="size"):
        cluster.scale(9)
    assert cluster.why().size == 3


def test_person_without_rights_creates_nothing(installed: Plane, operator: Operator) -> None:
    nobody = Person(installed, "no-rights", {})
    with pytest.raises(NotAllowed, match=r"kubectl\.md") as caught:
        MiniCluster.run("app:1", ["true"], kubeconfig=nobody.kubeconfig)
    assert "cannot list the pods" in str(caught.value)
    reader = Person(installed, "reader", {"pods": "get,list,watch"})
    with pytest.raises(NotAllowed, match="cannot create MiniCluster"):
        MiniCluster.run("app:1", ["true"], kubeconfig=reader.kubeconfig)
    assert nobody.names() == reader.names() == []


def test_pod_that_fits_nowhere_is_unschedulable(person: Person) -> None:
    run = person.run(name="mc", start_timeout=15)
    person.plane.set_unschedulable(person.namespace, person.lead("mc"), "0/3 nodes are available: insufficient cpu")
    with pytest.raises(Unschedulable, match="insufficient cpu"):
        run.result(120)


def test_run_survives_20_s_without_api_server_and_operator(person: Person, operator: Operator) -> None:
    wire = Wire(person.plane.address)
    token = json.loads(person.kubeconfig.read_text())["users"][0]["user"]["token"]
    kubeconfig = person.plane.config("wire", token=token, namespace=person.namespace, server=wire.server)
    run = person.run(name="mc", kubeconfig=kubeconfig, check=False)
    lead = person.lead("mc")
    wire.cut()
    operator.stop()
    person.plane.run_pod(person.namespace, lead)
    time.sleep(20)
    operator.start()
    assert not run.done()
    wire.mend()
    person.plane.end_pod(person.namespace, lead, 6)
    assert run.result(120).exit_code == 6
    wire.cut()


def test_deleted_lead_starts_the_job_again_and_is_counted(person: Person) -> None:
    run = person.run(name="mc")
    first = person.lead("mc")
    person.plane.run_pod(person.namespace, first)
    name = first["metadata"]["name"]
    person.plane.kubectl("-n", person.namespace, "delete", "pod", name, "--grace-period=0", "--force")

    def second() -> dict[str, Any] | None:
        lead = person.lead("mc")
        return lead if lead["metadata"]["uid"] != first["metadata"]["uid"] else None

    lead = until(second)
    person.plane.run_pod(person.namespace, lead)
    person.plane.end_pod(person.namespace, lead, 0)
    result = run.result(120)
    assert (result.exit_code, result.restarts) == (0, 1)


def test_minicluster_that_others_delete_is_lost(person: Person) -> None:
    run = person.run(name="mc")
    person.plane.run_pod(person.namespace, person.lead("mc"))
    person.plane.kubectl("-n", person.namespace, "delete", "minicluster", "mc", "--wait=false")
    with pytest.raises(Lost):
        run.result(120)


def test_block_waits_until_ready_and_leaves_nothing(person: Person) -> None:
    def node() -> None:
        person.plane.run_pod(person.namespace, person.lead("mc"))

    threading.Thread(target=node, daemon=True).start()
    with MiniCluster("app:1", name="mc", kubeconfig=person.kubeconfig) as cluster:
        assert cluster.status().ready_size == 1
        assert "1 of 1 brokers ready" in str(cluster.why())
        # This person may not delete it, so the end of the block would shut the job down by a program in its pod, and no
        # kubelet runs one. So the administrator deletes the MiniCluster before.
        person.plane.kubectl("-n", person.namespace, "delete", "minicluster", "mc", "--wait=false")
    until(lambda: not person.names())


def test_failed_job_has_the_operator_s_remedy(person: Person) -> None:
    run = person.run(name="mc")
    lead = person.lead("mc")
    person.plane.run_pod(person.namespace, lead)
    person.plane.end_pod(person.namespace, lead, 137)
    with pytest.raises(JobFailed) as caught:
        run.result(120)
    assert caught.value.exit_code == 137 and caught.value.remedy


assert os.environ.get("CONTROLPLANE"), "CONTROLPLANE must name the program of test-node/build (.ci/python sets it)"
