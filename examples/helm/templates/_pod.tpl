{{- /* What the pods of servers, workers and the job share. */}}
{{- define "pod" -}}
automountServiceAccountToken: false
securityContext:
  { runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001,
    seccompProfile: { type: RuntimeDefault } }
volumes:
  - name: config
    configMap: { name: {{ .Release.Name }} }
  - name: data # for temporary files; memory is in PostgreSQL
    emptyDir: { sizeLimit: 64Mi }
{{- end }}

{{- define "container" -}}
image: {{ .Values.image }}
imagePullPolicy: IfNotPresent
env:
  {{- range $name, $key := .Values.env }}
  - name: {{ $name }}
    valueFrom: { secretKeyRef: { name: {{ $.Values.secret }}, key: {{ $key }} } }
  {{- end }}
volumeMounts:
  - { name: config, mountPath: /app/config, readOnly: true }
  - { name: data, mountPath: /data }
securityContext:
  { readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
{{- end }}

{{- define "listening" -}}
ports:
  - { name: http, containerPort: 8400 }
startupProbe: { httpGet: { path: /healthz, port: 8400 }, periodSeconds: 2, failureThreshold: 30 }
# stays ready while the store is away: chat goes on without memory
readinessProbe: { httpGet: { path: /readyz, port: 8400 }, periodSeconds: 5, timeoutSeconds: 3 }
livenessProbe:
  { httpGet: { path: /healthz, port: 8400 }, periodSeconds: 15, timeoutSeconds: 5,
    failureThreshold: 4 }
{{- end }}
