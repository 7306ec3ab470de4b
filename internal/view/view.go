// Package view has the values of a pod that a score reads. The write side publishes them, so a
// score takes no lock of a pod and never waits for a writer.
package view

import (
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/internal/engine"
)

// State is how far the figures of a pod or a rank can be trusted. kvindex.State has the
// meaning of each value.
type State uint8

// The states, the least known first.
const (
	Unknown State = iota
	Silent
	Uncertain
	Replaying
	Partial
	Live
	Approximate
)

var stateNames = []string{"unknown", "silent", "uncertain", "replaying", "partial", "live", "approximate"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "invalid"
}

// Facts are the values of a pod that a score reads beside its ranks.
type Facts struct {
	State  State // the worst state of its ranks and streams
	Hybrid bool  // some rank has announced other groups than one of full attention
	Less   bool  // a rank may hold fewer blocks than the index has of it
	Tiered bool  // some rank has stored blocks in a tier below the gpu
	Paged  bool  // they are pages, as SGLang's
	Single bool  // a chunk of lower tiers is one block, whatever the profile has
	Loose  bool  // lower tiers may hold less than the index has of them, and State does not show it
}

// Rank is the view of a rank.
type Rank struct {
	Number int
	State  State
}

// Pod is the view of a pod for one model. One goroutine at a time may publish, and any number
// may read. The zero value has no ranks and zero Facts.
type Pod struct {
	Profile engine.Profile // never changed
	Plans   Plans

	facts atomic.Uint32
	ranks atomic.Pointer[[]Rank]
}

const (
	hybrid = 1 << 8
	less   = 1 << 9
	tiered = 1 << 10
	paged  = 1 << 11
	loose  = 1 << 12
	single = 1 << 13
)

// Facts returns the Facts that were published last. The Facts of a nil Pod are zero.
func (p *Pod) Facts() Facts {
	if p == nil {
		return Facts{}
	}
	f := p.facts.Load()
	return Facts{State(f), f&hybrid != 0, f&less != 0, f&tiered != 0, f&paged != 0, f&single != 0, f&loose != 0}
}

// Publish publishes f.
func (p *Pod) Publish(f Facts) {
	word := uint32(f.State)
	if f.Hybrid {
		word |= hybrid
	}
	if f.Less {
		word |= less
	}
	if f.Tiered {
		word |= tiered
	}
	if f.Paged {
		word |= paged
	}
	if f.Single {
		word |= single
	}
	if f.Loose {
		word |= loose
	}
	if word != p.facts.Load() {
		p.facts.Store(word)
	}
}

// Ranks returns the ranks in the order of their numbers. The slice must not be changed. A nil
// Pod has none.
func (p *Pod) Ranks() []Rank {
	if p != nil {
		if ranks := p.ranks.Load(); ranks != nil {
			return *ranks
		}
	}
	return nil
}

// PublishRanks publishes ranks. The caller must not change the slice afterwards.
func (p *Pod) PublishRanks(ranks []Rank) { p.ranks.Store(&ranks) }

// StateOf returns the state of a rank or, if the rank is not registered, of the pod.
func (p *Pod) StateOf(rank int) State {
	for _, r := range p.Ranks() {
		if r.Number == rank {
			return r.State
		}
	}
	return p.Facts().State
}

// The values of kvindex.Loss.Cause.
const (
	LossGap       = "gap"
	LossMalformed = "malformed"
	LossRestart   = "restart"
	LossMarked    = "marked"
	LossMoved     = "moved"
	LossContested = "contested"
	LossFull      = "full"
)

// LossNames are the causes by their numbers in snapshots; 0: the engine emptied its cache.
var LossNames = []string{"", LossGap, LossMalformed, LossRestart, LossMarked, LossMoved, LossContested, LossFull}

// LastLoss is the last loss of a rank; without a cause, the engine emptied its cache. It is
// zero if there was neither since the engine began to send its messages again.
type LastLoss struct {
	Cause string
	Kept  bool // the blocks were kept
	At    time.Time
}
