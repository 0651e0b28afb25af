"""values.schema.json: the chart's own values by hand, the options from the table of config.proto."""

import schema_kubernetes
from schema_words import (array, boolean, choice, described, filled, integer, mapping, nullable, one_of, record, ref,
                          string, strings)

# What the chart derives from other values; {name: what to set instead}.
MANAGED = {
    "model_path": "model.path", "served_model_name": "model.servedName", "host": "network.listen",
    "port": "network.ports.http", "grpc_port": "network.ports.grpc", "metrics_port": "network.ports.metrics",
    "cluster_host": "network.listen", "cluster_port": "network.ports.cluster",
    "cluster_tls_cert": "cluster.tls", "cluster_tls_key": "cluster.tls", "cluster_tls_ca": "cluster.tls",
    "cluster_token_file": "cluster.token.existingSecret",
    "router_address": "the release's own Service", "api_key": "auth.existingSecret",
    "advertise_host": "the pod's address", "disaggregation_mode": "mode", "pp_size": "parallelism.pp",
    "pp_rank": "the pod's index", "tp_rank": "the pod's index",
    "nnodes": "nothing: each rank is a pod", "node_rank": "the pod's index",
    "dist_init_addr": "nothing: ranks meet through the routers",
    "pp_layer_partition": "parallelism.layerPartition",
    "tp_size": "parallelism.tp", "chain_id": "the pod's index", "prefill_index": "the pod's index",
    "decode_id": "the pod's index", "decode_index": "the pod's index",
    "instance_id": "the pod's name", "threads": "threads", "kv_transport": "transfer.backend",
    "config": "options", "drain_timeout_ms": "drain.timeoutSeconds", "drain_settle_ms": "drain.timeoutSeconds",
    "service_discovery": "discovery.mode", "service_discovery_namespace": "the release's namespace",
    "service_discovery_selector": "the release's labels", "service_discovery_port": "network.ports.grpc",
    "service_discovery_account": "the pod's own",
    "ssl_certfile": "router.tls.existingSecret", "ssl_keyfile": "router.tls.existingSecret",
    "failpoints": "nothing: tests alone use it",
}
OPTION_ROLES = ("router", "prefill", "decode")
SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer")


def settable(options):
    """Options that values may name: a process of the chart takes them, and the chart does not derive them."""
    return [option for option in options if option.roles and option.name not in MANAGED]


def option_schema(option):
    text = option.help + (f" In {option.unit}." if option.unit else "")
    text += f" Default: {option.default}." if option.default else ""
    if option.kind == "boolean":
        return boolean(text)
    if option.kind == "fraction":
        # Text as well: `helm --set` has no other way to write a number with a point.
        least = {"minimum": 0} if option.zero else {"exclusiveMinimum": 0}
        most = option.maximum or 1
        pattern = r"^(0?\.[0-9]*[1-9][0-9]*|1(\.0*)?" + (r"|0(\.0*)?)$" if option.zero else ")$")
        if most > 1:
            pattern = r"^([0-9]?\.[0-9]+|[0-9]\.?)$"
        return described(one_of({"type": "number", **least, "maximum": most},
                                {"type": "string", "pattern": pattern}), text)
    if option.kind == "integer" and option.allowed:
        return described({"type": "integer", "enum": [int(value) for value in option.allowed]}, text)
    if option.kind == "integer" and option.auto:
        return described(one_of(integer(option.minimum, option.maximum), choice("auto")), text)
    if option.kind == "integer":
        return integer(option.minimum, option.maximum, text)
    return choice(*option.allowed, text=text) if option.allowed else string(text)


def options_record(options, role=None):
    return record({option.name: option_schema(option) for option in settable(options)
                   if role is None or role in option.roles or (role == "prefill" and "colocated" in option.roles)})


def count_or_share():
    return one_of(integer(0), {"type": "string", "pattern": "^(100|[1-9]?[0-9])%$"})


def probe():
    return record({"initialDelaySeconds": integer(0), "periodSeconds": integer(1), "timeoutSeconds": integer(1),
                   "failureThreshold": integer(1)})


def autoscaling():
    keda = record({
        "serverAddress": string(), "query": string(),
        "threshold": {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?)?$"},
        "pollingIntervalSeconds": integer(1), "authentication": string()})
    return record({
        "enabled": boolean(), "kind": choice("HPA", "KEDA"), "minReplicas": integer(1), "maxReplicas": integer(1),
        "targetCPUUtilizationPercentage": integer(1, 1000), "scaleDownStabilizationSeconds": integer(0, 3600),
        "keda": keda})


def pods(options, role):
    """What router, prefill and decode have in common."""
    return {
        "replicas": integer(0, 1024),
        "options": options_record(options, role),
        "resources": ref("resources"),
        "minReadySeconds": integer(0, 3600),
        "probes": record({name: probe() for name in ("startup", "liveness", "readiness")}),
        "pdb": record({"enabled": boolean(), "maxUnavailable": count_or_share()}),
        "autoscaling": ref("autoscaling"),
        "terminationGracePeriodSeconds": nullable(integer(1)),
        "hostNetwork": boolean(),
        "nodeSelector": mapping(),
        "tolerations": array(ref("toleration")),
        "affinity": ref("affinity"),
        "topologySpreadConstraints": array(ref("topologySpread")),
        "priorityClassName": string(), "runtimeClassName": string(), "schedulerName": string(),
        "podLabels": mapping(), "podAnnotations": mapping(),
        "extraEnv": array(ref("env")),
        "extraVolumes": array(ref("volume")),
        "extraVolumeMounts": array(ref("volumeMount")),
    }


def worker(options, role):
    auto = "auto|" if role == "prefill" else ""
    partition = {"type": "string", "pattern": f"^({auto}[1-9][0-9]*(,[1-9][0-9]*)*)?$"}
    return record({
        **pods(options, role),
        "parallelism": record({"pp": integer(1, 64), "layerPartition": partition, "tp": integer(1, 64)}),
        **({"chunkProfile": string()} if role == "prefill" else {}),
        "threads": integer(0, 1024),
        "rdma": record({"enabled": boolean(), "resource": filled(), "count": integer(1, 64)}),
        "shm": record({"enabled": boolean(), "sizeLimit": ref("quantity")}),
        "rollout": record({"maxSurge": count_or_share(), "maxUnavailable": count_or_share()}),
    })


def router(options):
    service = record({
        "type": choice(*SERVICE_TYPES), "annotations": mapping(), "httpPort": integer(1, 65535),
        "grpcPort": integer(1, 65535), "httpNodePort": integer(0, 65535), "grpcNodePort": integer(0, 65535),
        "loadBalancerSourceRanges": strings()})
    parent = record({"name": filled(), "namespace": string(), "sectionName": string(), "port": integer(1, 65535)},
                    ["name"])
    return record({
        **pods(options, "router"),
        "service": service,
        "tls": record({"existingSecret": string()}),
        "ingress": record({
            "enabled": boolean(), "className": string(), "annotations": mapping(), "hosts": array(filled()),
            "tlsSecret": string()}),
        "gateway": record({"enabled": boolean(), "parentRefs": array(parent), "hostnames": array(filled()),
                           "grpc": boolean()}),
    })


def model():
    policy = choice("Always", "IfNotPresent", "Never")
    return record({
        "source": choice("image", "pvc", "hostPath", "initContainer", "ociVolume"),
        "path": {"type": "string", "pattern": "^/.+"}, "mountPath": {"type": "string", "pattern": "^/.+"},
        "servedName": string(), "layers": integer(0, 1024),
        "pvc": record({"claimName": string(), "subPath": string()}),
        "hostPath": record({"path": {"type": "string", "pattern": "^(/.*)?$"}}),
        "initContainer": record({
            "image": string(), "pullPolicy": policy, "command": strings(), "args": strings(),
            "env": array(ref("env")), "resources": ref("resources"),
            "sizeLimit": one_of({"type": "string", "const": ""}, ref("quantity"))}),
        "ociVolume": record({"reference": string(), "pullPolicy": policy}),
    })


def network():
    port = integer(1, 65535)
    return {
        "network": record({"listen": choice("0.0.0.0", "::"),
                           "ports": record({"http": port, "grpc": port, "cluster": port, "metrics": port})}),
        "transfer": record({"backend": choice("auto", "tcp", "shm"), "devices": string(),
                            "portRange": {"type": "string", "pattern": "^([0-9]{1,5}-[0-9]{1,5})?$"}}),
        "networkPolicy": record({
            "enabled": boolean(), "clients": array(ref("peer")), "scrapers": array(ref("peer")),
            "dns": array(ref("peer")), "extraEgress": array(ref("egressRule"))}),
    }


def cluster():
    """How pods prove to one another what they are."""
    duration = {"type": "string", "pattern": "^([0-9]+(h|m|s))+$"}
    return record({
        "tls": record({
            "existingSecrets": record({role: string() for role in OPTION_ROLES}),
            "certManager": record({
                "enabled": boolean(), "duration": duration, "renewBefore": duration,
                "issuerRef": record({"name": string(), "kind": filled(), "group": filled()})})}),
        "token": record({"existingSecret": string(), "secretKey": filled()})})


def discovery(options):
    """How this version's routers and workers can find each other."""
    return choice(*next((option.allowed for option in options if option.name == "service_discovery"), ("register",)))


def monitoring():
    return record({
        "podMonitor": record({"enabled": boolean(), "labels": mapping(),
                              "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"}}),
        "prometheusRule": record({"enabled": boolean(), "labels": mapping(), "runbookUrlPrefix": string()}),
        "dashboards": record({"enabled": boolean(), "labels": mapping(), "annotations": mapping()}),
    })


def schema(options):
    fields = {
        "nameOverride": string(), "fullnameOverride": string(),
        "commonLabels": mapping(), "commonAnnotations": mapping(),
        "image": record({"repository": filled(), "tag": string(),
                         "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
                         "pullPolicy": choice("Always", "IfNotPresent", "Never")}),
        "imagePullSecrets": array(record({"name": filled()}, ["name"])),
        "mode": choice("disaggregated", "colocated"),
        "workload": record({"kind": choice("StatefulSet", "LeaderWorkerSet", "DisaggregatedSet")}),
        "model": model(),
        "checkReferences": boolean(),
        "options": options_record(options),
        **network(),
        "discovery": record({"mode": discovery(options)}),
        "auth": record({"existingSecret": string(), "secretKey": filled()}),
        "cluster": cluster(),
        "drain": record({"timeoutSeconds": integer(0, 86400)}),
        "security": record({name: integer(1, 2**31 - 1) for name in ("runAsUser", "runAsGroup", "fsGroup")}),
        "serviceAccount": record({"create": boolean(), "name": string(), "annotations": mapping()}),
        "router": router(options), "prefill": worker(options, "prefill"), "decode": worker(options, "decode"),
        "monitoring": monitoring(),
        "tests": record({"image": filled(), "pullPolicy": choice("Always", "IfNotPresent", "Never")}),
        # Helm gives every chart this one.
        "global": {"type": "object", "additionalProperties": False, "properties": {}},
    }
    definitions = {**schema_kubernetes.definitions(), "autoscaling": autoscaling()}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart baton",
            **record(fields), "definitions": definitions}
