"""Submits jobs for an executor, inside the instance: the view's own Python runs this text (`flux python`), which reads
requests from standard input and writes answers to standard output, one JSON object a line.

It is sent to the pod as it is. So it uses nothing but Flux's module and Python 3.6, whatever Python the caller has.

    -> {"op": "resume", "known": {TOKEN: ID}, "unknown": [TOKEN]}      once, first
    <- {"ready": false}                                                the broker answers
    <- {"ready": true, "absent": [TOKEN]}                              these have no job
    -> {"op": "submit", "token": TOKEN, "job": {...}}
    <- {"token": TOKEN, "id": ID}
    <- {"token": TOKEN, "done": {"status": WAITSTATUS, "exception": TEXT, "stdout": BASE64, "stderr": BASE64}}
    -> {"op": "cancel", "id": ID}

A job carries its token in `attributes.user.flux-minicluster`, by which it is found again when a connection was lost
before its id had arrived. At most one helper of a session submits: a new one ends the earlier one first.

Flux may still make jobs of what an ended helper has submitted. So a helper notes each token in a file before it submits
the job, and the job's id once Flux has answered. The next helper waits for the jobs of the tokens without an id. These
are few, because a helper waits for answers after the first `MOST_UNANSWERED` submissions.
"""

import base64
import collections
import errno
import fcntl
import json
import os
import signal
import sys
import time
from typing import Any

import flux
import flux.job
from _flux._core import lib

ATTRIBUTE = "flux-minicluster"
# Most submissions that Flux has not answered, and the size from which no other is added to them. If Flux has queues, it
# pipes jobspecs to a program of its own (the frobnicator), and all of them fail if more than 10 MiB wait.
MOST_UNANSWERED = 64
MOST_UNANSWERED_BYTES = 4 << 20
# How long the job of a submission without an answer may take to be listed after its helper has ended.
SETTLE_SECONDS = 30.0
SETTLE_PAUSE_SECONDS = 0.2
# Exit code if no broker answers, or if it does not accept jobs yet.
NO_BROKER = 75
# States of a broker in which rc1 has not loaded all modules for jobs. Its socket exists from the first on.
STARTING = ("none", "load-builtins", "join", "config-sync", "init")
# The note of a submission that Flux has refused, in place of an ID.
REFUSED = "-"
CHUNK = 1 << 16
# Prefixes of the variables that Flux sets inside a job, or flux proxy for its command. This process may have
# inherited some. They do not describe the jobs that it submits, so those jobs do not get them.
FOREIGN_PREFIXES = ("FLUX_JOB_", "FLUX_TASK_", "FLUX_KVS_NAMESPACE", "FLUX_PROXY_")


class Helper:
    def __init__(self, session: str) -> None:
        try:
            self.handle = flux.Flux()
            rundir = self.handle.attr_get("rundir")
            state = self.handle.rpc("state-machine.get").get()["state"]
        except OSError as error:
            sys.stderr.write("no broker answers: {}\n".format(text_of(error)))
            sys.exit(NO_BROKER)
        if state in STARTING:
            sys.stderr.write("the broker starts: its state is {}\n".format(state))
            sys.exit(NO_BROKER)
        self.lock_path = os.path.join(rundir, "flux-minicluster-" + session)
        self.notes_path = self.lock_path + ".jobs"
        # Ids of the jobs of earlier helpers, by token. None: Flux had not answered.
        self.noted = {}  # type: Any
        # Requests to submit that Flux has not got yet.
        self.waiting = collections.deque()  # type: Any
        # Sizes of jobspecs that Flux has got and not answered, by token.
        self.unanswered = {}  # type: Any
        # The beginning of a request whose end has not come yet.
        self.parts = []  # type: Any
        self.environment = environment()

    def run(self) -> None:
        self.take_over()
        self.read_notes()
        watcher = self.handle.fd_watcher_create(0, self.on_input, lib.FLUX_POLLIN)
        watcher.start()
        self.handle.reactor_run()

    def take_over(self) -> None:
        """Ends an earlier helper of this session, whose connection was lost."""
        self.lock = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                text = os.pread(self.lock, 32, 0)
                if text.isdigit():
                    end(int(text))
                time.sleep(0.05)
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, str(os.getpid()).encode(), 0)

    def read_notes(self) -> None:
        """Reads what earlier helpers of this session have submitted."""
        self.notes = os.open(self.notes_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with open(self.notes_path) as file:
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        # The earlier helper may have been ended in the middle of a line.
        os.ftruncate(self.notes, len(whole))
        for line in whole.splitlines():
            token, _, jobid = line.partition(" ")
            if jobid == REFUSED:
                self.noted.pop(token, None)
            else:
                self.noted[token] = int(jobid) if jobid else None

    def note(self, token: str, jobid: Any = "") -> None:
        os.write(self.notes, "{} {}\n".format(token, jobid).encode("ascii"))

    def on_input(self, *_arguments: Any) -> None:
        data = os.read(0, CHUNK)
        if not data:
            # The caller is gone. Its jobs go on. (Flux's reactor swallows SystemExit, and calls this again for ever.)
            os._exit(0)
        rest, *beginnings = data.split(b"\n")
        self.parts.append(rest)
        for beginning in beginnings:
            request = json.loads(b"".join(self.parts).decode("utf-8"))
            self.parts = [beginning]
            getattr(self, "on_" + request["op"])(request)

    def on_resume(self, request: Any) -> None:
        # The search below may take longer than a caller waits for a pod that does not answer.
        say({"ready": False})
        found = self.find(request["unknown"])
        known = dict(request["known"])
        known.update(found)
        say({"ready": True, "absent": [token for token in request["unknown"] if token not in found]})
        for token, jobid in known.items():
            if token in found:
                say({"token": token, "id": jobid})
            self.wait(token, jobid)

    def find(self, tokens: Any) -> Any:
        """Ids of the jobs of these tokens. Tokens without a job are left out."""
        ids = {token: self.noted[token] for token in tokens if token in self.noted}
        missing = {token for token, jobid in ids.items() if jobid is None}
        seen = {jobid for jobid in self.noted.values() if jobid is not None}
        deadline = time.monotonic() + SETTLE_SECONDS
        while missing and time.monotonic() < deadline:
            for token, jobid in self.list_jobs(seen):
                if token in missing:
                    missing.remove(token)
                    ids[token] = jobid
                    self.note(token, jobid)
            if missing:
                time.sleep(SETTLE_PAUSE_SECONDS)
        return {token: jobid for token, jobid in ids.items() if jobid is not None}

    def list_jobs(self, seen: Any) -> Any:
        """Yields token and id of each job that is not in `seen`, and adds the id to `seen`."""
        payload = {"max_entries": 0, "attrs": ["t_submit"], "constraint": {"and": []}, "since": 0.0}
        for job in self.handle.rpc("job-list.list", payload).get()["jobs"]:
            if job["id"] in seen:
                continue
            lookup = {"id": job["id"], "keys": ["jobspec"], "flags": 0}
            try:
                jobspec = json.loads(self.handle.rpc("job-info.lookup", lookup).get()["jobspec"])
            except OSError:
                continue
            seen.add(job["id"])
            yield (jobspec["attributes"].get("user") or {}).get(ATTRIBUTE), job["id"]

    def on_submit(self, request: Any) -> None:
        self.waiting.append(request)
        self.submit_waiting()

    def submit_waiting(self) -> None:
        while self.waiting and len(self.unanswered) < MOST_UNANSWERED:
            if sum(self.unanswered.values()) >= MOST_UNANSWERED_BYTES:
                return
            request = self.waiting.popleft()
            token = request["token"]
            try:
                jobspec = self.jobspec(token, request["job"]).dumps()
                self.note(token)
                # Flux pipes jobspecs to its validator, too, with the limit that MOST_UNANSWERED_BYTES describes. It is
                # not needed: this module of Flux has made a valid jobspec.
                future = flux.job.submit_async(self.handle, jobspec, novalidate=True)
            except Exception as error:  # whatever Flux's module raises for an invalid job
                self.refuse(token, str(error))
                continue
            self.unanswered[token] = len(jobspec)
            future.then(self.on_submitted, token)

    def jobspec(self, token: str, job: Any) -> Any:
        env = dict(self.environment)
        env.update(job["environment"])
        jobspec = flux.job.JobspecV1.from_command(
            job["command"],
            num_tasks=job["tasks"],
            num_nodes=job["nodes"],
            cores_per_task=job["cores_per_task"],
            gpus_per_task=job["gpus_per_task"] or None,
            exclusive=job["exclusive"],
        )
        jobspec.environment = env
        jobspec.cwd = job["cwd"] or os.getcwd()
        if job["time_limit"] is not None:
            jobspec.duration = job["time_limit"]
        system = jobspec.jobspec["attributes"]["system"]
        if job["name"]:
            system["job"] = {"name": job["name"]}
        if job["files"]:
            system["files"] = {
                name: {"mode": 0o100600, "encoding": "base64", "data": data, "size": len(base64.b64decode(data))}
                for name, data in job["files"].items()
            }
        jobspec.jobspec["attributes"]["user"] = {ATTRIBUTE: token}
        return jobspec

    def refuse(self, token: str, why: str) -> None:
        """Flux has not taken the job of this token."""
        self.note(token, REFUSED)
        say({"token": token, "done": {"status": None, "exception": why, "stdout": "", "stderr": ""}})

    def on_submitted(self, future: Any, token: str) -> None:
        del self.unanswered[token]
        try:
            jobid = int(future.get_id())
        except OSError as error:
            self.refuse(token, text_of(error))
        else:
            self.note(token, jobid)
            say({"token": token, "id": jobid})
            self.wait(token, jobid)
        self.submit_waiting()

    def wait(self, token: str, jobid: int) -> None:
        flux.job.result_async(self.handle, jobid).then(self.on_ended, token, jobid)

    def on_ended(self, future: Any, token: str, jobid: int) -> None:
        done = {"status": None, "exception": None, "stdout": "", "stderr": ""}  # type: Any
        try:
            result = future.get_dict()
        except OSError as error:
            done["exception"] = text_of(error)
            say({"token": token, "done": done})
            return
        done["status"] = result.get("waitstatus")
        if result.get("exception_occurred"):
            done["exception"] = "{}: {}".format(result.get("exception_type"), result.get("exception_note"))
        lookup = {"id": jobid, "keys": ["guest.output"], "flags": 0}
        self.handle.rpc("job-info.lookup", lookup).then(self.on_output, token, done)

    def on_output(self, future: Any, token: str, done: Any) -> None:
        streams = {"stdout": [], "stderr": []}  # type: Any
        try:
            eventlog = future.get()["guest.output"]
        except OSError:
            # The job never ran.
            eventlog = ""
        for line in filter(None, eventlog.split("\n")):
            event = json.loads(line)
            if event["name"] == "data" and "data" in event["context"]:
                context = event["context"]
                data = context["data"].encode("utf-8", "surrogateescape")
                if context.get("encoding") == "base64":
                    data = base64.b64decode(data)
                streams[context["stream"]].append(data * context.get("repeat", 1))
        for name, parts in streams.items():
            done[name] = base64.b64encode(b"".join(parts)).decode("ascii")
        say({"token": token, "done": done})

    def on_cancel(self, request: Any) -> None:
        # A job that has ended meanwhile cannot be cancelled, and need not be.
        flux.job.cancel_async(self.handle, request["id"], "cancelled by its executor")


def environment() -> Any:
    """The environment of the caller's own programs in the instance."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_PREFIXES)}
    # `flux` puts its own modules before the caller's, for the programs that it runs itself.
    own = os.path.dirname(os.path.dirname(flux.__file__))
    path = env.pop("PYTHONPATH", "")
    path = env.pop("FLUX_PYTHONPATH_ORIG", ":".join(it for it in path.split(":") if it != own))
    if path:
        env["PYTHONPATH"] = path
    return env


def text_of(error: OSError) -> str:
    return error.strerror or str(error)


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise


def say(answer: Any) -> None:
    data = (json.dumps(answer) + "\n").encode("ascii")
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    Helper(sys.argv[1]).run()
