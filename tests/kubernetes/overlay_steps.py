"""Steps of the plain manifests: every overlay of k8s/ that this node can run serves a prompt."""

import json
import re

import load
from kube import command, is_ready
from processes import wait_until

# Objects that need what no CPU node has: validated by the API server, not run.
HARDWARE = re.compile(r"rdma/|nvidia\.com/|amd\.com/")


def overlays(root):
    return sorted(path.parent for path in (root / "k8s" / "overlays").glob("*/kustomization.yaml"))


def rendered(folder):
    return command("kubectl", "kustomize", folder)


def needs_hardware(manifest):
    return HARDWARE.search(manifest) is not None


def with_image(manifest, image):
    """The manifest with every baton container's image replaced: what `kustomize edit set image` does, which
    would have to write into the checkout."""
    return re.sub(r"(?m)^(\s*(?:- )?image:) \S*baton\S*$", rf"\1 {image[0]}:{image[1]}", manifest)


def validate(kube, manifest):
    """The API server's own word on objects that are not to run: `apply --dry-run=server`."""
    return kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=manifest)


def small(objects):
    """Requests that let the largest overlay run on two cores; nothing else is touched."""
    for item in objects:
        template = item.get("spec", {}).get("template", {}).get("spec", {})
        for container in template.get("containers", []) if isinstance(template, dict) else []:
            container.setdefault("resources", {})["requests"] = {"cpu": "50m", "memory": "128Mi"}
    return objects


def namespaces_of(objects):
    return sorted({item["metadata"].get("namespace", "default") for item in objects if item["kind"] != "Namespace"})


def parse(kube, manifest):
    """Objects of a manifest, as kubectl reads them."""
    listed = json.loads(kube.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-",
                                     stdin=manifest))
    return listed["items"] if listed["kind"] == "List" else [listed]


def install(kube, folder, image):
    """Applies the overlay; its objects."""
    objects = small(parse(kube, with_image(rendered(folder), image)))
    kube.apply(objects)
    return objects


def service_of(kube, namespace):
    for service in kube.items(f"/api/v1/namespaces/{namespace}/services"):
        if service["spec"].get("clusterIP") not in (None, "None"):
            for port in service["spec"]["ports"]:
                if port.get("name") == "http":
                    return service["spec"]["clusterIP"], port["port"]
    raise LookupError(f"no Service of {namespace} has a port called http")


def wait_ready(kube, objects, namespace, seconds=900):
    """Until every pod that the overlay's workloads ask for is Ready."""
    wanted = sum(item["spec"].get("replicas", 1) for item in objects
                 if item["kind"] in ("Deployment", "StatefulSet"))

    def ready():
        pods = kube.pods(namespace, "app.kubernetes.io/name")
        return len(pods) == wanted and all(map(is_ready, pods.values()))
    wait_until(ready, seconds, f"{wanted} Ready pods in {namespace}", 0.5)
    return wanted


def check(kube, folder, image, steps):
    objects = install(kube, folder, image)
    namespace = next(name for name in namespaces_of(objects) if name != "kube-system")
    try:
        pods = wait_ready(kube, objects, namespace)
        address = service_of(kube, namespace)

        def answered():
            try:
                return load.complete(address, "It is a truth", 16)
            except load.BadAnswer as error:
                raise OSError(str(error)) from error
        text = wait_until(answered, 300, f"an answer from {folder.name}", 0.5)
        steps.note(f"{pods} pods; {text!r}")
    except Exception:
        steps.note(kube.diagnose(namespace))
        raise
    finally:
        kube.kubectl("delete", "--wait=true", "--ignore-not-found", "--timeout=10m", "-f", "-",
                     stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
