{{- /* The name of an image: its tag or digest, or both; a digest needs no tag. */ -}}
{{- define "flux-operator.image" -}}
{{- $tag := .image.tag -}}
{{- if not (or .image.tag .image.digest) -}}{{- $tag = .usual -}}{{- end -}}
{{- .image.repository -}}{{- with $tag }}:{{ . }}{{ end -}}{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- /* The image of the operator, its webhook and its Jobs. */ -}}
{{- define "flux-operator.ownImage" -}}
{{- include "flux-operator.image" (dict "image" .Values.image "usual" .Chart.AppVersion) -}}
{{- end -}}

{{- /* "true" if v1alpha1 is served, which needs the conversion webhook. An installation for one namespace has none: the
webhook's CA bundle is in the CustomResourceDefinition, which is in no namespace. */ -}}
{{- define "flux-operator.converts" -}}
{{- if and (not .Values.namespaced) .Values.v1alpha1.enabled -}}true{{- end -}}
{{- end -}}

{{- /* Labels that select the pods of a component: operator, webhook or delete-miniclusters. */ -}}
{{- define "flux-operator.labels" -}}
app.kubernetes.io/name: flux-operator
app.kubernetes.io/component: {{ . }}
{{- end -}}

{{- /* Kind of the operator's roles: an installation for one namespace has no permission beyond it. */ -}}
{{- define "flux-operator.roleKind" -}}
{{- if .Values.namespaced }}Role{{ else }}ClusterRole{{ end -}}
{{- end -}}

{{- /* Name of such a role, given as a list of the root and the role's name. What is in no namespace gets a prefix:
FluxCD's operator is called flux-operator, too. */ -}}
{{- define "flux-operator.roleMetadata" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- if $root.Values.namespaced -}}
name: {{ $name }}
namespace: {{ $root.Release.Namespace | quote }}
{{- else -}}
name: flux-framework-{{ $name }}
{{- end -}}
{{- end -}}

{{- /* Binds a role of the operator's to its account, given as a list of the root and the role's name. */ -}}
{{- define "flux-operator.roleBinding" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ include "flux-operator.roleKind" $root }}Binding
metadata:
  {{- include "flux-operator.roleMetadata" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ include "flux-operator.roleKind" $root }}
  name: {{ if not $root.Values.namespaced }}flux-framework-{{ end }}{{ $name }}
subjects:
  - kind: ServiceAccount
    name: flux-operator
    namespace: {{ $root.Release.Namespace | quote }}
{{- end -}}

{{- /* Security context of a pod that the Pod Security Standard "restricted" admits. */ -}}
{{- define "flux-operator.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* Security context of a container that the same standard admits. */ -}}
{{- define "flux-operator.containerSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
{{- end -}}

{{- /* Fields of a pod that the administrator chooses, without the affinity. */ -}}
{{- define "flux-operator.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- /* Affinity that puts the replicas of a component on different nodes, if possible. */ -}}
{{- define "flux-operator.spread" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "flux-operator.labels" . | nindent 12 }}
{{- end -}}
