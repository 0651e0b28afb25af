"""Steps of the NetworkPolicy: what is not an arrow of the architecture does not connect."""

import disrupt_steps
import policy
import serve_steps
from kube import Failed

STRANGER = "stranger"


def dial(kube, namespace, pod, address, port):
    """Whether a TCP connection comes about."""
    try:
        kube.kubectl("exec", pod, "--", "/app", "dial", f"{address}:{port}", namespace=namespace)
        return True
    except Failed as error:
        if "probe:" in str(error):
            return False
        raise


def targets(release):
    """{what: (address, port, may a stranger?)}"""
    found = {}
    for role in ("router", "prefill", "decode"):
        name, pod = sorted(release.pods(role).items())[0]
        for container in pod["spec"]["containers"]:
            for port in container["ports"]:
                # Clients may call the router, but not where workers do; scrapers are not limited by default.
                clients = role == "router" and port["name"] in ("http", "grpc")
                open_to_all = clients or port["name"] == "metrics"
                found[f"{port['name']} of {name}"] = (pod["status"]["podIP"], port["containerPort"], open_to_all)
    return found


def strangers_stay_out(release, kube, probe_image, steps):
    """With the policies off everything connects; with them on only what the architecture draws."""
    kube.apply([serve_steps.probe_pod(STRANGER, probe_image)], namespace=release.namespace)
    kube.kubectl("wait", "--for=condition=Ready", f"pod/{STRANGER}", "--timeout=300s", namespace=release.namespace)
    shut = [what for what, (address, port, _) in targets(release).items()
            if not dial(kube, release.namespace, STRANGER, address, port)]
    if shut:
        raise AssertionError(f"without policies a pod cannot reach {shut}")
    release.upgrade(networkPolicy={"enabled": True})
    if not kube.items(f"/apis/networking.k8s.io/v1/namespaces/{release.namespace}/networkpolicies"):
        raise AssertionError("networkPolicy.enabled made no NetworkPolicy")
    with policy.Enforcer(kube):
        release.wait_serving()
        wrong = []
        for what, (address, port, allowed) in targets(release).items():
            if dial(kube, release.namespace, STRANGER, address, port) != allowed:
                wrong.append(f"{what} is {'shut' if allowed else 'open'} to a stranger")
        if wrong:
            raise AssertionError("; ".join(wrong))
        steps.note(", ".join(f"{what}: {'open' if allowed else 'shut'}" for what, (_, _, allowed)
                             in targets(release).items()) + " to a stranger")
        new_pods_join(release, kube)


def check(release, kube, probe_image, steps):
    try:
        strangers_stay_out(release, kube, probe_image, steps)
    finally:
        kube.kubectl("delete", "pod", STRANGER, "--ignore-not-found", "--wait=true", namespace=release.namespace)


def new_pods_join(release, kube):
    """Under the policies a new pod of each role joins, and all go on answering."""
    for role in ("decode", "prefill", "router"):
        disrupt_steps.delete_one(release, kube, role)
        release.wait_serving()
