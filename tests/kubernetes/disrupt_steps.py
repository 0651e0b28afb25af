"""Steps under load: pods deleted, the release upgraded and scaled, nodes drained; no answer may be lost."""

import contextlib

import release as releases
from kube import Failed
from processes import wait_until
from serve_steps import TOKENS

# Enough that each of the streams has been answered since the last thing that happened.
SETTLED_ANSWERS = 8


@contextlib.contextmanager
def under_load(release, expected, steps, what):
    """Streams run meanwhile; every one of them has to be answered, and with the right text."""
    with release.load(expected, TOKENS) as load:
        load.wait_answers(SETTLED_ANSWERS)
        yield load
        load.wait_answers(SETTLED_ANSWERS)
    steps.note(f"{what}: {load.summary()}")
    if load.failures:
        raise AssertionError(f"{len(load.failures)} of {load.answered + len(load.failures)} requests failed")


def counts_of(release):
    return {role: len(release.pods(role)) for role in releases.ROLES}


def uid(pod):
    return pod["metadata"]["uid"]


def delete_one(release, kube, role):
    """Deletes a pod of the role as `kubectl delete pod` does; waits until it is gone and another is Ready."""
    pods = release.pods(role)
    counts = counts_of(release)
    name, pod = sorted(pods.items())[-1]
    kube.kubectl("delete", "pod", name, "--wait=false", namespace=release.namespace)
    wait_until(lambda: all(uid(each) != uid(pod) for each in kube.pods(
        release.namespace, release.selector(role), alive=False).values()), 400, f"the end of {name}")
    release.wait_ready(counts)
    return name


def changed_option(release):
    """Each pod that reads the option is another one afterwards, and the option is in its configuration."""
    before = {role: {uid(pod) for pod in release.pods(role).values()} for role in releases.ROLES}
    release.upgrade(options={"max_queued_requests": 77, "chunked_prefill_size": 128})
    release.wait_ready(counts_of(release))
    rolled = [role for role in releases.ROLES
              if not before[role] & {uid(pod) for pod in release.pods(role).values()}]
    if "router" not in rolled or "prefill" not in rolled:
        raise AssertionError(f"max_queued_requests and chunked_prefill_size were changed, but of the router's and "
                             f"prefill's pods only those of {rolled} were replaced")
    return rolled


def wait_upgraded(release, counts, reference, seconds=900):
    """Until exactly the wanted pods run, all Ready and all of the image."""
    def upgraded():
        images = {container["image"] for role in releases.ROLES for pod in release.pods(role).values()
                  for container in pod["spec"]["containers"]}
        return images == {reference}
    wait_until(upgraded, seconds, f"all pods to be of {reference}", 0.5)
    release.wait_ready(counts, seconds)


def new_image(release, node, tag):
    """The same content under another tag, which is all that a roll needs to be a roll."""
    counts = counts_of(release)
    repository, old = release.image
    node.tag_image(f"{repository}:{old}", f"{repository}:{tag}")
    release.set_image((repository, tag))
    release.upgrade()
    wait_upgraded(release, counts, f"{repository}:{tag}")


def scale_decode(release, sizes):
    counts = counts_of(release)
    for size in sizes:
        release.upgrade(decode={"replicas": size})
        release.wait_ready({**counts, "decode": size})


def drain_node(release, kube, node, load):
    """`kubectl drain` of the decode pods: the disruption budget lets one go, and holds the other while that
    one is not back; which it is only after `kubectl uncordon`, since there is no other node."""
    counts = counts_of(release)
    before = {uid(pod) for pod in release.pods("decode").values()}
    try:
        try:
            kube.kubectl("drain", node, f"--pod-selector={release.selector('decode')}", "--delete-emptydir-data",
                         "--timeout=20s", namespace=None, timeout=120)
            raise AssertionError("kubectl drain took all decode pods at once: the disruption budget held none")
        except Failed as error:
            if "disruption budget" not in str(error) and "timeout" not in str(error):
                raise
        left = [pod for pod in kube.pods(release.namespace, release.selector("decode"), alive=False).values()
                if uid(pod) in before and "deletionTimestamp" not in pod["metadata"]]
        if len(left) != len(before) - 1:
            raise AssertionError(f"{len(left)} of {len(before)} decode pods were left alone, not all but one")
        load.wait_answers(4)
    finally:
        kube.kubectl("uncordon", node)
    release.wait_ready(counts)
