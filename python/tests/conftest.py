"""Fixtures of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web
from fake_api import FakeApi, run_process
from instances import FakeInstance, Instance, RealInstance

from flux_minicluster import MiniCluster

# A shell starts background processes with SIGINT ignored. Tests send SIGINT, as Ctrl-C does.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """A fake API server, which the package finds by KUBECONFIG."""
    server = FakeApi(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    yield server
    server.close()


@pytest.fixture
def instance(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Instance]:
    """A Flux instance: with FLUX=/path/bin/flux a real one, else the fake. Parameter "starting": it is still in rc1."""
    flux = os.environ.get("FLUX")
    is_starting = getattr(request, "param", "") == "starting"
    kind = partial(RealInstance, flux) if flux else FakeInstance
    instance: Instance = kind(tmp_path, is_starting=is_starting)
    yield instance
    instance.close()


@pytest.fixture
def cluster_name() -> str:
    return "mc"


@pytest.fixture
def cluster(api: FakeApi, instance: Instance, cluster_name: str) -> MiniCluster:
    """A MiniCluster whose instance is up."""
    api.put(
        "miniclusters",
        {"metadata": {"name": cluster_name, "uid": "u", "namespace": "team"}, "spec": {"size": 1, "containers": [{}]}},
    )
    api.start_job(cluster_name)

    async def connect(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
        assert words[:6] == ["/etc/flux-agent/bin/flux-agent", "connect", "--", "flux", "python", "-c"]
        return await run_process(api, [*instance.flux_python(), "-c", *words[6:]], socket)

    api.programs["connect"] = connect
    return MiniCluster.attach(cluster_name)
