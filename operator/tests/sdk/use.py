"""The Go operator's Python SDK, as its users have it, creates, reads, scales, follows and deletes MiniClusters.

Arguments: a namespace. KUBECONFIG names the API server. Prints what it read as JSON, a line a step.
"""
import json
import sys
from types import SimpleNamespace

import fluxoperator
from fluxoperator import models
from fluxoperator.client import FluxBrokerMiniCluster, FluxMiniCluster
from fluxoperator.resource.pods import create_minicluster
from kubernetes import client, config

namespace = sys.argv[1]
config.load_kube_config()
api = client.CustomObjectsApi()
place = dict(group="flux-framework.org", version="v1alpha2", namespace=namespace, plural="miniclusters")
container = dict(
    image="ghcr.io/converged-computing/metric-lammps:latest",
    working_dir="/opt/lammps/examples/reaxff/HNS",
    command="lmp -v x 2 -v y 2 -v z 2 -in in.reaxc.hns -nocite",
)


def show(step, value):
    print(json.dumps({"step": step, "object": value}), flush=True)


def get():
    return api.get_namespaced_custom_object(**place, name="lammps")


def error_of(function, **arguments):
    try:
        function(**arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


# The SDK's functions that create MiniClusters fail: they pass a field that the SDK's own model no longer has.
asked = dict(namespace=namespace, name="lammps", size=2, container=container, flux={"connect_timeout": "5s"})
show(
    "not created",
    {
        "create_minicluster": error_of(create_minicluster, **asked),
        "FluxMiniCluster": error_of(FluxMiniCluster().create, **asked),
        "FluxBrokerMiniCluster": error_of(FluxBrokerMiniCluster().create, **asked),
        "items": api.list_namespaced_custom_object(**place)["items"],
    },
)

# The SDK's typed objects can be created with Kubernetes' own client.
cluster = models.MiniCluster(
    api_version="flux-framework.org/v1alpha2",
    kind="MiniCluster",
    metadata=client.V1ObjectMeta(name="lammps", namespace=namespace),
    spec=models.MiniClusterSpec(
        size=2,
        max_size=4,
        tasks=2,
        logging=models.LoggingSpec(quiet=True, zeromq=True),
        flux=models.FluxSpec(connect_timeout="5s", option_flags="-o pmi=pmix"),
        containers=[
            models.MiniClusterContainer(
                **container,
                resources=models.ContainerResources(limits={"cpu": "1"}, requests={"cpu": 1}),
                run_flux=True,
            )
        ],
    ),
)
api.create_namespaced_custom_object(**place, body=cluster)
show("created", get())
api.patch_namespaced_custom_object(**place, name="lammps", body={"spec": {"size": 4}})
show("scaled", get())
try:
    api.patch_namespaced_custom_object(**place, name="lammps", body={"spec": {"size": 9}})
    sys.exit("size 9 of at most 4 was taken")
except client.exceptions.ApiException as error:
    show("refused", json.loads(error.body))
show("listed", api.list_namespaced_custom_object(**place))

# The SDK's client reads typed objects back, except those that hold objects or quantities of Kubernetes.
typed = fluxoperator.ApiClient()


def read(value, kind):
    return typed.deserialize(SimpleNamespace(data=json.dumps(value)), kind)


show("typed", read(get()["spec"]["flux"], "FluxSpec").option_flags)
show("typed whole", error_of(read, value=get(), kind="MiniCluster"))

cluster = FluxMiniCluster()
cluster.load(get())
show(
    "followed",
    {
        "pods": sorted(cluster.pods),
        "broker": cluster.broker_pod,
        "found": cluster.ctrl.get_broker_pod(name="lammps", namespace=namespace).metadata.name,
        "again": [pod.metadata.name for pod in cluster.get_pods().items],
        "nodes": len(cluster.get_nodes().items),
    },
)
show("status", api.get_namespaced_custom_object_status(**place, name="lammps")["status"])
cluster.delete()
show("deleted", cluster.times)
