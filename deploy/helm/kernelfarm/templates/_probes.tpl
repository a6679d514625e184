{{/* The probes of a gRPC service. The kubelet speaks no TLS to gRPC services, so with TLS the container
     probes itself. Arguments: port, command (a list, or empty for native probes). */}}
{{- define "kernelfarm.serviceProbes" -}}
{{- $check := dict "grpc" (dict "port" .port) -}}
{{- if .command }}{{ $check = dict "exec" (dict "command" .command) }}{{ end -}}
startupProbe:
  {{- toYaml $check | nindent 2 }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 45
readinessProbe:
  {{- toYaml $check | nindent 2 }}
  periodSeconds: 4
  timeoutSeconds: 5
  failureThreshold: 2
# A process that hangs is replaced within 30 s.
livenessProbe:
  {{- toYaml $check | nindent 2 }}
  periodSeconds: 8
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}

{{/* A worker that takes no jobs although it could is `stuck`; every other state is alive. */}}
{{- define "kernelfarm.workerProbes" -}}
{{- $liveness := list "python" "-m" "kernelfarm.service.liveness" "/tmp/heartbeat" -}}
startupProbe:
  exec:
    command: {{ concat $liveness (list "--state" "polling" "--state" "serving" "--state" "waiting") | toJson }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
readinessProbe:
  exec:
    command: {{ concat $liveness (list "--state" "serving") | toJson }}
  periodSeconds: 4
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  exec:
    command: {{ concat $liveness (list "--state" "starting" "--state" "polling" "--state" "serving" "--state" "waiting" "--state" "draining") | toJson }}
  periodSeconds: 8
  timeoutSeconds: 5
  failureThreshold: 3
{{- end -}}

{{/* Until no load balancer sends new calls, the pod serves them. */}}
{{- define "kernelfarm.preStop" -}}
{{- with .Values.farm.preStopSeconds }}
lifecycle:
  preStop:
    exec:
      command: ["sleep", {{ . | quote }}]
{{- end }}
{{- end -}}

{{/* Gateways of one pod may take the grace twice and 10 s more (frontend_svc/gateways.py). */}}
{{- define "kernelfarm.serviceGrace" -}}
{{ add .Values.farm.preStopSeconds (mul 2 .Values.farm.drainGraceSeconds) 15 }}
{{- end -}}

{{- define "kernelfarm.metricsPort" -}}
{{- if .Values.metrics.enabled }}
- name: metrics
  containerPort: {{ .Values.metrics.port }}
{{- end }}
{{- end -}}
