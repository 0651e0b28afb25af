"""The objects around the pods: services, budgets, policies, scaling, monitoring, fronts, other kinds of workload."""

import json

import pytest

from goldens import rule_groups
from kit import EXAMPLES, ROLES, ROOT, Objects, chart, render_chart

WORKERS = ("prefill", "decode")
KEDA = {"enabled": True, "kind": "KEDA", "keda": {"serverAddress": "http://prometheus:9090"}}


def test_the_default_needs_no_crd():
    assert chart().kinds() == ["ConfigMap", "Deployment", "Pod", "PodDisruptionBudget", "Service", "ServiceAccount",
                               "StatefulSet"]


def test_names_follow_the_release():
    assert Objects(render_chart(release="x")).has("Deployment", "x-baton-router")
    assert Objects(render_chart({"fullnameOverride": "llm"}, release="x")).has("Deployment", "llm-router")
    long = Objects(render_chart(release="a" * 53)).of("StatefulSet")
    assert all(len(one["metadata"]["name"]) <= 52 for one in long), "pods and revisions add to it, in 63 characters"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_object_carries_the_common_labels(path):
    rendered = Objects(render_chart({"commonLabels": {"team": "llm"}}, files=[path]))
    for one in rendered.all:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "baton", one["metadata"]["name"]
        assert labels["app.kubernetes.io/instance"] == "baton"
        assert labels["team"] == "llm"


def test_selectors_match_their_pods_and_no_others():
    rendered = chart()
    for role in ROLES:
        selector = rendered.workload(role)["spec"]["selector"]["matchLabels"]
        for other in ROLES:
            labels = rendered.pod(other)["metadata"]["labels"]
            assert (selector.items() <= labels.items()) == (role == other)
        assert rendered.get("PodDisruptionBudget", f"baton-{role}")["spec"]["selector"]["matchLabels"] == selector
    assert rendered.get("Service", "baton-router")["spec"]["selector"] == \
        rendered.workload("router")["spec"]["selector"]["matchLabels"]


def test_a_version_is_in_no_selector():
    for one in chart().all:
        selector = str(one["spec"].get("selector")) if "spec" in one else ""
        assert "version" not in selector and "chart" not in selector


def test_budgets():
    rendered = chart({"router": {"pdb": {"maxUnavailable": "25%"}}, "decode": {"pdb": {"enabled": False}}})
    assert rendered.get("PodDisruptionBudget", "baton-router")["spec"]["maxUnavailable"] == "25%"
    assert not rendered.has("PodDisruptionBudget", "baton-decode")


def test_the_service_of_clients():
    service = {"type": "LoadBalancer", "httpPort": 80, "grpcPort": 81, "httpNodePort": 30080,
               "annotations": {"a": "b"}, "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    made = chart({"router": {"service": service}}).get("Service", "baton-router")
    assert made["metadata"]["annotations"] == {"a": "b"}
    assert made["spec"]["type"] == "LoadBalancer"
    assert made["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    ports = {port["name"]: port for port in made["spec"]["ports"]}
    assert (ports["http"]["port"], ports["http"]["nodePort"], ports["http"]["targetPort"]) == (80, 30080, "http")
    assert ports["grpc"]["appProtocol"] == "kubernetes.io/h2c"


def test_a_service_account_of_ones_own():
    rendered = chart({"serviceAccount": {"create": False, "name": "mine"}})
    assert not rendered.has("ServiceAccount")
    assert {rendered.pod(role)["spec"]["serviceAccountName"] for role in ROLES} == {"mine"}


def arrows(rendered):
    """{(from, to, port)} that the policies allow between the release's own pods, by ingress and by egress rules."""
    sides = {"ingress": set(), "egress": set()}
    for policy in rendered.of("NetworkPolicy"):
        own = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for side, word in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"][side]:
                for peer in rule.get(word, []):
                    if "podSelector" not in peer:
                        continue
                    other = peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
                    ends = (other, own) if side == "ingress" else (own, other)
                    sides[side] |= {(*ends, port["port"]) for port in rule["ports"]}
    return sides


def test_policies_allow_the_arrows_of_the_architecture_and_no_other():
    sides = arrows(chart({"networkPolicy": {"enabled": True}}))
    expected = {("router", "prefill", 30001), ("router", "decode", 30001),  # Start; Reserve and Generate.
                ("prefill", "router", 30002), ("decode", "router", 30002),  # Membership.
                ("prefill", "prefill", 30001),  # Plans.
                ("prefill", "prefill", 31000), ("prefill", "decode", 31000),  # Activations, KV.
                ("decode", "prefill", 31000)}  # The connection back of every data connection.
    assert sides == {"ingress": expected, "egress": expected}


def test_policies_name_clients_and_scrapers():
    peer = {"namespaceSelector": {"matchLabels": {"name": "x"}}}
    rendered = chart({"networkPolicy": {"enabled": True, "clients": [peer], "scrapers": [peer],
                                        "extraEgress": [{"ports": [{"port": 4317}]}]}})
    rules = rendered.get("NetworkPolicy", "baton-router")["spec"]
    assert rules["ingress"][0] == {"ports": [{"port": 30000}, {"port": 30001}], "from": [peer]}
    assert rules["ingress"][-1] == {"ports": [{"port": 30000}], "from": [peer]}
    assert {"ports": [{"port": 4317}]} in rules["egress"]


def test_ucx_listens_where_the_policy_says():
    rendered = chart({"networkPolicy": {"enabled": True}, "transfer": {"portRange": "40000-40009"}})
    assert rendered.env("decode")["UCX_TCP_PORT_RANGE"] == "40000-40009"
    ports = rendered.get("NetworkPolicy", "baton-decode")["spec"]["ingress"][1]["ports"]
    assert ports == [{"protocol": "TCP", "port": 40000, "endPort": 40009}]
    anywhere = chart({"networkPolicy": {"enabled": True}, "transfer": {"portRange": ""}})
    assert anywhere.get("NetworkPolicy", "baton-decode")["spec"]["ingress"][1]["ports"] == [{"protocol": "TCP"}]


@pytest.mark.parametrize("role", ROLES)
def test_an_hpa_takes_the_replicas_over(role):
    rendered = chart({role: {"parallelism": {"pp": 1}, "autoscaling": {"enabled": True}} if role == "prefill"
                      else {"autoscaling": {"enabled": True}}})
    scaler = rendered.get("HorizontalPodAutoscaler", f"baton-{role}")["spec"]
    target = rendered.workload(role)
    assert (scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"]) == (target["kind"], f"baton-{role}")
    assert "replicas" not in target["spec"]
    assert scaler["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600


def test_keda_asks_for_what_the_role_lacks():
    rendered = chart({"router": {"autoscaling": KEDA}, "decode": {"autoscaling": KEDA}})
    assert "baton_requests_running" in str(rendered.get("ScaledObject", "baton-router"))
    trigger = rendered.get("ScaledObject", "baton-decode")["spec"]["triggers"][0]
    assert trigger["metadata"]["query"] == 'sum(baton_kv_used_ratio{namespace="default",pod=~"baton-decode-.*"})'
    assert trigger["metadata"]["threshold"] == "0.7"


def test_keda_queries_name_metrics_that_exist():
    known = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for name in ("baton_requests_running", "baton_requests_waiting", "baton_kv_used_ratio"):
        assert f"`{name}`" in known


def test_monitors_reach_every_pods_metrics():
    rendered = chart({"monitoring": {"podMonitor": {"enabled": True, "labels": {"release": "p"}}}})
    for role in ROLES:
        monitor = rendered.get("PodMonitor", f"baton-{role}")
        endpoint = monitor["spec"]["podMetricsEndpoints"][0]
        assert endpoint["port"] in {port["name"] for port in rendered.container(role)["ports"]}
        assert monitor["metadata"]["labels"]["release"] == "p"
        assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": f"baton-{role}"}]


def test_alerts_link_to_the_operators_runbook():
    on = {"enabled": True, "runbookUrlPrefix": "https://wiki/baton/"}
    groups = chart({"monitoring": {"prometheusRule": on}}).get("PrometheusRule", "baton")["spec"]["groups"]
    urls = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert len(urls) == sum("alert" in rule for group in rule_groups() for rule in group["rules"]) > 10
    assert all(url.startswith("https://wiki/baton/runbook.md#") for url in urls)


def test_dashboards_are_those_of_the_repository():
    rendered = chart({"monitoring": {"dashboards": {"enabled": True}}})
    found = {key: json.loads(value) for one in rendered.of("ConfigMap") for key, value in one["data"].items()
             if key.endswith(".json")}
    folder = ROOT / "deploy/grafana/dashboards"
    assert found == {path.name: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}


def test_an_ingress_waits_for_long_prompts():
    own = {"nginx.ingress.kubernetes.io/proxy-read-timeout": "3600", "team": "inference"}
    ingress = {"enabled": True, "hosts": ["a.example.org"], "annotations": own}
    annotations = chart({"router": {"ingress": ingress}}).get("Ingress", "baton-router")["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/"
    assert annotations == {prefix + "proxy-read-timeout": "3600", prefix + "proxy-send-timeout": "600",
                           prefix + "proxy-buffering": "off", prefix + "proxy-body-size": "16m", "team": "inference"}


def test_an_ingress_with_tls():
    ingress = {"enabled": True, "className": "nginx", "hosts": ["a.example.org", "b.example.org"], "tlsSecret": "tls"}
    spec = chart({"router": {"ingress": ingress}}).get("Ingress", "baton-router")["spec"]
    assert spec["tls"] == [{"secretName": "tls", "hosts": ["a.example.org", "b.example.org"]}]
    assert [rule["host"] for rule in spec["rules"]] == ["a.example.org", "b.example.org"]
    assert spec["rules"][0]["http"]["paths"][0]["backend"] == {"service": {"name": "baton-router",
                                                                           "port": {"name": "http"}}}


def test_a_gateway_shows_clients_the_inference_service_alone():
    gateway = {"enabled": True, "parentRefs": [{"name": "gw"}], "hostnames": ["a.example.org"]}
    rendered = chart({"router": {"gateway": gateway}})
    matches = rendered.get("GRPCRoute", "baton-router")["spec"]["rules"][0]["matches"]
    assert {match["method"]["service"] for match in matches} == {"baton.v1.Inference", "grpc.health.v1.Health"}
    assert rendered.get("HTTPRoute", "baton-router")["spec"]["hostnames"] == ["a.example.org"]


@pytest.mark.parametrize("kind", ["LeaderWorkerSet", "DisaggregatedSet"])
def test_a_group_is_a_chain(kind):
    rendered = chart({"workload": {"kind": kind}, "prefill": {"replicas": 3, "parallelism": {"pp": 4}}})
    assert not rendered.has("StatefulSet")
    if kind == "LeaderWorkerSet":
        specs = {role: rendered.get(kind, f"baton-{role}")["spec"] for role in WORKERS}
    else:
        specs = {role["name"]: role["spec"] for role in rendered.get(kind, "baton-workers")["spec"]["roles"]}
    assert specs["prefill"]["replicas"] == 3
    assert specs["prefill"]["leaderWorkerTemplate"]["size"] == 4
    assert specs["decode"]["leaderWorkerTemplate"]["size"] == 1
    assert specs["prefill"]["rolloutStrategy"]["rollingUpdateConfiguration"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert specs["decode"]["rolloutStrategy"]["rollingUpdateConfiguration"] == {"maxSurge": 1, "maxUnavailable": 0}
    pod = specs["prefill"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    names = [entry["name"] for entry in pod["containers"][0]["env"]]
    assert "BATON_PREFILL_INDEX" not in names
    assert names.index("CHAIN_SET") < names.index("CHAIN_GROUP") < names.index("BATON_CHAIN_ID")


def test_a_groups_pods_are_ranks():
    rendered = chart({"workload": {"kind": "LeaderWorkerSet"}, "prefill": {"parallelism": {"pp": 3, "tp": 2}}})
    template = rendered.get("LeaderWorkerSet", "baton-prefill")["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 6
    env = {entry["name"]: entry for entry in template["workerTemplate"]["spec"]["containers"][0]["env"]}
    assert "worker-index" in env["BATON_PREFILL_INDEX"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert "BATON_PP_RANK" not in env


@pytest.mark.parametrize("pp, tp, place", [(2, 1, "BATON_PP_RANK"), (1, 2, "BATON_TP_RANK"),
                                           (2, 2, "BATON_DECODE_INDEX")])
def test_a_groups_pods_are_a_decode_services_members(pp, tp, place):
    rendered = chart({"workload": {"kind": "LeaderWorkerSet"}, "decode": {"parallelism": {"pp": pp, "tp": tp}}})
    template = rendered.get("LeaderWorkerSet", "baton-decode")["spec"]["leaderWorkerTemplate"]
    assert template["size"] == pp * tp
    env = {entry["name"]: entry for entry in template["workerTemplate"]["spec"]["containers"][0]["env"]}
    assert "worker-index" in env[place]["valueFrom"]["fieldRef"]["fieldPath"]
    assert env["BATON_DECODE_ID"]["value"] == "$(DECODE_SET)-$(DECODE_GROUP)"


def test_a_leaderworkerset_is_scaled_by_chains():
    rendered = chart({"workload": {"kind": "LeaderWorkerSet"}, "prefill": {"autoscaling": KEDA}})
    target = rendered.get("ScaledObject", "baton-prefill")["spec"]["scaleTargetRef"]
    assert target == {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "baton-prefill"}
    assert "replicas" not in rendered.get("LeaderWorkerSet", "baton-prefill")["spec"]


def test_routers_that_watch_pods():
    rendered = chart({"discovery": {"mode": "kubernetes"}, "networkPolicy": {"enabled": True}})
    role = rendered.get("Role", "baton")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    assert rendered.get("RoleBinding", "baton")["subjects"][0]["name"] == "baton"
    tokens = {one: rendered.pod(one)["spec"]["automountServiceAccountToken"] for one in ROLES}
    assert tokens == {"router": True, "prefill": False, "decode": False}
    options = rendered.options("router")
    assert options["service_discovery"] == "kubernetes"
    assert options["service_discovery_namespace"] == "default"
    assert options["service_discovery_selector"] == (
        "app.kubernetes.io/name=baton,app.kubernetes.io/instance=baton,"
        "app.kubernetes.io/component in (prefill,decode)")
    assert rendered.options("decode")["router_address"] == ""


def test_without_watching_there_are_no_rights():
    assert not chart().has("Role") and not chart().has("RoleBinding") and not chart().has("ClusterRole")


def test_helm_test_asks_for_a_completion():
    pod = chart({"auth": {"existingSecret": "keys"}}).get("Pod", "baton-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    env = {entry["name"]: entry for entry in pod["spec"]["containers"][0]["env"]}
    assert env["URL"]["value"] == "http://baton-router:30000/v1/completions"
    assert json.loads(env["BODY"]["value"])["model"] == "austen"
    assert env["API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "api-key"}
