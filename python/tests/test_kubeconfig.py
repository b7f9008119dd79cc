"""What the package reads from kubeconfigs, and from their environment."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi
from kubernetes.aio.config import kube_config

from flux_minicluster import CallFailed, MiniCluster, target
from flux_minicluster.target import Access, Target

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBcjCCARegAwIBAgIUOFq0xtZq050uLNboWr2X1J1tG1owCgYIKoZIzj0EAwIw
DTELMAkGA1UEAwwCY2EwIBcNMjYxMTMwMDgxNzMwWhgPMjEyNjExMDYwODE3MzBa
MA0xCzAJBgNVBAMMAmNhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEsUoDKTfb
2AYujEcNglvtv3A/MCcBscroh6a8MiLmBQlMFhf/hFxmuLcpLCKUVV2DzxPeAnQn
kNRYI24kmqm+paNTMFEwHQYDVR0OBBYEFCXzJLKXt2NjeBnpzF73s09t7/BxMB8G
A1UdIwQYMBaAFCXzJLKXt2NjeBnpzF73s09t7/BxMA8GA1UdEwEB/wQFMAMBAf8w
CgYIKoZIzj0EAwIDSQAwRgIhAK3J8nfr7jL+IB7jz8S++Wjk2q70Wx2z0lB1tZKw
CX5wAiEAya6VL2/2DXNP1ZQRwd69SmmX1Kt/clut1inXNJX2+Bk=
-----END CERTIFICATE-----
"""


def change(file: Path, **user_and_cluster: dict[str, Any]) -> None:
    """Adds settings to the user or cluster of a kubeconfig."""
    config = json.loads(file.read_text())
    for kind, settings in user_and_cluster.items():
        config[f"{kind}s"][0][kind] = {**config[f"{kind}s"][0][kind], **settings}
    file.write_text(json.dumps(config))


@pytest.fixture
def minicluster(api: FakeApi) -> str:
    """A MiniCluster that can be found."""
    api.put("miniclusters", {"metadata": {"name": "mc", "uid": "u", "namespace": "team"}, "spec": {"size": 1}})
    return "mc"


@pytest.fixture
def kubeconfig_with_authority(api: FakeApi) -> Path:
    data = base64.b64encode(AUTHORITY.encode()).decode()
    change(api.kubeconfig, cluster={"server": "https://api.invalid:6443", "certificate-authority-data": data})
    return api.kubeconfig


async def opened() -> Target:
    async with Target.open(Access()) as target:
        return target


def test_token_file_may_end_with_a_newline(api: FakeApi, minicluster: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    config = json.loads(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")}
    api.kubeconfig.write_text(json.dumps(config))
    MiniCluster.attach(minicluster)
    assert {headers["Authorization"] for headers in api.headers} == {"Bearer secret"}


def test_expired_token_is_not_replaced_by_one_of_another_cluster(
    api: FakeApi, minicluster: str, tmp_path: Path
) -> None:
    """The user may choose another context while a program runs."""
    (tmp_path / "other").mkdir()
    other = FakeApi(tmp_path / "other")

    async def call() -> None:
        async with Target.open(Access()) as target:
            await target.cluster(minicluster)
            api.token = "another"
            api.kubeconfig.write_text(other.kubeconfig.read_text())
            await target.cluster(minicluster)

    with pytest.raises(CallFailed, match="Log in again"):
        asyncio.run(call())
    assert other.requests == []
    other.close()


def test_authority_needs_no_extensions_that_python_3_13_demands(
    kubeconfig_with_authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ssl.create_default_context

    def strict(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = original(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    context = asyncio.run(opened())._api.rest_client.ssl_context
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname


def test_deleted_temporary_files_are_written_again(
    kubeconfig_with_authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_config, "_temp_files", {})
    asyncio.run(opened())
    (name,) = kube_config._temp_files.values()
    Path(name).unlink()
    asyncio.run(opened())


def test_temporary_files_are_checked_while_others_are_written(
    kubeconfig_with_authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loop of a program may have a thread of its own."""
    files = {str(number): "missing" for number in range(3)}
    original = Path.is_file

    def is_file(path: Path) -> bool:
        files.clear()
        files[f"new-{len(calls)}"] = __file__
        calls.append(path)
        return original(path)

    calls: list[Path] = []
    monkeypatch.setattr(kube_config, "_temp_files", files)
    monkeypatch.setattr(Path, "is_file", is_file)
    asyncio.run(opened())


def test_credential_plugin_that_waits_is_named(
    api: FakeApi, minicluster: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may ask for a login on its standard error, which the official client does not show."""
    monkeypatch.setattr(target, "PLUGIN_SECONDS", 0.2)
    credential = {"apiVersion": "v1", "kind": "ExecCredential", "status": {"token": "secret"}}
    script = f"echo code >&2; sleep 1; echo '{json.dumps(credential)}'"
    config = json.loads(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"exec": {"apiVersion": "v1", "command": "sh", "args": ["-c", script]}}
    api.kubeconfig.write_text(json.dumps(config))
    MiniCluster.attach(minicluster)
    assert len(caplog.messages) == 1 and "waiting for the credential plugin" in caplog.messages[0]


def test_cancelled_call_does_not_wait_for_a_credential_plugin(api: FakeApi, minicluster: str) -> None:
    config = json.loads(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"exec": {"apiVersion": "v1", "command": "sleep", "args": ["60"]}}
    api.kubeconfig.write_text(json.dumps(config))

    async def attach() -> None:
        await asyncio.wait_for(MiniCluster.attach_async(minicluster), 0.5)

    begin = time.monotonic()
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(attach())
    assert time.monotonic() - begin < 20


def test_end_of_a_forked_process_does_not_disturb_its_parent(kubeconfig_with_authority: Path) -> None:
    script = """
import asyncio, os, sys
from test_kubeconfig import opened
asyncio.run(opened())
if os.fork() == 0:
    sys.exit()
assert os.wait()[1] == 0
asyncio.run(opened())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, timeout=60, check=True)


def test_list_of_kubeconfigs_is_read_as_by_kubectl(
    api: FakeApi, minicluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing and empty files are skipped, and the first current context that is set counts."""
    (tmp_path / "empty").touch()
    (tmp_path / "first").write_text(json.dumps({"kind": "Config", "current-context": ""}))
    (tmp_path / "last").write_text(json.dumps({"kind": "Config", "current-context": "another"}))
    files = [tmp_path / "missing", tmp_path / "empty", tmp_path / "first", api.kubeconfig, tmp_path / "last"]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    MiniCluster.attach(minicluster)


@pytest.mark.parametrize("text", ["{", "a text", "[]", "contexts: {}", "current-context: x\ncontexts: [{}]", "", None])
def test_unusable_kubeconfig_is_an_error_also_in_a_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    """The pod's own account is another user."""
    if text is not None:
        (tmp_path / "config").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "api.invalid")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(CallFailed, match="cannot find the API server"):
        asyncio.run(opened())
