"""A real API server with the operator. There is no kubelet: tests write the status of pods."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import yaml
from waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
OPERATOR = REPOSITORY / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/flux-operator"
IMAGES = ["--agent-image", "agent:test", "--view-image", "view:test"]
# What docs/tasks/kubectl.md names.
RIGHTS = {
    "miniclusters.flux-framework.org": "get,list,watch,create,patch",
    "pods": "get,list,watch",
    "pods/log": "get",
    "pods/exec": "get,create",
    "events": "list",
}


class Plane:
    """A control plane of its own (`test-node/control-plane`). It ends with this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = os.environ["CONTROLPLANE"]
        self._starter = subprocess.Popen(
            [REPOSITORY / "test-node/control-plane"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._starter.stdout is not None
        self.kubeconfig = Path(self._starter.stdout.readline().strip())
        assert self.kubeconfig.is_file(), "the control plane did not start, see above"

    def close(self) -> None:
        assert self._starter.stdin is not None
        self._starter.stdin.close()
        self._starter.wait()

    def kubectl(self, *words: str, text: str = "") -> str:
        command = [self.program, "kubectl", "--kubeconfig", str(self.kubeconfig), *words]
        run = subprocess.run(command, input=text, capture_output=True, text=True)
        assert run.returncode == 0, f"kubectl {' '.join(words)}: {run.stderr}"
        return run.stdout

    def config(self, name: str, **changes: Any) -> Path:
        """A kubeconfig with another `token`, `server` or `namespace`."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        if "token" in changes:
            config["users"][0]["user"] = {"token": changes["token"]}
        if "server" in changes:
            config["clusters"][0]["cluster"]["server"] = changes["server"]
        if "namespace" in changes:
            config["contexts"][0]["context"]["namespace"] = changes["namespace"]
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    @property
    def address(self) -> tuple[str, int]:
        server = yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        host, _, port = server.removeprefix("https://").partition(":")
        return host, int(port)

    def install(self) -> None:
        """What an administrator applies, without the Deployments: the operator runs on this machine."""
        base = self.kubectl("kustomize", str(REPOSITORY / "operator/manifests"))
        documents = [it for it in yaml.safe_load_all(base) if it and it["kind"] != "Deployment"]
        self.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(documents))
        self.kubectl("wait", "--for", "condition=Established", "crd/miniclusters.flux-framework.org")

    def account(self, namespace: str, rights: dict[str, str]) -> Path:
        """A kubeconfig for a person with these rights in a new namespace."""
        self.kubectl("create", "namespace", namespace)
        self.kubectl("-n", namespace, "create", "serviceaccount", "person")
        for number, (resource, verbs) in enumerate(rights.items()):
            role = f"role-{number}"
            self.kubectl("-n", namespace, "create", "role", role, f"--verb={verbs}", f"--resource={resource}")
            bound = [f"--role={role}", f"--serviceaccount={namespace}:person"]
            self.kubectl("-n", namespace, "create", "rolebinding", role, *bound)
        token = self.kubectl("-n", namespace, "create", "token", "person").strip()
        return self.config(f"person-{namespace}", token=token, namespace=namespace)

    # ---- the nodes

    def pods(self, namespace: str, name: str, count: int = 1) -> list[dict[str, Any]]:
        """The pods of a MiniCluster's brokers, by index, once there are so many."""

        def found() -> list[dict[str, Any]] | None:
            selector = f"flux-framework.org/minicluster={name}"
            text = self.kubectl("-n", namespace, "get", "pods", "-l", selector, "-o", "json")
            pods = [it for it in json.loads(text)["items"] if not it["metadata"].get("deletionTimestamp")]
            alive = [it for it in pods if it["status"].get("phase") not in ("Succeeded", "Failed")]
            return alive if len(alive) >= count else None

        return sorted(until(found), key=lambda it: str(it["metadata"]["name"]))

    def run_pod(self, namespace: str, pod: dict[str, Any]) -> None:
        condition = {"type": "Ready", "status": "True"}
        self._set(namespace, pod, {"phase": "Running", "conditions": [condition]}, {"running": {}}, True)

    def end_pod(self, namespace: str, pod: dict[str, Any], code: int) -> None:
        phase = "Succeeded" if code == 0 else "Failed"
        report = json.dumps({"version": 1, "by": "program", "code": code})
        terminated = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": report}
        self._set(namespace, pod, {"phase": phase}, {"terminated": terminated}, False)

    def set_unschedulable(self, namespace: str, pod: dict[str, Any], message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self._patch(namespace, pod, {"phase": "Pending", "conditions": [condition]})

    def _set(self, namespace: str, pod: dict[str, Any], status: dict[str, Any], state: Any, is_ready: bool) -> None:
        container = pod["spec"]["containers"][0]
        status["containerStatuses"] = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": is_ready,
                "restartCount": 0,
                "state": state,
            }
        ]
        self._patch(namespace, pod, status)

    def _patch(self, namespace: str, pod: dict[str, Any], status: dict[str, Any]) -> None:
        patch = json.dumps({"status": status})
        name = pod["metadata"]["name"]
        self.kubectl("-n", namespace, "patch", "pod", name, "--subresource", "status", "--type", "merge", "-p", patch)


class Operator:
    """The operator, with the permissions that are shipped."""

    def __init__(self, plane: Plane) -> None:
        token = plane.kubectl("-n", "flux-operator", "create", "token", "flux-operator").strip()
        self._kubeconfig = plane.config("operator", token=token)
        self._log = (plane.folder / "operator.log").open("a")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "KUBECONFIG": str(self._kubeconfig)}
        self._process = subprocess.Popen(
            [OPERATOR, "run", *IMAGES], env=environment, stdout=self._log, stderr=self._log
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Wire:
    """A way to the API server that can be cut: connections break, and new ones are refused."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._connections: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.mend()

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def mend(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            # A thread that waits in accept would hold the port.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for connection in list(self._connections):
            close(connection)
        self._connections.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._connections |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=copy, args=(source, sink), daemon=True).start()


def copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    close(source)
    close(sink)


def close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
