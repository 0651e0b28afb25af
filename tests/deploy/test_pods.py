"""The pods: what they run, how they are probed, confined and ended."""

import pytest

from kit import ROLES, chart

WORKERS = ("prefill", "decode")
SERVICES = {"router": "baton.v1.Inference", "prefill": "baton.v1.Prefill", "decode": "baton.v1.Decode"}


@pytest.fixture(scope="module")
def default():
    return chart()


@pytest.mark.parametrize("role", ROLES)
def test_probes_name_what_they_ask(default, role):
    container = default.container(role)
    assert container["startupProbe"]["grpc"] == {"port": 30001}
    # gRPC's threads would answer for a process whose loop is stuck.
    assert container["livenessProbe"]["httpGet"] == {"path": "/health",
                                                     "port": "http" if role == "router" else "metrics"}
    assert container["readinessProbe"]["grpc"] == {"port": 30001, "service": SERVICES[role]}


@pytest.mark.parametrize("role", WORKERS)
def test_weights_have_at_least_ten_minutes(default, role):
    startup = default.container(role)["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600


@pytest.mark.parametrize("role", ROLES)
def test_pods_are_confined(default, role):
    spec, container = default.pod(role)["spec"], default.container(role)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                            "capabilities": {"drop": ["ALL"]}}
    assert spec["enableServiceLinks"] is False
    assert spec["automountServiceAccountToken"] is False
    assert "hostNetwork" not in spec


@pytest.mark.parametrize("role", ROLES)
def test_a_process_has_its_pods_name(default, role):
    assert default.env(role)["BATON_INSTANCE_ID"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert default.container(role)["args"] == ["router" if role == "router" else "worker",
                                               "--config=/etc/baton/options.yaml"]


def test_one_value_sends_every_roles_spans_to_a_collector():
    made = chart({"options": {"otlp_traces_endpoint": "http://collector.observability:4317"},
                  "router": {"options": {"otlp_sample_ratio": 0.1}}})
    assert {made.options(role)["otlp_traces_endpoint"] for role in ROLES} == {"http://collector.observability:4317"}
    assert [made.options(role).get("otlp_sample_ratio") for role in ROLES] == [0.1, None, None]


def test_a_stage_knows_its_place_from_its_pods_number(default):
    assert default.env("prefill")["BATON_PREFILL_INDEX"] == {
        "fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
    assert default.options("prefill")["pp_size"] == 2
    assert default.options("prefill")["chain_id"] == "baton-pp2"
    assert "pp_rank" not in default.options("prefill")


@pytest.mark.parametrize("chains, stages", [(1, 1), (1, 4), (3, 2)])
def test_a_prefill_replica_is_a_whole_chain(chains, stages):
    rendered = chart({"prefill": {"replicas": chains, "parallelism": {"pp": stages}}})
    assert rendered.workload("prefill")["spec"]["replicas"] == chains * stages
    assert rendered.workload("prefill")["spec"]["podManagementPolicy"] == "Parallel", "stages wait for each other"


def test_another_shape_is_another_chain():
    names = {chart({"prefill": {"parallelism": shape}}).options("prefill")["chain_id"]
             for shape in ({"pp": 2}, {"pp": 4}, {"pp": 2, "tp": 2}, {"pp": 2, "layerPartition": "2,4"})}
    assert len(names) == 4


def test_layers_are_shared_out_by_the_times_of_a_profile():
    def sharing(profile):
        return chart({"prefill": {"parallelism": {"pp": 2, "layerPartition": "auto"}, "chunkProfile": profile}})
    one, other = sharing('{"a": 1}\n'), sharing('{"a": 2}\n')
    options = one.options("prefill")
    assert options["pp_layer_partition"] == "auto"
    directory, name = options["chunk_profile"].rsplit("/", 1)
    assert directory == "/etc/baton", "where the ConfigMap is mounted"
    assert one.get("ConfigMap", "baton-prefill")["data"][name] == '{"a": 1}\n'
    assert options["chain_id"] != other.options("prefill")["chain_id"], "stages of two splits don't fit together"
    annotations = [rendered.workload("prefill")["spec"]["template"]["metadata"]["annotations"]
                   for rendered in (one, other)]
    assert annotations[0] != annotations[1], "pods read it when they start"
    assert "chunk_profile" not in one.options("decode")


def test_every_rank_is_a_pod():
    rendered = chart({"prefill": {"replicas": 3, "parallelism": {"pp": 2, "tp": 4}}})
    assert rendered.workload("prefill")["spec"]["replicas"] == 24
    assert rendered.options("prefill")["tp_size"] == 4
    assert rendered.options("decode")["tp_size"] == 1


def test_every_stage_of_a_decode_service_is_a_pod():
    rendered = chart({"decode": {"replicas": 3, "parallelism": {"pp": 2, "tp": 2}}, "networkPolicy": {"enabled": True},
                      "transfer": {"portRange": ""}})
    assert rendered.workload("decode")["spec"]["replicas"] == 12
    options = rendered.options("decode")
    assert (options["pp_size"], options["tp_size"], options["decode_id"]) == (2, 2, "baton-pp2-tp2")
    assert "BATON_DECODE_INDEX" in rendered.env("decode")
    assert chart({"decode": {"parallelism": {"pp": 2}}}).options("decode")["decode_id"] == "baton-pp2"
    assert "decode_id" not in chart().options("decode")
    uneven = chart({"decode": {"parallelism": {"pp": 2, "layerPartition": "4,2"}}}).options("decode")
    assert (uneven["pp_layer_partition"], uneven["decode_id"]) == ("4,2", "baton-pp2-4-2")

    def peers(policy, way, end):
        return [peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
                for rule in policy["spec"][way] for peer in rule.get(end, []) if "podSelector" in peer]
    # Its pods speak to one another.
    policy = rendered.get("NetworkPolicy", "baton-decode")
    assert peers(policy, "ingress", "from").count("decode") == 2 and peers(policy, "egress", "to").count("decode") == 2


def test_workers_find_every_router_before_it_is_ready(default):
    service = default.get("Service", "baton-router-headless")["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    for role in WORKERS:
        assert default.options(role)["router_address"] == "baton-router-headless:30002"


@pytest.mark.parametrize("role", WORKERS)
def test_peers_reach_a_worker_by_its_pods_address(default, role):
    assert default.env(role)["BATON_ADVERTISE_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert default.options(role)["host"] == "0.0.0.0"


@pytest.mark.parametrize("resources, threads, expected", [
    ({"limits": {"cpu": "8"}, "requests": {"cpu": "4"}}, 0, {"resourceFieldRef": {"resource": "limits.cpu",
                                                                                  "divisor": "1"}}),
    ({"requests": {"cpu": "4"}}, 0, {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1"}}),
    ({"requests": {"cpu": None}}, 0, None),
    ({"requests": {"cpu": "4"}}, 6, "6"),
])
def test_threads_follow_the_cpu_share(resources, threads, expected):
    rendered = chart({"decode": {"resources": resources, "threads": threads}})
    assert rendered.env("decode").get("BATON_THREADS") == expected


@pytest.mark.parametrize("seconds", [0, 3, 120, 1800])
def test_one_value_says_how_a_pod_ends(seconds):
    rendered = chart({"drain": {"timeoutSeconds": seconds}})
    settle = min(5, seconds)
    assert rendered.grace("router") == seconds + settle + 10
    assert rendered.grace("prefill") == rendered.grace("decode") == seconds + 10
    hook = rendered.container("router").get("lifecycle")
    assert hook == ({"preStop": {"sleep": {"seconds": settle}}} if settle else None)
    for role in ROLES:
        assert rendered.options(role)["drain_timeout_ms"] == seconds * 1000
    assert rendered.options("router").get("drain_settle_ms", 0) == 0, "the hook waits instead"


def test_kubernetes_1_29_has_no_hook_that_sleeps():
    rendered = chart(version="1.29.0")
    assert "lifecycle" not in rendered.container("router")
    assert rendered.options("router")["drain_settle_ms"] == 5000
    assert "drain_settle_ms" not in rendered.options("decode")


def test_the_router_speaks_https_with_a_secret():
    rendered = chart({"router": {"tls": {"existingSecret": "cert"}}, "monitoring": {"podMonitor": {"enabled": True}}})
    assert rendered.options("router")["ssl_certfile"] == "/run/baton-tls/tls.crt"
    assert rendered.options("router")["ssl_keyfile"] == "/run/baton-tls/tls.key"
    assert {"name": "tls", "secret": {"secretName": "cert", "defaultMode": 0o440}} in \
        rendered.pod("router")["spec"]["volumes"]
    assert {"name": "tls", "mountPath": "/run/baton-tls", "readOnly": True} in \
        rendered.container("router")["volumeMounts"]
    assert rendered.get("PodMonitor", "baton-router")["spec"]["podMetricsEndpoints"][0]["scheme"] == "https"
    assert rendered.container("router")["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    # The gRPC port for clients has it too, which kubelet's gRPC probes speak not.
    assert rendered.container("router")["readinessProbe"]["httpGet"] == {"path": "/readiness", "port": "http",
                                                                         "scheme": "HTTPS"}
    assert rendered.container("router")["startupProbe"]["httpGet"]["path"] == "/health"
    assert "ssl_certfile" not in rendered.options("decode")
    assert "https://baton-router:30000" in str(rendered.get("Pod", "baton-test"))


SECRETS = {"router": "r", "prefill": "p", "decode": "d"}


@pytest.mark.parametrize("tls, secrets", [
    ({"existingSecrets": SECRETS}, SECRETS),
    ({"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}},
     {role: f"baton-{role}-cluster-tls" for role in ROLES})])
def test_every_role_has_its_certificate(tls, secrets):
    rendered = chart({"cluster": {"tls": tls}})
    for role in ROLES:
        options = rendered.options(role)
        assert {options[f"cluster_tls_{part}"] for part in ("cert", "key", "ca")} == {
            f"/run/baton-cluster-tls/{name}" for name in ("tls.crt", "tls.key", "ca.crt")}
        assert {"name": "cluster-tls", "secret": {"secretName": secrets[role], "defaultMode": 0o440}} in \
            rendered.pod(role)["spec"]["volumes"]
        assert {"name": "cluster-tls", "mountPath": "/run/baton-cluster-tls", "readOnly": True} in \
            rendered.container(role)["volumeMounts"]
    for role in WORKERS:
        assert rendered.container(role)["readinessProbe"]["httpGet"] == {"path": "/readiness", "port": "metrics"}
    assert rendered.container("router")["readinessProbe"]["grpc"]["port"] == 30001, "clients' port has none"


def test_cert_manager_is_asked_for_a_certificate_of_each_role():
    rendered = chart({"cluster": {"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}}})
    for role in ROLES:
        spec = rendered.get("Certificate", f"baton-{role}-cluster-tls")["spec"]
        assert spec["uris"][0] == f"baton://{role}" and spec["secretName"] == f"baton-{role}-cluster-tls"
        assert spec["issuerRef"] == {"name": "ca", "kind": "Issuer", "group": "cert-manager.io"}
    assert not chart().has("Certificate")


def test_every_role_has_the_token():
    rendered = chart({"cluster": {"token": {"existingSecret": "word"}}})
    for role in ROLES:
        assert rendered.options(role)["cluster_token_file"] == "/run/baton-cluster-token/token"
        assert {"name": "cluster-token", "secret": {"secretName": "word", "defaultMode": 0o440}} in \
            rendered.pod(role)["spec"]["volumes"]


def test_a_grace_period_of_ones_own():
    assert chart({"decode": {"terminationGracePeriodSeconds": 700}}).grace("decode") == 700


def test_a_changed_option_rolls_the_pods_that_it_concerns():
    before, after = chart(), chart({"options": {"max_http_connections": 100}})
    sums = [[render.pod(role)["metadata"]["annotations"]["checksum/options"] for role in ROLES]
            for render in (before, after)]
    assert sums[0][0] != sums[1][0], "the router's option"
    assert sums[0][1:] == sums[1][1:], "is none of the workers'"


def test_options_reach_the_roles_that_take_them():
    rendered = chart({"options": {"page_size": 32, "log_level": "debug"},
                      "decode": {"options": {"log_level": "error"}}})
    assert [rendered.options(role).get("page_size") for role in ROLES] == [None, 32, 32]
    assert [rendered.options(role)["log_level"] for role in ROLES] == ["debug", "debug", "error"]


def test_large_and_fractional_numbers_are_written_plainly():
    rendered = chart({"options": {"kv_cache_tokens": 1073741824, "mem_fraction_static": 0.85}})
    text = rendered.get("ConfigMap", "baton-decode")["data"]["options.yaml"]
    assert "kv_cache_tokens: 1073741824\n" in text
    assert "mem_fraction_static: 0.85\n" in text


def test_the_api_key_is_on_no_command_line():
    rendered = chart({"auth": {"existingSecret": "keys", "secretKey": "baton"}})
    assert rendered.env("router")["BATON_API_KEY"] == {"secretKeyRef": {"name": "keys", "key": "baton"}}
    assert "BATON_API_KEY" not in rendered.env("prefill")
    assert "api_key" not in rendered.options("router")
    assert not any("key" in argument for argument in rendered.container("router")["args"])


def test_rdma_is_requested_and_limited_alike():
    device = {"rdma": {"enabled": True, "resource": "rdma/hca", "count": 2}}
    rendered = chart({"prefill": device, "decode": device, "transfer": {"devices": "mlx5_0:1"}})
    for role in WORKERS:
        container = rendered.container(role)
        assert container["resources"]["limits"]["rdma/hca"] == container["resources"]["requests"]["rdma/hca"] == 2
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
        assert rendered.env(role)["UCX_NET_DEVICES"] == "mlx5_0:1"


def test_shared_memory_of_its_own_size():
    rendered = chart({"decode": {"shm": {"enabled": True, "sizeLimit": "2Gi"}}})
    volumes = rendered.pod("decode")["spec"]["volumes"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in volumes
    assert {"name": "shm", "mountPath": "/dev/shm"} in rendered.container("decode")["volumeMounts"]
    assert "shm" not in str(rendered.pod("prefill")["spec"]["volumes"])


def test_placement_is_passed_on():
    rendered = chart({"decode": {
        "nodeSelector": {"pool": "decode"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high", "runtimeClassName": "runc", "schedulerName": "own",
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]}})
    spec = rendered.pod("decode")["spec"]
    assert spec["nodeSelector"] == {"pool": "decode"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert (spec["priorityClassName"], spec["runtimeClassName"], spec["schedulerName"]) == ("high", "runc", "own")
    assert spec["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"] == \
        rendered.workload("decode")["spec"]["selector"]["matchLabels"]
    assert "nodeSelector" not in rendered.pod("prefill")["spec"]


def test_extra_environment_and_volumes():
    rendered = chart({"decode": {
        "extraEnv": [{"name": "UCX_LOG_LEVEL", "value": "info"}],
        "extraVolumes": [{"name": "scratch", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}})
    assert rendered.env("decode")["UCX_LOG_LEVEL"] == "info"
    assert {"name": "scratch", "emptyDir": {}} in rendered.pod("decode")["spec"]["volumes"]
    assert {"name": "scratch", "mountPath": "/scratch"} in rendered.container("decode")["volumeMounts"]


def test_a_digest_wins_over_a_tag():
    digest = "sha256:" + "a" * 64
    assert chart({"image": {"tag": "x"}}).container("router")["image"] == "localhost/baton:x"
    assert chart({"image": {"tag": "x", "digest": digest}}).container("router")["image"] == f"localhost/baton@{digest}"


@pytest.mark.parametrize("values, volume, mount", [
    ({"source": "image"}, None, None),
    ({"source": "pvc", "pvc": {"claimName": "m", "subPath": "a"}},
     {"persistentVolumeClaim": {"claimName": "m", "readOnly": True}}, {"readOnly": True, "subPath": "a"}),
    ({"source": "hostPath", "hostPath": {"path": "/srv/m"}},
     {"hostPath": {"path": "/srv/m", "type": "Directory"}}, {"readOnly": True}),
    ({"source": "initContainer", "initContainer": {"image": "fetch:1", "sizeLimit": "9Gi"}},
     {"emptyDir": {"sizeLimit": "9Gi"}}, {"readOnly": True}),
    ({"source": "initContainer", "initContainer": {"image": "fetch:1"}}, {"emptyDir": {}}, {"readOnly": True}),
    ({"source": "ociVolume", "ociVolume": {"reference": "m:1"}},
     {"image": {"reference": "m:1", "pullPolicy": "IfNotPresent"}}, {"readOnly": True}),
])
def test_where_the_model_comes_from(values, volume, mount):
    rendered = chart({"model": values})
    for role in ROLES:
        volumes = {one.pop("name"): one for one in rendered.pod(role)["spec"]["volumes"]}
        mounts = {one.pop("name"): one for one in rendered.container(role)["volumeMounts"]}
        assert volumes.get("model") == volume
        assert mounts.get("model") == (None if mount is None else {"mountPath": "/models", **mount})
        assert ("initContainers" in rendered.pod(role)["spec"]) == (values["source"] == "initContainer")
