"""A job from Python: three lines to a result."""

from flux_minicluster import MiniCluster

result = MiniCluster.run("rockylinux:9", ["hostname"], size=4, tasks=4)
print(result.exit_code, result.reason)
