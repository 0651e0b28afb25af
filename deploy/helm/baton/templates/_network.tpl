{{- define "baton.peerPods" -}}
- podSelector:
    matchLabels:
      {{- include "baton.selectorLabels" . | nindent 6 }}
{{- end }}

{{/* Ports on which UCX listens: those of transfer.portRange, else any of TCP. RDMA passes no policy. */}}
{{- define "baton.dataPorts" -}}
ports:
  - protocol: TCP
    {{- with .Values.transfer.portRange }}
    port: {{ splitList "-" . | first }}
    endPort: {{ splitList "-" . | last }}
    {{- end }}
{{- end }}
