package prometheus

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/metrics/internal/figures"
)

// TestDocumented: the tables of docs/prometheus.md and docs/dashboards.md have each series once. The
// first has also the labels and the help text of a scrape.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/prometheus.md")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	row := func(name, labels, help string) {
		want = append(want, "| `"+name+"` | "+labels+" | "+help[:len(help)-1]+" |")
	}
	for _, m := range figures.All {
		labels := ""
		for i, l := range m.Labels {
			if i > 0 {
				labels += ", "
			}
			labels += l
		}
		row(m.Name, labels, m.Help)
	}
	for _, d := range figures.Durations {
		row(d.Name, "", d.Help)
	}
	got := regexp.MustCompile(`(?m)^\| `+"`kvindex_"+`.*$`).FindAllString(string(text), -1)
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("row %d of %d is %q, want %q", i, len(want), got[min(i, len(got)-1)], want[min(i, len(want)-1)])
		}
	}
	var names, told []string
	for _, v := range references {
		names = append(names, v.names...)
	}
	names = append(names, lookups...)
	if text, err = os.ReadFile("../../docs/dashboards.md"); err != nil {
		t.Fatal(err)
	}
	given, _, _ := strings.Cut(string(text), "These are absent.")
	for _, line := range regexp.MustCompile("(?m)^\\| `(?:kvcache_|llm_d_).*$").FindAllString(given, -1) {
		for _, m := range regexp.MustCompile("`((?:kvcache_|llm_d_|aibrix_)\\w+)`").FindAllStringSubmatch(line, -1) {
			told = append(told, m[1])
		}
	}
	slices.Sort(names)
	slices.Sort(told)
	if !slices.Equal(names, told) {
		t.Errorf("the page has the names %q, want %q", told, names)
	}
}
