{{/*
One pod template for every role and kind of workload. Each helper takes (root, role), and the pod also
`index`: how a prefill pod learns its place in a chain.
*/}}

{{- define "baton.podTemplate" -}}
{{- $root := .root -}}
{{- $role := .role -}}
{{- $own := index $root.Values $role -}}
metadata:
  labels:
    {{- include "baton.selectorLabels" . | nindent 4 }}
    app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
    app.kubernetes.io/part-of: baton
    {{- with $root.Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with $own.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/options: {{ include "baton.optionsFile" . | sha256sum }}
    {{- with $own.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "baton.podPlacement" . | nindent 2 }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  serviceAccountName: {{ include "baton.serviceAccountName" $root }}
  automountServiceAccountToken: {{ and (eq $role "router") (eq $root.Values.discovery.mode "kubernetes") }}
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "baton.graceSeconds" . }}
  {{- if $own.hostNetwork }}
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ $root.Values.security.runAsUser }}
    runAsGroup: {{ $root.Values.security.runAsGroup }}
    fsGroup: {{ $root.Values.security.fsGroup }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- if eq $root.Values.model.source "initContainer" }}
  initContainers:
    {{- include "baton.modelInitContainer" $root | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ $role }}
      image: {{ include "baton.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args:
        - {{ ternary "router" "worker" (eq $role "router") }}
        - --config=/etc/baton/options.yaml
      env:
        {{- include "baton.podEnv" . | nindent 8 }}
      ports:
        {{- if eq $role "router" }}
        - name: http
          containerPort: {{ $root.Values.network.ports.http }}
        {{- else }}
        - name: metrics
          containerPort: {{ $root.Values.network.ports.metrics }}
        {{- end }}
        - name: grpc
          containerPort: {{ $root.Values.network.ports.grpc }}
        {{- if eq $role "router" }}
        - name: cluster
          containerPort: {{ $root.Values.network.ports.cluster }}
        {{- end }}
      {{- include "baton.podProbes" . | nindent 6 }}
      {{- include "baton.podLifecycle" . | nindent 6 }}
      resources:
        {{- include "baton.podResources" . | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
          {{- if and (ne $role "router") $own.rdma.enabled }}
          add: [IPC_LOCK]
          {{- end }}
      volumeMounts:
        {{- include "baton.podMounts" . | nindent 8 }}
  volumes:
    {{- include "baton.podVolumes" . | nindent 4 }}
{{- end }}

{{- define "baton.podPlacement" -}}
{{- $own := index .root.Values .role -}}
{{- with $own.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $own.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range $own.topologySpreadConstraints }}
  - {{- toYaml . | nindent 4 }}
    {{- if not .labelSelector }}
    labelSelector:
      matchLabels:
        {{- include "baton.selectorLabels" $ | nindent 8 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- with $own.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $own.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $own.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- end }}

{{/* Names that are no option must not begin with BATON_: the process refuses them. */}}
{{- define "baton.podEnv" -}}
{{- $root := .root -}}
{{- $role := .role -}}
{{- $own := index $root.Values $role -}}
- name: BATON_INSTANCE_ID
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- if eq $role "router" }}
{{- with $root.Values.auth.existingSecret }}
- name: BATON_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $root.Values.auth.secretKey }}
{{- end }}
{{- else }}
- name: BATON_ADVERTISE_HOST
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- include "baton.threadsEnv" . }}
{{- with $root.Values.transfer.devices }}
- name: UCX_NET_DEVICES
  value: {{ . | quote }}
{{- end }}
{{- with $root.Values.transfer.portRange }}
- name: UCX_TCP_PORT_RANGE
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- if eq $role "prefill" }}
{{- if eq $root.Values.workload.kind "StatefulSet" }}
- name: BATON_PREFILL_INDEX
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
{{- else }}
- name: CHAIN_SET
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['leaderworkerset.sigs.k8s.io/name']
- name: CHAIN_GROUP
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['leaderworkerset.sigs.k8s.io/group-index']
- name: BATON_CHAIN_ID
  value: $(CHAIN_SET)-$(CHAIN_GROUP)
{{- if gt (int $own.parallelism.tp) 1 }}
{{- /* The only chain of its group; that one's id gets a -0. */}}
- name: BATON_PREFILL_INDEX
{{- else }}
- name: BATON_PP_RANK
{{- end }}
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']
{{- end }}
{{- end }}
{{- if eq $role "decode" }}
{{- if eq $root.Values.workload.kind "StatefulSet" }}
- name: BATON_DECODE_INDEX
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
{{- else if gt (mul $own.parallelism.pp $own.parallelism.tp) 1 }}
- name: DECODE_SET
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['leaderworkerset.sigs.k8s.io/name']
- name: DECODE_GROUP
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['leaderworkerset.sigs.k8s.io/group-index']
- name: BATON_DECODE_ID
  value: $(DECODE_SET)-$(DECODE_GROUP)
{{- if eq (int $own.parallelism.pp) 1 }}
- name: BATON_TP_RANK
{{- else if eq (int $own.parallelism.tp) 1 }}
- name: BATON_PP_RANK
{{- else }}
{{- /* The only service of its group; that one's id gets a -0. */}}
- name: BATON_DECODE_INDEX
{{- end }}
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']
{{- end }}
{{- end }}
{{- with $own.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* 0 threads are as many as the container may use. baton finds a limit itself, but of a mere request it knows nothing
     and would count the node's cores, which are others'. */}}
{{- define "baton.threadsEnv" -}}
{{- $own := index .root.Values .role -}}
{{- $limits := default dict $own.resources.limits -}}
{{- $requests := default dict $own.resources.requests }}
{{- if $own.threads }}
- name: BATON_THREADS
  value: {{ $own.threads | int | quote }}
{{- else if or $limits.cpu $requests.cpu }}
- name: BATON_THREADS
  valueFrom:
    resourceFieldRef:
      resource: {{ ternary "limits.cpu" "requests.cpu" (not (empty $limits.cpu)) }}
      divisor: "1"
{{- end }}
{{- end }}

{{/*
Startup asks for the process (service ""), readiness for its service: whether it takes requests, which draining
ends. Liveness is /health, which fails when a loop or a step stands still: gRPC's threads would answer for a process
whose loop is stuck. No answer waits for a peer.
*/}}
{{- define "baton.readinessService" -}}
{{- get (dict "router" "baton.v1.Inference" "prefill" "baton.v1.Prefill" "decode" "baton.v1.Decode") .role -}}
{{- end }}

{{/* kubelet's gRPC probes speak no TLS: where the port does, HTTP answers in its place. */}}
{{- define "baton.grpcHasTls" -}}
{{- if eq .role "router" -}}
{{- if .root.Values.router.tls.existingSecret -}}true{{- end -}}
{{- else -}}
{{- if include "baton.clusterTlsSecret" . -}}true{{- end -}}
{{- end -}}
{{- end }}

{{/* (root, role, path) */}}
{{- define "baton.httpProbe" -}}
httpGet:
  path: {{ .path }}
  port: {{ ternary "http" "metrics" (eq .role "router") }}
  {{- if and (eq .role "router") .root.Values.router.tls.existingSecret }}
  scheme: HTTPS
  {{- end }}
{{- end }}

{{- define "baton.podProbes" -}}
{{- $probes := (index .root.Values .role).probes -}}
{{- $port := .root.Values.network.ports.grpc -}}
{{- $tls := include "baton.grpcHasTls" . -}}
startupProbe:
  {{- if $tls }}
  {{- include "baton.httpProbe" (dict "root" .root "role" .role "path" "/health") | nindent 2 }}
  {{- else }}
  grpc:
    port: {{ $port }}
  {{- end }}
  {{- toYaml $probes.startup | nindent 2 }}
livenessProbe:
  {{- include "baton.httpProbe" (dict "root" .root "role" .role "path" "/health") | nindent 2 }}
  {{- toYaml $probes.liveness | nindent 2 }}
readinessProbe:
  {{- if $tls }}
  {{- include "baton.httpProbe" (dict "root" .root "role" .role "path" "/readiness") | nindent 2 }}
  {{- else }}
  grpc:
    port: {{ $port }}
    service: {{ include "baton.readinessService" . }}
  {{- end }}
  {{- toYaml $probes.readiness | nindent 2 }}
{{- end }}

{{/* A worker drains from SIGTERM on and needs no hook. */}}
{{- define "baton.podLifecycle" -}}
{{- if eq (include "baton.settleHook" .) "true" -}}
lifecycle:
  preStop:
    sleep:
      seconds: {{ include "baton.settleSeconds" . }}
{{- end -}}
{{- end }}

{{- define "baton.podResources" -}}
{{- $own := index .root.Values .role -}}
{{- $resources := deepCopy $own.resources -}}
{{- if and (ne .role "router") $own.rdma.enabled -}}
{{- $count := $own.rdma.count | int -}}
{{- $_ := set $resources "requests" (merge (dict $own.rdma.resource $count) (default dict $resources.requests)) -}}
{{- $_ := set $resources "limits" (merge (dict $own.rdma.resource $count) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{- define "baton.podMounts" -}}
{{- $own := index .root.Values .role -}}
- name: options
  mountPath: /etc/baton
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- if ne .role "router" }}
{{- if $own.shm.enabled }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- end }}
{{- if and (eq .role "router") .root.Values.router.tls.existingSecret }}
- name: tls
  mountPath: /run/baton-tls
  readOnly: true
{{- end }}
{{- include "baton.clusterSecurityMounts" . }}
{{- include "baton.modelMount" .root }}
{{- with $own.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "baton.podVolumes" -}}
{{- $own := index .root.Values .role -}}
- name: options
  configMap:
    name: {{ include "baton.roleName" . }}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- if ne .role "router" }}
{{- if $own.shm.enabled }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ $own.shm.sizeLimit }}
{{- end }}
{{- end }}
{{- if and (eq .role "router") .root.Values.router.tls.existingSecret }}
- name: tls
  secret:
    secretName: {{ .root.Values.router.tls.existingSecret }}
    # fsGroup may read it.
    defaultMode: 288
{{- end }}
{{- include "baton.clusterSecurityVolumes" . }}
{{- include "baton.modelVolume" .root }}
{{- with $own.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
