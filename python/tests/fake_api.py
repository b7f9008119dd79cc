"""An API server for tests without a cluster: as much of the real one as the package uses, with its faults on demand.

`test_api_server.py` tests the package with a real one.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web
from multidict import CIMultiDictProxy

Object = dict[str, Any]
Program = Callable[["FakeApi", list[str], web.WebSocketResponse], Awaitable[int]]
INDEX = "batch.kubernetes.io/job-completion-index"
CLUSTER = "flux-framework.org/minicluster"
JOB_UID = "batch.kubernetes.io/controller-uid"


@dataclass
class FakeLog:
    """Lines of one container's log, each with its time."""

    lines: list[tuple[str, bytes]] = field(default_factory=list)
    is_over: bool = False
    clock: int = 0
    """Tenths of a second before its first line."""


class FakeApi:
    """Runs in a thread of its own. The methods without an underscore are for the test's thread."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.logs: dict[str, FakeLog] = {}
        # Of containers that were restarted.
        self.previous_logs: dict[str, FakeLog] = {}
        # What the kubelet sends after the lines in place of waiting for more.
        self.kubelet_message = b""
        # Requests whose method and path contain these are never answered.
        self.silent: set[tuple[str, str]] = set()
        self.requests: list[tuple[str, str]] = []
        self.headers: list[CIMultiDictProxy[str]] = []
        """Of `requests`."""
        self.bodies: list[Object] = []
        self.events: list[Object] = []
        # Answers for requests whose method and path contain these, instead of the usual ones.
        self.refusals: dict[tuple[str, str], tuple[int, Object]] = {}
        # The next answers of this method are lost after the work was done.
        self.lost_answers: dict[str, int] = {}
        self.programs: dict[str, Program] = {}
        self.token = "secret"
        self.sockets: list[web.WebSocketResponse] = []
        self.on_create: Callable[[Object], object] | None = None
        self.on_delete: Callable[[Object], object] | None = None
        self.on_patch: Callable[[Object, Object], object] | None = None
        self._version = 1
        self._changes: list[tuple[int, str, str, Object]] = []
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Condition()
        self._kubeconfig = folder / "kubeconfig"
        self._runner: web.AppRunner | None = None
        self._port = 0
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._call(self._listen())
        self._write_kubeconfig()

    # ---- for tests

    @property
    def kubeconfig(self) -> Path:
        return self._kubeconfig

    def close(self) -> None:
        self._call(self._stop_listening())

    def cut(self) -> None:
        """The API server goes away: every connection breaks, and no new one is accepted."""
        self._call(self._stop_listening())

    def mend(self) -> None:
        self._call(self._listen())

    def break_sockets(self) -> None:
        """Breaks the connections to programs alone."""

        async def close() -> None:
            sockets, self.sockets = self.sockets, []
            for socket in sockets:
                if socket._req is not None and socket._req.transport is not None:
                    socket._req.transport.abort()

        self._call(close())

    def put(self, kind: str, obj: Object) -> None:
        """Creates or replaces an object."""
        self._call(self._put(kind, copy.deepcopy(obj)))

    def remove(self, kind: str, name: str) -> None:
        self._call(self._remove(kind, name))

    def get(self, kind: str, name: str) -> Object | None:
        return copy.deepcopy(self.objects.get((kind, name)))

    def set_status(self, name: str, **status: Any) -> None:
        """Merges into the MiniCluster's status; `conditions` are given as a dictionary of type and status."""
        cluster = self.get("miniclusters", name)
        assert cluster is not None
        conditions = status.pop("conditions", None)
        cluster.setdefault("status", {}).update(status)
        if conditions is not None:
            cluster["status"]["conditions"] = [
                {"type": key, "status": value, "reason": "", "message": "", "lastTransitionTime": ""}
                for key, value in conditions.items()
            ]
        self.put("miniclusters", cluster)

    def put_pod(
        self,
        cluster: str,
        index: int,
        state: Object | None,
        *,
        phase: str = "Running",
        uid: str = "",
        name: str = "",
        job: str = "job",
        restarts: int = 0,
    ) -> str:
        name = name or f"{cluster}-{index}-x"
        status: Object = {"phase": phase}
        if state is not None:
            status["containerStatuses"] = [{"name": cluster, "restartCount": restarts, "state": state}]
        pod: Object = {
            "metadata": {
                "name": name,
                "uid": uid or f"uid-of-{name}",
                "labels": {INDEX: str(index), CLUSTER: cluster, JOB_UID: job},
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "nodeName": "node",
                "containers": [{"name": cluster, "command": ["/etc/flux-agent/bin/flux-agent", "run"]}],
            },
            "status": status,
        }
        self.put("pods", pod)
        self.logs.setdefault(name, FakeLog())
        return name

    def log(self, pod: str, *lines: str) -> None:
        """Adds lines to a pod's log, 0.1 s after each other."""

        async def add() -> None:
            log = self.logs[pod]
            for line in lines:
                at = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(
                    milliseconds=100 * (log.clock + len(log.lines))
                )
                log.lines.append((at.strftime("%Y-%m-%dT%H:%M:%S.%f000Z"), line.encode()))
            async with self._changed:
                self._changed.notify_all()

        self._call(add())

    def end_log(self, pod: str) -> None:
        async def end() -> None:
            self.logs[pod].is_over = True
            async with self._changed:
                self._changed.notify_all()

        self._call(end())

    # ---- life of a MiniCluster

    def start_job(self, name: str) -> str:
        """What the operator and a node do until the job runs; returns the name of the lead's pod."""
        cluster = self.get("miniclusters", name)
        assert cluster is not None
        size = cluster["spec"]["size"]
        for index in reversed(range(size)):
            lead = self.put_pod(name, index, {"running": {}})
        self.set_status(
            name,
            phase="Running",
            readySize=size,
            reason="BrokersReady",
            conditions={"JobMiniClusterReady": "True", "Ready": "True"},
            jobUid="job",
            timeline={"running": "2026-01-01T00:00:00Z", "ready": "2026-01-01T00:00:00Z"},
        )
        return lead

    def restart_lead(self, name: str) -> None:
        """The kubelet restarts the lead's container."""
        lead = f"{name}-0-x"
        self.end_log(lead)
        first = self.logs[lead]
        self.previous_logs[lead] = first
        # Its lines are later ones.
        self.logs[lead] = FakeLog(clock=first.clock + len(first.lines))
        restarts = self.objects[("pods", lead)]["status"]["containerStatuses"][0]["restartCount"]
        self.put_pod(name, 0, {"running": {}}, restarts=restarts + 1)

    def rotate_log(self, pod: str) -> None:
        """The kubelet begins a new file, and the lines so far cannot be read any more."""
        log = self.logs[pod]
        log.clock += len(log.lines)
        log.lines.clear()

    def end_job(self, name: str, code: int = 0, *, signal: int | None = None) -> None:
        """The job ends with this code."""
        lead = f"{name}-0-x"
        if ("pods", lead) in self.objects:
            pod = self.objects[("pods", lead)]
            restarts = pod["status"].get("containerStatuses", [{"restartCount": 0}])[0]["restartCount"]
            phase = "Succeeded" if code == 0 else "Failed"
            uid = pod["metadata"]["uid"]
            self.put_pod(name, 0, {"terminated": {"exitCode": code}}, phase=phase, uid=uid, restarts=restarts)
            self.end_log(lead)
        # A job that has completed stays ready.
        ended = ["JobFinished", "Complete", "Ready"] if code == 0 else ["JobFinished", "Failed"]
        self.set_status(
            name,
            phase="Completed" if code == 0 else "Failed",
            exitCode=code,
            reason="Completed" if code == 0 else "NonZeroExitCode",
            message=f"the job ended with exit code {code}",
            conditions=dict.fromkeys(ended, "True"),
            **({"signal": signal} if signal is not None else {}),
        )

    def end_at_once(self, name: str, code: int) -> None:
        """The job ends with this code, and its own `cleanup` deletes the MiniCluster: no other event has its end."""
        lead = f"{name}-0-x"
        self.put_pod(name, 0, {"terminated": {"exitCode": code}}, phase="Failed" if code else "Succeeded")
        self.end_log(lead)
        status = self.objects[("miniclusters", name)]["status"]
        status.update(phase="Failed" if code else "Completed", exitCode=code, reason="Ended")
        status["conditions"] = [{"type": kind, "status": "True"} for kind in ("JobFinished", "Complete")]
        self.remove("miniclusters", name)

    def play(self, *lines: str, code: int = 0) -> None:
        """Every MiniCluster that is created runs, prints these lines and ends with this code, in a thread."""

        def live(cluster: Object) -> None:
            name = cluster["metadata"]["name"]
            lead = self.start_job(name)
            self.log(lead, *lines)
            self.end_job(name, code)

        self.on_create = lambda cluster: threading.Thread(target=live, args=(cluster,), daemon=True).start()

    # ---- inside

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def _write_kubeconfig(self) -> None:
        self._kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}],
                    "users": [{"name": "u", "user": {"token": "secret"}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
                    "current-context": "x",
                }
            )
        )

    async def _listen(self) -> None:
        app = web.Application(middlewares=[self._guard])
        clusters = "/apis/flux-framework.org/v1alpha2/namespaces/team/miniclusters"
        pods = "/api/v1/namespaces/team/pods"
        jobs = "/apis/batch/v1/namespaces/team/jobs"
        for path, kind in ((clusters, "miniclusters"), (pods, "pods"), (jobs, "jobs")):
            app.router.add_get(path, partial(self._list, kind=kind))
            app.router.add_get(path + "/{name}", partial(self._read, kind=kind))
        app.router.add_post(clusters, self._create)
        app.router.add_patch(clusters + "/{name}", self._patch)
        app.router.add_delete(clusters + "/{name}", self._delete)
        app.router.add_get(pods + "/{name}/log", self._log)
        app.router.add_get(pods + "/{name}/exec", self._exec)
        app.router.add_get("/api/v1/namespaces/team/events", self._list_events)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._port or runner.addresses[0][1]
        self._runner = runner

    async def _stop_listening(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            assert runner.server is not None
            for connection in list(runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        self.headers.append(request.headers)
        if "Authorization" not in request.headers:
            return web.json_response({"kind": "Status", "message": "anonymous", "code": 403}, status=403)
        if request.headers["Authorization"] != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "message": "Unauthorized", "code": 401}, status=401)
        if any(request.method == method and part in request.path for method, part in self.silent):
            await asyncio.Event().wait()
        for (method, part), (status, answer) in self.refusals.items():
            if request.method == method and part in request.path:
                return web.json_response({"kind": "Status", "code": status, **answer}, status=status)
        response: web.StreamResponse = await handler(request)
        if self.lost_answers.get(request.method, 0) > 0:
            self.lost_answers[request.method] -= 1
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _put(self, kind: str, obj: Object) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        key = (kind, obj["metadata"]["name"])
        event = "MODIFIED" if key in self.objects else "ADDED"
        self.objects[key] = obj
        await self._tell(event, kind, obj)

    async def _remove(self, kind: str, name: str) -> None:
        self._version += 1
        obj = self.objects.pop((kind, name))
        obj["metadata"]["resourceVersion"] = str(self._version)
        await self._tell("DELETED", kind, obj)

    async def _tell(self, event: str, kind: str, obj: Object) -> None:
        async with self._changed:
            self._changes.append((self._version, event, kind, copy.deepcopy(obj)))
            self._changed.notify_all()

    async def _list(self, request: web.Request, kind: str) -> web.StreamResponse:
        def fits(obj: Object) -> bool:
            field, label = request.query.get("fieldSelector"), request.query.get("labelSelector")
            if field is not None:
                return bool(field == f"metadata.name={obj['metadata']['name']}")
            key, _, value = (label or "").partition("=")
            return label is None or (obj["metadata"].get("labels") or {}).get(key) == value

        if "watch" not in request.query:
            items = [obj for (of, _), obj in self.objects.items() if of == kind and fits(obj)]
            return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        version = int(request.query["resourceVersion"])
        while True:
            for at, event, of, obj in list(self._changes):
                if at > version and of == kind and fits(obj):
                    await response.write(json.dumps({"type": event, "object": obj}).encode() + b"\n")
            version = max(version, self._version)
            async with self._changed:
                if self._version == version:
                    await self._changed.wait()

    async def _read(self, request: web.Request, kind: str) -> web.Response:
        obj = self.objects.get((kind, request.match_info["name"]))
        return self._missing(request, kind) if obj is None else web.json_response(obj)

    def _missing(self, request: web.Request, kind: str) -> web.Response:
        message = f'{kind} "{request.match_info["name"]}" not found'
        return web.json_response({"kind": "Status", "message": message, "code": 404}, status=404)

    async def _create(self, request: web.Request) -> web.Response:
        obj = await request.json()
        self.bodies.append(copy.deepcopy(obj))
        name = obj["metadata"]["name"]
        if ("miniclusters", name) in self.objects:
            answer = {"kind": "Status", "message": f"{name} exists", "reason": "AlreadyExists", "code": 409}
            return web.json_response(answer, status=409)
        obj["metadata"].update(uid=f"uid-of-{name}-{self._version}", namespace="team")
        await self._put("miniclusters", obj)
        if self.on_create is not None:
            await asyncio.to_thread(self.on_create, copy.deepcopy(obj))
        return web.json_response(obj, status=201)

    async def _patch(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        change = await request.json()
        obj = copy.deepcopy(self.objects.get(("miniclusters", request.match_info["name"])))
        if obj is None:
            return self._missing(request, "miniclusters")
        if change.get("metadata", {}).get("uid", obj["metadata"]["uid"]) != obj["metadata"]["uid"]:
            answer = {"kind": "Status", "message": "metadata.uid: field is immutable", "code": 422}
            return web.json_response(answer, status=422)
        obj["spec"].update(change["spec"])
        await self._put("miniclusters", obj)
        if self.on_patch is not None:
            await asyncio.to_thread(self.on_patch, copy.deepcopy(obj), change)
        return web.json_response(obj)

    async def _delete(self, request: web.Request) -> web.Response:
        obj = self.objects.get(("miniclusters", request.match_info["name"]))
        if obj is None:
            return self._missing(request, "miniclusters")
        wanted = (await request.json()).get("preconditions") or {}
        for name, value in wanted.items():
            if obj["metadata"][name] != value:
                return web.json_response({"kind": "Status", "message": f"{name} differs", "code": 409}, status=409)
        await self._remove("miniclusters", obj["metadata"]["name"])
        if self.on_delete is not None:
            await asyncio.to_thread(self.on_delete, copy.deepcopy(obj))
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _list_events(self, request: web.Request) -> web.Response:
        name = request.query["fieldSelector"].removeprefix("involvedObject.name=")
        return web.json_response({"items": [it for it in self.events if it["involvedObject"]["name"] == name]})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        logs = self.previous_logs if "previous" in request.query else self.logs
        log = logs.get(request.match_info["name"])
        if log is None:
            return self._missing(request, "pods")
        response = web.StreamResponse()
        await response.prepare(request)
        since, done = request.query.get("sinceTime", "")[:19], 0
        while True:
            for at, line in log.lines[done:]:
                if at[:19] >= since:
                    head = at.encode() + b" " if "timestamps" in request.query else b""
                    await response.write(head + line + b"\n")
            done = len(log.lines)
            if "follow" not in request.query or log.is_over:
                return response
            if self.kubelet_message:
                await response.write(self.kubelet_message)
                return response
            async with self._changed:
                if len(log.lines) == done and not log.is_over:
                    await self._changed.wait()

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        words = request.query.getall("command")
        program = self.programs.get(words[1])
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        self.sockets.append(socket)
        code = 127 if program is None else await program(self, words, socket)
        status: Object = {"status": "Success"}
        if code != 0:
            cause = {"reason": "ExitCode", "message": str(code)}
            status = {"status": "Failure", "details": {"causes": [cause]}, "message": f"exit code {code}"}
        if not socket.closed:
            await socket.send_bytes(b"\x03" + json.dumps(status).encode())
            await socket.close()
        return socket


async def run_process(api: FakeApi, words: list[str], socket: web.WebSocketResponse) -> int:
    """A program that runs on this machine, with the connection as its standard streams."""
    del api
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None

    async def copy_to(channel: int, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        while data := await stream.read(32768):
            if socket.closed:
                continue
            await socket.send_bytes(bytes([channel]) + data)

    async def copy_from(stdin: asyncio.StreamWriter) -> None:
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] == b"\x00":
                stdin.write(message.data[1:])
        stdin.close()

    reader = asyncio.ensure_future(copy_from(process.stdin))
    await asyncio.gather(copy_to(1, process.stdout), copy_to(2, process.stderr), return_exceptions=True)
    code = await process.wait()
    reader.cancel()
    return code if code >= 0 else 128 - code
