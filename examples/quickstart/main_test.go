package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/stats"
)

func TestQuickstart(t *testing.T) {
	for _, all := range []bool{false, true} {
		var out bytes.Buffer
		if err := run(context.Background(), &out, workload{5, 4, 3, 5}, all); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		want, rest := 2*firstTurns, []string{"\n... and 4 more (-v shows them)\n", "\n... and 7 more (-v shows them)\n"}
		if all {
			want, rest = 12+15, nil
		}
		n, left := strings.Count(text, "\ntalk "), regexp.MustCompile("\n\\.\\.\\. .*\n").FindAllString(text, -1)
		if n != want || !slices.Equal(left, rest) {
			t.Errorf("%d requests of 27 are shown, want %d; %q", n, want, left)
		}
		rate, computed := map[string]float64{}, map[string]int{}
		for _, m := range regexp.MustCompile(`(?m)^(kvindex|events off|round-robin) +([0-9.]+)% +([0-9]+) `).FindAllStringSubmatch(text, -1) {
			rate[m[1]], _ = strconv.ParseFloat(m[2], 64)
			computed[m[1]], _ = strconv.Atoi(m[3])
		}
		if len(rate) != 3 || rate["kvindex"] <= rate["round-robin"] || rate["events off"] <= rate["round-robin"] {
			t.Errorf("hit rates %v", rate)
		}
		less := 100 * (1 - float64(computed["kvindex"])/float64(computed["round-robin"]))
		if !strings.Contains(text, fmt.Sprintf("computed %d of ", computed["kvindex"])) || !strings.Contains(text, fmt.Sprintf("%.0f%% less with", less)) {
			t.Errorf("the sentence does not say what the table does: %v, %.1f %%", computed, less)
		}
		if !regexp.MustCompile(`\nOf 12 predictions \d+ were exact, 0 too high and \d+ too low\. By events alone \d+ were exact, 0 `).MatchString(text) {
			t.Error("predictions were too high")
		}
		var exact, proven, low int
		_, with, _ := strings.Cut(text, "\nWhere each prompt came 5 times at once, ")
		const form = "of 15 predictions %d were exact, 0 too high and %d too low. By events alone %d were exact, 0 too high"
		if n, err := fmt.Sscanf(with, form, &exact, &low, &proven); n != 3 || err != nil || exact <= proven {
			t.Error("siblings were not predicted, or came after events")
		}
		less = 100 * (1 - float64(computed["events off"])/float64(computed["round-robin"]))
		_, without, _ := strings.Cut(text, "\nWhere pods publish no events, ")
		if !strings.HasPrefix(without, fmt.Sprintf("it is %.0f%% less. Of 12 predictions ", less)) {
			t.Errorf("it is %.1f %% less without events", less)
		}
		if !strings.Contains(text, "seed 5") {
			t.Error("the seed is not told")
		}
		if t.Failed() {
			t.Fatal(text)
		}
	}
}

// TestReadme: what README.md says of this program is what it prints: its last lines, and
// how much less is computed, within the 8 points by which runs differ.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(context.Background(), &out, workload{1, 10, 6, 8}, false); err != nil {
		t.Fatal(err)
	}
	numbers := regexp.MustCompile(`\d+`)
	_, shown, found := strings.Cut(string(readme), "go run ./examples/quickstart -seed 1\n")
	lines := strings.Split(shown, "\n")[:4]
	for _, line := range lines {
		line, commented := strings.CutPrefix(line, "# ")
		like := regexp.MustCompile("(?m)^" + numbers.ReplaceAllString(regexp.QuoteMeta(line), `\d+`) + "$")
		if !found || !commented || !like.MatchString(out.String()) {
			t.Errorf("README.md shows %q", line)
		}
	}
	percent := regexp.MustCompile(`(\d+)% less`)
	printed := percent.FindStringSubmatch(out.String())
	said := percent.FindAllStringSubmatch(string(readme), -1)
	if printed == nil || len(said) != 3 {
		t.Fatalf("README.md has %d figures, want 3\n%s", len(said), out.String())
	}
	for _, s := range said {
		want, _ := strconv.Atoi(printed[1])
		if got, _ := strconv.Atoi(s[1]); got < want-8 || got > want+8 {
			t.Errorf("README.md says %s, the program %s", s[0], printed[0])
		}
	}
	for _, same := range []string{" of 35355 prompt tokens", `Of 60 predictions \d+ were exact, 0 too high`, `of 24 predictions \d+ were exact, 0 too high`} {
		if re := regexp.MustCompile(same); !re.MatchString(shown) || !re.MatchString(out.String()) {
			t.Errorf("%q is not said and printed", same)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestOutcome: what the Indexer has counted is told, of all models and states.
func TestOutcome(t *testing.T) {
	r := &result{prompt: 1000, cached: 600}
	r.observe([]stats.Observations{
		{Predicted: stats.Accuracy{Exact: 5, Over: 1, Under: 2}, Cached: stats.Accuracy{Exact: 3, Under: 5}},
		{State: "live", Predicted: stats.Accuracy{Exact: 10}, Cached: stats.Accuracy{Over: 4, Under: 6}},
	})
	var out bytes.Buffer
	conclude(&out, r, &result{prompt: 1000, cached: 200})
	for _, want := range []string{
		"The pods computed 400 of 1000 prompt tokens, and 800 with round-robin: 50% less with kvindex.",
		"Of 18 predictions 15 were exact, 1 too high and 2 too low. By events alone 3 were exact, 4 too high and 11 too low.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// stopper cancels as soon as the first turn is printed.
type stopper struct{ cancel context.CancelFunc }

func (s stopper) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("talk ")) {
		s.cancel()
	}
	return len(p), nil
}

func TestInterrupt(t *testing.T) {
	zmtptest.NoLeaks(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := run(ctx, stopper{cancel}, workload{5, 4, 50, 1}, true); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := run(ctx, io.Discard, workload{5, 1, 1, 1}, false); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted before it began: %v", err)
	}
}
