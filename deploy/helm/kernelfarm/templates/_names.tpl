{{- define "kernelfarm.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The beginning of all names; short enough for `-worker-VENDOR` after it. */}}
{{- define "kernelfarm.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kernelfarm.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kernelfarm.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, component. */}}
{{- define "kernelfarm.selector" -}}
app.kubernetes.io/name: {{ include "kernelfarm.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "kernelfarm.labels" -}}
{{ include "kernelfarm.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "kernelfarm.metadata" -}}
name: {{ printf "%s-%s" (include "kernelfarm.fullname" .root) (default .component .name) }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "kernelfarm.labels" . | nindent 2 }}
{{- end -}}

{{- define "kernelfarm.serviceAccountName" -}}
{{- default (ternary (include "kernelfarm.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* The reference of an image by its name. Arguments: root, image. */}}
{{- define "kernelfarm.image" -}}
{{- $digest := get .root.Values.image.digests .image -}}
{{- $tag := default .root.Chart.AppVersion .root.Values.image.tag -}}
{{- printf "%s/%s%s" .root.Values.image.repository .image (ternary (printf "@%s" $digest) (printf ":%s" $tag) (ne $digest "")) -}}
{{- end -}}

{{/* A worker's values, over the defaults, as YAML. Arguments: root, worker. */}}
{{- define "kernelfarm.worker" -}}
{{- $worker := mergeOverwrite (deepCopy .root.Values.workerDefaults) (deepCopy .worker) -}}
{{- if not $worker.name }}{{ $_ := set $worker "name" $worker.vendor }}{{ end -}}
{{- toYaml $worker -}}
{{- end -}}

{{- define "kernelfarm.frontendAddress" -}}
{{ include "kernelfarm.fullname" . }}-frontend:{{ .Values.frontend.service.port }}
{{- end -}}
