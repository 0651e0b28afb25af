"""Those of Kubernetes' own objects that values may contain, as strict as the rest: definitions of the schema."""

from schema_words import (array, boolean, choice, filled, integer, mapping, one_of, record, ref, string, strings)

DNS_LABEL = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"


def quantity():
    return {"oneOf": [{"type": "string", "pattern": QUANTITY}, {"type": "number", "minimum": 0}]}


def _selectors():
    expression = record({"key": filled(), "operator": choice("In", "NotIn", "Exists", "DoesNotExist"),
                         "values": strings()}, ["key", "operator"])
    node_expression = record({"key": filled(), "operator": choice("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"),
                              "values": strings()}, ["key", "operator"])
    return {
        "labelSelector": record({"matchLabels": mapping(), "matchExpressions": array(expression)}),
        "nodeTerm": record({"matchExpressions": array(node_expression), "matchFields": array(node_expression)}),
    }


def _affinity():
    term = record({"labelSelector": ref("labelSelector"), "namespaceSelector": ref("labelSelector"),
                   "namespaces": strings(), "topologyKey": filled(), "matchLabelKeys": strings(),
                   "mismatchLabelKeys": strings()}, ["topologyKey"])
    weighted = record({"weight": integer(1, 100), "podAffinityTerm": term}, ["weight", "podAffinityTerm"])
    pods = record({"requiredDuringSchedulingIgnoredDuringExecution": array(term),
                   "preferredDuringSchedulingIgnoredDuringExecution": array(weighted)})
    nodes = record({
        "requiredDuringSchedulingIgnoredDuringExecution": record(
            {"nodeSelectorTerms": array(ref("nodeTerm"))}, ["nodeSelectorTerms"]),
        "preferredDuringSchedulingIgnoredDuringExecution": array(record(
            {"weight": integer(1, 100), "preference": ref("nodeTerm")}, ["weight", "preference"])),
    })
    return record({"nodeAffinity": nodes, "podAffinity": pods, "podAntiAffinity": pods})


def _placement():
    return {
        "affinity": _affinity(),
        "toleration": record({
            "key": string(), "operator": choice("Exists", "Equal"), "value": string(),
            "effect": choice("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
            "tolerationSeconds": integer(0)}),
        "topologySpread": record({
            "maxSkew": integer(1), "topologyKey": filled(), "minDomains": integer(1),
            "whenUnsatisfiable": choice("DoNotSchedule", "ScheduleAnyway"), "labelSelector": ref("labelSelector"),
            "matchLabelKeys": strings(), "nodeAffinityPolicy": choice("Honor", "Ignore"),
            "nodeTaintsPolicy": choice("Honor", "Ignore")}, ["maxSkew", "topologyKey", "whenUnsatisfiable"]),
    }


def _containers():
    key_ref = record({"name": filled(), "key": filled(), "optional": boolean()}, ["name", "key"])
    value_from = record({
        "secretKeyRef": key_ref, "configMapKeyRef": key_ref,
        "fieldRef": record({"fieldPath": filled(), "apiVersion": string()}, ["fieldPath"]),
        "resourceFieldRef": record({"resource": filled(), "containerName": string(), "divisor": quantity()},
                                   ["resource"])})
    return {
        "quantity": quantity(),
        "resources": record({
            "requests": mapping(ref("quantity")), "limits": mapping(ref("quantity")),
            "claims": array(record({"name": filled(), "request": string()}, ["name"]))}),
        # A name that begins with BATON_ would be an option behind the values' back.
        "env": record({"name": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.-]*$",
                                "not": {"pattern": "^BATON_"}},
                       "value": string(), "valueFrom": value_from}, ["name"]),
    }


def _volumes():
    items = array(record({"key": filled(), "path": filled(), "mode": integer(0, 511)}, ["key", "path"]))
    kinds = {
        "configMap": record({"name": filled(), "items": items, "defaultMode": integer(0, 511), "optional": boolean()},
                            ["name"]),
        "secret": record({"secretName": filled(), "items": items, "defaultMode": integer(0, 511),
                          "optional": boolean()}, ["secretName"]),
        "emptyDir": record({"medium": choice("", "Memory"), "sizeLimit": ref("quantity")}),
        "hostPath": record({"path": filled(), "type": string()}, ["path"]),
        "persistentVolumeClaim": record({"claimName": filled(), "readOnly": boolean()}, ["claimName"]),
    }
    return {
        "volume": one_of(*(record({"name": {"type": "string", "pattern": DNS_LABEL}, kind: schema}, ["name", kind])
                           for kind, schema in kinds.items())),
        "volumeMount": record({"name": filled(), "mountPath": filled(), "subPath": string(), "readOnly": boolean()},
                              ["name", "mountPath"]),
    }


def _network():
    port = record({"protocol": choice("TCP", "UDP", "SCTP"), "port": {"type": ["integer", "string"]},
                   "endPort": integer(1, 65535)})
    return {
        "peer": record({
            "podSelector": ref("labelSelector"), "namespaceSelector": ref("labelSelector"),
            "ipBlock": record({"cidr": filled(), "except": strings()}, ["cidr"])}),
        "egressRule": record({"to": array(ref("peer")), "ports": array(port)}),
    }


def definitions():
    return {**_selectors(), **_placement(), **_containers(), **_volumes(), **_network()}
