package kvindex_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fakeengine"
)

// lowerModel is the expected view of a rank with an engine and an offload daemon, as plain sets.
// Each block begins a prompt of its own.
type lowerModel struct {
	clearsGPU, declared bool

	held        [3]map[int]bool // by tier: gpu, cpu, disk
	named       map[int]bool    // stored by the gpu
	told        [2][3]bool      // published, by stream (engine, daemon) and tier
	state       [2]string       // of the gpu, and of the daemon's tiers
	doubt       [2]bool         // the connection was lost, and no message has come since
	feeds, lent bool            // the engine has the rank; the daemon has published blocks of it
	seq         [2]uint64
	partial     [2]bool // early messages of the stream are missing
}

const theEngine, theDaemon = 0, 1

func (m *lowerModel) empty(t int) { m.held[t] = map[int]bool{} }

// lower empties the lower tiers that stream who has published; those that only the other stream
// has, if all is set.
func (m *lowerModel) lower(who int, all bool) {
	other := 1 - who
	for t := 1; t < 3; t++ {
		if all || m.told[who][t] || who == theEngine && (!m.lent || !m.told[theDaemon][t]) {
			m.empty(t)
			if m.told[other][t] && (other == theDaemon && m.lent || other == theEngine && m.state[theEngine] == "live") {
				m.state[other] = "partial"
			}
		}
	}
}

// loses is a loss of a stream. restart: its engine is a new one.
func (m *lowerModel) loses(who int, restart bool) {
	if who == theEngine {
		m.empty(0)
		m.lower(theEngine, restart)
	} else if m.lent {
		m.lower(theDaemon, false)
	}
	m.partial[who] = !restart
	if m.state[who] = "partial"; restart {
		m.state[who] = "unknown"
	}
}

// event applies an event of a block in a tier; -1: the cache was emptied.
func (m *lowerModel) event(who, tier, block int, store bool) {
	switch {
	case tier < 0:
		if who == theEngine {
			m.empty(0)
		}
		if who == theDaemon || !m.clearsGPU {
			m.lower(who, false)
		}
		m.state[who] = "live"
	case !store:
		delete(m.held[tier], block)
	default:
		if tier == 1 && who == theEngine && m.clearsGPU && (!m.lent || !m.told[theDaemon][1]) && m.held[1][block] {
			m.empty(1) // without a report
		}
		m.held[tier][block] = true
		if tier == 0 {
			m.named[block] = true
		}
	}
}

// applied ends a message of a stream.
func (m *lowerModel) applied(who int) {
	if m.state[who] == "unknown" {
		if m.state[who] = "live"; m.partial[who] {
			m.state[who] = "partial"
		}
	}
	if who == theEngine {
		m.feeds = true
	} else {
		if !m.lent && m.feeds && !m.declared {
			m.doubt[theEngine] = true
		}
		m.lent = true
	}
	m.doubt[who] = false
}

// says returns the expected result of tellsOf.
func (m *lowerModel) says(block int) string {
	cached, loaded, fetched := 0, 0, 0
	switch {
	case m.held[0][block]:
		cached = 16
	case !m.named[block]:
	case m.held[1][block]:
		loaded = 16
	case m.held[2][block]:
		fetched = 16
	}
	limit := func(who int, state string) string {
		if m.doubt[who] {
			return "uncertain"
		}
		return state
	}
	daemon := limit(theDaemon, m.state[theDaemon])
	upper := m.lent && daemon == "uncertain" && loaded+fetched > 0
	return fmt.Sprintf("%d+%d+%d %s, %s %v", cached, loaded, fetched, limit(theEngine, m.state[theEngine]), daemon, upper)
}

// TestOffloadDaemonModel compares random histories of an engine and a daemon with lowerModel.
func TestOffloadDaemonModel(t *testing.T) {
	const blocks = 5
	var prompts []fakeengine.Prompt
	for n := range uint64(blocks) {
		prompts = append(prompts, fakeengine.NewPrompt(n+1, 16, 2))
	}
	media := [3]string{"", "CPU", "STORAGE"}
	met := map[string]int{}
	histories := 40
	if *long {
		histories = 3000
	}
	for seed := range uint64(histories) {
		rnd := rand.New(rand.NewPCG(seed, 42))
		m := &lowerModel{clearsGPU: seed%2 == 0, declared: seed%3 > 0, named: map[int]bool{}, state: [2]string{"unknown", "unknown"}}
		for tier := range m.held {
			m.empty(tier)
		}
		profile := withProfile(kvindex.Profile{Chunk: 1, Draft: kvindex.DraftNone, ClearsGPU: m.clearsGPU})
		ix := open(t, profile)
		clock := 0.0
		send := func(who int, evs ...fakeengine.Event) {
			clock++
			r, err := ix.IngestMessage(message([]string{"e", "d"}[who], m.seq[who], clock, 0, evs...))
			if err != nil || !r.Applied {
				t.Fatalf("seed %d: %+v, %v", seed, r, err)
			}
			m.seq[who]++
		}
		// This block stays, because after a clear a group without blocks is unknown.
		anchor := fakeengine.NewPrompt(99, 16, 2)
		begin := func() {
			evs := []fakeengine.Event{anchor.Stored(0, 1)}
			for b, p := range prompts {
				evs = append(evs, p.Stored(0, 1))
				m.event(theEngine, 0, b, true)
			}
			send(theEngine, evs...)
			m.applied(theEngine)
		}
		if m.declared {
			note("d", events.NoteTiers)(t, ix)
		}
		daemonFirst := seed%5 == 0
		if daemonFirst {
			send(theDaemon, inTier("CPU", prompts[0].Stored(0, 1)))
			m.told[theDaemon][1] = true
			m.event(theDaemon, 1, 0, true)
			m.applied(theDaemon)
		}
		begin()
		for step := range 60 {
			who, op := rnd.IntN(2), rnd.IntN(24)
			switch {
			case op == 0: // a gap
				if who == theDaemon && !m.lent {
					continue
				}
				m.seq[who] += 2
				m.loses(who, false)
				met["gap"]++
			case op == 1: // a restart
				if who == theDaemon && !m.lent {
					continue
				}
				restarted([]string{"e", "d"}[who])(t, ix)
				m.loses(who, true)
				m.seq[who] = 0
				met["restart"]++
				if who == theEngine { // an engine without a message has no state
					begin()
				}
			case op == 2 && m.lent: // the daemon's connection is lost
				note("d", events.NoteLost)(t, ix)
				m.doubt[theDaemon] = true
				met["connection"]++
				goto look
			case op == 3:
				ix = restore(t, ix, profile)
				m.doubt = [2]bool{true, m.lent}
				if m.declared { // as a Subscriber does at its start
					note("d", events.NoteTiers)(t, ix)
				}
				met["snapshot"]++
				goto look
			case op == 4 && m.lent:
				removeStream(t, ix, "d")
				m.lower(theDaemon, false)
				m.told[theDaemon], m.lent, m.seq[theDaemon], m.state[theDaemon] = [3]bool{}, false, 0, "unknown"
				m.doubt[theDaemon], m.partial[theDaemon] = false, false
				if m.declared {
					note("d", events.NoteTiers)(t, ix)
				}
				met["removal"]++
				goto look
			}
			{
				tier, b, store := rnd.IntN(2), rnd.IntN(blocks), rnd.IntN(3) > 0
				if who == theDaemon {
					tier = 1 + rnd.IntN(2)
				}
				if who == theEngine && tier == 1 && seed%4 > 0 {
					tier = 0 // no host memory of its own
				}
				var ev fakeengine.Event
				switch {
				case rnd.IntN(10) == 0 && (who == theEngine || m.lent):
					tier, ev = -1, fakeengine.Cleared{}
				case store && tier == 0:
					ev = prompts[b].Stored(0, 1)
				case store:
					ev = inTier(media[tier], prompts[b].Stored(0, 1))
				default:
					ev = gone(media[tier], prompts[b].Removed(0))
				}
				if tier == 0 && store && m.held[0][b] {
					continue // copies are counted
				}
				if tier > 0 {
					m.told[who][tier] = true
				}
				if m.event(who, tier, b, store); who == theEngine && (tier < 0 || op == 0) {
					send(who, ev, anchor.Stored(0, 1))
				} else {
					send(who, ev)
				}
				m.applied(who)
			}
		look:
			d := streamOf(t, ix, "d")
			for b, p := range prompts {
				s := score(t, ix, kvindex.Request{Tokens: p.Tokens, Pods: []string{"a"}})[0]
				state := "unknown"
				if m.lent {
					state = d.State
				}
				got := fmt.Sprintf("%d+%d+%d %v, %s %v", s.CachedTokens, s.LoadedTokens, s.FetchedTokens, s.State, state, s.UpperBound)
				if want := m.says(b); got != want {
					t.Fatalf("seed %d, step %d, block %d: %q, want %q", seed, step, b, got, want)
				}
				if s.UpperBound {
					met["upper bound"]++
				}
			}
		}
	}
	for _, what := range []string{"gap", "restart", "connection", "snapshot", "removal", "upper bound"} {
		if met[what] < histories/4 {
			t.Errorf("%s: only %d", what, met[what])
		}
	}
}
