"""The Go operator's Python SDK follows a log, executes commands and forwards a port, in pods that run.

Arguments: a namespace. In it, `speaks` prints and ends, and `stays` is an instance without a command that is ready.
KUBECONFIG names the cluster. Prints what it read as JSON, a line a step.
"""
import json
import sys
import tempfile

import requests
from fluxoperator.client import FluxBrokerMiniCluster, FluxMiniCluster
from fluxoperator.resource.network import port_forward
from kubernetes import client, config

namespace = sys.argv[1]
config.load_kube_config()
api = client.CustomObjectsApi()
place = dict(group="flux-framework.org", version="v1alpha2", namespace=namespace, plural="miniclusters")


def show(step, value):
    # The SDK's functions print without a new line at the end.
    print("\n" + json.dumps({"step": step, "object": value}), flush=True)


def load(cluster, name):
    cluster.load(api.get_namespaced_custom_object(**place, name=name))
    return cluster


speaks = load(FluxMiniCluster(), "speaks")
with tempfile.NamedTemporaryFile("r") as file:
    lines = speaks.stream_output(file.name, stdout=False)
    show("streamed", {"lines": lines, "file": file.read().splitlines()})
    (follower,) = speaks.pods - {speaks.broker_pod}
    timed = speaks.stream_output(file.name, stdout=False, timestamps=True, pod=follower)
    show("streamed of a follower", timed)

stays = load(FluxBrokerMiniCluster(), "stays")
show("executed", stays.execute("flux getattr size"))
# Nothing that kubectl_exec returns says whether the command failed.
show("failed", stays.kubectl_exec("echo before; exit 3"))

stays.kubectl_exec("echo served > /tmp/index.html; httpd -p 5000 -h /tmp")
with port_forward(stays.ctrl.core_v1):
    show("forwarded", requests.get(f"http://{stays.broker_pod}.pod.{namespace}.kubernetes:5000").text)

stays.delete()
show("deleted", stays.times)
