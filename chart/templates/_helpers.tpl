{{- /* The name of an image: its tag or digest, or both; a digest needs no tag. */ -}}
{{- define "flux-operator.image" -}}
{{- $tag := .image.tag -}}
{{- if not (or .image.tag .image.digest) -}}{{- $tag = .usual -}}{{- end -}}
{{- .image.repository -}}{{- with $tag }}:{{ . }}{{ end -}}{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}
