"""The Go operator's Python SDK, as its users have it, creates, reads, scales, follows and deletes MiniClusters.

Arguments: a namespace. KUBECONFIG names the API server. Prints what it read as JSON, a line a step.
"""
import json
import sys

from fluxoperator import models
from fluxoperator.client import FluxMiniCluster
from kubernetes import client, config

namespace = sys.argv[1]
config.load_kube_config()
api = client.CustomObjectsApi()
place = dict(group="flux-framework.org", version="v1alpha2", namespace=namespace, plural="miniclusters")


def show(step):
    print(json.dumps({"step": step, "object": api.get_namespaced_custom_object(**place, name="lammps")}), flush=True)


# The SDK's own create_minicluster passes fields to its model that the model of this release no longer has.
cluster = models.MiniCluster(
    api_version="flux-framework.org/v1alpha2",
    kind="MiniCluster",
    metadata=client.V1ObjectMeta(name="lammps", namespace=namespace),
    spec=models.MiniClusterSpec(
        size=2,
        max_size=4,
        tasks=2,
        logging=models.LoggingSpec(quiet=True, zeromq=True),
        flux=models.FluxSpec(connect_timeout="5s", option_flags="-ompi=openmpi@5"),
        containers=[
            models.MiniClusterContainer(
                image="ghcr.io/converged-computing/metric-lammps:latest",
                working_dir="/opt/lammps/examples/reaxff/HNS",
                command="lmp -v x 2 -v y 2 -v z 2 -in in.reaxc.hns -nocite",
                resources=models.ContainerResources(limits={"cpu": "1"}, requests={"cpu": 1}),
                run_flux=True,
            )
        ],
    ),
)
api.create_namespaced_custom_object(**place, body=cluster)
show("created")
api.patch_namespaced_custom_object(**place, name="lammps", body={"spec": {"size": 4}})
show("scaled")
try:
    api.patch_namespaced_custom_object(**place, name="lammps", body={"spec": {"size": 9}})
    sys.exit("size 9 of at most 4 was taken")
except client.exceptions.ApiException as error:
    print(json.dumps({"step": "refused", "object": json.loads(error.body)}), flush=True)
print(json.dumps({"step": "listed", "object": api.list_namespaced_custom_object(**place)}), flush=True)
# Its own functions print as well: their lines are no JSON.
cluster = FluxMiniCluster()
cluster.load(api.get_namespaced_custom_object(**place, name="lammps"))
followed = {
    "pods": sorted(cluster.pods),
    "broker": cluster.broker_pod,
    "again": [pod.metadata.name for pod in cluster.get_pods().items],
    "nodes": len(cluster.get_nodes().items),
}
print(json.dumps({"step": "followed", "object": followed}), flush=True)
cluster.delete()
print(json.dumps({"step": "deleted", "object": cluster.times}), flush=True)
