"""Upstream's Python SDK, as its users have it, creates, reads, scales and deletes MiniClusters.

Arguments: a namespace. KUBECONFIG names the API server. Prints what it read as JSON, a line a step.
"""
import json
import sys

from fluxoperator import models
from fluxoperator.resource.pods import delete_minicluster
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
delete_minicluster("lammps", namespace)
