package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

func TestQuickstart(t *testing.T) {
	for _, all := range []bool{false, true} {
		var out bytes.Buffer
		if err := run(context.Background(), &out, workload{seed: 5, talks: 4, turns: 3}, all); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		want, rest := firstTurns, "\n... and 4 more turns (-v shows them)\n"
		if all {
			want, rest = 12, "\n"
		}
		if n := strings.Count(text, "\ntalk "); n != want || !strings.Contains(text, rest) {
			t.Errorf("%d turns of 12 are shown, want %d", n, want)
		}
		rate, computed := map[string]float64{}, map[string]int{}
		for _, m := range regexp.MustCompile(`(?m)^(kvindex|round-robin) +([0-9.]+)% +([0-9]+) `).FindAllStringSubmatch(text, -1) {
			rate[m[1]], _ = strconv.ParseFloat(m[2], 64)
			computed[m[1]], _ = strconv.Atoi(m[3])
		}
		if len(rate) != 2 || rate["kvindex"] <= rate["round-robin"] {
			t.Errorf("hit rates %v", rate)
		}
		less := 100 * (1 - float64(computed["kvindex"])/float64(computed["round-robin"]))
		if !strings.Contains(text, fmt.Sprintf("computed %d of ", computed["kvindex"])) || !strings.Contains(text, fmt.Sprintf("%.0f%% less with", less)) {
			t.Errorf("the sentence does not say what the table does: %v, %.1f %%", computed, less)
		}
		if !strings.Contains(text, "Of 12 predictions 0 were too high and ") {
			t.Error("predictions were too high")
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
	if err := run(context.Background(), &out, workload{seed: 1, talks: 10, turns: 6}, false); err != nil {
		t.Fatal(err)
	}
	numbers := regexp.MustCompile(`\d+`)
	_, shown, found := strings.Cut(string(readme), "go run ./examples/quickstart -seed 1\n")
	lines := strings.Split(shown, "\n")[:3]
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
	if printed == nil || len(said) != 2 {
		t.Fatalf("README.md has %d figures, want 2\n%s", len(said), out.String())
	}
	for _, s := range said {
		want, _ := strconv.Atoi(printed[1])
		if got, _ := strconv.Atoi(s[1]); got < want-8 || got > want+8 {
			t.Errorf("README.md says %s, the program %s", s[0], printed[0])
		}
	}
	for _, same := range []string{" of 35355 prompt tokens", "Of 60 predictions 0 were too high"} {
		if !strings.Contains(shown, same) || !strings.Contains(out.String(), same) {
			t.Errorf("%q is not said and printed", same)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestOutcome: predictions are counted by how they are wrong.
func TestOutcome(t *testing.T) {
	r := &result{prompt: 1000, cached: 600}
	r.predicted(100, 100, true)
	r.predicted(100, 90, true)
	r.predicted(100, 110, true)
	r.predicted(100, 110, false)
	var out bytes.Buffer
	compare(&out, r, &result{prompt: 1000, cached: 200})
	for _, want := range []string{
		"The pods computed 400 of 1000 prompt tokens, and 800 with round-robin: 50% less with kvindex.",
		"Of 4 predictions 1 were too high and 2 too low.\n1 of the low ones had a twin: ",
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
	if err := run(ctx, stopper{cancel}, workload{seed: 5, talks: 4, turns: 50}, true); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := run(ctx, io.Discard, workload{seed: 5, talks: 1, turns: 1}, false); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted before it began: %v", err)
	}
}
