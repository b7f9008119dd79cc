"""A namespace of a cluster, and a client for it.

Authentication, TLS and URLs are the official client's (`kubernetes.aio`). Requests go through its `param_serialize` and
`call_api`, as those of its generated methods do: these cannot ask for a log from a time on (`sinceTime`), check neither
the status of a stream nor the time of a connection, and reject objects that are newer than they are.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import yaml
from kubernetes.aio import client, config
from kubernetes.aio.config import kube_config

from . import proxy
from .errors import (
    CallFailed,
    Invalid,
    Lost,
    MiniClusterError,
    NameTaken,
    NotAllowed,
    NotFound,
    OperatorMissing,
    Problem,
)
from .observed import CLUSTER_LABEL, GROUP, QUEUE_LABEL, VERSION, name_of, runner_of

CONNECT_SECONDS = 15.0
CALL_SECONDS = 60.0
# A watch is opened again after this time, so that a dead connection is noticed.
WATCH_SECONDS = 50
# Time without data after which a connection to a pod gets a ping. Without an answer within half of it, it is dead.
HEARTBEAT_SECONDS = 20.0
# Time for the other side to close a connection to a pod. It does not while a program prints without end.
CLOSE_SECONDS = 1.0
# Time after which a credential plugin probably waits for a login.
PLUGIN_SECONDS = 5.0
PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0
# Time after which a refusal (403) of what was allowed before is final. API servers that start need less.
REFUSED_SECONDS = 180.0
# Rejections (401) in a row after which the credentials count as expired.
REJECTIONS = 5
# Most attempts of a change, and of reading a log, if the API server or the kubelet does not answer.
TRIES = 5

ROLE = (
    "Ask your administrator for the Kubernetes role `edit` in this namespace, or for the role in the page "
    "docs/tasks/kubectl.md, section Permissions."
)
NOT_CREATED = "this MiniCluster was not created: call create(), or use a `with` block"
QUOTA = "See `kubectl describe quota`."
NOT_LOGGED_IN = "the API server rejects your credentials, which may have expired. Log in again"
PLUGIN_WAITS = "waiting for the credential plugin of the kubeconfig. To log in, run `kubectl get pods` in a terminal"
RUN_PLUGIN = "Run `kubectl get pods`, which shows the plugin's own message."
INSTALL = "Ask your administrator to install the operator (docs/getting-started.md)."

# What the name of a header may contain besides letters, digits and `_.-~`.
_OF_HEADER_NAMES = "!#$&'*+^`|"

T = TypeVar("T")


@dataclass(frozen=True)
class Access:
    """How to find the cluster; the same choices as kubectl's. None: as the kubeconfig says."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | os.PathLike[str] | None = None


@dataclass(frozen=True)
class Listed:
    """All objects that there are now."""

    objects: list[dict[str, Any]]


@dataclass(frozen=True)
class Changed:
    object: dict[str, Any]
    is_deleted: bool


@dataclass(frozen=True)
class Disconnected:
    why: str


Change = Listed | Changed | Disconnected


class Target:
    """A namespace, and a client for its cluster."""

    def __init__(self, access: Access, configuration: client.Configuration, namespace: str) -> None:
        self.access = access
        self.namespace = namespace
        self._configuration = configuration
        self._api = client.ApiClient(configuration)
        self._clients = [self._api]

    @classmethod
    @asynccontextmanager
    async def open(cls, access: Access) -> AsyncIterator[Target]:
        """The target of these choices. Makes no call to the API server."""
        configuration, namespace = await _configuration(access)
        target = cls(access, configuration, access.namespace or namespace)
        try:
            yield target
        finally:
            for api in target._clients:
                await api.close()

    # ---- requests

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: object = None,
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> aiohttp.ClientResponse:
        """The answer, if it is a success; its body is not read yet."""
        for is_last in (False, True):
            parameters = await self._api.param_serialize(
                method=method,
                resource_path=path,
                query_params=list(query),
                header_params={"Content-Type": content_type, "Accept": "application/json, */*"},
                body=body,
                auth_settings=["BearerToken"],
            )
            usual = aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS)
            answer = await self._api.call_api(*parameters, _request_timeout=timeout or usual)
            response: aiohttp.ClientResponse = answer.response
            if response.status < 400:
                return response
            text = await response.text(errors="replace")
            # The token may have expired: credential plugins give a new one.
            if response.status == 401 and not is_last and await self._log_in_again():
                continue
            raise _refusal(method, path, response.status, text)
        raise AssertionError("unreachable")

    async def _log_in_again(self) -> bool:
        """Reads the credentials again. False: the kubeconfig's context was changed to that of another API server."""
        try:
            configuration, _ = await _configuration(self.access)
        except CallFailed as error:
            raise CallFailed(error.message, status=401, remedy=error.remedy) from error
        if configuration.host != self._configuration.host:
            return False
        # Other calls may still use the earlier client.
        self._clients.append(client.ApiClient(configuration))
        self._api, self._configuration = self._clients[-1], configuration
        return True

    async def json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = await self.request(method, path, **options)
        answer: dict[str, Any] = await response.json(content_type=None)
        return answer

    # ---- objects

    def _clusters(self, name: str | None = None, version: str = VERSION) -> str:
        path = f"/apis/{GROUP}/{version}/namespaces/{self.namespace}/miniclusters"
        if name == "":
            # The path would be that of all MiniClusters.
            raise ValueError(NOT_CREATED)
        return path if name is None else f"{path}/{name}"

    def _pods(self, name: str = "", part: str = "") -> str:
        return "/".join(filter(None, [f"/api/v1/namespaces/{self.namespace}/pods", name, part]))

    async def cluster(self, name: str, uid: str | None = None) -> dict[str, Any]:
        """The MiniCluster of this name. `uid`: `Lost` if another one has the name now."""
        with_context = _Doing(f"get MiniCluster {name}")
        cluster = await with_context(self.json("GET", self._clusters(name)))
        if uid not in (None, cluster["metadata"]["uid"]):
            raise Lost("it is gone, and another MiniCluster has its name", name=name, remedy="")
        return cluster

    async def is_job_queued(self, name: str) -> bool:
        """Whether its Job is in a queue, such as a default queue, which the MiniCluster does not name.

        False if there is no Job, or the user may not read it.
        """
        with_context = _Doing(f"get Job {name}")
        try:
            job = await with_context(self.json("GET", f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{name}"))
        except (NotAllowed, NotFound):
            return False
        return QUEUE_LABEL in (job["metadata"].get("labels") or {})

    async def create(self, document: dict[str, Any]) -> dict[str, Any]:
        version = str(document.get("apiVersion", "")).rpartition("/")[2] or VERSION
        query = [("fieldValidation", "Strict")]
        return await self.json("POST", self._clusters(version=version), body=document, query=query)

    async def patch(
        self,
        name: str,
        change: dict[str, Any],
        verb: str,
        *,
        uid: str | None = None,
        passing: Sequence[int] = (),
        patience: float = 0.0,
    ) -> dict[str, Any]:
        """Changes the MiniCluster by a merge patch; returns the new one. `uid`: the API server refuses another one.

        `passing` and `patience`: as in `_Doing.retried`.
        """
        change = {**change, "metadata": {"uid": uid}} if uid is not None else change
        with_context = _Doing(f"{verb} MiniCluster {name}")
        merge = "application/merge-patch+json"
        return await with_context.retried(
            lambda: self.json("PATCH", self._clusters(name), body=change, content_type=merge), passing, patience
        )

    async def delete(self, name: str, *, uid: str | None = None, resource_version: str | None = None) -> None:
        """Deletes the MiniCluster without waiting, if it is still the one of the preconditions.

        `NotFound`: it is gone, perhaps by an attempt whose answer was lost. (aiohttp retries, too.)
        """
        preconditions = {
            key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value is not None
        }
        body = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
            "preconditions": preconditions,
        }
        with_context = _Doing(f"delete MiniCluster {name}")
        await with_context.retried(lambda: self.json("DELETE", self._clusters(name), body=body))

    async def pods_of(self, name: str) -> list[dict[str, Any]]:
        """The pods of its brokers."""
        with_context = _Doing(f"list the pods of {name}")
        query = [("labelSelector", f"{CLUSTER_LABEL}={name}")]
        listed = await with_context(self.json("GET", self._pods(), query=query))
        pods: list[dict[str, Any]] = listed["items"]
        return pods

    async def pod(self, name: str) -> dict[str, Any] | None:
        try:
            return await self.json("GET", self._pods(name))
        except NotFound:
            return None

    async def events_of(self, name: str) -> list[dict[str, Any]]:
        """Events of the objects of this name; none if the API server refuses to list them."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        query = [("fieldSelector", f"involvedObject.name={name}")]
        with_context = _Doing(f"list the events of {name}")
        try:
            listed = await with_context(self.json("GET", path, query=query))
        except CallFailed as error:
            if error.status is None:
                raise
            return []
        events: list[dict[str, Any]] = listed["items"]
        return events

    async def log(self, pod: str, query: Sequence[tuple[str, str]]) -> aiohttp.ClientResponse:
        """A pod's log as a stream."""
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS)
        return await self.request("GET", self._pods(pod, "log"), query=query, timeout=timeout)

    # ---- watches

    def watch(self, name: str) -> AsyncIterator[Change]:
        """The MiniCluster of this name and its changes; resumes after failures."""
        return self._watch(self._clusters(), [("fieldSelector", f"metadata.name={name}")])

    def watch_pods_of(self, name: str) -> AsyncIterator[Change]:
        """The pods of its brokers and their changes; resumes after failures."""
        return self._watch(self._pods(), [("labelSelector", f"{CLUSTER_LABEL}={name}")])

    async def _watch(self, path: str, selector: list[tuple[str, str]]) -> AsyncIterator[Change]:
        pause = PAUSE_SECONDS
        refusals = Refusals()
        while True:
            try:
                listed = await self.json("GET", path, query=selector)
                yield Listed(listed["items"])
                pause = PAUSE_SECONDS
                version: str | None = listed["metadata"]["resourceVersion"]
                while version is not None:
                    # None: the API server has forgotten that version, so the objects are listed again.
                    async with _closing(await self._watch_from(path, selector, version)) as response:
                        refusals.note_success()
                        async for line in response.content:
                            event = json.loads(line)
                            if event["type"] == "ERROR":
                                version = None
                                break
                            version = event["object"]["metadata"]["resourceVersion"]
                            if event["type"] != "BOOKMARK":
                                yield Changed(event["object"], event["type"] == "DELETED")
            except FAILURES as error:
                if refusals.is_final(error):
                    raise
                if isinstance(error, CallFailed) and error.status == 410:
                    continue
                yield Disconnected(words(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _watch_from(self, path: str, selector: list[tuple[str, str]], version: str) -> aiohttp.ClientResponse:
        query = [
            *selector,
            ("watch", "1"),
            ("allowWatchBookmarks", "1"),
            ("resourceVersion", version),
            ("timeoutSeconds", str(WATCH_SECONDS)),
        ]
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=WATCH_SECONDS + CONNECT_SECONDS)
        return await self.request("GET", path, query=query, timeout=timeout)

    # ---- programs in pods

    @asynccontextmanager
    async def execute(
        self, pod: dict[str, Any], command: Sequence[str], *, stdin: bool
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Starts a command in the pod's runner; the connection has the channels of `v4.channel.k8s.io`."""
        query = [("container", runner_of(pod)), ("stdout", "1"), ("stderr", "1"), ("stdin", "1" if stdin else "0")]
        _, url, headers, *_ = await self._api.param_serialize(
            method="GET",
            resource_path=self._pods(name_of(pod), "exec"),
            query_params=[*query, *(("command", word) for word in command)],
            header_params={"sec-websocket-protocol": "v4.channel.k8s.io"},
            auth_settings=["BearerToken"],
        )
        # Not by the official client's `WsApiClient`, which uses neither a proxy nor `tls-server-name`.
        async with self._api.rest_client._create_pool_manager() as session:
            opening = session.ws_connect(
                url,
                headers=headers,
                heartbeat=HEARTBEAT_SECONDS,
                proxy=self._configuration.proxy,
                proxy_headers=self._configuration.proxy_headers,
                server_hostname=self._configuration.tls_server_name or None,
            )
            try:
                connection = await asyncio.wait_for(opening, CONNECT_SECONDS)
            except aiohttp.WSServerHandshakeError as error:
                raise _exec_refusal(name_of(pod), error) from error
            try:
                yield connection
            finally:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(connection.close(), CLOSE_SECONDS)


FAILURES = (CallFailed, aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError)


def words(error: BaseException) -> str:
    """What the API server said, or why there was no answer."""
    if isinstance(error, MiniClusterError):
        return error.message
    return str(error) or type(error).__name__


class _Doing:
    """Makes calls. The exception of a failed call says what could not be done."""

    def __init__(self, doing: str) -> None:
        self.doing = doing

    async def __call__(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except Invalid:
            raise
        except NotAllowed as error:
            raise NotAllowed(f"cannot {self.doing}: {error.message}", status=403, remedy=error.remedy) from error
        except NotFound as error:
            raise NotFound(f"cannot {self.doing}: {error.message}", status=404) from error
        except FAILURES as error:
            status = error.status if isinstance(error, CallFailed) else None
            raise CallFailed(f"cannot {self.doing}: {words(error)}", status=status) from error

    async def retried(self, call: Callable[[], Awaitable[T]], passing: Sequence[int] = (), patience: float = 0.0) -> T:
        """Makes `TRIES` attempts at most.

        `passing`: status codes after which another try may help, besides those of `may_pass`. `patience`: how many
        seconds the API server may be away; until then, failures after which `may_pass` is true do not count.
        """
        begin, attempts = time.monotonic(), 0
        while True:
            try:
                return await self(call())
            except CallFailed as error:
                if not may_pass(error) or time.monotonic() - begin >= patience:
                    attempts += 1
                if attempts >= TRIES or not (may_pass(error) or error.status in passing):
                    raise
                await asyncio.sleep(1)


def may_pass(error: BaseException) -> bool:
    """Whether another try may help: there was no answer, or the API server is busy or in trouble."""
    if isinstance(error, CallFailed):
        return error.status is None or error.status == 429 or error.status >= 500
    return isinstance(error, aiohttp.ClientError | asyncio.TimeoutError | OSError)


class Refusals:
    """The refusals of a request that is repeated after failures: 403, and 401 for its credentials.

    An API server that has just started does not know all roles yet, and refuses what it allowed before. It may reject
    valid credentials, too.
    """

    def __init__(self) -> None:
        self._is_first = True
        self._refused_since: float | None = None
        self._rejections = 0
        """How many answers in a row had the status 401."""

    def note_success(self) -> None:
        self._is_first, self._refused_since, self._rejections = False, None, 0

    def is_final(self, error: BaseException) -> bool:
        """Whether this failure is a refusal that will not pass.

        403 is final as the first answer, and after `REFUSED_SECONDS` of nothing but 403. 401 is final after
        `REJECTIONS` in a row.
        """
        is_rejection = isinstance(error, CallFailed) and error.status == 401
        self._rejections = self._rejections + 1 if is_rejection else 0
        if not isinstance(error, NotAllowed):
            # After a failure without an answer, a refusal is not final at once: the API server may be starting. (Also,
            # the log of a silent job may have been allowed without sending anything.)
            has_answered = isinstance(error, CallFailed) and error.status is not None and error.status < 500
            self._is_first, self._refused_since = self._is_first and has_answered, None
            return self._rejections >= REJECTIONS
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        return self._is_first or now - self._refused_since >= REFUSED_SECONDS


def _refusal(method: str, path: str, status: int, text: str) -> MiniClusterError:
    """The exception for an answer of the API server."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {}
    message = answer.get("message") or text.strip() or f"HTTP status {status}"
    details = answer.get("details") or {}
    if status == 401:
        return CallFailed(NOT_LOGGED_IN, status=status)
    if status == 403:
        return NotAllowed(message, status=status, remedy=_remedy_of_refusal(message))
    if status == 404:
        if answer and "could not find the requested resource" not in message:
            return NotFound(message, status=status)
        if path.startswith(f"/apis/{GROUP}/") and not details.get("name"):
            return OperatorMissing("this cluster has no MiniClusters (the custom resource is missing)", remedy=INSTALL)
        # Not from the API server: a kubelet that has just started does not know its pods, or a proxy has no route.
    if status == 409 and answer.get("reason") == "AlreadyExists":
        return NameTaken(message, status=status)
    if status in (400, 422) and method != "GET":
        causes = [Problem(it.get("field", ""), it.get("message", "")) for it in details.get("causes") or []]
        return Invalid(causes or _unknown_fields(message) or [Problem("", message)], message=None)
    return CallFailed(message, status=status)


def _remedy_of_refusal(message: str) -> str:
    """What to do about a 403, which also a used-up quota, an admission policy and a namespace that ends give."""
    if 'User "' in message and " cannot " in message:
        return ROLE
    return QUOTA if "exceeded quota" in message else ""


def _unknown_fields(message: str) -> list[Problem]:
    """The fields that strict validation names: `unknown field "spec.sise"`."""
    _, _, names = message.partition("strict decoding error: ")
    parts = [part.partition('unknown field "')[2].rstrip('"') for part in names.split(", ") if "unknown field" in part]
    return [Problem(part, "there is no such field") for part in parts]


def _exec_refusal(pod: str, error: aiohttp.WSServerHandshakeError) -> MiniClusterError:
    message = f"cannot run a program in pod {pod}: {error.message} (HTTP status {error.status})"
    if error.status == 403:
        return NotAllowed(f"{message}. You need permission to create pods/exec", status=403, remedy=ROLE)
    return CallFailed(message, status=error.status)


@asynccontextmanager
async def _closing(response: aiohttp.ClientResponse) -> AsyncIterator[aiohttp.ClientResponse]:
    try:
        yield response
    finally:
        response.close()


async def _configuration(access: Access) -> tuple[client.Configuration, str]:
    """The client's configuration, and the namespace of the context."""
    configuration = client.Configuration()
    # Streams of a hundred MiniClusters may be open at the same time.
    configuration.connection_pool_maxsize = 0
    given = access.kubeconfig or os.environ.get("KUBECONFIG") or None
    usual = Path(kube_config.KUBE_CONFIG_DEFAULT_LOCATION).expanduser()
    try:
        if given is None and access.context is None and not usual.exists() and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=configuration)
            namespace = Path(config.incluster_config.SERVICE_TOKEN_FILENAME).with_name("namespace")
            _complete(configuration, {})
            return configuration, namespace.read_text().strip() if namespace.exists() else "default"
        files, current = _kubeconfigs(os.fspath(given or usual))
        _forget_deleted_files()
        loading = config.load_kube_config(
            config_file=files,
            context=access.context or current,
            client_configuration=configuration,
            persist_config=False,
        )
        loader = await _with_hint(loading)
    except Exception as error:  # the library raises what its code stumbles over in a malformed file
        raise CallFailed(
            f"cannot find the API server: {words(error)}", remedy="Check KUBECONFIG and the name of the context."
        ) from error
    if "exec" in (loader._user or ()) and not configuration.api_key and not configuration.cert_file:
        # The loader only logs this failure. Without credentials, the API server may refuse (403) what the user may do.
        raise CallFailed("cannot log in: the credential plugin of the kubeconfig failed", remedy=RUN_PLUGIN)
    _complete(configuration, loader._user.value if loader._user else {})
    return configuration, (loader.current_context["context"] or {}).get("namespace") or "default"


async def _with_hint(loading: Coroutine[Any, Any, T]) -> T:
    """Warns if a credential plugin takes long. It may ask for a login, but the official client hides what it prints."""
    task = asyncio.ensure_future(loading)
    try:
        done, _ = await asyncio.wait([task], timeout=PLUGIN_SECONDS)
        if not done:
            logging.getLogger(__package__).warning(PLUGIN_WAITS)
        return await task
    finally:
        task.cancel()


def _kubeconfigs(files: str) -> tuple[str, str | None]:
    """The files of this list that are not empty, and the current context, as kubectl finds them.

    The official client takes the last current context instead of the first that is set, and fails at an empty file.
    """
    found, current = [], None
    for path in filter(None, files.split(os.pathsep)):
        file = Path(path).expanduser()
        document = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else None
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ValueError(f"{path} is not a kubeconfig")
        found.append(path)
        current = current or document.get("current-context")
    if not found:
        raise FileNotFoundError(f"no kubeconfig at {files}")
    return os.pathsep.join(found), current


def _forget_deleted_files() -> None:
    """The official client writes certificates into temporary files, and uses the same ones again.

    `systemd-tmpfiles` or the end of a forked process may have deleted them.
    """
    files: dict[str, str] = kube_config._temp_files
    # A copy, since another thread may change the dictionary at the same time.
    for content, path in list(files.items()):
        if not Path(path).is_file():
            files.pop(content, None)


def _complete(configuration: client.Configuration, user: Mapping[str, Any]) -> None:
    """Adds what kubectl does and the official client does not. `user`: of the kubeconfig.

    Without a `proxy-url`, the proxy is that of the environment by kubectl's rules instead of Python's. Certificates of
    authorities may lack extensions that Python 3.13 demands by default: those of EKS and MicroK8s do.
    """
    configuration.disable_strict_ssl_verification = True
    if token := configuration.api_key.get("BearerToken"):
        # A token from a file may end with a newline.
        configuration.api_key["BearerToken"] = token.strip()
    configuration.proxy = configuration.proxy or proxy.of_environment(configuration.host, os.environ)
    configuration.client_session_kwargs = {"trust_env": False, "headers": _impersonation(user)}


def _impersonation(user: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The headers of `as`, `as-uid`, `as-groups` and `as-user-extra`."""
    headers = [("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid"))]
    headers += [("Impersonate-Group", group) for group in user.get("as-groups") or ()]
    for name, values in (user.get("as-user-extra") or {}).items():
        # What a header's name may not contain is encoded, as the API server expects it.
        headers += [(f"Impersonate-Extra-{quote(name, safe=_OF_HEADER_NAMES)}", value) for value in values]
    return [(name, str(value)) for name, value in headers if value not in (None, "")]
