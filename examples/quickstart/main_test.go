package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
	"github.com/kvindex/kvindex/route"
)

var first struct {
	sync.Once
	text string
	svg  []byte
	err  error
}

// seedOne returns the text and the plot of seed 1. It runs once for all tests.
func seedOne(t *testing.T) (text string, svg []byte) {
	t.Helper()
	first.Do(func() {
		var out bytes.Buffer
		file := filepath.Join(t.TempDir(), "plot.svg")
		if first.err = run(t.Context(), &out, 1, file); first.err == nil {
			first.text = out.String()
			first.svg, first.err = os.ReadFile(file)
		}
	})
	if first.err != nil {
		t.Fatal(first.err)
	}
	return first.text, first.svg
}

// TestOrderOfPolicies: events are better than the estimate, and the estimate is better than the policies
// that ignore caches. A second run of seed 1 prints the same figures.
func TestOrderOfPolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("only seedOne plays: -short")
	}
	zmtptest.NoLeaks(t)
	for seed := uint64(1); seed <= 3; seed++ {
		trace := newTrace(seed)
		rows, err := compare(t.Context(), trace, defaultFleet(trace), roundRobin, loadAlone, approximate, byEvents)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if len(r.outcomes) != len(trace) {
				t.Errorf("seed %d: %s served %d requests of %d", seed, r.name, len(r.outcomes), len(trace))
			}
		}
		var table bytes.Buffer
		printRows(&table, rows)
		t.Logf("seed %d\n%s", seed, &table)
		blind, estimated, exact := max(rows[0].hitRate(), rows[1].hitRate()), rows[2].hitRate(), rows[3].hitRate()
		if exact < estimated+5 || estimated < blind+15 {
			t.Errorf("seed %d: hit rates %.1f%%, %.1f%%, %.1f%%", seed, blind, estimated, exact)
		}
		if text, _ := seedOne(t); seed == 1 && !strings.Contains(text, table.String()) {
			t.Errorf("another run printed\n%s", text)
		}
	}
}

// TestOneRouter: if nothing is evicted, events gain at most 0.2 points.
func TestOneRouter(t *testing.T) {
	text, _ := seedOne(t)
	_, line, _ := strings.Cut(text, "no restart")
	var estimated, exact float64
	if _, err := fmt.Sscanf(line, "%f%% %f%%\n", &estimated, &exact); err != nil || math.Abs(exact-estimated) > 0.2 {
		t.Errorf("hit rates %.1f%% and %.1f%%, %v", estimated, exact, err)
	}
}

func TestScreen(t *testing.T) {
	text, _ := seedOne(t)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > 24 {
		t.Errorf("%d lines", len(lines))
	}
	for _, line := range lines {
		if len(line) > 100 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
}

// TestReadme: README.md quotes each row of figures of seed 1 as a line, with or without "# ".
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := strings.Split(strings.ReplaceAll(string(readme), "\n# ", "\n"), "\n")
	text, _ := seedOne(t)
	rows := regexp.MustCompile(`(?m)^.*\d%.*$`).FindAllString(text, -1)
	if len(rows) != 6 {
		t.Errorf("%d rows are printed", len(rows))
	}
	for _, row := range rows {
		if !slices.Contains(quoted, row) {
			t.Errorf("README.md does not quote %q", row)
		}
	}

	var share int
	if _, err := fmt.Sscanf(rows[3], "events %d (%d%%)", new(int), &share); err != nil {
		t.Fatal(err)
	}
	for _, less := range regexp.MustCompile(`\d+% (less|fewer)`).FindAllString(string(readme), -1) {
		if !strings.HasPrefix(less, fmt.Sprintf("%d%% ", 100-share)) {
			t.Errorf("README.md: %s; than with round-robin it is %d%%", less, 100-share)
		}
	}
}

// TestPlot: docs/hitrate.svg is current, small and well-formed, and has a title and a description.
func TestPlot(t *testing.T) {
	_, want := seedOne(t)
	drawn, err := os.ReadFile("../../docs/hitrate.svg")
	if err != nil || !bytes.Equal(drawn, want) {
		t.Errorf("docs/hitrate.svg is not current: run go generate ./examples/quickstart (%v)", err)
	}
	if len(drawn) > 30_000 {
		t.Errorf("%d bytes", len(drawn))
	}
	var image struct {
		Title string `xml:"title"`
		Desc  string `xml:"desc"`
	}
	if err := xml.Unmarshal(drawn, &image); err != nil || image.Title == "" || !strings.Contains(image.Desc, "events: ") {
		t.Errorf("%+v, %v", image, err)
	}
}

// TestInterrupt: the end of the context ends a run, also in the middle of a trace.
func TestInterrupt(t *testing.T) {
	zmtptest.NoLeaks(t)
	ctx, cancel := context.WithCancel(t.Context())
	interrupt, left := byEvents, 50
	interrupt.choose = func(uint64) route.Policy {
		return func(r *route.Request, pods []route.Pod) int {
			if left--; left == 0 {
				cancel()
			}
			return route.Default(r, pods)
		}
	}
	trace := newTrace(1)
	if outcomes, err := play(ctx, trace, interrupt, defaultFleet(trace)); !errors.Is(err, context.Canceled) || len(outcomes) > 50 {
		t.Errorf("%d requests were served, %v", len(outcomes), err)
	}
	if err := run(ctx, io.Discard, 1, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted before the start: %v", err)
	}
}
