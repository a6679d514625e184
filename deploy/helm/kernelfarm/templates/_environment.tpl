{{/* The settings of a component. Arguments: root, component, config. */}}
{{- define "kernelfarm.environment" -}}
{{- $values := .root.Values -}}
{{- $is_worker := hasPrefix "worker" .component -}}
{{- $secrets := include "kernelfarm.secretVolumes" . | fromJson -}}
- name: KERNELFARM_LOG_LEVEL
  value: {{ $values.farm.logLevel }}
- name: KERNELFARM_DRAIN_GRACE_S
  value: {{ $values.farm.drainGraceSeconds | quote }}
{{- if $values.metrics.enabled }}
- name: KERNELFARM_METRICS_LISTEN
  value: "0.0.0.0:{{ $values.metrics.port }}"
{{- end }}
{{- if not $is_worker }}
- name: KERNELFARM_CONNECTION_AGE_S
  value: {{ $values.farm.connectionAgeSeconds | quote }}
{{- end }}
{{- if ne .component "optimizer" }}
- name: KERNELFARM_NAMESPACE
  value: {{ $values.farm.name }}
- name: KERNELFARM_SIGNING
  value: {{ $values.signing.mode | quote }}
{{- end }}
{{- if or $is_worker (eq .component "codegen") }}
- name: KERNELFARM_JOB_TIME_LIMIT_S
  value: {{ $values.farm.jobTimeLimitSeconds | quote }}
{{- end }}
{{- if ne .component "optimizer" }}
{{ include "kernelfarm.serverUrl" (dict "root" .root "server" "cache" "variable" "KERNELFARM_CACHE_URL" "role" (ternary "worker" .component $is_worker)) }}
{{- end }}
{{- if or $is_worker (eq .component "codegen") }}
{{ include "kernelfarm.serverUrl" (dict "root" .root "server" "broker" "variable" "KERNELFARM_BROKER_URL" "role" (ternary "worker" .component $is_worker)) }}
{{- end }}
{{- if hasKey $secrets "kernel-key" }}
- name: KERNELFARM_KERNEL_KEY_FILE
  value: /run/kernelfarm/kernel-key/kernels.key
{{- end }}
{{- if hasKey $secrets "program-key" }}
- name: KERNELFARM_PROGRAM_KEY_FILE
  value: /run/kernelfarm/program-key/programs.key
{{- end }}
{{- if hasKey $secrets "trusted-keys" }}
- name: KERNELFARM_TRUSTED_KEYS_FILE
  value: /run/kernelfarm/trusted-keys/public.json
{{- end }}
{{- if hasKey $secrets "internal-tls" }}
- name: KERNELFARM_INTERNAL_CERT_FILE
  value: /run/kernelfarm/internal-tls/tls.crt
- name: KERNELFARM_INTERNAL_KEY_FILE
  value: /run/kernelfarm/internal-tls/tls.key
- name: KERNELFARM_INTERNAL_CA_FILE
  value: /run/kernelfarm/internal-tls/ca.crt
{{- end }}
{{- range $name, $value := .config.environment }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* The URL of the cache or the broker. Arguments: root, server, variable, role. */}}
{{- define "kernelfarm.serverUrl" -}}
{{- $server := get .root.Values .server -}}
- name: {{ .variable }}
{{- if $server.bundled }}
  value: redis://{{ include "kernelfarm.fullname" .root }}-{{ .server }}:6379/0
{{- else }}
  valueFrom:
    secretKeyRef:
      name: {{ required (printf "%s.bundled is false, but %s.external.urlSecret is empty" .server .server) $server.external.urlSecret }}
      key: {{ .role }}
{{- end }}
{{- end -}}

{{/* The settings of a client in the cluster. Arguments: root, client (test or warming values). */}}
{{- define "kernelfarm.clientEnvironment" -}}
{{- $values := .root.Values -}}
- name: KERNELFARM_ENDPOINT
  value: {{ include "kernelfarm.frontendAddress" .root }}
- name: KERNELFARM_NAMESPACE
  value: {{ ternary (printf "%s/%s" $values.farm.name .client.tenant) $values.farm.name (ne .client.tenant "") }}
- name: KERNELFARM_SIGNING
  value: {{ $values.signing.mode | quote }}
{{- if eq $values.signing.mode "required" }}
- name: KERNELFARM_TRUSTED_KEYS_FILE
  value: /run/kernelfarm/trusted-keys/public.json
{{- end }}
{{- if $values.tls.public.existingSecret }}
- name: KERNELFARM_CA_FILE
  value: /run/kernelfarm/public-ca/ca.crt
{{- with $values.tls.public.serverName }}
- name: KERNELFARM_SERVER_NAME
  value: {{ . }}
{{- end }}
{{- end }}
{{- if .client.tokenSecret }}
- name: KERNELFARM_TOKEN_FILE
  value: /run/kernelfarm/token/token
{{- end }}
{{- end -}}

{{- define "kernelfarm.clientSecrets" -}}
{{- $values := .root.Values -}}
{{- $found := dict -}}
{{- if eq $values.signing.mode "required" }}{{ $_ := set $found "trusted-keys" (include "kernelfarm.keySecret" (dict "root" .root "name" "trustedKeysSecret")) }}{{ end -}}
{{- if $values.tls.public.existingSecret }}{{ $_ := set $found "public-ca" (required "tls.public.existingSecret is set: the chart's test needs tls.public.caSecret to check it" $values.tls.public.caSecret) }}{{ end -}}
{{- with .client.tokenSecret }}{{ $_ := set $found "token" . }}{{ end -}}
{{- with .client.traceKeySecret }}{{ $_ := set $found "trace-key" . }}{{ end -}}
{{- toJson $found -}}
{{- end -}}
