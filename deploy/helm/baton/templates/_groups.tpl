{{/*
(root, role): the spec of a LeaderWorkerSet, in which a group is a chain or a decode service and its pods the stages and ranks. A chain
without one of its stages is no chain, but the others need not start anew for it: `None` lets the one pod
come back and rejoin, which baton's stages do, instead of reading all weights again.
*/}}
{{- define "baton.groupSpec" -}}
{{- $own := index .root.Values .role -}}
{{- if not $own.autoscaling.enabled -}}
replicas: {{ $own.replicas }}
{{ end -}}
startupPolicy: LeaderCreated
rolloutStrategy:
  type: RollingUpdate
  rollingUpdateConfiguration:
    {{- toYaml $own.rollout | nindent 4 }}
leaderWorkerTemplate:
  size: {{ mul $own.parallelism.pp $own.parallelism.tp }}
  restartPolicy: None
  workerTemplate:
    {{- include "baton.podTemplate" . | nindent 4 }}
{{- end }}
