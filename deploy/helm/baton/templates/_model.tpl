{{/* Where the model comes from: in the image, or a volume at model.mountPath. */}}

{{- define "baton.modelVolume" -}}
{{- $model := .Values.model }}
{{- if eq $model.source "pvc" }}
- name: model
  persistentVolumeClaim:
    claimName: {{ $model.pvc.claimName }}
    readOnly: true
{{- else if eq $model.source "hostPath" }}
- name: model
  hostPath:
    path: {{ $model.hostPath.path }}
    # A pod whose node lacks the directory stays pending with an event that names it.
    type: Directory
{{- else if eq $model.source "initContainer" }}
- name: model
  emptyDir:
    {{- with $model.initContainer.sizeLimit }}
    sizeLimit: {{ . }}
    {{- else }} {}
    {{- end }}
{{- else if eq $model.source "ociVolume" }}
- name: model
  image:
    reference: {{ $model.ociVolume.reference }}
    pullPolicy: {{ $model.ociVolume.pullPolicy }}
{{- end }}
{{- end }}

{{- define "baton.modelMount" -}}
{{- $model := .Values.model }}
{{- if ne $model.source "image" }}
- name: model
  mountPath: {{ $model.mountPath }}
  readOnly: true
  {{- if and (eq $model.source "pvc") $model.pvc.subPath }}
  subPath: {{ $model.pvc.subPath }}
  {{- end }}
{{- end }}
{{- end }}

{{/* It fills the volume and ends; it runs as the same user and sees nothing else. */}}
{{- define "baton.modelInitContainer" -}}
{{- $init := .Values.model.initContainer -}}
- name: model
  image: {{ $init.image }}
  imagePullPolicy: {{ $init.pullPolicy }}
  {{- with $init.command }}
  command:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $init.args }}
  args:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $init.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- toYaml $init.resources | nindent 4 }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
  volumeMounts:
    - name: model
      mountPath: {{ .Values.model.mountPath }}
    - name: tmp
      mountPath: /tmp
{{- end }}
