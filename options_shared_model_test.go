package kvindex_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/internal/sharedindex"
)

// listings is a random history of one Indexer that receives events, and of readers.
type listings struct {
	*testing.T
	r       *rand.Rand
	writer  *kvindex.Indexer
	readers []*kvindex.Indexer
	fired   map[string]int

	next    map[string]uint64 // by pod, model and stream: the next sequence number
	epoch   map[string]float64
	prompts []kvindex.Request // prompts that were stored or scored
}

// listedProfile has the facts of pods that their events lack.
func listedProfile(pod, _ string) kvindex.Profile {
	switch pod {
	case "b":
		return kvindex.Profile{Draft: kvindex.DraftLayers}
	case "c":
		return kvindex.Profile{Media: kvindex.MediaPad}
	case "d":
		return kvindex.Profile{Adapters: map[string]string{"7": "seven"}, Groups: []index.Group{{ID: 3, Kind: index.GroupMamba}}}
	}
	return kvindex.Profile{}
}

func newListings(t *testing.T, seed uint64, keep, removes bool, fired map[string]int) *listings {
	shared := newShared(t)
	as := func() kvindex.Option {
		p := shared.process()
		if removes {
			return kvindex.WithIndex(p)
		}
		return kvindex.WithIndex(plainProcess{p, p, p})
	}
	opts := []kvindex.Option{kvindex.WithProfile(listedProfile)}
	if keep {
		opts = append(opts, kvindex.WithKeepOnLoss())
	}
	s := &listings{T: t, r: rand.New(rand.NewPCG(seed, 3)), fired: fired, next: make(map[string]uint64), epoch: make(map[string]float64)}
	s.writer = open(t, append(opts, as())...)
	s.readers = []*kvindex.Indexer{open(t, append(opts, as())...), open(t, append(opts, as())...)}
	return s
}

func (s *listings) pick(from ...string) string { return from[s.r.IntN(len(from))] }

// prompt returns a new prompt or prolongs another.
func (s *listings) prompt() kvindex.Request {
	q := kvindex.Request{Adapter: s.pick("", "", "", "lora", "other", "7"), Salt: s.pick("", "", "", "salt")}
	if len(s.prompts) == 8 {
		q = s.prompts[s.r.IntN(len(s.prompts))]
		if s.r.IntN(8) > 0 {
			return q
		}
		q.Tokens = slices.Clip(q.Tokens[:1+s.r.IntN(len(q.Tokens))])
		s.prompts = slices.Delete(s.prompts, 0, 1)
	}
	for range 1 + s.r.IntN(130) {
		q.Tokens = append(q.Tokens, s.r.Uint32N(1000))
	}
	s.prompts = append(s.prompts, q)
	return q
}

// events store the first blocks of a prompt, or remove some.
func (s *listings) events(pod string) []fakeengine.Event {
	if s.r.IntN(25) == 0 {
		return []fakeengine.Event{fakeengine.Cleared{}}
	}
	q := s.prompt()
	size := 16
	if pod == "a" || pod == "e" {
		size = 32
	}
	blocks := len(q.Tokens) / size
	if blocks == 0 {
		return nil
	}
	p := fakeengine.Prompt{Tokens: q.Tokens[:blocks*size], Size: size, Hash: s.r.Uint64() << 20}
	stored := func() *fakeengine.Stored {
		e := p.Stored(0, blocks)
		if pod == "c" {
			return e
		}
		e.Extra = make([][]enginehash.Extra, blocks)
		switch {
		case pod == "d" && q.Adapter == "7":
			e.AdapterID = 7
		case q.Adapter != "":
			adapted(q.Adapter)(e)
		}
		if q.Salt != "" {
			salted(q.Salt)(e)
		}
		return e
	}
	evs := []fakeengine.Event{stored()}
	if pod == "e" {
		window := stored()
		window.Group, window.Kind, window.Window = 1, "sliding_window", 64
		evs = append(evs, window)
	}
	if s.r.IntN(4) == 0 {
		evs = append(evs, p.Removed(s.r.IntN(blocks)))
	}
	return evs
}

// step sends the writer something.
func (s *listings) step() {
	pod, model := s.pick("a", "b", "c", "d", "e"), s.pick("m", "m", "n")
	rank := s.r.IntN(3)
	stream := fmt.Sprintf("s%d", rank)
	at := pod + model + stream
	m := kvindex.Message{Pod: pod, Model: model, Stream: stream, Seq: s.next[at]}
	did := "a message"
	defer func() { s.fired[did]++ }()
	switch n := s.r.IntN(100); {
	case n < 3:
		did = "a removed pod"
		s.must(s.writer.RemovePod(pod))
		return
	case n < 6:
		did = "a removed stream"
		if s.must(s.writer.Sink().RemoveStream(pod, model, stream)); s.r.IntN(2) == 0 {
			return
		}
	case n < 8:
		if err := s.writer.MarkLost(pod, rank); err == nil {
			did = "a marked loss"
		}
	case n < 11:
		did = "a restart that is told"
		s.must(s.writer.Sink().StreamNote(pod, model, stream, events.NoteRestarted))
		if m.Seq = 0; s.r.IntN(2) == 0 {
			s.next[at] = 0
			return
		}
	case n < 20:
		did = "a note"
		for range 1 + s.r.IntN(2) {
			_ = s.writer.Sink().StreamNote(pod, model, stream, events.Note(1+s.r.IntN(int(events.NoteClosed))))
		}
		return
	case n < 25:
		did = "a gap"
		m.Seq += 2
	case n < 28:
		did = "a restart"
		s.epoch[at]++
		m.Seq = 0
	case n < 31:
		did = "another stream"
		m.Stream = "t"
	case n < 34:
		did = "a message that waits"
		m.Seq, m.Hold = m.Seq+3, true
	case n < 36:
		did = "nothing to read"
		m.Payload = []byte{0xc1}
	case n < 40:
		did = "without numbers"
		s.must(s.writer.Ingest(pod, model, fakeengine.Payload(1, rank, s.events(pod)...)))
		return
	}
	if m.Payload == nil {
		m.Payload = fakeengine.Payload(1000*s.epoch[at]+float64(m.Seq)+1, rank, s.events(pod)...)
	}
	r, err := s.writer.IngestMessage(m)
	if err != nil && !errors.Is(err, kvindex.ErrMalformed) {
		s.Fatal(err)
	}
	if m.Stream == stream && !r.Held {
		s.next[at] = m.Seq + 1
	}
}

func (s *listings) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// ask returns a random request.
func (s *listings) ask() kvindex.Request {
	q := s.prompt()
	q.Model, q.Ranks = s.pick("m", "m", "m", "n", "n", "x"), s.r.IntN(2) == 0
	if q.Adapter == "7" && s.r.IntN(2) == 0 {
		q.Adapter = "seven"
	}
	if q.Adapter != "" && s.r.IntN(3) == 0 {
		q.Model, q.Adapter = q.Adapter, ""
	}
	switch s.r.IntN(3) {
	case 0:
		q.Pods = []string{"a", "c", "e", "z"}
	case 1:
		q.Pods = []string{s.pick("b", "d")}
	}
	if s.r.IntN(4) == 0 {
		q.Top = 2
	}
	return q
}

// listedOf selects the fields of pods that a reader has.
func listedOf(pods []kvindex.PodInfo) (of []kvindex.PodInfo) {
	for _, p := range pods {
		info := kvindex.PodInfo{Pod: p.Pod, Model: p.Model, State: p.State, WantsFullReport: p.WantsFullReport, Profile: p.Profile, Adapters: p.Adapters}
		for _, r := range p.Ranks {
			info.Ranks = append(info.Ranks, kvindex.RankInfo{Rank: r.Rank, State: r.State, Groups: r.Groups})
		}
		of = append(of, info)
	}
	return of
}

// check compares the readers' answers with the writer's.
func (s *listings) check() {
	s.Helper()
	pods := s.writer.Pods(nil)
	samePods(s, s.writer, pods)
	want := listedOf(pods)
	stats := s.writer.Stats()
	for i, reader := range s.readers {
		if i == 0 { // the other one finds pods by scoring
			s.compare(reader)
		}
		pods := reader.Pods(nil)
		samePods(s, reader, pods)
		got := listedOf(pods)
		for n := range max(len(got), len(want)) {
			if n >= len(got) || n >= len(want) || !reflect.DeepEqual(got[n], want[n]) {
				s.Fatalf("reader %d: %+v\nthe writer: %+v", i, got[min(n, len(got)):], want[min(n, len(want)):])
			}
		}
		of := reader.Stats()
		for what, n := range map[string][2]int{
			"models": {of.Models, stats.Models}, "pods": {of.Pods, stats.Pods}, "silent": {of.States["silent"], stats.States["silent"]},
			"uncertain": {of.States["uncertain"], stats.States["uncertain"]}, "replaying": {of.States["replaying"], stats.States["replaying"]},
		} {
			if n[0] != n[1] {
				s.Fatalf("reader %d: %d %s, the writer %d", i, n[0], what, n[1])
			}
		}
		if i > 0 {
			s.compare(reader)
		}
	}
	for _, p := range want {
		s.fired[p.State.String()]++
		s.fired["adapters"] += len(p.Adapters)
		s.fired["ranks"] += len(p.Ranks)
	}
}

func (s *listings) compare(reader *kvindex.Indexer) {
	s.Helper()
	q := s.ask()
	var got, want kvindex.Answer
	errGot, errWant := reader.ScoreRequest(ctx, &q, &got), s.writer.ScoreRequest(ctx, &q, &want)
	if fmt.Sprint(errGot) != fmt.Sprint(errWant) || textOf(got.Unknown) != textOf(want.Unknown) || got.PromptTokens != want.PromptTokens {
		s.Fatalf("%+v: %v, %v, the writer: %v, %v", q, errGot, got.Unknown, errWant, want.Unknown)
	}
	if !slices.Equal(got.Pods, want.Pods) {
		s.Fatalf("%+v:\n%+v\nthe writer:\n%+v", q, got.Pods, want.Pods)
	}
	s.sameStates(&q, want.Pods)
	if got.Unknown != nil {
		s.fired["an unknown name"]++
	}
	for _, p := range got.Pods {
		if p.CachedTokens == 0 {
			continue
		}
		s.fired["a hit"]++
		if q.Adapter != "" || q.Model != "m" && q.Model != "n" {
			s.fired["a hit of an adapter"]++
		}
		if q.Salt != "" {
			s.fired["a hit of a salt"]++
		}
		if q.Ranks {
			s.fired["a hit of a rank"]++
		}
		if p.UpperBound {
			s.fired["an upper bound"]++
		}
	}
}

// sameStates compares the states of an answer with ranks with those in Pods.
func (s *listings) sameStates(q *kvindex.Request, pods []kvindex.PodScore) {
	s.Helper()
	for _, p := range pods {
		info, ok := s.writer.Pod(p.Pod, q.Model)
		if !ok || !q.Ranks {
			continue
		}
		state := info.State
		if len(info.Ranks) > 0 {
			i := slices.IndexFunc(info.Ranks, func(r kvindex.RankInfo) bool { return r.Rank == p.Rank })
			state = info.Ranks[i].State
		}
		if p.State != state {
			s.Fatalf("%+v: %+v, its rank is %v", q, p, state)
		}
	}
}

// TestReadersScoreAsTheWriter: Indexers without streams answer as the one with streams, after each
// step of random histories.
func TestReadersScoreAsTheWriter(t *testing.T) {
	fired := make(map[string]int)
	for seed := range uint64(choose(8, 24)) {
		s := newListings(t, seed, seed%2 == 0, seed%3 > 0, fired)
		for range 150 {
			s.step()
			s.check()
		}
	}
	t.Log(fired)
	for what, least := range map[string]int{
		"a hit": 3000, "a hit of an adapter": 100, "a hit of a salt": 100, "a hit of a rank": 1000, "an upper bound": 100, "an unknown name": 50,
		"a removed pod": 50, "a removed stream": 50, "a marked loss": 30, "a restart that is told": 50, "a note": 200, "a gap": 100, "a restart": 50,
		"another stream": 50, "a message that waits": 50, "nothing to read": 30, "without numbers": 50, "a message": 1000,
		"unknown": 50, "silent": 50, "uncertain": 500, "replaying": 50, "partial": 500, "live": 500, "adapters": 500, "ranks": 5000,
	} {
		if *long && fired[what] < least {
			t.Errorf("%s: %d times, at least %d", what, fired[what], least)
		}
	}
}

var _ sharedindex.Directory = (*process)(nil)
