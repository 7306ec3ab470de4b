package kvindex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// Request is a prompt to score.
type Request struct {
	// Model is the base model, or the name of an adapter that one of the Pods
	// has told of.
	Model string
	// Adapter is the LoRA adapter by its name (by its number in decimal where
	// the engine tells no name); "": none.
	Adapter string
	// Salt is the request's cache_salt.
	Salt string

	// Exactly one of Prompt, Tokens and Body.
	Prompt string
	Tokens []uint32
	// Body is a request for OpenAI's chat or completion API, as it came over HTTP,
	// with the fields that vLLM adds. Its model and its cache_salt count where
	// Model (or Candidates) and Salt are empty. A chat needs WithChats.
	Body []byte

	// Rendered says that Prompt has its special tokens in it, as the text of a
	// chat template has, so that none are put around it.
	Rendered bool

	// Media are the media items of the prompt, in order of Offset. For the media
	// of a chat, in the order of its parts, Offset is not needed.
	Media []Media

	// Pods are those to score. Nil: every pod heard for the model; empty:
	// none. Candidates, if not nil, stand for Pods, which must be nil then,
	// and for Model, which may be empty: they are cheaper for many requests
	// about the same pods.
	Pods       []string
	Candidates *Candidates

	// Top is the number of pods that the answer is to have, the best ones; 0:
	// all.
	Top int
}

// Answer is the answer to a Request. A used one keeps its memory.
type Answer struct {
	PromptTokens int
	Pods         []PodScore // best first; ties by name
}

// PodScore says what a pod holds of a prompt.
type PodScore struct {
	Pod  string
	Rank int // the best one
	// Score is the number of cached tokens.
	Score float64

	// MatchedBlocks is the number of leading blocks of BlockTokens tokens
	// that the rank holds, in any tier. Tiers splits it by best tier.
	MatchedBlocks int
	BlockTokens   int
	Tiers         [NumTiers]int
	// CachedTokens is what the engine would reuse from its gpu: the leading
	// run of gpu blocks, but never the last token of the prompt, which is
	// always computed, and whole blocks only.
	CachedTokens int
	// UpperBound tells that the engine has several groups of blocks, of which
	// the full-attention ones alone were asked: it may reuse less.
	UpperBound bool

	State State
}

// scorer is what one ScoreRequest works with. Its memory is used again.
type scorer struct {
	// Of the request: what keys hashes.
	hash   hasher
	scope  scope
	prompt []uint32
	media  []Media

	query    index.Query // whose Keys is the scorer's
	tokens   []uint32    // of a prompt that was text
	expanded []uint32    // those of a chat with media, each with all of its tokens
	padded   []uint32    // the prompt with its media written over it
	pairs    []uint32    // the prompt's, or the padded prompt's
	locals   []index.Local
	plain    index.Variant // that locals are of, if nothing but tokens is in them: its Unit and Pairs
	extras   []extra
	keys     []index.Key // of all variants, one after the other
	matches  index.Matches
	best     []bestRow // by candidate
	order    []int32   // candidates, best first
}

// bestRow is the best row of a candidate so far.
type bestRow struct {
	cached, matched int   // tokens
	row             int32 // in matches, plus one
}

func (x *Indexer) newScorer() *scorer {
	sc, _ := x.scorers.Get().(*scorer)
	if sc == nil {
		sc = &scorer{hash: x.hash}
		sc.query.Keys = sc.keysIn
	}
	return sc
}

// ScoreRequest is Score for everything that a request can say. The answer goes
// to dst, whose memory is reused; on an error it is empty. A model never heard
// of gives zeros and StateUnknown.
func (x *Indexer) ScoreRequest(ctx context.Context, r *Request, dst *Answer) error {
	dst.PromptTokens, dst.Pods = 0, dst.Pods[:0]
	if x.closed.Load() {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	r, asked, err := r.read()
	if err != nil {
		return err
	}
	if err := r.validate(asked); err != nil {
		return err
	}
	set, err := x.candidates(r)
	if err != nil {
		return err
	}
	sc := x.newScorer()
	defer x.release(sc)
	sc.scope = scope{set.base, set.adapter, r.Salt}
	if r.Adapter != "" {
		sc.scope.adapter = r.Adapter
	}
	sc.prompt, sc.media = r.Tokens, r.Media
	switch {
	case asked != nil:
		err = x.renderChat(ctx, sc, r.Media, asked, set.base)
	case r.Prompt != "":
		sc.prompt, err = x.tokenize(ctx, sc, r.Prompt, r.Rendered, set.base)
	}
	if err != nil {
		return err
	}
	for _, m := range sc.media {
		if m.Offset >= len(sc.prompt) {
			return fmt.Errorf("%w: media %q begins at token %d of %d", ErrRequest, m.Hash, m.Offset, len(sc.prompt))
		}
	}
	if len(set.names) > 0 {
		sc.keys, sc.plain = sc.keys[:0], index.Variant{}
		sc.query.Candidates = set.index
		if err := x.index.Match(ctx, &sc.query, &sc.matches); errors.Is(err, ErrRequest) {
			return err
		} else if err != nil {
			return x.failed(fmt.Errorf("kvindex: scoring for model %q: %w", set.base, err))
		}
		sc.score(set, r.Top, dst)
	}
	dst.PromptTokens = len(sc.prompt)
	return nil
}

// validate refuses what makes no sense. asked is the chat of the body, if it is one.
func (r *Request) validate(asked *chat.Request) error {
	c := r.Candidates
	switch {
	case c == nil && r.Model == "":
		return fmt.Errorf("%w: the model is empty", ErrRequest)
	case c != nil && r.Pods != nil:
		return fmt.Errorf("%w: it has both pods and candidates", ErrRequest)
	case c != nil && r.Model != "" && r.Model != c.model:
		return fmt.Errorf("%w: model %q, and candidates of %q", ErrRequest, r.Model, c.model)
	case r.Top < 0:
		return fmt.Errorf("%w: the best %d pods", ErrRequest, r.Top)
	case asked != nil:
	case r.Prompt == "" && len(r.Tokens) == 0:
		return fmt.Errorf("%w: the prompt is empty", ErrRequest)
	case r.Prompt != "" && len(r.Tokens) > 0:
		return fmt.Errorf("%w: it has both a prompt and tokens", ErrRequest)
	}
	for i, m := range r.Media {
		switch {
		case m.Hash == "":
			return fmt.Errorf("%w: media %d has no hash", ErrRequest, i)
		case asked != nil && m.Length == 0:
			return fmt.Errorf("%w: media %q of a chat has no length", ErrRequest, m.Hash)
		case m.Offset < 0 || m.Length < 0:
			return fmt.Errorf("%w: media %q at token %d of length %d: neither can be negative", ErrRequest, m.Hash, m.Offset, m.Length)
		case i > 0 && m.Offset < r.Media[i-1].Offset:
			return fmt.Errorf("%w: media %q at token %d is not in order of offset", ErrRequest, m.Hash, m.Offset)
		}
	}
	return nil
}

func (x *Indexer) tokenize(ctx context.Context, sc *scorer, text string, rendered bool, base string) ([]uint32, error) {
	t := x.tokenizers[base]
	if t == nil && x.source != nil {
		t = x.source(base)
	}
	if t == nil {
		return nil, fmt.Errorf("%w for model %q: register one by WithTokenizer or WithTokenizers, or score token ids by Request.Tokens", ErrNoTokenizer, base)
	}
	var err error
	if sc.tokens, err = t.Encode(ctx, sc.tokens[:0], text, !rendered); err != nil {
		return nil, fmt.Errorf("kvindex: tokenizing for model %q: %w", base, err)
	}
	if len(sc.tokens) == 0 {
		return nil, fmt.Errorf("%w: the prompt has no tokens", ErrRequest)
	}
	return sc.tokens, nil
}

// release keeps the memory of a scorer and nothing of its request.
func (x *Indexer) release(sc *scorer) {
	sc.scope, sc.prompt, sc.media, sc.query.Candidates = scope{}, nil, nil, nil
	x.scorers.Put(sc)
}

// keysIn returns the keys of the prompt in a variant.
func (sc *scorer) keysIn(v index.Variant) ([]index.Key, error) {
	s := sc.scope
	if v.Media == MediaBare {
		s.salt = "" // it is in the first unit
	}
	if err := sc.cut(v); err != nil {
		return nil, err
	}
	from := len(sc.keys)
	sc.keys = keys(sc.keys, sc.hash.root(s, v), sc.locals)
	return sc.keys[from:len(sc.keys):len(sc.keys)], nil
}

// cut works out the locals of the prompt in a variant. Where there is nothing
// but tokens in them, the forms of media share them.
func (sc *scorer) cut(v index.Variant) error {
	tokens := sc.prompt
	sc.extras = sc.extras[:0]
	switch v.Media {
	case MediaOffsets:
		for i := range sc.media {
			sc.extras = append(sc.extras, mediaAt(sc.media[i].Hash, sc.media[i].Offset, v.Unit))
		}
	case MediaBare:
		sc.extras = bareMedia(sc.extras, sc.media, sc.scope.salt, v, len(tokens))
	case MediaPad:
		if len(sc.media) > 0 {
			sc.padded = append(sc.padded[:0], tokens...)
			tokens = sc.padded
			if err := pad(tokens, sc.media); err != nil {
				return err
			}
		}
	}
	plain := index.Variant{Unit: v.Unit, Pairs: v.Pairs}
	if len(sc.media) > 0 || len(sc.extras) > 0 {
		plain = index.Variant{}
	} else if plain == sc.plain {
		return nil
	}
	sc.plain = plain
	width := v.Unit
	if v.Pairs {
		sc.pairs = appendPairs(sc.pairs[:0], tokens)
		tokens = sc.pairs
		width *= 2
	}
	sc.locals = sc.hash.of(sc.scope.adapter).locals(sc.locals[:0], tokens, width, sc.extras)
	return nil
}

// score turns the rows of the index into the scores of the best candidates.
func (sc *scorer) score(set *candidateSet, top int, dst *Answer) {
	n := len(set.names)
	sc.best = slices.Grow(sc.best[:0], n)[:n]
	clear(sc.best)
	hybrid := false
	for i := range sc.matches.Rows {
		row := &sc.matches.Rows[i]
		switch {
		case row.FullGroups > 1:
			hybrid = true
		case row.Group.Kind == index.GroupFull || row.FullGroups == 0:
			sc.improve(row.Pod, sc.bestOf(i))
		} // of a hybrid model the full-attention groups count
	}
	if hybrid {
		sc.scoreHybrids()
	}
	sc.rank(top)
	for _, at := range sc.order {
		s := PodScore{Pod: set.names[at], State: set.state(at)}
		if b := sc.best[at]; b.row > 0 {
			s.fill(&sc.matches.Rows[b.row-1], b.cached)
		}
		dst.Pods = append(dst.Pods, s)
	}
}

func (sc *scorer) bestOf(i int) bestRow {
	row := &sc.matches.Rows[i]
	length := len(sc.prompt)
	if row.Pairs {
		length--
	}
	return bestRow{cachedTokens(row, length), int(row.Run) * row.BlockSize, int32(i + 1)}
}

func (sc *scorer) improve(pod int32, t bestRow) {
	if b := &sc.best[pod]; b.row == 0 || sc.better(t, *b) {
		*b = t
	}
}

// scoreHybrids scores the ranks with several full-attention groups: all of them
// have to hold what is reused, so the one that holds the least counts, each
// taken at its best row.
func (sc *scorer) scoreHybrids() {
	type ofRank struct {
		pod  int32
		rank int
	}
	type ofGroup struct {
		ofRank
		group int
	}
	groups := make(map[ofGroup]bestRow)
	for i := range sc.matches.Rows {
		row := &sc.matches.Rows[i]
		if row.FullGroups > 1 && row.Group.Kind == index.GroupFull {
			of := ofGroup{ofRank{row.Pod, row.Source.Rank}, row.Group.ID}
			if b, ok := groups[of]; !ok || sc.better(sc.bestOf(i), b) {
				groups[of] = sc.bestOf(i)
			}
		}
	}
	type least struct {
		bestRow
		groups int
	}
	ranks := make(map[ofRank]least)
	for of, b := range groups {
		l := ranks[of.ofRank]
		if l.groups == 0 || sc.better(l.bestRow, b) {
			l.bestRow = b
		}
		l.groups++
		ranks[of.ofRank] = l
	}
	for of, l := range ranks {
		if l.groups == sc.matches.Rows[l.row-1].FullGroups {
			sc.improve(of.pod, l.bestRow)
		}
	}
}

// rank fills order with the best candidates, best first; those that are equal
// by name, which is how candidates are ordered.
func (sc *scorer) rank(top int) {
	sc.order = sc.order[:0]
	if top == 0 || top >= len(sc.best) {
		for i := range sc.best {
			sc.order = append(sc.order, int32(i))
		}
		slices.SortFunc(sc.order, func(a, b int32) int {
			return cmp.Or(sc.best[b].cached-sc.best[a].cached, int(a-b))
		})
		return
	}
	for i := range sc.best {
		cached := sc.best[i].cached
		at := len(sc.order)
		if at == top && cached <= sc.best[sc.order[at-1]].cached {
			continue
		}
		for at > 0 && cached > sc.best[sc.order[at-1]].cached {
			at--
		}
		if len(sc.order) == top {
			sc.order = sc.order[:top-1]
		}
		sc.order = slices.Insert(sc.order, at, int32(i))
	}
}

// cachedTokens is what the engine would reuse of a row's gpu blocks, in a prompt
// of so many tokens, or pairs.
func cachedTokens(row *index.Row, promptTokens int) int {
	size := row.BlockSize
	if cached := int(row.GPU) * size; cached < promptTokens {
		return cached
	}
	// The last token is always computed, for its logits: vLLM 2026-08-17,
	// v1/core/kv_cache_manager.py, get_computed_blocks; SGLang 2026-08-22,
	// srt/managers/schedule_batch.py, init_next_round_input. So is EAGLE's last
	// pair.
	return (promptTokens - 1) / size * size
}

func (s *PodScore) fill(row *index.Row, cached int) {
	s.Rank = row.Source.Rank
	s.Score = float64(cached)
	s.MatchedBlocks = int(row.Run)
	s.BlockTokens = row.BlockSize
	for t, n := range row.Tiers {
		s.Tiers[t] = int(n)
	}
	s.CachedTokens = cached
	s.UpperBound = row.Groups > 1 || row.Group.Kind != index.GroupFull
}

// better orders the rows of one pod: by what the engine would reuse, then by
// what is held anywhere, then the lower rank first.
func (sc *scorer) better(a, b bestRow) bool {
	return cmp.Or(a.cached-b.cached, a.matched-b.matched, sc.rankOf(b)-sc.rankOf(a), int(b.row-a.row)) > 0
}

func (sc *scorer) rankOf(b bestRow) int { return sc.matches.Rows[b.row-1].Source.Rank }
