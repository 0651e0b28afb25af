{{/* Rules over several values, continued: what concerns the objects around the pods. */}}

{{- define "baton.validate.scaling" -}}
{{- range $role := (include "baton.roles" $ | fromJson).roles }}
{{- $own := index $.Values $role }}
{{- $scaling := $own.autoscaling }}
{{- if $scaling.enabled }}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) }}
{{ $role }}.autoscaling.minReplicas: {{ $scaling.minReplicas }} is more than {{ $role }}.autoscaling.maxReplicas: {{ $scaling.maxReplicas }}
{{- end }}
{{- if and (eq $role "prefill") (gt (mul $own.parallelism.pp $own.parallelism.tp) 1) (eq $.Values.workload.kind "StatefulSet") }}
prefill.autoscaling.enabled: true would scale single stages, since prefill.parallelism.pp is {{ $own.parallelism.pp }}{{ if gt (int $own.parallelism.tp) 1 }}, prefill.parallelism.tp is {{ $own.parallelism.tp }}{{ end }} and workload.kind is StatefulSet; LeaderWorkerSet scales whole chains
{{- end }}
{{- if and (eq $role "decode") (gt (mul $own.parallelism.pp $own.parallelism.tp) 1) (eq $.Values.workload.kind "StatefulSet") }}
decode.autoscaling.enabled: true would scale single pods of a service, since decode.parallelism.pp is {{ $own.parallelism.pp }}, decode.parallelism.tp is {{ $own.parallelism.tp }} and workload.kind is StatefulSet; LeaderWorkerSet scales whole services
{{- end }}
{{- if and (ne $role "router") (eq $.Values.workload.kind "DisaggregatedSet") }}
{{ $role }}.autoscaling.enabled: true has nothing to scale: workload.kind: DisaggregatedSet has no scale subresource for one role
{{- end }}
{{- if and (eq $scaling.kind "HPA") (not (dig "requests" "cpu" "" $own.resources)) }}
{{ $role }}.autoscaling.kind: HPA compares CPU use with a request, and {{ $role }}.resources.requests.cpu is not set
{{- end }}
{{- if and (eq $scaling.kind "KEDA") (not $scaling.keda.serverAddress) }}
{{ $role }}.autoscaling.kind: KEDA asks Prometheus, and {{ $role }}.autoscaling.keda.serverAddress is empty
{{- end }}
{{- if and $scaling.keda.query (not $scaling.keda.threshold) }}
{{ $role }}.autoscaling.keda.query is set, and {{ $role }}.autoscaling.keda.threshold is empty
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.validate.disruption" -}}
{{- range $role := (include "baton.roles" $ | fromJson).roles }}
{{- $own := index $.Values $role }}
{{- $none := or (eq (toString $own.pdb.maxUnavailable) "0") (eq (toString $own.pdb.maxUnavailable) "0%") }}
{{- if and $own.pdb.enabled $none }}
{{ $role }}.pdb.maxUnavailable: {{ $own.pdb.maxUnavailable }} lets no node be drained; set {{ $role }}.pdb.enabled: false if no budget is meant
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.validate.front" -}}
{{- $ingress := .Values.router.ingress }}
{{- if and $ingress.enabled (not $ingress.hosts) }}
router.ingress.enabled: true needs router.ingress.hosts, which is empty
{{- end }}
{{- if and $ingress.tlsSecret (not $ingress.enabled) }}
router.ingress.tlsSecret: {{ $ingress.tlsSecret }} is set, and router.ingress.enabled is false
{{- end }}
{{- $gateway := .Values.router.gateway }}
{{- if and $gateway.enabled (not $gateway.parentRefs) }}
router.gateway.enabled: true needs router.gateway.parentRefs, which is empty
{{- end }}
{{- $service := .Values.router.service }}
{{- if and (eq $service.type "ClusterIP") (or $service.httpNodePort $service.grpcNodePort) }}
router.service.httpNodePort: {{ $service.httpNodePort }} and grpcNodePort: {{ $service.grpcNodePort }} need router.service.type NodePort or LoadBalancer, not ClusterIP
{{- end }}
{{- if and (ne $service.type "LoadBalancer") $service.loadBalancerSourceRanges }}
router.service.loadBalancerSourceRanges is set, and router.service.type: {{ $service.type }} has no load balancer
{{- end }}
{{- end }}

{{- define "baton.validate.workload" -}}
{{- $prefill := int .Values.prefill.replicas }}
{{- $decode := int .Values.decode.replicas }}
{{- if and (eq .Values.workload.kind "DisaggregatedSet") (eq .Values.mode "disaggregated") (ne (eq $prefill 0) (eq $decode 0)) }}
prefill.replicas: {{ $prefill }} and decode.replicas: {{ $decode }}: workload.kind: DisaggregatedSet takes none or both
{{- end }}
{{- range $role := (include "baton.roles" $ | fromJson).roles }}
{{- $own := index $.Values $role }}
{{- if and $.Values.networkPolicy.enabled $own.hostNetwork }}
{{ $role }}.hostNetwork: true and networkPolicy.enabled: true contradict each other; a policy does not see pods on the host's network
{{- end }}
{{- end }}
{{- range $role := (include "baton.workerRoles" $ | fromJson).roles }}
{{- $own := index $.Values $role }}
{{- $rollout := $own.rollout }}
{{- if and (ne $.Values.workload.kind "StatefulSet") (has (toString $rollout.maxSurge) (list "0" "0%")) (has (toString $rollout.maxUnavailable) (list "0" "0%")) }}
{{ $role }}.rollout.maxSurge: {{ $rollout.maxSurge }} and {{ $role }}.rollout.maxUnavailable: {{ $rollout.maxUnavailable }} let no update begin
{{- end }}
{{- $limit := dig "limits" "memory" "" $own.resources }}
{{- $request := dig "requests" "memory" "" $own.resources }}
{{- if and $limit $request (gt (include "baton.bytes" $request | int64) (include "baton.bytes" $limit | int64)) }}
{{ $role }}.resources.requests.memory: {{ $request }} is more than {{ $role }}.resources.limits.memory: {{ $limit }}
{{- end }}
{{- end }}
{{- end }}

{{/* Bytes of a quantity of memory. */}}
{{- define "baton.bytes" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+" $text | float64 -}}
{{- $units := dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "m" 0.001 -}}
{{- mulf $number (get $units (regexFind "[A-Za-z]*$" $text)) | int64 -}}
{{- end }}
