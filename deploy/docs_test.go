package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/deployment.md")
	must(t, err)
	return string(text)
}

// TestPage: the folders, files, secrets and labels that the page names exist, and the page names
// all that exist.
func TestPage(t *testing.T) {
	text := page(t)
	for _, path := range regexp.MustCompile(`deploy/[\w/.-]*\w|kustomize/[\w/]+`).FindAllString(text, -1) {
		if _, err := os.Stat(filepath.Join("..", "deploy", strings.TrimPrefix(path, "deploy/"))); err != nil {
			t.Error(err)
		}
	}
	for folder := range folders {
		if !strings.Contains(text, "kustomize/"+folder) {
			t.Errorf("%s is not on the page", folder)
		}
	}
	for secret := range secrets {
		name, key, _ := strings.Cut(secret, " ")
		if !strings.Contains(text, "secret generic "+name+" --from-literal="+key+"=") {
			t.Errorf("nobody makes the secret %s", secret)
		}
	}
}

// TestYourKustomization: the kustomization of the page builds, with the image and the settings
// of its reader.
func TestYourKustomization(t *testing.T) {
	text := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(page(t))
	if text == nil {
		t.Fatal("the page has no kustomization")
	}
	here, err := filepath.Abs("..")
	must(t, err)
	parent := t.TempDir()
	dir := filepath.Join(parent, "mine")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.Symlink(here, filepath.Join(parent, "kvindex")))
	for name, text := range map[string]string{"kustomization.yaml": text[1], "kvindexd.json": `{"model": "mine"}`} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	objects := buildAt(t, dir)
	if at := one[*apps.Deployment](t, objects).Spec.Template.Spec.Containers[0].Image; at != "registry.example.com/kvindexd" {
		t.Errorf("the image is %s", at)
	}
	if data := one[*core.ConfigMap](t, objects).Data; data["kvindexd.json"] != `{"model": "mine"}` {
		t.Errorf("the settings are %q", data)
	}
}

// TestMemoryTable: the rows of the page follow from its formula, and the base is one of the rows.
func TestMemoryTable(t *testing.T) {
	number := func(text string) int64 {
		n, err := strconv.ParseInt(strings.ReplaceAll(text, ",", ""), 10, 64)
		must(t, err)
		return n
	}
	rows := regexp.MustCompile(`(?m)^\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) MB \| (\S+) \| (\S+) \|$`).FindAllStringSubmatch(page(t), -1)
	if len(rows) < 6 {
		t.Fatalf("%d rows", len(rows))
	}
	objects := build(t, "base")
	s := configured(t, objects)
	base := []string{s["memory"], one[*apps.Deployment](t, objects).Spec.Template.Spec.Containers[0].Resources.Limits.Memory().String()}
	found := false
	for _, r := range rows {
		heap, memory, limit := number(r[1])*number(r[2])*50, bytesOf(t, r[4]), bytesOf(t, r[5])
		if heap != number(r[3])*1e6 {
			t.Errorf("%s: the heap is %d", r[0], heap)
		}
		if most := max(heap*5/4, 64<<20); memory < most || memory > 2*most {
			t.Errorf("%s: memory is %d, for %d", r[0], memory, most)
		}
		s["memory"] = r[4]
		if keep := boundsOf(t, s); 9*limit < 10*keep || 9*limit > 13*keep {
			t.Errorf("%s: the limit is %d, for %d", r[0], limit, keep)
		}
		found = found || slices.Equal(base, []string{r[4], r[5]})
	}
	if !found {
		t.Errorf("%q is in no row", base)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
