{{/*
Options of the processes: one YAML file for each role, read with --config. What the chart derives is not
settable beside it (values.schema.json has no such name), so a value is written in one place.
*/}}

{{/* files/options.json: {option: {roles, default}}, made of the options table. */}}
{{- define "baton.optionTable" -}}
{{- .Files.Get "files/options.json" -}}
{{- end }}

{{/* (root, role): the role by which the table knows what the pods take. */}}
{{- define "baton.optionRole" -}}
{{- ternary "colocated" .role (and (eq .role "prefill") (eq .root.Values.mode "colocated")) -}}
{{- end }}

{{/*
(root, role): what .Values.options and the role's own options say for this role, as YAML. Options of other
roles are left out, so that a change rolls only the pods that it concerns.
*/}}
{{- define "baton.userOptions" -}}
{{- $role := .role -}}
{{- $known := include "baton.optionTable" .root | fromJson -}}
{{- $options := dict -}}
{{- range $name, $value := .root.Values.options -}}
{{- if has (include "baton.optionRole" (dict "root" $.root "role" $role)) (dig $name "roles" list $known) -}}
{{- $_ := set $options $name $value -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := (index .root.Values .role).options -}}
{{- $_ := set $options $name $value -}}
{{- end -}}
{{- toYaml $options -}}
{{- end }}

{{/* (root, role, name): the effective value of one option, its default included. */}}
{{- define "baton.option" -}}
{{- $options := include "baton.userOptions" . | fromYaml -}}
{{- $known := include "baton.optionTable" .root | fromJson -}}
{{- if hasKey $options .name -}}{{ get $options .name | toString }}{{- else -}}{{ dig .name "default" "" $known }}{{- end -}}
{{- end }}

{{/*
(root, role): the file that the role's processes read. Whole numbers are floats to Helm, and large ones would
be written with an exponent.
*/}}
{{- define "baton.optionsFile" -}}
{{- $root := .root -}}
{{- $role := .role -}}
{{- $own := index $root.Values $role -}}
{{- $options := include "baton.userOptions" . | fromYaml -}}
{{- $_ := set $options "model_path" $root.Values.model.path -}}
{{- with $root.Values.model.servedName -}}{{- $_ := set $options "served_model_name" . -}}{{- end -}}
{{- $_ := set $options "host" $root.Values.network.listen -}}
{{- $_ := set $options "grpc_port" $root.Values.network.ports.grpc -}}
{{- if include "baton.clusterTlsSecret" . -}}
{{- $_ := set $options "cluster_tls_cert" "/run/baton-cluster-tls/tls.crt" -}}
{{- $_ := set $options "cluster_tls_key" "/run/baton-cluster-tls/tls.key" -}}
{{- $_ := set $options "cluster_tls_ca" "/run/baton-cluster-tls/ca.crt" -}}
{{- end -}}
{{- if $root.Values.cluster.token.existingSecret -}}
{{- $_ := set $options "cluster_token_file" (printf "/run/baton-cluster-token/%s" $root.Values.cluster.token.secretKey) -}}
{{- end -}}
{{- $_ := set $options "drain_timeout_ms" (mul $root.Values.drain.timeoutSeconds 1000) -}}
{{- if and (eq $role "router") (ne (include "baton.settleHook" .) "true") -}}
{{- $_ := set $options "drain_settle_ms" (mul (include "baton.settleSeconds" .) 1000) -}}
{{- end -}}
{{- if eq $role "router" -}}
{{- $_ := set $options "port" $root.Values.network.ports.http -}}
{{- $_ := set $options "cluster_port" $root.Values.network.ports.cluster -}}
{{- if $own.tls.existingSecret -}}
{{- $_ := set $options "ssl_certfile" "/run/baton-tls/tls.crt" -}}
{{- $_ := set $options "ssl_keyfile" "/run/baton-tls/tls.key" -}}
{{- end -}}
{{- if eq $root.Values.discovery.mode "kubernetes" -}}
{{- $_ := set $options "service_discovery" "kubernetes" -}}
{{- $_ := set $options "service_discovery_namespace" $root.Release.Namespace -}}
{{- $_ := set $options "service_discovery_selector" (include "baton.workerSelector" $root) -}}
{{- $_ := set $options "service_discovery_port" $root.Values.network.ports.grpc -}}
{{- end -}}
{{- else -}}
{{- $_ := set $options "disaggregation_mode" (ternary "null" $role (eq (include "baton.optionRole" .) "colocated")) -}}
{{- $_ := set $options "metrics_port" $root.Values.network.ports.metrics -}}
{{- $routers := printf "%s:%d" (include "baton.routerHeadless" $root) (int $root.Values.network.ports.cluster) -}}
{{- $_ := set $options "router_address" (ternary $routers "" (eq $root.Values.discovery.mode "register")) -}}
{{- $_ := set $options "pp_size" $own.parallelism.pp -}}
{{- with $own.parallelism.layerPartition -}}{{- $_ := set $options "pp_layer_partition" . -}}{{- end -}}
{{- $_ := set $options "tp_size" $own.parallelism.tp -}}
{{- $_ := set $options "kv_transport" $root.Values.transfer.backend -}}
{{- end -}}
{{- if eq $role "prefill" -}}
{{- with include "baton.chunkProfileName" $root -}}{{- $_ := set $options "chunk_profile" (printf "/etc/baton/%s" .) -}}{{- end -}}
{{- if eq $root.Values.workload.kind "StatefulSet" -}}
{{- $_ := set $options "chain_id" (include "baton.chainPrefix" $root) -}}
{{- end -}}
{{- else if and (eq $role "decode") (gt (mul $own.parallelism.pp $own.parallelism.tp) 1) (eq $root.Values.workload.kind "StatefulSet") -}}
{{- $stages := ternary (printf "-pp%d" (int $own.parallelism.pp)) "" (gt (int $own.parallelism.pp) 1) -}}
{{- $ranks := ternary (printf "-tp%d" (int $own.parallelism.tp)) "" (gt (int $own.parallelism.tp) 1) -}}
{{- $split := "" -}}
{{- with $own.parallelism.layerPartition -}}{{- $split = printf "-%s" (. | replace "," "-") -}}{{- end -}}
{{- $_ := set $options "decode_id" (printf "%s%s%s%s" (include "baton.fullname" $root) $stages $ranks $split) -}}
{{- end -}}
{{- range $name := keys $options | sortAlpha -}}
{{- $value := get $options $name -}}
{{ $name }}: {{ if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ int64 $value }}{{ else if kindIs "string" $value }}{{ $value | quote }}{{ else }}{{ $value }}{{ end }}
{{ end -}}
{{- end }}

{{/*
The shape and the mode are part of a chain's name, and of a decode service's: while an upgrade from 2 stages to 4 rolls, old and new pods are
different chains, instead of one that is refused for its contradiction and never becomes ready.
*/}}
{{- define "baton.chainPrefix" -}}
{{- $parallelism := .Values.prefill.parallelism -}}
{{- $split := $parallelism.layerPartition | replace "," "-" -}}
{{- with .Values.prefill.chunkProfile -}}{{- $split = printf "%s-%s" $split (sha256sum . | trunc 8) -}}{{- end -}}
{{- $ranks := ternary (printf "-tp%d" (int $parallelism.tp)) "" (gt (int $parallelism.tp) 1) -}}
{{- $kind := ternary "-colocated" "" (eq .Values.mode "colocated") -}}
{{- printf "%s%s-pp%d%s%s" (include "baton.fullname" .) $kind (int $parallelism.pp) $ranks (ternary (printf "-%s" $split) "" (ne $split "")) -}}
{{- end }}

{{/*
The file of prefill.chunkProfile beside the options, or nothing. Another text has another name, so that pods are replaced,
and makes another chain: stages that were split by different times don't fit together.
*/}}
{{- define "baton.chunkProfileName" -}}
{{- with .Values.prefill.chunkProfile -}}{{- printf "chunk-profile-%s.json" (sha256sum . | trunc 8) -}}{{- end -}}
{{- end }}
