"""Tests in real pods. They need a cluster with the operator (KUBECONFIG).

`make e2e` runs them on its test node, by `.ci/python node`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from waiting import until

from flux_minicluster import MiniCluster, NotFound, Result

IMAGE = os.environ.get("E2E_APP_IMAGE", "rockylinux:9")
FOLDER = Path(__file__).resolve().parents[2] / "examples/python-client"
needs_flux = pytest.mark.skipif(
    bool(os.environ.get("E2E_FAKE_FLUX")),
    reason="LEFT OUT: the fake Flux has no Python module. FLUX=/opt/flux make e2e",
)


def kubectl(*words: str) -> str:
    return subprocess.run(["kubectl", *words], capture_output=True, text=True, check=True).stdout


def in_background(script: str, name: str) -> Future[Result]:
    command = ["sh", "-c", script]
    return ThreadPoolExecutor().submit(MiniCluster.run, IMAGE, command, name=name, check=False, stream=False)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Each test leaves no MiniCluster and no pod of one."""
    yield
    until(lambda: not kubectl("get", "miniclusters", "-o", "name").strip())
    until(lambda: not kubectl("get", "pods", "-l", "flux-framework.org/minicluster", "-o", "name").strip())


def test_job_on_two_pods_has_the_output_of_both(capfd: pytest.CaptureFixture[str]) -> None:
    result = MiniCluster.run(IMAGE, ["hostname"], size=2, tasks=2, name="py-hello")
    assert (result.exit_code, result.reason) == (0, "Completed")
    assert sorted(result.stdout.split()) == ["py-hello-0", "py-hello-1"]
    assert {step.name for step in result.steps} >= {"pods are scheduled", "the job runs"}
    assert sorted(capfd.readouterr().out.split()) == ["py-hello-0", "py-hello-1"]


def test_many_at_once_have_their_own_exit_codes() -> None:
    codes = [0, 1, 7, 137, 255]

    async def run_all() -> list[int]:
        runs = (MiniCluster.run_async(IMAGE, ["sh", "-c", f"exit {code}"], check=False) for code in codes)
        return [result.exit_code for result in await asyncio.gather(*runs)]

    assert asyncio.run(run_all()) == codes


def test_deleted_lead_is_replaced_and_counts_as_one_restart() -> None:
    run = in_background("echo starts; sleep 8; echo ends", "py-lost")
    of_the_lead = "flux-framework.org/minicluster=py-lost,batch.kubernetes.io/job-completion-index=0"
    phase = ("get", "pods", "-l", of_the_lead, "-o", "jsonpath={.items[*].status.phase}")
    until(lambda: kubectl(*phase) == "Running")
    until(lambda: "starts" in kubectl("logs", "-l", of_the_lead, "--tail=-1"))
    kubectl("delete", "pod", "-l", of_the_lead, "--grace-period=0", "--force")
    result = run.result(180)
    assert (result.exit_code, result.restarts) == (0, 1)
    assert result.stdout.endswith("starts\nends\n")


def test_run_survives_a_restart_of_the_operator() -> None:
    run = in_background("sleep 6; exit 3", "py-operator")
    until(lambda: "py-operator" in kubectl("get", "miniclusters", "-o", "name"))
    kubectl("-n", "flux-operator", "rollout", "restart", "deployment")
    kubectl("-n", "flux-operator", "rollout", "status", "deployment", "-l", "app.kubernetes.io/name=flux-operator")
    result = run.result(180)
    assert (result.exit_code, result.restarts) == (3, 0)


def test_notebook_runs_a_job_on_four_pods() -> None:
    notebook = nbformat.read(FOLDER / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    for cell in notebook.cells:
        cell.source = cell.source.replace("rockylinux:9", IMAGE)
    NotebookClient(notebook, timeout=180, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(it["text"] for it in outputs if it["output_type"] == "stream" and it["name"] == "stdout")
    assert text.endswith("0 Completed\n") and len(text.split()) == 6, outputs
    html = [it["data"]["text/html"] for it in outputs if "text/html" in it.get("data", {})]
    assert any("quorum" in it for it in html) and "the job runs" in html[-1], html


def test_block_shows_the_status_of_its_instance_and_deletes_it() -> None:
    with MiniCluster(IMAGE, name="py-up", size=2) as cluster:
        assert cluster.status().ready_size == 2
        assert "2 of 2 brokers ready" in str(cluster.why())
        cluster.delete()
        cluster.wait("deleted", timeout=60)
    with pytest.raises(NotFound):
        MiniCluster.attach("py-up")


@needs_flux
def test_commands_are_flux_jobs_of_the_instance() -> None:
    with MiniCluster(IMAGE, name="py-jobs", size=2) as cluster:
        hosts = cluster.submit(["hostname"], tasks=2, nodes=2).result()
        assert sorted(hosts.stdout.split()) == ["py-jobs-0", "py-jobs-1"]
        with cluster.executor() as executor:
            begin = time.monotonic()
            futures = [executor.submit(["sh", "-c", f"exit {number % 3}"]) for number in range(60)]
            assert [it.result().exit_code for it in futures] == [number % 3 for number in range(60)]
            print(f"60 jobs in {time.monotonic() - begin:.1f} s")
        assert cluster.usage().brokers.online == 2


assert os.environ.get("KUBECONFIG"), "KUBECONFIG must name the cluster of `make e2e`"
