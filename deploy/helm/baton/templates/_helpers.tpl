{{/* Names and labels. */}}

{{- define "baton.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Kept short: a StatefulSet's pods add "-prefill-NN" and a hash of their revision, in 63 characters. */}}
{{- define "baton.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "baton.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "baton.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* (root, role): RELEASE-baton-prefill. */}}
{{- define "baton.roleName" -}}
{{- printf "%s-%s" (include "baton.fullname" .root) .role -}}
{{- end }}

{{- define "baton.selectorLabels" -}}
app.kubernetes.io/name: {{ include "baton.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .role }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* (root, role): labels of objects; role may be empty. */}}
{{- define "baton.labels" -}}
{{ include "baton.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: baton
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* (root, role, name): the metadata that every object begins with. */}}
{{- define "baton.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "baton.labels" . | nindent 2 }}
{{- with .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Roles of the pods that there are, as JSON. Where chains are colocated, they are prefill's pods. */}}
{{- define "baton.workerRoles" -}}
{{- ternary (list "prefill") (list "prefill" "decode") (eq .Values.mode "colocated") | dict "roles" | toJson -}}
{{- end }}
{{- define "baton.roles" -}}
{{- concat (list "router") (include "baton.workerRoles" . | fromJson).roles | dict "roles" | toJson -}}
{{- end }}

{{- define "baton.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{- define "baton.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "baton.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* The workers' pods, as kubectl --selector takes them. */}}
{{- define "baton.workerSelector" -}}
{{- printf "app.kubernetes.io/name=%s,app.kubernetes.io/instance=%s,app.kubernetes.io/component in (%s)" (include "baton.name" .) .Release.Name (join "," (include "baton.workerRoles" . | fromJson).roles) -}}
{{- end }}

{{/* Every address of it is a router, ready or not: workers register before a router is ready. */}}
{{- define "baton.routerHeadless" -}}
{{- printf "%s-router-headless" (include "baton.fullname" .) -}}
{{- end }}

{{/* A router's Service goes on sending it clients for a moment: its SIGTERM comes so much later. */}}
{{- define "baton.settleSeconds" -}}
{{- if eq .role "router" -}}{{- min 5 .root.Values.drain.timeoutSeconds -}}{{- else -}}0{{- end -}}
{{- end }}

{{/* A hook can wait in it since Kubernetes 1.30; in 1.29 the router itself does. */}}
{{- define "baton.settleHook" -}}
{{- if gt (include "baton.settleSeconds" . | int) 0 -}}
{{- semverCompare ">=1.30.0-0" .root.Capabilities.KubeVersion.Version -}}
{{- end -}}
{{- end }}

{{/* How long a pod may take to end, from the one value drain.timeoutSeconds: hook, drain, then leaving. */}}
{{- define "baton.graceSeconds" -}}
{{- $drain := .root.Values.drain -}}
{{- $own := (index .root.Values .role).terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $own -}}
{{- add $drain.timeoutSeconds (include "baton.settleSeconds" . | int) 10 -}}
{{- else -}}
{{- int $own -}}
{{- end -}}
{{- end }}
