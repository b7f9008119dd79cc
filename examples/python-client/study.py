"""A parameter study in an instance that is up: a thousand Flux jobs over one connection."""

import sys
from concurrent.futures import as_completed

from flux_minicluster import MiniCluster

count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
mc = MiniCluster.attach("python-client")
with mc.executor() as executor:
    futures = {executor.submit(["sh", "-c", 'exit "$(($1 % 2))"', "sh", str(n)]): n for n in range(count)}
    odd = sum(future.result().exit_code for future in as_completed(futures))
print(f"{odd} of {count} ended with 1")
