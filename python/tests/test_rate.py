"""With Flux itself (`FLUX=/path/bin/flux .ci/python flux`): how fast an executor submits, and how much."""

from __future__ import annotations

import sys
import time

from fake_api import FakeApi
from instances import RealInstance
from waiting import until

from flux_minicluster import MiniCluster

TASKS = 1000


def test_thousand_tasks_reach_most_of_the_rate_of_flux_submit(cluster: MiniCluster, instance: RealInstance) -> None:
    """No less than 0.8 of the rate of `flux submit --cc`, in the same instance; the better of two each."""

    def by_flux() -> float:
        begin = time.monotonic()
        instance.flux("submit", f"--cc=1-{TASKS}", "--wait", "--quiet", "true")
        return time.monotonic() - begin

    def by_executor() -> float:
        begin = time.monotonic()
        with cluster.executor() as executor:
            futures = [executor.submit(["true"]) for _ in range(TASKS)]
            assert {future.result(300).exit_code for future in futures} == {0}
        return time.monotonic() - begin

    # In turns: what else the machine does slows both.
    times = [(by_flux(), by_executor()) for _ in range(2)]
    flux, executor = map(min, zip(*times, strict=True))
    print(f"flux submit: {TASKS / flux:.0f}/s, executor: {TASKS / executor:.0f}/s, ratio {flux / executor:.2f}")
    assert flux / executor >= 0.8


def test_tasks_of_more_than_10_mb_run(cluster: MiniCluster) -> None:
    """One task of 12 MB, and fifty of 1 MB at once: Flux pipes jobspecs to its validator, and fails all that wait if
    they exceed 10 MiB together. So the executor leaves the validator out, and lets submissions wait for each other."""
    with cluster.executor(python=sys.executable) as executor:
        assert executor.submit(len, bytes(12_000_000)).result(300) == 12_000_000
        assert list(executor.map(len, [bytes(1_000_000)] * 50, timeout=300)) == [1_000_000] * 50


def test_lost_connection_amid_submissions_repeats_none(
    cluster: MiniCluster, api: FakeApi, instance: RealInstance
) -> None:
    with cluster.executor() as executor:
        futures = [executor.submit(["true"]) for _ in range(TASKS)]
        first = executor._tasks[futures[0]._token]
        until(lambda: first.id, 300)
        api.break_sockets()
        assert {future.result(500).exit_code for future in futures} == {0}
    assert instance.jobs() == TASKS
