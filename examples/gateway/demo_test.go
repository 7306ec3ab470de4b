package main

import (
	"bytes"
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/internal/zmtp/zmtptest"
)

var figures = flag.Bool("figures", false, "long form of TestDemo and TestGateways: the figures of all conversations")

// TestDemo: each scene has a row with all its requests, and the first turns are explained. With
// all conversations, the scene with events saves the promised share of tokens, and no pod is much
// busier than the others.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("the demo is not played: -short")
	}
	zmtptest.NoLeaks(t)
	n := 24
	if *figures {
		n = demoConversations
	}
	var out bytes.Buffer
	if err := demo(t.Context(), &out, n); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &out)
	if turns := strings.Count(out.String(), "turn 3: of "); turns != explained {
		t.Errorf("%d third turns are explained", turns)
	}
	rows := regexp.MustCompile(`(?m)^    (round-robin|no events|events) .* (\d+) \( *(\d+)%\).* (\d+) (\d+) (\d+)(;.*)?$`).FindAllStringSubmatch(out.String(), -1)
	if len(rows) != 9 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		var computed, share, requests, busiest int
		for i, to := range []*int{&computed, &share} {
			fmt.Sscan(row[2+i], to)
		}
		for _, text := range row[4:7] {
			var pod int
			fmt.Sscan(text, &pod)
			requests += pod
			busiest = max(busiest, pod)
		}
		if requests != n*demoTurns || computed == 0 {
			t.Errorf("%d requests were answered: %s", requests, row[0])
		}
		if *figures && row[1] == "events" && (share > 55 || busiest*demoEngines*10 > requests*13) {
			t.Error(row[0])
		}
	}
}

// TestGateways: two and three gateways, each with its own index, reuse nearly as many tokens of
// the same engines as one gateway.
func TestGateways(t *testing.T) {
	zmtptest.NoLeaks(t)
	n, least, more := 24, 0.0, 1
	switch {
	case *figures:
		n, least = demoConversations, 0.95
	case testing.Short():
		more = 2
	}
	var alone float64
	for gateways := 1; gateways <= 3; gateways += more {
		r, err := play(t.Context(), scene{name: "events", policy: "default", events: true, gateways: gateways, conversations: n})
		if err != nil {
			t.Fatal(err)
		}
		rate := 1 - float64(r.computed)/float64(r.prompt)
		t.Logf("%d gateways: %.1f %%", gateways, 100*rate)
		if gateways == 1 {
			alone = rate
		}
		if rate < least*alone || len(r.firstTokens) != n*demoTurns {
			t.Errorf("%d gateways, %d answers: %.1f %%, and with one gateway %.1f %%", gateways, len(r.firstTokens), 100*rate, 100*alone)
		}
	}
}
