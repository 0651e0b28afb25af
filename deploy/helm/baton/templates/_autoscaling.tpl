{{- define "baton.scaleTarget" -}}
{{- if eq .role "router" -}}
apiVersion: apps/v1
kind: Deployment
{{- else if eq .root.Values.workload.kind "StatefulSet" }}
apiVersion: apps/v1
kind: StatefulSet
{{- else }}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- end }}
name: {{ include "baton.roleName" . }}
{{- end }}

{{/* Up at once, down one at a time and late: what leaves drains, and weights take long to read again. */}}
{{- define "baton.scaleBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
scaleDown:
  stabilizationWindowSeconds: {{ .scaleDownStabilizationSeconds }}
  policies:
    - type: Pods
      value: 1
      periodSeconds: 60
{{- end }}

{{/*
What says best that a role is short of replicas, summed up: KEDA divides it by their number. Routers: requests
under way. Chains: requests that wait or run in them. Decode: shares of the KV cache in use, a pod's being 1.
*/}}
{{- define "baton.scaleQuery" -}}
{{- $pods := printf "namespace=%q,pod=~%q" .root.Release.Namespace (printf "%s-.*" (include "baton.roleName" .)) -}}
{{- if eq .role "router" -}}
sum(baton_requests_running{ {{- $pods -}} })
{{- else if eq .role "prefill" -}}
sum(baton_requests_waiting{ {{- $pods -}} }) + sum(baton_requests_running{ {{- $pods -}} })
{{- else -}}
sum(baton_kv_used_ratio{ {{- $pods -}} })
{{- end -}}
{{- end }}
