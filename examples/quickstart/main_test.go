package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

func TestQuickstart(t *testing.T) {
	var out bytes.Buffer
	if err := run(context.Background(), &out, workload{seed: 5, talks: 4, turns: 3}); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	if n := strings.Count(text, "\ntalk "); n != 12 {
		t.Errorf("%d turns", n)
	}
	rate := map[string]float64{}
	for _, m := range regexp.MustCompile(`(?m)^(kvindex|round-robin) +([0-9.]+)%`).FindAllStringSubmatch(text, -1) {
		rate[m[1]], _ = strconv.ParseFloat(m[2], 64)
	}
	if len(rate) != 2 || rate["kvindex"] <= rate["round-robin"] {
		t.Errorf("hit rates %v", rate)
	}
	if !strings.Contains(text, "seed 5") {
		t.Error("the seed is not told")
	}
	if t.Failed() {
		t.Log(text)
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
	if err := run(ctx, stopper{cancel}, workload{seed: 5, talks: 4, turns: 50}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := run(ctx, io.Discard, workload{seed: 5, talks: 1, turns: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted before it began: %v", err)
	}
}
