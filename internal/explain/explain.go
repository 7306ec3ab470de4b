// Package explain explains the score of a pod: it finds the cause why the first block that does not
// count does not count.
//
// The score itself comes from the code of ScoreRequest. Causes are tried in the order of type
// cause, and the first match is reported. Certain causes come first: the index still has data
// about the block. Then come likely causes: another pod has the block, or the pod holds the
// same tokens under another scope. Possible causes come last: the view of the pod is not
// complete.
//
// # Memory
//
// Explain needs almost no memory of its own. The cause comes from structures that exist anyway:
// names of evicted blocks, parked stores, the states. An idle name has the time at which it
// became idle, which its eviction needs, so a clear differs from a removal. Three things are
// kept for Explain alone: the last loss of a rank, and for each pod and model the roots of the
// last 64 salts and the last 64 media. A salt may be a secret. Its root shows that there is
// another salt, and its text is neither kept nor reported.
package explain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/reuse"
	"github.com/kvindex/kvindex/internal/trace"
	"github.com/kvindex/kvindex/internal/view"
	"github.com/kvindex/kvindex/stats"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// Question is the input of Explain: a request, its score for a pod, and the state of the pod.
type Question struct {
	Index  index.Index
	Hasher *hashing.Hasher
	Prompt *prompt.Prompt

	Model, Pod string
	Salted     bool

	// Err and the fields up to SentTo are the score. If Err is set, there is none.
	Err, Unknown                 error
	UnknownModel, UnknownAdapter bool // the kind of Unknown
	Cached, Predicted            int  // tokens
	UpperBound, NotScorable      bool
	Excluded                     string     // with NotScorable: the feature of the chat that is excluded for the pod
	Row                          *index.Row // the row of the score; nil: none
	// SentTo is the rank of the score if it holds nothing and the prompt was routed to it;
	// else -1.
	SentTo int

	Facts   *Pod         // nil: the pod is not registered
	Refused func() error // returns the error of the Profile of a pod that is not registered
}

// Answer has fields of kvindex.Explanation.
type Answer struct {
	BlockTokens, Blocks int
	Rank, Block, Token  int
	Held                []string

	Cause, Why string
	Pods       []string
	Scope      string
	Loss       string

	// Figures for Why.
	tier             index.Tier
	others           int // pods that hold the block
	lostAt           time.Time
	parked, unplaced int
	evicted          uint64 // blocks of the rank, or of the pod if it holds nothing of the prompt
}

// Answer finds the Answer to q. changed: the blocks of the pod have changed since the score.
func (q *Question) Answer(ctx context.Context) (e *Answer, changed bool, err error) {
	w := &explainer{Question: q, e: &Answer{}}
	if q.Err != nil {
		w.cause = causeError
	} else {
		w.own = index.NewCandidates(q.Model, []string{q.Pod})
		w.e.evicted = w.evicted()
		if changed, err = w.find(ctx); err != nil {
			return nil, false, err
		}
	}
	w.e.Cause, w.e.Why = w.cause.String(), w.sentence()+w.unrecognized()
	return w.e, changed, nil
}

// explainer is one call of Question.Answer.
type explainer struct {
	*Question
	e     *Answer
	cause cause
	own   *index.Candidates
	rows  index.Matches

	// held has the rows of the pod with bits, and variants those of the query.
	held     []index.Row
	variants []index.Variant
}

// cause is the reason why the first block that does not count does not count. If several are
// true, the first in this order is reported, with two exceptions: causeLost comes after
// causeMemory if it is only possible, and causeSilent after causePartial if the pod has
// other streams that are not silent.
type cause uint8

const (
	causeError cause = iota + 1
	causeUnknownModel
	causeUnknownAdapter
	causeUnknownPod
	causeNotScorable
	causeNoBlock
	causeApproximate
	causeWhole
	causeLowerTier
	causeGroup
	causeHidden
	causeEvicted
	causeLost
	causeCleared
	causeParked
	causeSilent
	causeElsewhere
	causeOtherAdapter
	causeOtherSalt
	causeOtherMedia
	causeContested
	causeHeldBack
	causeMemory
	causePartial
	causeUnplaced
	causeNeverStored
	causeUnexplained
)

var causeNames = []string{
	0: "none", causeError: "error", causeUnknownModel: "unknown_model", causeUnknownAdapter: "unknown_adapter", causeUnknownPod: "unknown_pod", causeNotScorable: "not_scorable",
	causeNoBlock: "no_block", causeApproximate: "approximate", causeWhole: "whole", causeLowerTier: "lower_tier", causeGroup: "group", causeHidden: "hidden", causeEvicted: "evicted",
	causeLost: "lost", causeCleared: "cleared", causeParked: "parked", causeSilent: "silent", causeElsewhere: "elsewhere",
	causeOtherAdapter: "other_adapter", causeOtherSalt: "other_salt", causeOtherMedia: "other_media", causeContested: "contested",
	causeHeldBack: "held_back", causeMemory: "memory", causePartial: "partial", causeUnplaced: "unplaced", causeNeverStored: "never_stored", causeUnexplained: "unexplained",
}

func (c cause) String() string { return causeNames[c] }

// Pod is the state of a pod beside its blocks.
type Pod struct {
	Form     uint8
	Drafts   bool // the engine has draft layers
	Adapters []string
	Recent   engine.Recent
	Approx   int  // block size of an estimated pod in tokens; 0: the pod has events
	Silent   bool // a stream is silent
	Idle     bool // each silent stream is connected
	Listed   bool // another process feeds the pod
	Received bool
	Ranks    []Rank
	// Unrecognized is PodInfo.Unrecognized.
	Unrecognized []string
}

// Rank is the state of a rank beside its blocks.
type Rank struct {
	Number           int
	State            view.State // of its view
	Contested, Waits bool
	Lost             view.LastLoss
	Groups           []stats.Group
	Evicted          uint64
}

// Of returns the state of a pod, which is locked. evicted returns how many blocks of a rank the index
// has evicted.
func Of(pm *podstate.Pod, evicted func(rank int) uint64) *Pod {
	f := &Pod{
		Form: pm.Shown.Profile.Media, Drafts: pm.Shown.Profile.Draft == engine.DraftLayers, Adapters: slices.Sorted(maps.Keys(pm.Adapters)),
		Recent: pm.Recent.Clone(), Silent: pm.Silent > 0, Idle: pm.Idle(),
	}
	for _, n := range slices.Sorted(maps.Keys(pm.Ranks)) {
		r := pm.Ranks[n]
		st := r.Stream
		f.Ranks = append(f.Ranks, Rank{
			Number: n, State: r.View(), Evicted: evicted(n), Contested: r.Contest.Open, Waits: r.Kept || r.Stale || st != nil && (st.Waits() || st.Interrupted),
			Lost: r.Lost, Groups: slices.Clone(r.Groups),
		})
		pm.Shown.Profile.Correct(f.Ranks[len(f.Ranks)-1].Groups)
		f.Unrecognized = append(f.Unrecognized, r.Unrecognized...)
		f.Received = f.Received || r.Messages > 0 || r.Kept || r.State != view.Unknown
	}
	return f
}

// rank returns the state of a rank.
func (f *Pod) rank(n int) (r Rank) {
	if f != nil {
		if i := slices.IndexFunc(f.Ranks, func(r Rank) bool { return r.Number == n }); i >= 0 {
			return f.Ranks[i]
		}
	}
	return r
}

// ranks returns the rank of the score or, if it has none, all ranks.
func (w *explainer) ranks() []Rank {
	switch {
	case w.Facts == nil:
		return nil
	case w.Row != nil:
		return []Rank{w.Facts.rank(w.Row.Source.Rank)}
	case w.SentTo >= 0:
		return slices.DeleteFunc(slices.Clone(w.Facts.Ranks), func(r Rank) bool { return r.Number != w.SentTo })
	}
	return w.Facts.Ranks
}

func (w *explainer) evicted() (n uint64) {
	for _, r := range w.ranks() {
		n += r.Evicted
	}
	return n
}

// The causes.

// find sets the cause and its fields. changed: the blocks of the pod have changed since the
// score.
func (w *explainer) find(ctx context.Context) (changed bool, err error) {
	switch {
	case w.UnknownModel:
		w.cause = causeUnknownModel
		return false, nil
	case w.UnknownAdapter && w.Facts == nil:
		w.cause = causeUnknownAdapter
		return false, nil
	case w.Facts == nil && w.Row == nil:
		w.cause = causeUnknownPod
		return false, nil
	case w.NotScorable:
		w.cause = causeNotScorable
		return false, nil
	case w.Facts != nil && w.Facts.Approx > 0:
		w.believed()
		return false, nil
	}
	if err := w.lookAt(ctx); err != nil {
		return false, err
	}
	if w.moved() {
		w.cause = causeUnexplained
		return true, nil
	}
	if err := w.choose(ctx); err != nil {
		return false, err
	}
	switch {
	case w.UnknownAdapter:
		w.cause = causeUnknownAdapter
		_, err = w.findOtherScope(ctx)
		return false, err
	case w.cause < causeUnplaced:
		return false, nil
	case w.Facts != nil && w.Facts.Silent && !w.Facts.Received:
		w.cause = causeSilent
		return false, nil
	}
	if found, err := w.elsewhere(ctx); found || err != nil {
		return false, err
	}
	if found, err := w.findOtherScope(ctx); found || err != nil {
		return false, err
	}
	w.byState()
	return false, nil
}

// believed sets the answer for an estimated pod.
func (w *explainer) believed() {
	e := w.e
	w.cause, e.Rank, e.BlockTokens, e.Blocks = causeApproximate, max(w.SentTo, 0), w.Facts.Approx, len(w.Prompt.IDs)/w.Facts.Approx
	if e.Blocks == 0 {
		w.cause = causeNoBlock
	}
}

// lookAt queries the index for all rows of the pod, with bits.
func (w *explainer) lookAt(ctx context.Context) error {
	q := index.Query{Candidates: w.own, Held: true, Keys: func(v index.Variant) ([]index.Key, error) {
		w.variants = append(w.variants, v)
		return w.Prompt.KeysIn(v)
	}}
	var m index.Matches
	err := w.matchAll(ctx, &q, &m)
	w.held = m.Rows
	return err
}

// matchAll queries the index. A degraded answer is an error.
func (w *explainer) matchAll(ctx context.Context, q *index.Query, m *index.Matches) error {
	err := w.Index.Match(ctx, q, m)
	if err == nil {
		err = m.Degraded
	}
	return err
}

// tracer returns the index if it can explain blocks of the pod. It cannot for pods that another
// process feeds.
func (w *explainer) tracer() (of inmemory.Explainer, ok bool) {
	if w.Facts == nil || !w.Facts.Listed {
		of, ok = w.Index.(inmemory.Explainer)
	}
	return of, ok
}

// fullGroups counts the groups that need every block of a prefix.
func fullGroups(l *index.Layout) (n int) {
	for _, g := range l.Groups {
		if g.Kind == index.GroupFull {
			n++
		}
	}
	return n
}

// moved reports whether the blocks of the pod have changed since the score.
func (w *explainer) moved() bool {
	if w.Row == nil {
		return slices.ContainsFunc(w.held, func(r index.Row) bool {
			return r.Run > 0 && (w.SentTo < 0 || r.Source.Rank == w.SentTo) && (fullGroups(r.Layout) == 0 || fullGroups(r.Layout) == 1 && r.Group.Kind == index.GroupFull)
		})
	}
	i := slices.IndexFunc(w.held, func(r index.Row) bool {
		return r.Source == w.Row.Source && r.Group.ID == w.Row.Group.ID && r.BlockSize == w.Row.BlockSize && r.Pairs == w.Row.Pairs
	})
	return i < 0 || w.held[i].GPU != w.Row.GPU || w.held[i].Run != w.Row.Run
}

// point is a block that may be the first one that does not count.
type point struct {
	rank    int
	group   int
	size    int // tokens
	variant index.Variant
	block   int

	cause    cause
	tier     index.Tier
	parked   int
	unplaced int
}

// points returns the blocks to check: the block after the row's gpu run or, without a row, the
// first block of each rank, in each size that its full-attention groups have.
func (w *explainer) points() (points []point) {
	if r := w.Row; r != nil {
		for _, v := range w.variants {
			if r.BlockSize%v.Unit == 0 && (v.Block == 0 || r.BlockSize%v.Block == 0) && v.Pairs == r.Pairs {
				p := point{rank: r.Source.Rank, group: r.Group.ID, size: r.BlockSize, variant: v, block: int(r.GPU)}
				if cached := w.Cached; cached < reuse.CachedTokens(int(r.GPU), r.BlockSize, w.length(v)) {
					p.block, p.cause = cached/r.BlockSize, causeGroup // the run alone would count
				}
				points = append(points, p)
			}
		}
		return points
	}
	for _, r := range w.ranks() {
		anyFull := slices.ContainsFunc(r.Groups, func(g stats.Group) bool { return g.Kind == index.GroupFull })
		for _, g := range r.Groups {
			if anyFull && g.Kind != index.GroupFull {
				continue
			}
			for _, pairs := range []bool{false, true} { // it is not known which
				if v, ok := engine.VariantOf(g.BlockSize, pairs, w.Facts.Form); ok && (!pairs || v.Media == hashing.FormPad) {
					points = append(points, point{rank: r.Number, group: g.ID, size: g.BlockSize, variant: v})
				}
			}
		}
	}
	return points
}

// choose sets the block of the answer, and its cause from the data of the index. A block that is
// in the prompt comes before one that is not.
func (w *explainer) choose(ctx context.Context) error {
	e := w.e
	w.cause = causeNeverStored
	if _, ok := w.tracer(); !ok {
		w.cause = causeUnexplained
	}
	var best *point
	points := w.points()
	for i := range points {
		p := &points[i]
		if err := w.judge(ctx, p); err != nil {
			return err
		}
		if best == nil || best.cause == causeNoBlock || p.cause < best.cause && p.cause != causeNoBlock {
			best = p
		}
	}
	if best == nil {
		return nil
	}
	w.cause, e.tier, e.parked, e.unplaced = best.cause, best.tier, best.parked, best.unplaced
	e.Rank, e.BlockTokens, e.Block, e.Token = best.rank, best.size, best.block, best.block*best.size
	e.Blocks = w.length(best.variant) / best.size
	if w.cause == causeLost {
		w.lostBy(w.Facts.rank(best.rank).Lost)
	}
	e.Held = w.holdings(best)
	return nil
}

// holdings returns the best tier of each block of the prompt, by the row of a point; nil without one.
func (w *explainer) holdings(p *point) []string {
	for i := range w.held {
		row := &w.held[i]
		if row.Source.Rank != p.rank || row.Group.ID != p.group || row.BlockSize != p.size || row.Pairs != p.variant.Pairs {
			continue
		}
		held := make([]string, w.e.Blocks)
		for b := range held {
			if t := tierAt(row, b*p.size); t < index.NumTiers {
				held[b] = t.String()
			}
		}
		return held
	}
	return nil
}

func (w *explainer) lostBy(l view.LastLoss) {
	w.cause, w.e.Loss, w.e.lostAt = causeLost, l.Cause, l.At
}

// length returns the length of the prompt in tokens or pairs.
func (w *explainer) length(v index.Variant) int {
	if v.Pairs {
		return len(w.Prompt.IDs) - 1
	}
	return len(w.Prompt.IDs)
}

// judge sets the cause of a point from the data of the index.
func (w *explainer) judge(ctx context.Context, p *point) error {
	switch blocks := w.length(p.variant) / p.size; {
	case p.cause != 0:
		return nil
	case blocks == 0:
		p.cause = causeNoBlock
		return nil
	case p.block >= blocks:
		p.cause = causeWhole
		return nil
	}
	p.tier = index.NumTiers
	for i := range w.held {
		row := &w.held[i]
		t := tierAt(row, p.block*p.size)
		switch {
		case row.Source.Rank != p.rank || t == index.NumTiers:
		case row.Group.ID == p.group && t != index.TierGPU:
			p.cause, p.tier = causeLowerTier, min(p.tier, t)
		case row.Group.ID != p.group && t == index.TierGPU && p.cause == 0:
			p.cause = causeGroup
		}
	}
	if p.tier == index.NumTiers {
		p.tier = 0
	}
	if p.cause != 0 {
		return nil
	}
	explainer, ok := w.tracer()
	if !ok {
		p.cause = causeUnexplained
		return nil
	}
	keys, err := w.Prompt.KeysIn(p.variant)
	if err != nil {
		return err
	}
	t, err := explainer.Explain(ctx, index.Source{Pod: w.Pod, Model: w.Model, Rank: p.rank}, inmemory.Block{
		Variant: p.variant, Size: p.size, Number: p.block, Key: keys[(p.block+1)*p.size/p.variant.Unit-1], Locals: w.Prompt.Locals,
	})
	if err != nil {
		return err
	}
	p.parked, p.unplaced = t.Parked, t.Unplaced
	rank := w.Facts.rank(p.rank)
	switch {
	case t.Gone == trace.GoneHidden:
		p.cause = causeHidden
	case t.Gone == trace.GoneRemoved:
		p.cause = causeEvicted
	case t.Gone == trace.GoneCleared && rank.Lost.Cause != "" && !rank.Lost.Kept:
		p.cause = causeLost
	case t.Gone == trace.GoneCleared && rank.Waits && rank.Lost.At.IsZero(): // the engine sends all again
		p.cause = causeHeldBack
	case t.Gone == trace.GoneCleared:
		p.cause = causeCleared
	case t.Parked > 0:
		p.cause = causeParked
	case t.Unplaced > 0:
		p.cause = causeUnplaced
	default:
		p.cause = causeNeverStored
	}
	return nil
}

// tierAt returns the best tier in which a row holds the block in which a token lies;
// NumTiers: none.
func tierAt(row *index.Row, token int) index.Tier {
	b := token / row.BlockSize
	for t, set := range row.Held {
		if b/64 < len(set) && set[b/64]>>(b%64)&1 != 0 {
			return index.Tier(t)
		}
	}
	return index.NumTiers
}

// end returns the position after the block that does not count or, if the block size is not
// known, after its first token.
func (w *explainer) end() int { return w.e.Token + max(w.e.BlockTokens, 1) }

// maxNamed bounds Answer.Pods.
const maxNamed = 5

// elsewhere looks for other pods that hold the block.
func (w *explainer) elsewhere(ctx context.Context) (found bool, err error) {
	q := index.Query{Candidates: index.NewCandidates(w.Model, nil), Keys: func(v index.Variant) ([]index.Key, error) {
		keys, err := w.Prompt.KeysIn(v)
		if errors.Is(err, prompt.ErrRequest) { // for an engine with another form of media, which cannot hold the prompt
			err = nil
		}
		return keys, err
	}}
	if err := w.matchAll(ctx, &q, &w.rows); err != nil {
		return false, err
	}
	var pods []string
	for i := range w.rows.Rows {
		r := &w.rows.Rows[i]
		full := fullGroups(r.Layout) == 0 || r.Group.Kind == index.GroupFull
		if full && r.Source.Pod != w.Pod && int(r.Run)*r.BlockSize >= w.end() {
			pods = append(pods, r.Source.Pod)
		}
	}
	slices.Sort(pods)
	pods = slices.Compact(pods)
	if len(pods) == 0 {
		return false, nil
	}
	w.cause, w.e.others, w.e.Pods = causeElsewhere, len(pods), pods[:min(maxNamed, len(pods))]
	return true, nil
}

// otherScope is a scope other than that of the request.
type otherScope struct {
	cause cause
	name  string // for people
	scope hashing.Scope
	// salted is the root of an unknown salt; nil: the root is that of scope.
	salted  *engine.SaltedRoot
	noMedia bool
}

// otherScopes returns the scopes under which the pod may hold the tokens of the request.
func (w *explainer) otherScopes() (others []otherScope) {
	asked, salts := w.Prompt.Scope, w.Facts.Recent.Salted.Values
	add := func(cause cause, name, adapter, salt string, salted *engine.SaltedRoot) {
		others = append(others, otherScope{cause: cause, name: name, scope: hashing.Scope{Model: asked.Model, Adapter: adapter, Salt: salt}, salted: salted})
	}
	adapters := slices.DeleteFunc(append([]string{""}, w.Facts.Adapters...), func(a string) bool { return a == asked.Adapter })
	for _, adapter := range adapters {
		add(causeOtherAdapter, nameOfAdapter(adapter), adapter, asked.Salt, nil)
	}
	if asked.Salt != "" {
		add(causeOtherSalt, "no salt", asked.Adapter, "", nil)
	}
	for i := range salts {
		if salts[i].Adapter == asked.Adapter {
			add(causeOtherSalt, "another salt", asked.Adapter, "", &salts[i])
		}
	}
	if asked.Salt != "" {
		for _, adapter := range adapters {
			add(causeOtherAdapter, nameOfAdapter(adapter)+" and no salt", adapter, "", nil)
		}
	}
	for i := range salts {
		if adapter := salts[i].Adapter; adapter != asked.Adapter {
			add(causeOtherAdapter, nameOfAdapter(adapter)+" and another salt", adapter, "", &salts[i])
		}
	}
	if len(w.Prompt.Media) > 0 {
		others = append(others, otherScope{cause: causeOtherMedia, name: "no media", scope: asked, noMedia: true})
	}
	return others
}

// findOtherScope looks for another scope under which the pod holds the tokens up to the end of
// the block. It cuts the prompt there.
func (w *explainer) findOtherScope(ctx context.Context) (found bool, err error) {
	if w.Facts == nil {
		return false, nil
	}
	asked, ids, media := w.Prompt.Scope, w.Prompt.IDs, w.Prompt.Media
	upTo := func(end int, media []chat.Media) int {
		w.Prompt.IDs = ids[:min(len(ids), end+1)] // for the last pair
		w.Prompt.Media = slices.DeleteFunc(slices.Clone(media), func(m chat.Media) bool { return m.Offset >= len(w.Prompt.IDs) })
		w.Prompt.Begin()
		return end
	}
	for _, o := range w.otherScopes() {
		chain := func(v index.Variant) ([]index.Key, error) {
			switch {
			case o.salted == nil:
				return w.Prompt.KeysIn(v)
			case o.salted.Variant != v:
				return nil, nil
			}
			locals, err := w.Prompt.Cut(v)
			return hashing.Keys(nil, o.salted.Root, locals), err
		}
		w.Prompt.Scope = o.scope
		with := media
		if o.noMedia {
			with = nil
		}
		// A pod may have thousands of adapters, so the whole prompt is hashed only if the pod
		// holds the first block.
		if found, err = w.holds(ctx, upTo(max(w.e.BlockTokens, 1), with), chain); found && w.e.Token > 0 {
			found, err = w.holds(ctx, upTo(w.end(), with), chain)
		}
		w.Prompt.Scope = asked
		if err != nil {
			return false, err
		}
		if found {
			if w.e.Scope = o.name; w.cause != causeUnknownAdapter {
				w.cause = o.cause
			}
			return true, nil
		}
	}
	return w.otherMedia(ctx, upTo(w.end(), media))
}

func nameOfAdapter(name string) string {
	if name == "" {
		return "no adapter"
	}
	return fmt.Sprintf("adapter %.100q", name)
}

// holds reports whether the pod holds a prompt up to a token.
func (w *explainer) holds(ctx context.Context, end int, keys func(index.Variant) ([]index.Key, error)) (bool, error) {
	w.Prompt.Begin()
	err := w.matchAll(ctx, &index.Query{Candidates: w.own, Keys: keys}, &w.rows)
	return slices.ContainsFunc(w.rows.Rows, func(r index.Row) bool { return int(r.Run)*r.BlockSize >= end }), err
}

// otherMedia tries the recent media of the pod in each unit of the block, instead of the media
// of the request.
func (w *explainer) otherMedia(ctx context.Context, end int) (found bool, err error) {
	for _, v := range w.variants {
		if v.Pairs || v.Media == hashing.FormPad {
			continue
		}
		s := w.Prompt.Scope
		if v.Media == hashing.FormBare {
			s.Salt = ""
		}
		cut, err := w.Prompt.Cut(v)
		if err != nil {
			return false, err
		}
		locals, prev, of := slices.Clone(cut), w.Hasher.Root(s, v), w.Hasher.Of(s.Adapter)
		all := hashing.Keys(nil, prev, locals)
		for u := w.e.Token / v.Unit; (u+1)*v.Unit <= min(end, len(w.Prompt.IDs)); u++ {
			if u > 0 {
				prev = all[u-1]
			}
			was := locals[u]
			for _, x := range w.Facts.Recent.Extras.Values {
				locals[u] = of.Locals(nil, w.Prompt.IDs[u*v.Unit:(u+1)*v.Unit], v.Unit, []hashing.Extra{x})[0]
				found, err = w.holds(ctx, end, func(o index.Variant) ([]index.Key, error) {
					if o != v {
						return nil, nil
					}
					return hashing.Keys(all[:u], prev, locals[u:]), nil
				})
				if err != nil {
					return false, err
				}
				if found {
					w.setOtherMedia(v)
					return true, nil
				}
			}
			locals[u] = was
			all = hashing.Keys(all[:u], prev, locals[u:])
		}
	}
	return false, nil
}

// setOtherMedia sets the cause: the pod holds the tokens with other media. A bare item may be a
// salt.
func (w *explainer) setOtherMedia(v index.Variant) {
	e := w.e
	cause := causeOtherMedia
	switch {
	case len(w.Prompt.Media) > 0:
		e.Scope = "media of another hash or offset"
	case v.Media == hashing.FormBare && e.Token == 0 && w.Salted:
		e.Scope, cause = "another salt", causeOtherSalt
	case v.Media == hashing.FormBare && e.Token == 0:
		e.Scope = "a salt, or media that the request does not have"
	default:
		e.Scope = "media that the request does not have"
	}
	if w.cause != causeUnknownAdapter {
		w.cause = cause
	}
}

// byState sets a possible cause from the state of the pod.
func (w *explainer) byState() {
	if w.Facts == nil {
		return
	}
	ranks := w.ranks()
	has := func(f func(r Rank) bool) bool { return slices.ContainsFunc(ranks, f) }
	lossy := func(r Rank) bool { return r.State != view.Live }
	lost := slices.IndexFunc(ranks, func(r Rank) bool { return lossy(r) && r.Lost.Cause != "" })
	switch {
	case has(func(r Rank) bool { return r.Contested }):
		w.cause = causeContested
	case has(func(r Rank) bool { return r.Waits }):
		w.cause = causeHeldBack
	case w.e.evicted > 0 || w.Row != nil && w.Row.Evicted:
		w.cause = causeMemory
	case lost >= 0:
		w.lostBy(ranks[lost].Lost)
	case has(lossy) || len(ranks) == 0:
		w.cause = causePartial
	case w.Facts.Silent:
		w.cause = causeSilent
	}
}

// sentence returns the cause in words.
func (w *explainer) sentence() string {
	e := w.e
	pod := fmt.Sprintf("%.100q", w.Pod)
	block := "The prompt's beginning"
	if e.BlockTokens > 0 {
		block = fmt.Sprintf("Block %d (tokens %d to %d)", e.Block, e.Token, e.Token+e.BlockTokens-1)
	}
	switch w.cause {
	case causeError:
		return fmt.Sprintf("The request is not scored: %v.", w.Err)
	case causeUnknownModel:
		return fmt.Sprintf("No pod holds anything: %v.", w.Unknown)
	case causeUnknownAdapter:
		if e.Scope != "" {
			return fmt.Sprintf("No pod holds anything: %v. Pod %s holds the same tokens under %s.", w.Unknown, pod, e.Scope)
		}
		return fmt.Sprintf("No pod holds anything: %v.", w.Unknown)
	case causeUnknownPod:
		if err := w.Refused(); err != nil {
			return fmt.Sprintf("Pod %s has not reported for model %.100q, and its messages would be refused: %v.", pod, w.Model, err)
		}
		return fmt.Sprintf("Pod %s has not reported for model %.100q. Check whether its events come under that name and model.", pod, w.Model)
	case causeNotScorable:
		return fmt.Sprintf("The chat uses features that are excluded for pod %s (chat.Model.Exclude): %s. The pod has no score.", pod, w.Excluded)
	case causeNoBlock:
		return fmt.Sprintf("The prompt has %d tokens, and the pod's blocks have %d: engines cache whole blocks only.", len(w.Prompt.IDs), e.BlockTokens)
	case causeApproximate:
		return fmt.Sprintf("The pod publishes no events (Profile.Approximate), so no block is proven. By the prompts that were routed to it (Indexer.Routed) and the reports of its answers (Indexer.Observe), the engine would reuse %d tokens: PodScore.PredictedTokens.", w.Predicted)
	case causeWhole:
		return fmt.Sprintf("The pod holds all %d whole blocks of the prompt. The rest is always computed: the last token, or a part of a block.%s", e.Blocks, w.bound())
	case causeLowerTier:
		return fmt.Sprintf("%s is held in tier %v and not in the gpu. CachedTokens counts the gpu only. LoadedTokens and FetchedTokens count what the engine would read from lower tiers.", block, e.tier)
	case causeGroup:
		if w.Facts != nil && w.Facts.Drafts && w.Row != nil && w.Row.Held == nil {
			return block + " is the last of the hit, which draft layers (Profile.Draft) compute again."
		}
		return block + " is held by a KV-cache group of the engine, but another group has removed, or never stored, blocks that a hit there needs. If there are draft layers (Profile.Draft), they compute the last block of a hit again."
	case causeHidden:
		return block + " was removed, after an announcement of it that was taken for a report (CopiesGuarded). The engine may hold another copy. If no client can request reports, set Profile.Copies to CopiesExact."
	case causeEvicted:
		return fmt.Sprintf("The pod held %s and has removed it, as an engine does when its cache is full.", lower(block))
	case causeLost:
		at := e.lostAt.UTC().Format(time.RFC3339)
		switch e.Loss {
		case view.LossRestart:
			return fmt.Sprintf("The engine restarted (noticed at %s), which emptied its cache. %s was not stored since, as far as is known.%s", at, block, w.mayBe())
		case view.LossFull:
			return fmt.Sprintf("The index had no room for the rank (WithMemory), last at %s, and did not apply its messages. Give the index more memory.", at)
		case view.LossMoved:
			return fmt.Sprintf("Another stream has fed the rank since %s, and the earlier blocks were forgotten. %s was not stored since, as far as is known.%s", at, block, w.mayBe())
		}
		return fmt.Sprintf("Messages of the pod were lost (%v, noticed at %s). It may hold %s, and does not announce it again: a replay socket prevents this, and a full report (PodInfo.WantsFullReport) repairs it.", e.Loss, at, lower(block))
	case causeCleared:
		return fmt.Sprintf("The pod held %s, and then its cache was emptied.", lower(block))
	case causeParked:
		if e.evicted > 0 {
			return fmt.Sprintf("Announcements of the pod (%d) wait for a parent that is not known, and may be of %s or of blocks behind it. %s.", e.parked, lower(block), e.memory())
		}
		return fmt.Sprintf("Announcements of the pod (%d) wait for a parent that is not known, and may be of %s or of blocks behind it. The connection came late, or messages are missing: a replay socket prevents this.", e.parked, lower(block))
	case causeSilent:
		if w.Facts.Idle {
			return fmt.Sprintf("A stream of pod %s is connected and has brought no message yet. An engine without requests has nothing to publish: send it one. If none comes after that, check whether the engine publishes KV events, at this port, and under a topic that the Subscriber accepts (SubscriberConfig.Topic).", pod)
		}
		return fmt.Sprintf("A stream of pod %s has brought no message yet. Check its address, the OnError of its Subscriber, and whether the engine publishes KV events.", pod)
	case causeElsewhere:
		return fmt.Sprintf("The pod does not hold %s, and never stored it, as far as is known. Other pods hold it: %s.%s", lower(block), w.others(), w.mayBe())
	case causeOtherAdapter, causeOtherSalt, causeOtherMedia:
		return fmt.Sprintf("The pod holds the same tokens under %s. An engine does not reuse them for this request. If they should be the same, compare the request here with the request to the engine.", e.Scope)
	case causeContested:
		return "Two streams bring messages of the rank, and those of one of them are not applied (stats.Traffic.Contested). Check whether two engines are configured under one pod and rank."
	case causeHeldBack:
		return fmt.Sprintf("%s is not known yet: messages wait, or older messages are being applied, or the connection was lost and no message has come since. See PodInfo.Streams.", block)
	case causeMemory:
		return fmt.Sprintf("%s. %s may be one of them. A full report (PodInfo.WantsFullReport) brings back the blocks that it names.", e.memory(), block)
	case causePartial:
		return fmt.Sprintf("%s is not known. Some announcements of the pod never arrived here, and it does not repeat them: a replay socket prevents this, and a full report (PodInfo.WantsFullReport) repairs it.", block)
	case causeUnplaced:
		return fmt.Sprintf("%s is not known to be held.%s", block, w.mayBe())
	case causeNeverStored:
		return fmt.Sprintf("The pod never stored %s, as far as is known. If this prompt was there, compare its text and tokens with those of the engine.", lower(block))
	}
	return fmt.Sprintf("%s is not held. The index has no more information, or the blocks of the pod change too fast.", block)
}

// memory returns a sentence about evicted blocks.
func (e *Answer) memory() string {
	blocks := "blocks"
	if e.evicted > 0 {
		blocks = fmt.Sprintf("%d blocks", e.evicted)
	}
	return fmt.Sprintf("The index has evicted %s of the pod, because its memory is full: give it more (WithMemory)", blocks)
}

// lower makes the first letter of s lower-case.
func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

// others returns the names of the pods that hold the block.
func (w *explainer) others() string {
	e := w.e
	var b strings.Builder
	for i, pod := range e.Pods {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%.100q", pod)
	}
	if more := e.others - len(e.Pods); more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}

// mayBe returns a sentence about hashes whose prefix is not known.
func (w *explainer) mayBe() string {
	if w.e.unplaced == 0 {
		return ""
	}
	return fmt.Sprintf(" The pod holds %d blocks by hashes of which the prefix is not known, and it may be one of them. Such hashes wait until another event names them.", w.e.unplaced)
}

// unrecognized returns a sentence about events that are not recognized.
func (w *explainer) unrecognized() string {
	if w.Facts == nil || len(w.Facts.Unrecognized) == 0 {
		return ""
	}
	slices.Sort(w.Facts.Unrecognized)
	return fmt.Sprintf(" The pod's events have parts that this version does not know, so its score may be wrong: %s.", strings.Join(slices.Compact(w.Facts.Unrecognized), ", "))
}

// bound returns a sentence about an upper bound.
func (w *explainer) bound() string {
	if w.UpperBound && (w.Row == nil || len(w.Row.Groups) > 1) {
		return " The engine has several KV-cache groups and may reuse less."
	}
	return ""
}
