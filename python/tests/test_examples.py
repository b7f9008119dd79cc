"""The programs of examples/python-client, and its notebook, with a fake API server and a fake Flux."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from fake_api import FakeApi
from nbclient import NotebookClient

from flux_minicluster import MiniCluster
from flux_minicluster.observed import QUEUE_LABEL

FOLDER = Path(__file__).resolve().parents[2] / "examples/python-client"


@pytest.fixture
def cluster_name() -> str:
    return "python-client"


def run(program: str, *words: str, code: int = 0) -> str:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1] / "src"), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(FOLDER / program), *words]
    environment = {**os.environ, "PYTHONPATH": path}
    # Parsl writes its logs into the working directory.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=folder)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_job_prints_its_output_and_its_end(api: FakeApi) -> None:
    api.play("node-0", "node-1")
    assert run("run.py") == "node-0\nnode-1\n0 Completed\n"


def test_study_counts_the_codes(cluster: MiniCluster) -> None:
    assert run("study.py", "20") == "10 of 20 ended with 1\n"


def test_job_waits_in_the_queue_that_is_named(api: FakeApi) -> None:
    api.play("my turn", code=3)
    play = api.on_create
    created: list[Any] = []

    def create(cluster: Any) -> None:
        created.append(cluster)
        assert play is not None
        play(cluster)

    api.on_create = create
    words = ["--queue", "team-b", "--size", "2", "--cpu", "3", "--", "echo", "my turn"]
    assert run("../queue/submit.py", *words, code=3) == "my turn\n"
    assert created[0]["metadata"]["labels"][QUEUE_LABEL] == "team-b"
    spec = created[0]["spec"]
    assert (spec["size"], spec["tasks"], spec["containers"][0]["image"]) == (2, 2, "rockylinux:9")
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "3", "memory": "256Mi"}


@pytest.mark.parametrize("tool", ["joblib", "dask", "parsl"])
def test_tool_uses_the_executor(cluster: MiniCluster, tool: str) -> None:
    assert run("tools.py", tool) == f"{[n * n for n in range(8)]}\n"


def test_notebook_shows_progress_and_the_result(api: FakeApi) -> None:
    api.play("node-0", "node-1")
    notebook = nbformat.read(  # type: ignore[no-untyped-call]
        FOLDER / "notebook.ipynb", as_version=4
    )
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    html = [it["data"]["text/html"] for it in shown if "text/html" in it.get("data", {})]
    assert any("quorum" in text and text.startswith("<pre>") for text in html), shown
    assert "exit code 0, Completed" in html[-1], html
    text = "".join(it["text"] for it in shown if it["output_type"] == "stream" and it["name"] == "stdout")
    assert text == "node-0\nnode-1\n0 Completed\n"
