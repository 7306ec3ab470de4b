package kvindex

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kvindex/kvindex/index"
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

	// Exactly one of Prompt and Tokens.
	Prompt string
	Tokens []uint32

	// Media are the media items of the prompt, in order of Offset.
	Media []Media

	// Pods are those to score. Nil: every pod heard for the model; empty:
	// none.
	Pods []string
}

// Media is an image or another item whose placeholder tokens are in the
// prompt.
type Media struct {
	Hash   string // the engine's own identifier: in vLLM the item's uuid or hash
	Offset int    // of its first placeholder token in the prompt
	Length int    // in tokens; engines that tell where an item starts are matched without it
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

// scorer is the memory of one ScoreRequest.
type scorer struct {
	tokens  []uint32
	locals  []index.Local
	extras  []extra
	keys    []index.Key // of all variants, one after the other
	matches index.Matches
	pods    []string       // without repeats
	place   map[string]int // of a pod in Answer.Pods
}

func (x *Indexer) newScorer() *scorer {
	sc, _ := x.scorers.Get().(*scorer)
	if sc == nil {
		sc = &scorer{place: make(map[string]int)}
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
	if err := r.validate(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	sc := x.newScorer()
	defer x.scorers.Put(sc)
	model, adapter, err := x.resolve(r)
	if err != nil {
		return err
	}
	tokens := r.Tokens
	if r.Prompt != "" {
		if tokens, err = x.tokenize(ctx, sc, r, model); err != nil {
			return err
		}
	}
	for _, m := range r.Media {
		if m.Offset >= len(tokens) {
			return fmt.Errorf("%w: media %q begins at token %d of %d", ErrRequest, m.Hash, m.Offset, len(tokens))
		}
	}
	dst.PromptTokens = len(tokens)
	x.candidates(model, r.Pods, sc, dst)
	if len(dst.Pods) == 0 {
		return nil
	}
	if err := x.match(ctx, sc, scope{model, adapter, r.Salt}, tokens, r.Media); err != nil {
		dst.PromptTokens, dst.Pods = 0, dst.Pods[:0]
		return x.failed(fmt.Errorf("kvindex: scoring for model %q: %w", r.Model, err))
	}
	sc.score(len(tokens), dst)
	return nil
}

func (r *Request) validate() error {
	switch {
	case r.Model == "":
		return fmt.Errorf("%w: the model is empty", ErrRequest)
	case r.Prompt == "" && len(r.Tokens) == 0:
		return fmt.Errorf("%w: the prompt is empty", ErrRequest)
	case r.Prompt != "" && len(r.Tokens) > 0:
		return fmt.Errorf("%w: it has both a prompt and tokens", ErrRequest)
	}
	for i, m := range r.Media {
		switch {
		case m.Hash == "":
			return fmt.Errorf("%w: media %d has no hash", ErrRequest, i)
		case m.Offset < 0 || m.Length < 0:
			return fmt.Errorf("%w: media %q at token %d of length %d: neither can be negative", ErrRequest, m.Hash, m.Offset, m.Length)
		case i > 0 && m.Offset < r.Media[i-1].Offset:
			return fmt.Errorf("%w: media %q at token %d is not in order of offset", ErrRequest, m.Hash, m.Offset)
		}
	}
	return nil
}

// resolve returns the base model and the adapter that a request means. A name
// that is no model of its own may be an adapter that events told of.
func (x *Indexer) resolve(r *Request) (base, adapter string, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if r.Adapter != "" || x.models[r.Model] != nil || x.tokenizers[r.Model] != nil {
		return r.Model, r.Adapter, nil
	}
	base = r.Model
	for name, md := range x.models {
		told := md.adapters[r.Model]
		if len(told) == 0 || r.Pods != nil && !slices.ContainsFunc(r.Pods, func(pod string) bool { return told[pod] }) {
			continue
		}
		if adapter != "" {
			return "", "", fmt.Errorf("%w: %q is an adapter of both %q and %q: name the model and the adapter", ErrRequest, r.Model, min(base, name), max(base, name))
		}
		base, adapter = name, r.Model
	}
	return base, adapter, nil
}

func (x *Indexer) tokenize(ctx context.Context, sc *scorer, r *Request, base string) ([]uint32, error) {
	t := x.tokenizers[base]
	if t == nil {
		return nil, fmt.Errorf("%w for model %q: register one by WithTokenizer, or score token ids by Request.Tokens", ErrNoTokenizer, base)
	}
	var err error
	if sc.tokens, err = t.Encode(ctx, sc.tokens[:0], r.Prompt, true); err != nil {
		return nil, fmt.Errorf("kvindex: tokenizing for model %q: %w", base, err)
	}
	if len(sc.tokens) == 0 {
		return nil, fmt.Errorf("%w: the prompt has no tokens", ErrRequest)
	}
	return sc.tokens, nil
}

// candidates fills dst with a zero score for each pod that is asked for, by
// name.
func (x *Indexer) candidates(model string, pods []string, sc *scorer, dst *Answer) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	md := x.models[model]
	sc.pods = append(sc.pods[:0], pods...)
	if pods == nil && md != nil {
		for name := range md.pods {
			sc.pods = append(sc.pods, name)
		}
	}
	slices.Sort(sc.pods)
	sc.pods = slices.Compact(sc.pods)
	clear(sc.place)
	for i, name := range sc.pods {
		s := PodScore{Pod: name}
		if md != nil && md.pods[name] != nil {
			s.State = State(md.pods[name].state.Load())
		}
		sc.place[name] = i
		dst.Pods = append(dst.Pods, s)
	}
}

// match asks the index, with the keys of each variant that it wants.
func (x *Indexer) match(ctx context.Context, sc *scorer, s scope, tokens []uint32, media []Media) error {
	sc.keys = sc.keys[:0]
	q := index.Query{Model: s.model, Pods: sc.pods}
	q.Keys = func(v index.Variant) []index.Key {
		sc.extras = sc.extras[:0]
		for _, m := range media {
			sc.extras = append(sc.extras, mediaAt(m.Hash, m.Offset, v.Unit))
		}
		sc.locals = x.hash.of(s.adapter).locals(sc.locals[:0], tokens, v.Unit, sc.extras)
		from := len(sc.keys)
		sc.keys = keys(sc.keys, x.hash.root(s, v), sc.locals)
		return sc.keys[from:len(sc.keys):len(sc.keys)]
	}
	return x.index.Match(ctx, &q, &sc.matches)
}

// score turns the rows of the index into the scores of dst, best first.
func (sc *scorer) score(promptTokens int, dst *Answer) {
	for i := range sc.matches.Rows {
		row := &sc.matches.Rows[i]
		at, ok := sc.place[row.Source.Pod]
		if !ok || row.Group.Kind != index.GroupFull && row.FullGroups > 0 {
			continue // of a hybrid model the full-attention groups count
		}
		s := &dst.Pods[at]
		t := scoreRow(row, promptTokens)
		if row.FullGroups > 1 && !sc.lastOfFull(row, &t, promptTokens) {
			continue
		}
		if s.BlockTokens == 0 || t.better(s) {
			t.Pod, t.State = s.Pod, s.State
			*s = t
		}
	}
	slices.SortStableFunc(dst.Pods, func(a, b PodScore) int { return cmp.Compare(b.Score, a.Score) })
}

// lastOfFull reports whether row, scored t, stands for the full-attention groups
// of its source: all of them have to hold what is reused, so it is the one that
// holds the least, each taken at its best row.
func (sc *scorer) lastOfFull(row *index.Row, t *PodScore, promptTokens int) bool {
	best := make(map[int]PodScore, row.FullGroups)
	for i := range sc.matches.Rows {
		o := &sc.matches.Rows[i]
		if o.Source != row.Source || o.Group.Kind != index.GroupFull {
			continue
		}
		s := scoreRow(o, promptTokens)
		if b, ok := best[o.Group.ID]; !ok || s.better(&b) {
			best[o.Group.ID] = s
		}
	}
	if len(best) < row.FullGroups || best[row.Group.ID] != *t {
		return false
	}
	for _, b := range best {
		if t.better(&b) {
			return false
		}
	}
	return true
}

// scoreRow scores one row on its own.
func scoreRow(row *index.Row, promptTokens int) PodScore {
	size := row.BlockSize
	// The last token is always computed, for its logits: vLLM 2026-08-17,
	// v1/core/kv_cache_manager.py, get_computed_blocks.
	cached := min(row.GPU, (promptTokens-1)/size) * size
	return PodScore{
		Rank:          row.Source.Rank,
		Score:         float64(cached),
		MatchedBlocks: row.Run,
		BlockTokens:   size,
		Tiers:         row.Tiers,
		CachedTokens:  cached,
		UpperBound:    row.Groups > 1 || row.Group.Kind != index.GroupFull,
	}
}

// better orders the rows of one pod: by what the engine would reuse, then by
// what is held anywhere, then the lower rank first.
func (s *PodScore) better(o *PodScore) bool {
	return cmp.Or(
		cmp.Compare(s.Score, o.Score),
		cmp.Compare(s.MatchedBlocks*s.BlockTokens, o.MatchedBlocks*o.BlockTokens),
		cmp.Compare(o.Rank, s.Rank),
	) > 0
}
