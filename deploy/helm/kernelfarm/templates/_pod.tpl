{{/* Metadata of a pod. Arguments: root, component, config. */}}
{{- define "kernelfarm.podMetadata" -}}
labels:
  {{- include "kernelfarm.labels" . | nindent 2 }}
  {{- with .root.Values.pod.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  # A change of a Secret's content restarts the pods that mount it. `helm template` reads no Secrets:
  # there, change secretsRevision.
  checksum/secrets: {{ include "kernelfarm.secretsChecksum" . }}
  {{- with .config.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* A digest of the Secrets of a component that are read only at start. */}}
{{- define "kernelfarm.secretsChecksum" -}}
{{- $root := .root -}}
{{- $seen := list $root.Values.secretsRevision -}}
{{- range (include "kernelfarm.secretNames" . | fromYamlArray) -}}
{{- $found := lookup "v1" "Secret" $root.Release.Namespace . -}}
{{- $seen = append $seen (printf "%s %s" . (toJson (get (default dict $found) "data"))) -}}
{{- end -}}
{{- $seen | toJson | sha256sum -}}
{{- end -}}

{{/* The names of these Secrets. The public certificate and the tenants are read again while a service runs. */}}
{{- define "kernelfarm.secretNames" -}}
{{- $values := .root.Values -}}
{{- $names := list -}}
{{- if eq $values.signing.mode "required" -}}
{{- if eq .component "frontend" }}{{ $names = append $names $values.signing.programKeySecret }}{{ end -}}
{{- if has .component (list "frontend" "codegen") }}{{ $names = append $names $values.signing.trustedKeysSecret }}{{ end -}}
{{- if hasPrefix "worker" .component }}{{ $names = append $names $values.signing.kernelKeySecret }}{{ end -}}
{{- end -}}
{{- if and $values.tls.internal.enabled (has .component (list "frontend" "optimizer" "codegen")) -}}
{{- $names = append $names (get $values.tls.internal (printf "%sSecret" .component)) -}}
{{- end -}}
{{- if ne .component "optimizer" -}}
{{- $names = concat $names (list $values.cache.external.urlSecret $values.cache.external.caSecret) -}}
{{- end -}}
{{- if or (eq .component "codegen") (hasPrefix "worker" .component) -}}
{{- $names = concat $names (list $values.broker.external.urlSecret $values.broker.external.caSecret) -}}
{{- end -}}
{{- if eq .component "frontend" }}{{ $names = append $names $values.adminToken.existingSecret }}{{ end -}}
{{- compact $names | toJson -}}
{{- end -}}

{{/* What every pod has. Arguments: root, component, config, seccompProfile (optional). */}}
{{- define "kernelfarm.podBasics" -}}
serviceAccountName: {{ include "kernelfarm.serviceAccountName" .root }}
automountServiceAccountToken: false
# Variables of Services would look like settings of kernelfarm.
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .root.Values.pod.runAsUser }}
  runAsGroup: {{ .root.Values.pod.runAsGroup }}
  fsGroup: {{ .root.Values.pod.runAsGroup }}
  seccompProfile:
    {{- include "kernelfarm.seccomp" . | nindent 4 }}
{{- end -}}

{{- define "kernelfarm.seccomp" -}}
{{- $profile := default (dict "type" "RuntimeDefault") .seccompProfile -}}
type: {{ $profile.type }}
{{- if eq $profile.type "Localhost" }}
localhostProfile: {{ required "seccompProfile.localhostProfile names the file of the profile" $profile.localhostProfile }}
{{- end }}
{{- end -}}

{{- define "kernelfarm.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "kernelfarm.scheduling" -}}
{{- with .config.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .config.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .config.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .config.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- $selector := include "kernelfarm.selector" . }}
{{- with .root.Values.pod.topologySpread }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml . | nindent 4 }}
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The strategy: a new pod serves before an old one ends. */}}
{{- define "kernelfarm.rollout" -}}
revisionHistoryLimit: 5
strategy:
  type: RollingUpdate
  rollingUpdate:
    maxSurge: 1
    maxUnavailable: 0
{{- end -}}

{{/* A volume of a Secret, and its mount. Arguments: name, secret. */}}
{{- define "kernelfarm.secretVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
{{- end -}}

{{- define "kernelfarm.secretMount" -}}
- name: {{ .name }}
  mountPath: /run/kernelfarm/{{ .name }}
  readOnly: true
{{- end -}}

{{/* The name of a Secret of signing keys. Arguments: root, name. */}}
{{- define "kernelfarm.keySecret" -}}
{{- $secret := get .root.Values.signing .name -}}
{{- if not $secret -}}
{{- fail (printf "signing.mode is `required`, but signing.%s is empty: make keys with `kernelfarm keys`, store them in Secrets, and name these in signing; or set signing.mode to `off` (values/minimal.yaml)" .name) -}}
{{- end -}}
{{- $secret -}}
{{- end -}}

{{/* The Secrets that a component mounts: names of volumes to names of Secrets, as YAML. */}}
{{- define "kernelfarm.secretVolumes" -}}
{{- $values := .root.Values -}}
{{- $is_worker := hasPrefix "worker" .component -}}
{{- $found := dict -}}
{{- if eq $values.signing.mode "required" -}}
{{- if eq .component "frontend" }}{{ $_ := set $found "program-key" (include "kernelfarm.keySecret" (dict "root" .root "name" "programKeySecret")) }}{{ end -}}
{{- if $is_worker }}{{ $_ := set $found "kernel-key" (include "kernelfarm.keySecret" (dict "root" .root "name" "kernelKeySecret")) }}{{ end -}}
{{- if has .component (list "frontend" "codegen") }}{{ $_ := set $found "trusted-keys" (include "kernelfarm.keySecret" (dict "root" .root "name" "trustedKeysSecret")) }}{{ end -}}
{{- end -}}
{{- if eq .component "frontend" -}}
{{- with $values.tenants.existingSecret }}{{ $_ := set $found "tenants" . }}{{ end -}}
{{- with $values.tls.public.existingSecret }}{{ $_ := set $found "public-tls" . }}{{ end -}}
{{- if $values.frontend.mtls.enabled }}{{ $_ := set $found "client-ca" (required "frontend.mtls needs tls.public.clientCaSecret" $values.tls.public.clientCaSecret) }}{{ end -}}
{{- end -}}
{{- if and $values.tls.internal.enabled (has .component (list "frontend" "optimizer" "codegen")) -}}
{{- $name := printf "%sSecret" .component -}}
{{- $_ := set $found "internal-tls" (required (printf "tls.internal needs %s" $name) (get $values.tls.internal $name)) -}}
{{- end -}}
{{- if and (not $values.cache.bundled) (ne .component "optimizer") -}}
{{- with $values.cache.external.caSecret }}{{ $_ := set $found "cache-ca" . }}{{ end -}}
{{- end -}}
{{- if and (not $values.broker.bundled) (or $is_worker (eq .component "codegen")) -}}
{{- with $values.broker.external.caSecret }}{{ $_ := set $found "broker-ca" . }}{{ end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "kernelfarm.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .root.Values.pod.tmpSize }}
{{- range $name, $secret := include "kernelfarm.secretVolumes" . | fromJson }}
{{ include "kernelfarm.secretVolume" (dict "name" $name "secret" $secret) }}
{{- end }}
{{- end -}}

{{- define "kernelfarm.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- range $name, $_ := include "kernelfarm.secretVolumes" . | fromJson }}
{{ include "kernelfarm.secretMount" (dict "name" $name) }}
{{- end }}
{{- end -}}
