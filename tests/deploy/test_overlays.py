"""The plain manifests say what the chart says: whoever mends one of them is told of the other."""

import copy

import pytest
import yaml

from kit import OVERLAYS, ROLES, ROOT, Objects, chart, render_overlay

WORKER = "StatefulSet"


def overlay(name):
    return Objects(render_overlay(ROOT / "k8s/overlays" / name))


def without_names(pod):
    """A pod template without what the chart adds for Helm and kustomize for itself."""
    pod = copy.deepcopy(pod)
    pod["metadata"].pop("annotations", None)
    for label in ("app.kubernetes.io/version", "app.kubernetes.io/part-of"):
        pod["metadata"]["labels"].pop(label, None)
    for volume in pod["spec"]["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["name"] = volume["configMap"]["name"].split("-")[1]
    return pod


@pytest.mark.parametrize("role", ROLES)
def test_the_base_is_the_charts_default(role):
    base, default = overlay("single-node-cpu"), chart()
    ours, theirs = base.workload(role)["spec"], default.workload(role)["spec"]
    assert without_names(ours.pop("template")) == without_names(theirs.pop("template"))
    assert ours == theirs
    [options] = [one for one in base.of("ConfigMap") if one["metadata"]["name"].startswith(f"baton-{role}-")]
    assert yaml.safe_load(options["data"]["options.yaml"]) == default.options(role)


def test_services_and_budgets_are_the_charts():
    base, default = overlay("single-node-cpu"), chart()
    for kind in ("Service", "PodDisruptionBudget"):
        assert {one["metadata"]["name"]: one["spec"] for one in base.of(kind)} == \
            {one["metadata"]["name"]: one["spec"] for one in default.of(kind)}


def test_the_colocated_overlay_is_the_charts_mode():
    ours, theirs = overlay("colocated"), chart({"mode": "colocated"})
    for role in ("router", "prefill"):
        [options] = [one for one in ours.of("ConfigMap") if one["metadata"]["name"].startswith(f"baton-{role}-")]
        assert yaml.safe_load(options["data"]["options.yaml"]) == theirs.options(role)
        assert without_names(ours.pod(role)) == without_names(theirs.pod(role))
    for kind in ("StatefulSet", "Service", "PodDisruptionBudget"):
        mine, charts = ({one["metadata"]["name"] for one in side.of(kind)} for side in (ours, theirs))
        assert mine == charts


def allowed(policy, side, word):
    """A policy's rules as a set: their order means nothing."""
    return {(yaml.safe_dump(rule["ports"]), yaml.safe_dump(rule.get(word))) for rule in policy["spec"][side]}


def test_policies_are_the_charts():
    ours, theirs = overlay("four-stages-two-decodes"), chart({"networkPolicy": {"enabled": True}})
    for role in ROLES:
        mine, chart_policy = (one.get("NetworkPolicy", f"baton-{role}") for one in (ours, theirs))
        assert mine["spec"]["podSelector"] == chart_policy["spec"]["podSelector"]
        for side, word in (("ingress", "from"), ("egress", "to")):
            assert allowed(mine, side, word) == allowed(chart_policy, side, word)


def test_monitors_and_rules_are_the_charts():
    on = {"enabled": True}
    ours = overlay("four-stages-two-decodes")
    theirs = chart({"monitoring": {"podMonitor": on, "prometheusRule": on, "dashboards": on}})
    for kind in ("PodMonitor", "PrometheusRule"):
        assert {one["metadata"]["name"]: one["spec"] for one in ours.of(kind)} == \
            {one["metadata"]["name"]: one["spec"] for one in theirs.of(kind)}
    boards = [{one["metadata"]["name"]: (one["data"], one["metadata"]["labels"]["grafana_dashboard"])
               for one in side.of("ConfigMap") if one["metadata"]["name"].endswith("-dashboard")}
              for side in (ours, theirs)]
    assert boards[0] == boards[1] and len(boards[0]) >= 5


@pytest.mark.parametrize("path", OVERLAYS, ids=lambda path: path.name)
def test_pods_of_a_chain_are_as_many_as_its_stages(path):
    rendered = Objects(render_overlay(path))
    [options] = [one for one in rendered.of("ConfigMap") if one["metadata"]["name"].startswith("baton-prefill-")
                 and "options.yaml" in one["data"]]
    stages = yaml.safe_load(options["data"]["options.yaml"])["pp_size"]
    assert rendered.workload("prefill")["spec"]["replicas"] % stages == 0


@pytest.mark.parametrize("name", ["one-chain-one-decode", "four-stages-two-decodes", "gpu-rdma"])
def test_workers_of_larger_overlays_keep_apart(name):
    for role in ("prefill", "decode"):
        terms = overlay(name).pod(role)["spec"]["affinity"]["podAntiAffinity"]
        assert terms["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologyKey"] == "kubernetes.io/hostname"


def test_devices_of_the_gpu_overlay():
    rendered = overlay("gpu-rdma")
    for role in ("prefill", "decode"):
        resources = rendered.container(role)["resources"]
        assert resources["limits"]["rdma/ib"] == resources["requests"]["rdma/ib"] == 1
        assert resources["limits"]["nvidia.com/gpu"] == 1
        assert rendered.pod(role)["spec"]["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
        [options] = [one["data"]["options.yaml"] for one in rendered.of("ConfigMap")
                     if one["metadata"]["name"].startswith(f"baton-{role}-") and "options.yaml" in one["data"]]
        assert 'executor: "torch"' in options and 'device: "cuda"' in options
        assert rendered.container(role)["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert rendered.env("router")["BATON_API_KEY"]["secretKeyRef"]["name"] == "baton-api-key"
    assert rendered.get("Ingress", "baton-router")["spec"]["tls"][0]["secretName"] == "baton-tls"
