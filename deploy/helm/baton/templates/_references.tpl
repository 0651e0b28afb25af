{{/*
What values name and the namespace lacks, as far as a cluster can be asked: `helm template` and `--dry-run=client`
have none. Every namespace has the account `default`, so that it answers says that there is a cluster, and that
we may ask it. A claim need not be bound yet: some wait for their first pod.
*/}}
{{- define "baton.references" -}}
{{- $namespace := .Release.Namespace -}}
{{- if lookup "v1" "ServiceAccount" $namespace "default" -}}
{{- $missing := list -}}
{{- with .Values.auth.existingSecret -}}
{{- $secret := lookup "v1" "Secret" $namespace . -}}
{{- if not $secret -}}
{{- $missing = append $missing (printf "auth.existingSecret: there is no Secret %s" .) -}}
{{- else if not (hasKey (default dict $secret.data) $.Values.auth.secretKey) -}}
{{- $missing = append $missing (printf "auth.secretKey: the Secret %s has no key %s" . $.Values.auth.secretKey) -}}
{{- end -}}
{{- end -}}
{{- range .Values.imagePullSecrets -}}
{{- if not (lookup "v1" "Secret" $namespace .name) -}}
{{- $missing = append $missing (printf "imagePullSecrets: there is no Secret %s" .name) -}}
{{- end -}}
{{- end -}}
{{- with .Values.router.ingress.tlsSecret -}}
{{- if not (lookup "v1" "Secret" $namespace .) -}}
{{- $missing = append $missing (printf "router.ingress.tlsSecret: there is no Secret %s" .) -}}
{{- end -}}
{{- end -}}
{{- with .Values.router.tls.existingSecret -}}
{{- $secret := lookup "v1" "Secret" $namespace . -}}
{{- if not $secret -}}
{{- $missing = append $missing (printf "router.tls.existingSecret: there is no Secret %s" .) -}}
{{- else if not (and (hasKey (default dict $secret.data) "tls.crt") (hasKey (default dict $secret.data) "tls.key")) -}}
{{- $missing = append $missing (printf "router.tls.existingSecret: the Secret %s has no tls.crt and tls.key" .) -}}
{{- end -}}
{{- end -}}
{{- range $role, $name := .Values.cluster.tls.existingSecrets -}}
{{- with $name -}}
{{- $secret := lookup "v1" "Secret" $namespace . -}}
{{- if not $secret -}}
{{- $missing = append $missing (printf "cluster.tls.existingSecrets.%s: there is no Secret %s" $role .) -}}
{{- else -}}
{{- range $key := list "tls.crt" "tls.key" "ca.crt" -}}
{{- if not (hasKey (default dict $secret.data) $key) -}}
{{- $missing = append $missing (printf "cluster.tls.existingSecrets.%s: the Secret %s has no %s" $role $name $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.cluster.token.existingSecret -}}
{{- $secret := lookup "v1" "Secret" $namespace . -}}
{{- if not $secret -}}
{{- $missing = append $missing (printf "cluster.token.existingSecret: there is no Secret %s" .) -}}
{{- else if not (hasKey (default dict $secret.data) $.Values.cluster.token.secretKey) -}}
{{- $missing = append $missing (printf "cluster.token.secretKey: the Secret %s has no key %s" . $.Values.cluster.token.secretKey) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.model.source "pvc" -}}
{{- if not (lookup "v1" "PersistentVolumeClaim" $namespace .Values.model.pvc.claimName) -}}
{{- $missing = append $missing (printf "model.pvc.claimName: there is no PersistentVolumeClaim %s" .Values.model.pvc.claimName) -}}
{{- end -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- if not (lookup "v1" "ServiceAccount" $namespace .Values.serviceAccount.name) -}}
{{- $missing = append $missing (printf "serviceAccount.name: there is no ServiceAccount %s" .Values.serviceAccount.name) -}}
{{- end -}}
{{- end -}}
{{- if $missing -}}
{{- fail (printf "\nvalues name what the namespace %s has not:\n  - %s" $namespace (join "\n  - " $missing)) -}}
{{- end -}}
{{- end -}}
{{- end }}
