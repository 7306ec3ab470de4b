package kvindex_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/stats"
)

// The model of predictions: a rank is the set of its blocks' names, and a prediction is the names
// of its prompt's blocks. A pod that has published no block takes the block size of another pod, if
// all others with the same media form agree on one. Each answer is computed from scratch.

const (
	sentTTL    = 2 * time.Second
	sentAge    = 8 * time.Second
	sentWindow = 40 // tokens, of the group beside full attention
)

// sentPod is a pod and its engine. Its ranks hold blocks.
type sentPod struct {
	name    string
	blocks  *model // of the main group
	windows *model // of the group with a window, or nil

	heard  bool // the Indexer received events
	opened bool // stream s0 is open
	formed bool // has published a block
	ranks  map[int]*sentRank
}

type sentRank struct {
	n      int
	stream *sentStream // nil: without sequence numbers
	held   [2]map[uint64]bool
}

type sentStream struct {
	name  string
	next  uint64
	ranks []*sentRank // that publish on it
}

// sentPrompt is a prompt with its blocks for each pod.
type sentPrompt struct {
	q      kvindex.Request
	blocks map[*sentPod][2][]block
}

type sentTicket struct {
	ticket kvindex.Ticket
	pod    *sentPod
	rank   int
	prompt *sentPrompt
	at     time.Time
	live   bool // of the prediction
	// lender is the pod whose blocks the prediction is in, because its own pod has published none;
	// nil: its own.
	lender *sentPod

	cached, predicted int
	model             string
	state             kvindex.State
}

type sentModel struct {
	t     testing.TB
	r     *rand.Rand
	ix    *kvindex.Indexer
	now   time.Time
	keep  bool
	alike bool // pods have equal block sizes and are often removed
	pods  []*sentPod
	batch float64

	prompts []*sentPrompt
	tickets []*sentTicket // valid ones, oldest first
	used    []kvindex.Ticket

	predictions stats.Predictions
	counts      stats.Tickets
	observed    map[string]*stats.Observations
	fired       map[string]int
}

func newSentModel(t testing.TB, seed uint64, fired map[string]int) *sentModel {
	m := &sentModel{
		t: t, r: rand.New(rand.NewPCG(23, seed)), keep: seed%2 == 1, alike: seed%4 > 1, now: time.Unix(1e9, 0),
		observed: make(map[string]*stats.Observations), fired: fired,
	}
	type podOf struct {
		name    string
		of      model
		windows int
	}
	of := []podOf{
		{"a", model{size: 16}, 0}, {"b", model{size: 64}, 0}, {"hybrid", model{size: 32}, 16},
		{"pairs", model{size: 16, form: kvindex.MediaPad, pairs: true, blind: true}, 0},
	}
	if m.alike {
		of[0].of.size, of[1].of.size = 32, 32
		of = append(of, podOf{"c", model{size: 16 << (seed / 4 % 2)}, 0})
	}
	for _, p := range of {
		p.of.hashes = make(map[string]uint64)
		pod := &sentPod{name: p.name, blocks: &p.of, ranks: make(map[int]*sentRank)}
		if p.windows > 0 {
			pod.windows = &model{size: p.windows, hashes: p.of.hashes} // no two blocks have one name
		}
		m.pods = append(m.pods, pod)
	}
	var options []kvindex.Option
	if m.keep {
		options = append(options, kvindex.WithKeepOnLoss())
	}
	m.ix = open(t, append(options, kvindex.WithKeySeed(testSeed),
		kvindex.WithPredictions(kvindex.PredictionConfig{TTL: sentTTL, TicketAge: sentAge, Now: func() time.Time { return m.now }}),
		kvindex.WithProfile(func(pod, _ string) kvindex.Profile {
			if pod == "pairs" {
				return kvindex.Profile{Media: kvindex.MediaPad}
			}
			return kvindex.Profile{Draft: kvindex.DraftNone}
		}))...)
	none := m.ix.Stats()
	m.predictions, m.counts = none.Predictions, none.Tickets
	return m
}

// prompt returns a prompt that often begins like an earlier one.
func (m *sentModel) prompt() *sentPrompt {
	if n := len(m.prompts); n > 0 && m.r.IntN(5) > 0 {
		return m.prompts[m.r.IntN(n)]
	}
	var before []kvindex.Request
	for _, p := range m.prompts {
		before = append(before, p.q)
	}
	p := &sentPrompt{q: randomRequest(m.r, before), blocks: make(map[*sentPod][2][]block)}
	for _, pod := range m.pods {
		q := p.q
		if pod.blocks.blind && q.Adapter != "" {
			q.Salt += " of " + q.Adapter // a scope without events
		}
		of := [2][]block{pod.blocks.blocks(&q)}
		if pod.windows != nil {
			of[1] = pod.windows.blocks(&q)
		}
		p.blocks[pod] = of
	}
	if m.prompts = append(m.prompts, p); len(m.prompts) > 30 {
		m.prompts = slices.Delete(m.prompts, m.r.IntN(20), 21)
	}
	return p
}

// lender returns the pod whose block size counts for a pod that has published none; nil if there is
// none or if sizes differ.
func (m *sentModel) lender(pod *sentPod) (lender *sentPod) {
	for _, o := range m.pods {
		if !o.formed || o.blocks.form != pod.blocks.form {
			continue
		}
		if lender != nil && !lender.sameBlocks(o) {
			return nil
		}
		lender = o
	}
	return lender
}

func (p *sentPod) sameBlocks(o *sentPod) bool {
	return p.blocks.size == o.blocks.size && p.blocks.pairs == o.blocks.pairs
}

// form loses the predictions of a pod that are in other blocks than the first ones it publishes.
func (m *sentModel) form(pod *sentPod) {
	for _, t := range m.tickets {
		if t.pod != pod || t.lender == nil || !pod.formed {
			continue
		}
		switch {
		case !t.live:
		case t.lender.sameBlocks(pod):
			m.fired["lent blocks are its own"]++
		default:
			t.live = false
			m.predictions.Ended["lost"]++
			m.fired["lent blocks are not its own"]++
		}
		t.lender = nil
	}
}

// foresees returns how many leading blocks of a group count as sent to a rank, in whole blocks of
// the main group. Those of a pod that has published none are its lender's.
func (m *sentModel) foresees(pod *sentPod, rank int, p *sentPrompt, group int) (most int) {
	of := pod
	if !pod.formed {
		if of = m.lender(pod); of == nil {
			return 0
		}
	}
	for _, t := range m.tickets {
		if !t.live || t.pod != pod || t.rank != rank || t.lender != nil && !t.lender.sameBlocks(of) {
			continue
		}
		n := 0
		for sent := t.prompt.blocks[of][0]; n < len(sent) && n < len(p.blocks[of][0]) && sent[n].hash == p.blocks[of][0][n].hash; n++ {
		}
		most = max(most, n)
	}
	if group == 1 {
		most *= pod.blocks.size / pod.windows.size
	}
	return most
}

// sentFigures are those of a rank. row: it holds some of the prompt, or some was sent.
type sentFigures struct {
	cached, predicted, matched int
	row                        bool
}

func (m *sentModel) figures(pod *sentPod, rank int, p *sentPrompt) (f sentFigures) {
	if !pod.formed { // holds nothing
		if n := m.foresees(pod, rank, p, 0); n > 0 {
			of := m.lender(pod)
			f.row = true
			f.predicted = min(n, of.limit(p)/of.blocks.size) * of.blocks.size
			m.fired["lent blocks count"]++
		}
		return f
	}
	all := p.blocks[pod]
	var held, or [2][]bool
	for g := range all {
		if g == 1 && pod.windows == nil {
			break
		}
		n := m.foresees(pod, rank, p, g)
		if g == 0 && n > 0 {
			f.row = true
		}
		for i, b := range all[g] {
			has := pod.ranks[rank] != nil && pod.ranks[rank].held[g][b.hash]
			held[g], or[g] = append(held[g], has), append(or[g], has || i < n)
		}
	}
	for f.matched < len(held[0]) && held[0][f.matched] {
		f.matched++
	}
	f.row = f.row || f.matched > 0
	f.cached, f.predicted = pod.reused(p, held), pod.reused(p, or)
	if sent := m.foresees(pod, rank, p, 0) * pod.blocks.size; f.predicted > sent && sent > f.matched*pod.blocks.size {
		m.fired["holes that are filled"]++
	}
	return f
}

// reused returns the tokens that an engine with these blocks would reuse.
func (p *sentPod) reused(of *sentPrompt, held [2][]bool) int {
	run := 0
	for run < len(held[0]) && held[0][run] {
		run++
	}
	run = min(run, p.limit(of)/p.blocks.size)
	for p.windows != nil && run > 0 {
		to := run * p.blocks.size / p.windows.size
		from := max(0, to-(sentWindow-2)/p.windows.size-1)
		if !slices.Contains(held[1][from:to], false) {
			break
		}
		run--
	}
	return run * p.blocks.size
}

// limit returns the maximum of reusable tokens, or pairs, of a prompt.
func (p *sentPod) limit(of *sentPrompt) int {
	if p.blocks.pairs {
		return max(len(of.q.Tokens)-2, 0)
	}
	return max(len(of.q.Tokens)-1, 0)
}

// answer returns the expected answer for pods.
func (m *sentModel) answer(pods []*sentPod, p *sentPrompt, ranks bool) (want []kvindex.PodScore) {
	for _, pod := range pods {
		var of []kvindex.PodScore
		var rows []sentFigures
		known := slices.Collect(maps.Keys(pod.ranks))
		for _, t := range m.tickets {
			if t.live && t.pod == pod && m.foresees(pod, t.rank, p, 0) > 0 {
				known = append(known, t.rank)
			}
		}
		slices.Sort(known)
		for _, rank := range slices.Compact(known) {
			f := m.figures(pod, rank, p)
			s := kvindex.PodScore{Pod: pod.name, Rank: rank, CachedTokens: f.cached, PredictedTokens: f.predicted, Score: float64(f.predicted), MatchedBlocks: f.matched}
			if f.row {
				s.BlockTokens = pod.blocks.size
				if !pod.formed {
					s.BlockTokens = m.lender(pod).blocks.size
				}
			}
			if f.matched > 0 {
				s.Tiers = [index.NumTiers]int{f.matched}
			}
			if f.predicted > f.cached {
				m.fired["predicted more than cached"]++
				m.fired["predicted more than cached by "+pod.name]++
			}
			of, rows = append(of, s), append(rows, f)
		}
		if !ranks {
			at := -1
			for i := range of {
				if rows[i].row && (at < 0 || cmp.Or(rows[i].predicted-rows[at].predicted, rows[i].cached-rows[at].cached, rows[i].matched-rows[at].matched) > 0) {
					at = i
				}
			}
			if at < 0 {
				of = nil
			} else {
				of = of[at : at+1]
			}
		}
		if len(of) == 0 {
			of = []kvindex.PodScore{{Pod: pod.name}}
		}
		want = append(want, of...)
	}
	q := &p.q
	place := func(s kvindex.PodScore) uint32 {
		return kvindex.Place(m.ix, s.Pod, q.Adapter, q.Salt, q.Tokens, q.Media)
	}
	turn := func(s kvindex.PodScore) uint32 {
		return kvindex.PlaceOfRank(m.ix, s.Pod, s.Rank, q.Adapter, q.Salt, q.Tokens, q.Media)
	}
	slices.SortFunc(want, func(a, b kvindex.PodScore) int {
		return cmp.Or(b.PredictedTokens-a.PredictedTokens, cmp.Compare(place(b), place(a)), cmp.Compare(a.Pod, b.Pod), cmp.Compare(turn(b), turn(a)), a.Rank-b.Rank)
	})
	return want
}

// ask scores a prompt in a random form, compares the answer, and returns it with its pods.
func (m *sentModel) ask(p *sentPrompt, a *kvindex.Answer) (pods []*sentPod) {
	m.t.Helper()
	q := p.q
	q.Model = "m"
	for _, pod := range m.pods {
		if pod.heard || m.r.IntN(3) > 0 {
			pods = append(pods, pod)
		}
	}
	switch m.r.IntN(4) {
	case 0, 1:
		pods = slices.DeleteFunc(slices.Clone(m.pods), func(pod *sentPod) bool { return !pod.heard })
		if q.Pods = nil; m.r.IntN(2) == 0 {
			q.Model, q.Candidates = "", m.ix.Candidates("m", nil)
			m.fired["candidates"]++
		}
	default:
		if m.r.IntN(4) == 0 && len(pods) > 0 {
			pods = slices.Delete(pods, 0, 1)
		}
		q.Pods = []string{}
		for _, pod := range pods {
			q.Pods = append(q.Pods, pod.name)
		}
		if m.r.IntN(2) == 0 {
			q.Model, q.Candidates, q.Pods = "", m.ix.Candidates("m", q.Pods), nil
			m.fired["candidates"]++
		}
	}
	q.Ranks = m.r.IntN(2) == 0
	q.Top = max(0, m.r.IntN(6)-2)
	if err := m.ix.ScoreRequest(ctx, &q, a); err != nil {
		m.t.Fatal(err)
	}
	want := m.answer(pods, p, q.Ranks)
	if q.Top > 0 && q.Top < len(want) {
		want = want[:q.Top]
		m.fired["top"]++
	}
	got := slices.Clone(a.Pods)
	for _, all := range [][]kvindex.PodScore{got, want} {
		for i := range all {
			s := &all[i]
			if s.State = 0; s.PredictedTokens == 0 && s.MatchedBlocks == 0 { // the rank is unknown
				if s.BlockTokens = 0; !q.Ranks {
					s.Rank = 0
				}
			}
		}
	}
	if !slices.Equal(got, want) {
		for i := range want {
			if i >= len(got) || got[i] != want[i] {
				m.t.Logf("entry %d: got %+v, want %+v", i, got[min(i, len(got)-1)], want[i])
			}
		}
		m.t.Fatalf("%d of %d entries, %d tokens, adapter %q, salt %q, media %v, pods %v, ranks %v", len(got), len(want), len(q.Tokens), q.Adapter, q.Salt, q.Media, q.Pods, q.Ranks)
	}
	return pods
}

// expire ends predictions that are too old.
func (m *sentModel) expire() {
	m.tickets = slices.DeleteFunc(m.tickets, func(t *sentTicket) bool {
		if t.live && m.now.Sub(t.at) >= sentTTL {
			t.live = false
			m.predictions.Ended["expired"]++
		}
		if m.now.Sub(t.at) < sentAge {
			return false
		}
		m.counts.Ended["aged"]++
		m.used = append(m.used, t.ticket)
		return true
	})
}

// lose ends the predictions of a rank; -1: of all ranks of the pod.
func (m *sentModel) lose(pod *sentPod, rank int) {
	for _, t := range m.tickets {
		if t.live && t.pod == pod && (rank < 0 || t.rank == rank) {
			t.live = false
			m.predictions.Ended["lost"]++
		}
	}
}

// isWhole reports whether a rank holds all blocks of a prompt, or it has none.
func (p *sentPod) isWhole(rank int, of *sentPrompt) bool {
	r := p.ranks[rank]
	return !slices.ContainsFunc(of.blocks[p][0], func(b block) bool { return r == nil || !r.held[0][b.hash] })
}

// confirm ends the predictions of which a rank holds all blocks.
func (m *sentModel) confirm(pod *sentPod, rank int) {
	for _, t := range m.tickets {
		if t.live && t.pod == pod && t.rank == rank && t.lender == nil && pod.isWhole(rank, t.prompt) {
			t.live = false
			m.predictions.Ended["confirmed"]++
			m.fired["confirmed by events"]++
		}
	}
}

// stateOf returns a rank's state in an answer with ranks.
func (m *sentModel) stateOf(pod *sentPod, rank int) kvindex.State {
	for _, info := range m.ix.Pods(nil) {
		if info.Pod != pod.name {
			continue
		}
		for _, s := range info.Ranks {
			if s.Rank == rank {
				return s.State
			}
		}
		return info.State
	}
	return kvindex.StateUnknown
}

// route calls Routed. a is about pods; its blocks are those of formed.
func (m *sentModel) route(p *sentPrompt, a *kvindex.Answer, pods, formed []*sentPod, pod *sentPod, rank int) {
	m.t.Helper()
	m.expire()
	of := pod // whose blocks count
	var lender *sentPod
	if !pod.formed {
		lender = m.lender(pod)
		of = lender
	}
	same := func(o *sentPod) bool { return o.blocks.form == of.blocks.form && o.blocks.pairs == of.blocks.pairs }
	var want error
	switch {
	case !slices.Contains(pods, pod):
		want = kvindex.ErrNotInRequest
	case of == nil, !slices.ContainsFunc(formed, same):
		want = kvindex.ErrBlockSize
	}
	f, state := m.figures(pod, rank, p), m.stateOf(pod, rank)
	ticket, err := m.ix.Routed(a, pod.name, rank)
	if !errors.Is(err, want) || want == nil && err != nil || (err != nil) != (ticket == kvindex.Ticket{}) {
		m.t.Fatalf("routed to %s/%d: %v, want %v", pod.name, rank, err, want)
	}
	if err != nil {
		m.fired["refused"]++
		return
	}
	t := &sentTicket{ticket: ticket, pod: pod, rank: rank, prompt: p, at: m.now, cached: f.cached, predicted: f.predicted, model: "m", state: state, lender: lender}
	for _, o := range m.tickets {
		if o.live && o.pod == pod && o.rank == rank && o.lender != nil && !o.lender.sameBlocks(of) {
			o.live = false
			m.predictions.Ended["lost"]++
			m.fired["lent blocks change"]++
		}
	}
	if lender != nil {
		m.fired["lent"]++
		if !pod.heard {
			m.fired["lent to one that was never heard"]++
		}
	}
	m.predictions.Routed++
	if lender == nil && pod.isWhole(rank, p) || len(p.blocks[of][0]) == 0 {
		m.predictions.Ended["confirmed"]++
		m.fired["confirmed when routed"]++
	} else {
		t.live = true
	}
	m.tickets = append(m.tickets, t)
	if _, err := m.ix.Routed(a, pod.name, rank); !errors.Is(err, kvindex.ErrAnswerUsed) {
		m.t.Fatalf("routed twice: %v", err)
	}
}

func accuracyOf(of map[string]stats.Accuracy, figure, cached int) {
	result, tokens := "exact", cached
	if figure > cached {
		result, tokens = "over", figure-cached
	} else if figure < cached {
		result, tokens = "under", cached-figure
	}
	of[result] = stats.Accuracy{Requests: of[result].Requests + 1, Tokens: of[result].Tokens + uint64(tokens)}
}

// settle uses a ticket.
func (m *sentModel) settle(abandon bool) {
	m.expire()
	if len(m.tickets) == 0 {
		return
	}
	i := m.r.IntN(len(m.tickets))
	if live := slices.IndexFunc(m.tickets, func(t *sentTicket) bool { return t.live }); live >= 0 && m.r.IntN(5) > 2 {
		i = live
	}
	t := m.tickets[i]
	m.tickets, m.used = slices.Delete(m.tickets, i, i+1), append(m.used, t.ticket)
	if abandon {
		m.counts.Ended["abandoned"]++
		if t.live {
			m.predictions.Ended["abandoned"]++
		}
		m.ix.Abandon(t.ticket)
		return
	}
	m.counts.Ended["observed"]++
	if t.live {
		m.predictions.Ended["observed"]++
	} else if m.now.Sub(t.at) >= sentTTL {
		m.fired["observed after the TTL"]++
	}
	o := m.observed[t.model+t.state.String()]
	if o == nil {
		none := notObserved(t.model, t.state.String())
		o = &none
		m.observed[t.model+t.state.String()] = o
	}
	length := len(t.prompt.q.Tokens)
	u := kvindex.Usage{PromptTokens: length, CachedTokens: m.r.IntN(length)}
	switch m.r.IntN(9) {
	case 0:
		u.PromptTokens, u.CachedTokens = -1, -1
	case 1:
		u.PromptTokens, u.CachedTokens = length+1, length
		o.OtherLength++
		if length > 1 && m.r.IntN(2) == 0 {
			u.PromptTokens = length - 1 // fewer than the cached ones
			break
		}
		accuracyOf(o.Cached, t.cached, length)
		accuracyOf(o.Predicted, t.predicted, length)
	case 2:
		u.PromptTokens, u.CachedTokens = math.MaxInt, math.MaxInt
	case 3:
		u.PromptTokens, u.CachedTokens = m.r.IntN(2)*math.MinInt, length+1 // never 0 tokens
	case 4:
		u.CachedTokens = length + 1
	case 5:
		u.CachedTokens = t.cached
		fallthrough
	case 6:
		if u.CachedTokens != t.cached {
			u.CachedTokens = t.predicted
		}
		fallthrough
	default:
		accuracyOf(o.Cached, t.cached, u.CachedTokens)
		accuracyOf(o.Predicted, t.predicted, u.CachedTokens)
	}
	m.ix.Observe(t.ticket, u)
}

// rank returns a rank, made if need be. Both ranks of b share a stream, rank 2 of a has none, and
// each other rank has its own.
func (m *sentModel) rank(pod *sentPod, n int) *sentRank {
	r := pod.ranks[n]
	if r != nil {
		return r
	}
	r = &sentRank{n: n, held: [2]map[uint64]bool{{}, {}}}
	pod.ranks[n] = r
	switch {
	case pod.name == "b":
		for _, other := range pod.ranks {
			if other.stream != nil {
				r.stream = other.stream
			}
		}
		if r.stream == nil {
			r.stream = &sentStream{name: "both"}
		}
	case pod.name == "a" && n == 2:
		return r
	default:
		r.stream = &sentStream{name: fmt.Sprint("s", n)}
	}
	r.stream.ranks = append(r.stream.ranks, r)
	return r
}

func (m *sentModel) payload(p *sentPod, rank int, e *blockEvents) []byte {
	m.batch++
	return p.blocks.payload(e, m.batch, rank, fakeengine.Encoding{})
}

// forget empties a rank.
func (m *sentModel) forget(pod *sentPod, r *sentRank) {
	m.lose(pod, r.n)
	r.held = [2]map[uint64]bool{{}, {}}
}

// message ingests events of a rank that do appends. With gap a message before it was lost, with
// restart the engine has restarted.
func (m *sentModel) message(pod *sentPod, n int, gap, restart bool, do func(r *sentRank, e *blockEvents)) {
	m.t.Helper()
	m.expire()
	fresh := pod.ranks[n] == nil // it has no blocks to lose
	r := m.rank(pod, n)
	st := r.stream
	var e blockEvents
	if st == nil {
		do(r, &e)
		if err := m.ix.Ingest(pod.name, "m", m.payload(pod, n, &e)); err != nil {
			m.t.Fatal(err)
		}
	} else {
		restart = restart && st.next > 2
		gap = gap && !restart && st.next > 0
		if restart {
			st.next = 0
			m.fired["restarts"]++
		}
		if gap {
			st.next++
			m.fired[fmt.Sprintf("gaps with keep %v", m.keep)]++
		}
		if restart || gap && !m.keep {
			for _, its := range st.ranks {
				if its != r || !fresh {
					m.forget(pod, its)
				}
			}
			if len(st.ranks) > 1 {
				m.fired["losses of two ranks"]++
			}
		}
		do(r, &e)
		msg := kvindex.Message{Pod: pod.name, Model: "m", Stream: st.name, Seq: st.next, Payload: m.payload(pod, n, &e)}
		st.next++
		got, err := m.ix.IngestMessage(msg)
		if err != nil || !got.Applied {
			m.t.Fatalf("%s/%d, message %d: %+v, %v", pod.name, n, msg.Seq, got, err)
		}
		if m.r.IntN(20) == 0 {
			if got, err := m.ix.IngestMessage(msg); err != nil || got.Applied {
				m.t.Fatalf("brought again: %+v, %v", got, err)
			}
		}
	}
	pod.heard = true
	m.form(pod)
	m.confirm(pod, n)
}

// store makes a rank compute the first blocks of a prompt.
func (m *sentModel) store(pod *sentPod, n int, p *sentPrompt, most int, gap, restart bool) {
	m.t.Helper()
	m.message(pod, n, gap, restart, func(r *sentRank, e *blockEvents) {
		if pod.blocks.blind && p.q.Adapter != "" {
			return // they would look like events of the base model
		}
		of := p.blocks[pod]
		of[0] = of[0][:min(most, len(of[0]))]
		if pod.windows != nil {
			of[1] = of[1][:len(of[0])*pod.blocks.size/pod.windows.size]
		}
		for g := range of {
			for _, b := range of[g] {
				if !r.held[g][b.hash] {
					r.held[g][b.hash] = true
					if g == 0 {
						pod.blocks.add(e, b, &p.q)
					} else {
						s := pod.windows.add(e, b, &p.q)
						s.Group, s.Kind, s.Window = 1, "sliding_window", sentWindow
					}
					pod.formed = true
				}
			}
		}
		if keeps := 1 + m.r.IntN(6); len(of[1]) > keeps { // the engine frees blocks before the window
			for _, b := range of[1][:len(of[1])-keeps] {
				delete(r.held[1], b.hash)
				e.remove(1, b.hash)
			}
		}
	})
}

// evict removes some blocks of a rank.
func (m *sentModel) evict(pod *sentPod, n int, share float64, gap, restart bool) {
	m.t.Helper()
	m.message(pod, n, gap, restart, func(r *sentRank, e *blockEvents) {
		for g := range r.held {
			for _, h := range slices.Sorted(maps.Keys(r.held[g])) {
				if m.r.Float64() < share {
					delete(r.held[g], h)
					e.remove(g, h)
				}
			}
		}
	})
}

// anyRank returns a rank that is known or may be.
func (m *sentModel) anyRank(pod *sentPod) int {
	if pod.name == "a" {
		return m.r.IntN(3)
	}
	return m.r.IntN(2)
}

// sent returns a ticket with a live prediction, or nil.
func (m *sentModel) sent() *sentTicket {
	live := slices.DeleteFunc(slices.Clone(m.tickets), func(t *sentTicket) bool { return !t.live })
	if len(live) == 0 {
		return nil
	}
	return live[m.r.IntN(len(live))]
}

// step makes one random change.
func (m *sentModel) step(held *sentAnswer) {
	m.t.Helper()
	pod := m.pods[m.r.IntN(len(m.pods))]
	rank := m.anyRank(pod)
	gap, restart := m.r.IntN(25) == 0, m.r.IntN(40) == 0
	switch op := m.r.IntN(100); {
	case op < 34: // one request, or siblings
		p := m.prompt()
		for n := 1 + m.r.IntN(3)*m.r.IntN(2); n > 0; n-- {
			var a kvindex.Answer
			pods := m.ask(p, &a)
			if m.r.IntN(10) == 0 {
				rank = 5 // a rank without events
			}
			if m.r.IntN(20) > 0 && len(pods) > 0 {
				pod = pods[m.r.IntN(len(pods))]
			}
			m.route(p, &a, pods, m.formed(pods), pod, rank)
		}
	case op < 37: // route an earlier answer
		if held.prompt != nil {
			m.route(held.prompt, held.answer, held.pods, held.formed, pod, rank)
		}
		held.prompt, held.answer = m.prompt(), new(kvindex.Answer)
		held.pods = m.ask(held.prompt, held.answer)
		held.formed = m.formed(held.pods)
	case op < 44: // a hole, filled by a sent prompt
		if t := m.sent(); t != nil && len(t.prompt.blocks[t.pod][0]) > 1 {
			of := t.prompt.blocks[t.pod][0]
			gone := of[m.r.IntN(min(len(of)-1, 6))].hash
			m.message(t.pod, t.rank, false, false, func(r *sentRank, e *blockEvents) {
				if r.held[0][gone] {
					delete(r.held[0], gone)
					e.remove(0, gone)
				}
			})
		}
	case op < 56: // compute a sent prompt
		if t := m.sent(); t != nil {
			m.store(t.pod, t.rank, t.prompt, 1+m.r.IntN(2)*m.r.IntN(20)+m.r.IntN(4)*50, gap, restart)
		}
	case op < 61:
		m.store(pod, rank, m.prompt(), 1+m.r.IntN(90), gap, restart)
	case op < 66:
		m.evict(pod, rank, 0.1, gap, restart)
	case op < 67:
		m.message(pod, rank, gap, restart, func(r *sentRank, e *blockEvents) {
			m.forget(pod, r)
			e.clear()
			m.fired["clears"]++
		})
	case op < 68:
		if r := pod.ranks[rank]; r != nil {
			m.expire()
			if err := m.ix.MarkLost(pod.name, rank); err != nil {
				m.t.Fatal(err)
			}
			if !m.keep {
				m.forget(pod, r)
			}
			m.fired["marked"]++
		}
	case op == 68 && m.r.IntN(4) == 0, op >= 77 && op < 80 && m.alike:
		m.expire()
		if err := m.ix.RemovePod(pod.name); err != nil {
			m.t.Fatal(err)
		}
		m.removed(pod)
		m.fired["pods removed"]++
	case op == 69:
		m.expire()
		pod, rank = m.pods[0], rank%2
		if err := m.ix.Sink().RemoveStream("a", "m", fmt.Sprint("s", rank)); err != nil {
			m.t.Fatal(err)
		}
		if pod.ranks[rank] != nil {
			m.lose(pod, rank)
			delete(pod.ranks, rank)
			m.fired["streams removed"]++
		}
		if pod.opened = pod.opened && rank > 0; pod.heard && len(pod.ranks) == 0 && !pod.opened {
			m.removed(pod)
		}
	case op < 80:
		m.settle(false)
	case op < 89:
		m.settle(true)
	case op < 91 && len(m.used) > 0:
		m.expire()
		if t := m.used[m.r.IntN(len(m.used))]; m.r.IntN(2) == 0 {
			m.ix.Abandon(t)
		} else {
			m.ix.Observe(t, kvindex.Usage{})
		}
		m.counts.Unknown++
	default:
		m.now = m.now.Add(time.Duration(m.r.IntN(1000)) * time.Millisecond)
	}
	m.expire()
}

// sentAnswer is an answer to be routed later.
type sentAnswer struct {
	prompt       *sentPrompt
	answer       *kvindex.Answer
	pods, formed []*sentPod
}

// formed returns for each pod the one whose blocks an answer uses: itself or its lender.
func (m *sentModel) formed(pods []*sentPod) (formed []*sentPod) {
	for _, pod := range pods {
		if pod.formed {
			formed = append(formed, pod)
		} else if lender := m.lender(pod); lender != nil {
			formed = append(formed, lender)
		}
	}
	return formed
}

func (m *sentModel) removed(pod *sentPod) {
	m.lose(pod, -1)
	pod.heard, pod.opened, pod.formed, pod.ranks = false, false, false, make(map[int]*sentRank)
	if !slices.ContainsFunc(m.pods, func(o *sentPod) bool { return o.heard }) { // the model has been forgotten
		for _, o := range m.pods {
			m.lose(o, -1)
		}
	}
}

func notObserved(model, state string) stats.Observations {
	none := func() map[string]stats.Accuracy {
		return map[string]stats.Accuracy{"exact": {}, "over": {}, "under": {}}
	}
	return stats.Observations{Model: model, State: state, Cached: none(), Predicted: none()}
}

// check compares all counters and the known pods: Routed registers none.
func (m *sentModel) check() {
	m.t.Helper()
	heard := slices.DeleteFunc(slices.Clone(m.pods), func(pod *sentPod) bool { return !pod.heard })
	if known := len(m.ix.Pods(nil)); known != len(heard) {
		m.t.Fatalf("%d pods are known, want %d", known, len(heard))
	}
	m.predictions.Live = 0
	for _, t := range m.tickets {
		if t.live {
			m.predictions.Live++
		}
	}
	m.counts.Live = uint64(len(m.tickets))
	s := m.ix.Stats()
	if !reflect.DeepEqual(s.Predictions, m.predictions) || !reflect.DeepEqual(s.Tickets, m.counts) {
		m.t.Fatalf("\n got %+v %+v\nwant %+v %+v", s.Predictions, s.Tickets, m.predictions, m.counts)
	}
	got := slices.DeleteFunc(s.Observed, func(o stats.Observations) bool {
		return reflect.DeepEqual(o, notObserved(o.Model, o.State)) // routed, but not observed
	})
	want := []stats.Observations{}
	for _, o := range m.observed {
		if !reflect.DeepEqual(*o, notObserved(o.Model, o.State)) {
			want = append(want, *o)
		}
	}
	slices.SortFunc(want, func(a, b stats.Observations) int {
		return cmp.Or(strings.Compare(a.Model, b.Model), cmp.Compare(a.State, b.State))
	})
	if !slices.EqualFunc(got, want, func(a, b stats.Observations) bool { return reflect.DeepEqual(a, b) }) {
		m.t.Fatalf("observed\n got %+v\nwant %+v", got, want)
	}
}

// TestPredictionsModel makes random changes, and compares all figures and counters with the
// model's.
func TestPredictionsModel(t *testing.T) {
	seeds, steps := choose(4, 8), choose(500, 2000)
	fired := make(map[string]int)
	for seed := range uint64(seeds) {
		m := newSentModel(t, seed, fired)
		_ = m.ix.Sink().StreamNote("a", "m", "s0", events.NoteOpened)
		_ = m.ix.Sink().StreamNote("a", "m", "s0", events.NoteConnected)
		m.pods[0].heard, m.pods[0].opened = true, true
		var held sentAnswer
		for step := range steps {
			m.step(&held)
			var a kvindex.Answer
			m.ask(m.prompt(), &a)
			m.check()
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
		p := m.predictions
		fired["routed"] += int(p.Routed)
		fired["confirmed"] += int(p.Ended["confirmed"])
		fired["expired"] += int(p.Ended["expired"])
		fired["observed"] += int(p.Ended["observed"])
		fired["abandoned"] += int(p.Ended["abandoned"])
		fired["lost"] += int(p.Ended["lost"])
		fired["tickets aged"] += int(m.counts.Ended["aged"])
		fired["tickets unknown"] += int(m.counts.Unknown)
	}
	for _, what := range slices.Sorted(maps.Keys(fired)) {
		t.Logf("%6d %s", fired[what], what)
	}
	for what, least := range map[string]int{
		"confirmed": 500, "confirmed by events": 500, "confirmed when routed": 100, "expired": 500, "observed": 500, "abandoned": 500, "lost": 500,
		"observed after the TTL": 500, "tickets aged": 500, "tickets unknown": 100, "predicted more than cached": 2000,
		"predicted more than cached by a": 500, "predicted more than cached by b": 500, "predicted more than cached by hybrid": 500, "predicted more than cached by pairs": 500,
		"holes that are filled": 100, "top": 500, "candidates": 500, "refused": 100, "clears": 50, "restarts": 50, "gaps with keep false": 30, "gaps with keep true": 30,
		"losses of two ranks": 15, "marked": 50, "pods removed": 10, "streams removed": 20,
		"lent": 200, "lent to one that was never heard": 80, "lent blocks count": 400, "lent blocks are its own": 80, "lent blocks are not its own": 20,
	} {
		if *long && fired[what] < least {
			t.Errorf("%d times %s, want at least %d", fired[what], what, least)
		}
	}
}
