"""Submits a command to a queue of Kueue: `python submit.py --queue team-a --size 4 -- echo my turn`."""

import argparse

from flux_minicluster import MiniCluster

parser = argparse.ArgumentParser()
parser.add_argument("--queue", default="team-a", help="LocalQueue of Kueue in the namespace")
parser.add_argument("--image", default="rockylinux:9")
parser.add_argument("--size", type=int, default=4, help="number of pods")
parser.add_argument("--cpu", default="1", help="requested for each pod: Kueue counts it")
parser.add_argument("--memory", default="256Mi", help="requested for each pod")
parser.add_argument("--namespace")
parser.add_argument("command", nargs="+")
arguments = parser.parse_args()

requests = {"cpu": arguments.cpu, "memory": arguments.memory}
result = MiniCluster.run(
    arguments.image,
    arguments.command,
    size=arguments.size,
    tasks=arguments.size,
    queue=arguments.queue,
    namespace=arguments.namespace,
    spec={"containers": [{"resources": {"requests": requests}}]},
    check=False,
)
raise SystemExit(result.exit_code)
