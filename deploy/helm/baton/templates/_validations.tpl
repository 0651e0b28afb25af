{{/*
Rules over several values. Every one that is broken is told, each with both values as the user wrote them.
What one value may be is values.schema.json's; whether a model fits a machine is `baton validate`'s.
*/}}

{{- define "baton.validate" -}}
{{- $broken := list -}}
{{- range $rule := list "mode" "chain" "pages" "leases" "http" "drain" "model" "devices" "transfer" "scaling" "disruption" "front" "workload" "clusterSecurity" -}}
{{- range (include (printf "baton.validate.%s" $rule) $ | splitList "\n") -}}
{{- with trim . -}}{{- $broken = append $broken . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if $broken -}}
{{- fail (printf "\nvalues contradict each other:\n  - %s" (join "\n  - " $broken)) -}}
{{- end -}}
{{- end }}

{{- define "baton.validate.mode" -}}
{{- $colocated := eq .Values.mode "colocated" }}
{{- $known := include "baton.optionTable" . | fromJson }}
{{- range $name, $_ := .Values.prefill.options }}
{{- if not (has (include "baton.optionRole" (dict "root" $ "role" "prefill")) (dig $name "roles" list $known)) }}
prefill.options.{{ $name }}: is not for chains of mode: {{ $.Values.mode }}
{{- end }}
{{- end }}
{{- if $colocated }}
{{- if .Values.decode.options }}
decode.options: are set, and mode: colocated has no decode services
{{- end }}
{{- if .Values.decode.autoscaling.enabled }}
decode.autoscaling.enabled: true has nothing to scale: mode: colocated has no decode services
{{- end }}
{{- if eq .Values.workload.kind "DisaggregatedSet" }}
workload.kind: DisaggregatedSet rolls prefill and decode together, and mode: colocated has no decode services; take LeaderWorkerSet
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.validate.chain" -}}
{{- $layers := int .Values.model.layers -}}
{{- $partition := .Values.prefill.parallelism.layerPartition -}}
{{- $context := dict "root" $ "role" "prefill" }}
{{- $named := include "baton.option" (merge (dict "name" "chunk_profile") $context) }}
{{- if and .Values.prefill.chunkProfile (ne $partition "auto") }}
prefill.chunkProfile: is for prefill.parallelism.layerPartition: auto, which is "{{ $partition }}"; a chain that learns its costs writes prefill.options.chunk_profile, on a volume of its own
{{- end }}
{{- if and .Values.prefill.chunkProfile $named }}
prefill.chunkProfile: and prefill.options.chunk_profile: {{ $named }} name two files; leave one out
{{- end }}
{{- if eq $partition "auto" }}
{{- if not (or .Values.prefill.chunkProfile $named (include "baton.option" (merge (dict "name" "timed_profile") $context))) }}
prefill.parallelism.layerPartition: auto shares layers out by measured times, and nothing says them; set prefill.chunkProfile
{{- end }}
{{- end }}
{{- range $role := (include "baton.workerRoles" $ | fromJson).roles }}
{{- $pp := int (index $.Values $role).parallelism.pp -}}
{{- if and $layers (gt $pp $layers) }}
{{ $role }}.parallelism.pp: {{ $pp }} stages cannot share model.layers: {{ $layers }} layers; each stage needs one
{{- end }}
{{- $partition := default "" (index $.Values $role).parallelism.layerPartition }}
{{- if not (has $partition (list "" "auto")) }}
{{- $shares := splitList "," $partition }}
{{- $sum := 0 }}
{{- range $shares }}{{ $sum = add $sum (int .) }}{{ end }}
{{- if ne (len $shares) $pp }}
{{ $role }}.parallelism.layerPartition: "{{ $partition }}" is for {{ len $shares }} stages, {{ $role }}.parallelism.pp is {{ $pp }}
{{- end }}
{{- if and $layers (ne (int $sum) $layers) }}
{{ $role }}.parallelism.layerPartition: "{{ $partition }}" shares out {{ $sum }} layers, model.layers is {{ $layers }}
{{- end }}
{{- end }}
{{- $tp := int (index $.Values $role).parallelism.tp -}}
{{- if gt $tp 1 }}
{{- range $name, $only := dict "executor" "native" "device" "cpu" }}
{{- $value := include "baton.option" (dict "root" $ "role" $role "name" $name) }}
{{- if ne $value $only }}
{{ $role }}.parallelism.tp: {{ $tp }} takes {{ $role }}.options.{{ $name }}: {{ $only }}, which is {{ $value }}
{{- end }}
{{- end }}
{{- if and $.Values.networkPolicy.enabled $.Values.transfer.portRange }}
{{ $role }}.parallelism.tp: {{ $tp }} connects ranks at any port, and networkPolicy.enabled: true leaves only transfer.portRange: {{ $.Values.transfer.portRange }}; empty it
{{- end }}
{{- end }}
{{- end }}
{{- $m := int .Values.prefill.parallelism.tp -}}
{{- $n := int .Values.decode.parallelism.tp -}}
{{- if not (or (eq .Values.mode "colocated") (eq (mod $m $n) 0) (eq (mod $n $m) 0)) }}
prefill.parallelism.tp: {{ $m }} and decode.parallelism.tp: {{ $n }} can't share the heads of a hand-off: neither divides the other
{{- end }}
{{- end }}

{{- define "baton.validate.pages" -}}
{{- $pages := dict }}
{{- range $role := (include "baton.workerRoles" $ | fromJson).roles }}
{{- $_ := set $pages $role (include "baton.option" (dict "root" $ "role" $role "name" "page_size")) }}
{{- end }}
{{- if ne $pages.prefill (default $pages.prefill $pages.decode) }}
prefill.options.page_size: {{ $pages.prefill }} and decode.options.page_size: {{ $pages.decode }} differ; set options.page_size for both
{{- end }}
{{- $page := int $pages.prefill }}
{{- $size := include "baton.option" (dict "root" . "role" "prefill" "name" "chunked_prefill_size") }}
{{- $chunk := int $size }}
{{- if and (ne $size "auto") (ne $chunk -1) (or (lt $chunk 1) (ne (mod $chunk $page) 0)) }}
prefill.options.chunked_prefill_size: {{ $chunk }} is no multiple of page_size: {{ $page }} (-1: whole prompts)
{{- end }}
{{- $cap := include "baton.option" (dict "root" . "role" "prefill" "name" "max_prefill_tokens") | int }}
{{- if and (gt $cap 0) (lt $cap $page) }}
prefill.options.max_prefill_tokens: {{ $cap }} is less than page_size: {{ $page }}
{{- end }}
{{- end }}

{{- define "baton.validate.leases" -}}
{{- $lease := include "baton.option" (dict "root" . "role" "router" "name" "lease_ms") | int }}
{{- range $role := (include "baton.roles" $ | fromJson).roles }}
{{- $heartbeat := include "baton.option" (dict "root" $ "role" $role "name" "heartbeat_interval_ms") | int }}
{{- $own := include "baton.option" (dict "root" $ "role" $role "name" "lease_ms") | int }}
{{- if lt $lease (mul 2 $heartbeat | int) }}
router.options.lease_ms: {{ $lease }} is less than twice {{ $role }}.options.heartbeat_interval_ms: {{ $heartbeat }}
{{- else if lt $own (mul 2 $heartbeat | int) }}
{{ $role }}.options.lease_ms: {{ $own }} is less than twice {{ $role }}.options.heartbeat_interval_ms: {{ $heartbeat }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.validate.http" -}}
{{- $request := include "baton.option" (dict "root" . "role" "router" "name" "max_request_bytes") | int64 }}
{{- $flight := include "baton.option" (dict "root" . "role" "router" "name" "max_http_body_bytes_in_flight") | int64 }}
{{- if lt $flight $request }}
router.options.max_http_body_bytes_in_flight: {{ $flight }} is less than max_request_bytes: {{ $request }}
{{- end }}
{{- $ports := .Values.network.ports }}
{{- range $pair := list (list "http" "grpc") (list "grpc" "metrics") (list "http" "cluster") (list "grpc" "cluster") }}
{{- if eq (index $ports (index $pair 0) | int) (index $ports (index $pair 1) | int) }}
network.ports.{{ index $pair 0 }} and network.ports.{{ index $pair 1 }} are both {{ index $ports (index $pair 0) }}
{{- end }}
{{- end }}
{{- $service := .Values.router.service }}
{{- if eq (int $service.httpPort) (int $service.grpcPort) }}
router.service.httpPort and router.service.grpcPort are both {{ $service.httpPort }}
{{- end }}
{{- end }}

{{- define "baton.validate.drain" -}}
{{- range $role := (include "baton.roles" $ | fromJson).roles }}
{{- $grace := (index $.Values $role).terminationGracePeriodSeconds }}
{{- $needed := add $.Values.drain.timeoutSeconds (include "baton.settleSeconds" (dict "root" $ "role" $role) | int) 10 }}
{{- if and (not (kindIs "invalid" $grace)) (lt (int $grace) (int $needed)) }}
{{ $role }}.terminationGracePeriodSeconds: {{ $grace }} may kill pods before drain.timeoutSeconds: {{ $.Values.drain.timeoutSeconds }} is over and they have left; it takes at least {{ $needed }}
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.validate.model" -}}
{{- $model := .Values.model }}
{{- $needed := dict "pvc" "claimName" "hostPath" "path" "initContainer" "image" "ociVolume" "reference" }}
{{- with get $needed $model.source }}
{{- if not (index $model $model.source .) }}
model.source: {{ $model.source }} needs model.{{ $model.source }}.{{ . }}, which is empty
{{- end }}
{{- $mount := trimSuffix "/" $model.mountPath }}
{{- if and (ne $model.path $mount) (not (hasPrefix (printf "%s/" $mount) $model.path)) }}
model.path: {{ $model.path }} is not below model.mountPath: {{ $model.mountPath }}, where model.source: {{ $model.source }} puts the model
{{- end }}
{{- end }}
{{- range $source, $name := $needed }}
{{- if and (ne $model.source $source) (index $model $source $name) }}
model.{{ $source }}.{{ $name }}: {{ index $model $source $name }} is set, and model.source: {{ $model.source }} does not read it
{{- end }}
{{- end }}
{{- if and (eq $model.source "ociVolume") (not (semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version)) }}
model.source: ociVolume needs Kubernetes 1.33 with the feature gate ImageVolume; this is {{ .Capabilities.KubeVersion.Version }}
{{- end }}
{{- end }}

{{/* A worker on GPUs in a pod without one would never start. */}}
{{- define "baton.validate.devices" -}}
{{- range $role := (include "baton.workerRoles" $ | fromJson).roles }}
{{- $own := index $.Values $role }}
{{- $device := toString (dig "device" (dig "device" "cpu" $.Values.options) $own.options) }}
{{- $gpus := false }}
{{- range $name, $count := default dict $own.resources.limits }}
{{- if hasSuffix "/gpu" $name }}
{{- $gpus = true }}
{{- end }}
{{- end }}
{{- if and (hasPrefix "cuda" $device) (not $gpus) }}
{{ $role }}: options.device: {{ $device }} takes a GPU, and {{ $role }}.resources.limits reserves none (nvidia.com/gpu: 1)
{{- end }}
{{- end }}
{{- end }}

{{- define "baton.validate.transfer" -}}
{{- if eq .Values.transfer.backend "shm" }}
transfer.backend: shm works between processes of one pod's memory alone, and workload.kind: {{ .Values.workload.kind }} puts each in a pod of its own
{{- end }}
{{- range $role := (include "baton.workerRoles" $ | fromJson).roles }}
{{- if and (index $.Values $role).rdma.enabled (eq $.Values.transfer.backend "tcp") }}
{{ $role }}.rdma.enabled: true and transfer.backend: tcp contradict each other; auto uses RDMA
{{- end }}
{{- end }}
{{- if and (eq .Values.mode "disaggregated") (ne .Values.prefill.rdma.enabled .Values.decode.rdma.enabled) }}
prefill.rdma.enabled: {{ .Values.prefill.rdma.enabled }} and decode.rdma.enabled: {{ .Values.decode.rdma.enabled }} differ; the hand-off needs it on both sides
{{- end }}
{{- with .Values.transfer.portRange }}
{{- $ends := splitList "-" . }}
{{- if or (gt (index $ends 0 | int) (index $ends 1 | int)) (gt (index $ends 1 | int) 65535) (lt (index $ends 0 | int) 1024) }}
transfer.portRange: {{ . }} is no range of ports from 1024 to 65535
{{- end }}
{{- end }}
{{- end }}
