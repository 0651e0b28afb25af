{{/*
(root, role): the Secret with the role's certificate, or nothing. cert-manager's is named like the role.
*/}}
{{- define "baton.clusterTlsSecret" -}}
{{- $tls := .root.Values.cluster.tls -}}
{{- if $tls.certManager.enabled -}}
{{- printf "%s-cluster-tls" (include "baton.roleName" .) -}}
{{- else -}}
{{- index $tls.existingSecrets .role -}}
{{- end -}}
{{- end }}

{{/* (root, role): where the pod has them. */}}
{{- define "baton.clusterSecurityMounts" -}}
{{- if include "baton.clusterTlsSecret" . }}
- name: cluster-tls
  mountPath: /run/baton-cluster-tls
  readOnly: true
{{- end }}
{{- if .root.Values.cluster.token.existingSecret }}
- name: cluster-token
  mountPath: /run/baton-cluster-token
  readOnly: true
{{- end }}
{{- end }}

{{- define "baton.clusterSecurityVolumes" -}}
{{- with include "baton.clusterTlsSecret" . }}
- name: cluster-tls
  secret:
    secretName: {{ . }}
    # fsGroup may read it.
    defaultMode: 288
{{- end }}
{{- with .root.Values.cluster.token.existingSecret }}
- name: cluster-token
  secret:
    secretName: {{ . }}
    defaultMode: 288
{{- end }}
{{- end }}

{{- define "baton.validate.clusterSecurity" -}}
{{- $tls := .Values.cluster.tls }}
{{- $secrets := $tls.existingSecrets }}
{{- $given := list }}
{{- range $role := (include "baton.roles" $ | fromJson).roles }}
{{- if index $secrets $role }}{{ $given = append $given $role }}{{ end }}
{{- end }}
{{- if and $given (lt (len $given) (len (include "baton.roles" . | fromJson).roles)) }}
cluster.tls.existingSecrets: only {{ join " and " $given }} has one, and every role needs a certificate
{{- end }}
{{- if and $given $tls.certManager.enabled }}
cluster.tls.existingSecrets and cluster.tls.certManager.enabled: true both say where certificates come from
{{- end }}
{{- if and $tls.certManager.enabled (not $tls.certManager.issuerRef.name) }}
cluster.tls.certManager.issuerRef.name: which issuer? cluster.tls.certManager.enabled is true
{{- end }}
{{- end }}
