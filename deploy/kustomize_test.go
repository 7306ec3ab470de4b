// Package deploy_test tests the contents of this folder: Kubernetes accepts the objects, they
// agree with the programs, and the image and the unit of systemd run.
package deploy_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	strict "sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// inferencePool is api/v1 of sigs.k8s.io/gateway-api-inference-extension v1.6.0
// (inferencepool_types.go), which is for newer Go than this module.
type inferencePool struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts       []poolPort `json:"targetPorts"`
		AppProtocol       string     `json:"appProtocol"`
		EndpointPickerRef struct {
			Group       string   `json:"group"`
			Kind        string   `json:"kind"`
			Name        string   `json:"name"`
			Port        poolPort `json:"port"`
			FailureMode string   `json:"failureMode"`
		} `json:"endpointPickerRef"`
	} `json:"spec"`
}

type poolPort struct {
	Number int32 `json:"number"`
}

// types are the kinds of objects that these folders have.
var types = map[string]func() any{
	"apps/v1 Deployment":                           func() any { return new(apps.Deployment) },
	"apps/v1 StatefulSet":                          func() any { return new(apps.StatefulSet) },
	"v1 ConfigMap":                                 func() any { return new(core.ConfigMap) },
	"v1 PersistentVolumeClaim":                     func() any { return new(core.PersistentVolumeClaim) },
	"v1 Service":                                   func() any { return new(core.Service) },
	"v1 ServiceAccount":                            func() any { return new(core.ServiceAccount) },
	"policy/v1 PodDisruptionBudget":                func() any { return new(policy.PodDisruptionBudget) },
	"networking.k8s.io/v1 NetworkPolicy":           func() any { return new(networking.NetworkPolicy) },
	"rbac.authorization.k8s.io/v1 Role":            func() any { return new(rbac.Role) },
	"rbac.authorization.k8s.io/v1 RoleBinding":     func() any { return new(rbac.RoleBinding) },
	"inference.networking.k8s.io/v1 InferencePool": func() any { return new(inferencePool) },
}

// folders are the kustomizations, and the objects of each.
var folders = map[string][]string{
	"base":               {"ConfigMap kvindexd", "Deployment kvindexd", "NetworkPolicy kvindexd", "PodDisruptionBudget kvindexd", "Service kvindexd", "ServiceAccount kvindexd"},
	"engines":            {"NetworkPolicy vllm", "Service vllm", "StatefulSet vllm"},
	"janitor":            {"Deployment kv-janitor", "NetworkPolicy kv-janitor", "PersistentVolumeClaim kv-files"},
	"lmcache":            {"NetworkPolicy kv-store", "Service kv-store", "StatefulSet kv-store"},
	"redis":              {"Deployment redis", "NetworkPolicy redis", "Service redis"},
	"overlays/replicas":  {"ConfigMap kvindexd", "Deployment kvindexd", "NetworkPolicy kvindexd", "PodDisruptionBudget kvindexd", "Role kvindexd", "RoleBinding kvindexd", "Service kvindexd", "Service kvindexd-peers", "ServiceAccount kvindexd"},
	"overlays/shared":    {"ConfigMap kvindexd", "Deployment kvindexd", "NetworkPolicy kvindexd", "PodDisruptionBudget kvindexd", "Service kvindexd", "ServiceAccount kvindexd"},
	"overlays/single":    {"ConfigMap kvindexd", "Deployment kvindexd", "NetworkPolicy kvindexd", "PersistentVolumeClaim kvindexd", "PodDisruptionBudget kvindexd", "Service kvindexd", "ServiceAccount kvindexd"},
	"overlays/epp":       {"Deployment kvindex-epp", "InferencePool vllm", "NetworkPolicy kvindex-epp", "PodDisruptionBudget kvindex-epp", "Role kvindex-epp", "RoleBinding kvindex-epp", "Service kvindex-epp", "ServiceAccount kvindex-epp"},
	"overlays/reference": {"ConfigMap kv-cache-manager", "Deployment kv-cache-manager", "NetworkPolicy kv-cache-manager", "PodDisruptionBudget kv-cache-manager", "Service kv-cache-manager", "Service manager", "ServiceAccount kv-cache-manager"},
}

// An object is one of Kubernetes, as JSON and decoded.
type object struct {
	kind, name string
	raw        []byte
	typed      any
}

// build builds a kustomization of this folder.
func build(t *testing.T, folder string) []object {
	t.Helper()
	return buildAt(t, filepath.Join("kustomize", folder))
}

// buildAt builds a kustomization, as kustomize v5.7.1 does, and decodes its objects strictly.
func buildAt(t *testing.T, folder string) (objects []object) {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	for _, r := range made.Resources() {
		raw, err := r.MarshalJSON()
		must(t, err)
		typed, err := decode(raw)
		if err != nil {
			t.Fatalf("%s: %s %s: %v", folder, r.GetKind(), r.GetName(), err)
		}
		objects = append(objects, object{r.GetKind(), r.GetName(), raw, typed})
	}
	return objects
}

// decode decodes an object into its type, which has to have each field.
func decode(raw []byte) (any, error) {
	var kind meta.TypeMeta
	if err := json.Unmarshal(raw, &kind); err != nil {
		return nil, err
	}
	make := types[kind.APIVersion+" "+kind.Kind]
	if make == nil {
		return nil, fmt.Errorf("%s %s is no known kind", kind.APIVersion, kind.Kind)
	}
	typed := make()
	unknown, err := strict.UnmarshalStrict(raw, typed)
	if err != nil {
		return nil, err
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("%v", unknown)
	}
	return typed, nil
}

// TestObjects: each folder has its objects, and no other. The hash behind the name of a
// ConfigMap is left out.
func TestObjects(t *testing.T) {
	for folder, want := range folders {
		var got []string
		for _, o := range build(t, folder) {
			name := o.name
			if o.kind == "ConfigMap" {
				name = name[:strings.LastIndexByte(name, '-')]
			}
			got = append(got, o.kind+" "+name)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has\n%q, want\n%q", folder, got, want)
		}
	}
}

// TestMisspelt: an object with any one misspelt field is refused. Free names are not fields: labels,
// and files of a ConfigMap.
func TestMisspelt(t *testing.T) {
	renamed := 0
	for folder := range folders {
		for _, o := range build(t, folder) {
			var tree map[string]any
			must(t, json.Unmarshal(o.raw, &tree))
			walk(tree, reflect.TypeOf(o.typed).Elem(), func(m map[string]any, key string) {
				value := m[key]
				delete(m, key)
				m[key+"s"] = value
				raw, err := json.Marshal(tree)
				must(t, err)
				if _, err := decode(raw); err == nil {
					t.Errorf("%s: %s %s: the field %ss is taken", folder, o.kind, o.name, key)
				}
				delete(m, key+"s")
				m[key] = value
				renamed++
			})
		}
	}
	if renamed < 500 {
		t.Errorf("only %d fields were misspelt", renamed)
	}
}

// walk calls f with each field of a value of a type, and the object that has it.
func walk(value any, of reflect.Type, f func(m map[string]any, key string)) {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch v := value.(type) {
	case []any:
		for _, e := range v {
			walk(e, of.Elem(), f)
		}
	case map[string]any:
		if of.Kind() != reflect.Struct { // the keys are free
			return
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			f(v, key)
			if inner, ok := fieldOf(of, key); ok {
				walk(v[key], inner, f)
			}
		}
	}
}

// fieldOf returns the type of the field of a struct that JSON has under a key.
func fieldOf(of reflect.Type, key string) (reflect.Type, bool) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == key {
			return f.Type, true
		}
		if name == "" && f.Anonymous {
			if inner, ok := fieldOf(f.Type, key); ok {
				return inner, true
			}
		}
	}
	return nil, false
}
