package kvindex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/reuse"
	"github.com/kvindex/kvindex/internal/sent"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// ScoreRequest scores a request and writes the answer to dst. On an error dst has no
// pods.
//
// A model or an adapter that is not known is no error: all scores are 0, and
// Answer.Unknown says why. Errors wrap ErrRequest if the engine would refuse the
// request too, else chat.ErrNotScorable, ErrNoTokenizer, ErrNoTemplate,
// chat.ErrUnsupported, tokenize.ErrUnsupported, tokenize.ErrBusy,
// tokenize.ErrTextTooLong, ErrClosed, the error of a backend, or that of ctx. After any of them a gateway
// can choose a pod by load.
func (x *Indexer) ScoreRequest(ctx context.Context, r *Request, dst *Answer) error {
	*dst = Answer{Pods: dst.Pods[:0], sent: dst.sent}
	if dst.sent != nil {
		dst.sent.turn.Add(1)
	}
	if x.closed.Load() {
		return ErrClosed
	}
	sc := x.newScorer()
	defer sc.release()
	err := sc.score(ctx, r, dst)
	dst.hasher = &x.hash
	if err == nil {
		dst.prompt = sc.hashPrompt()
		sc.keepFor(dst)
	} else {
		dst.prompt = x.hash.request(r)
	}
	sc.tell(r, dst, err)
	return err
}

func (sc *scorer) score(ctx context.Context, r *Request, dst *Answer) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	var asked *chat.Request
	if r.Body != nil {
		began := sc.clock()
		r, asked, err = r.read()
		sc.spend(&sc.times.render, began)
		if err != nil {
			return err
		}
	}
	if err := r.validate(asked); err != nil {
		return err
	}
	unlisted := sc.x.list(ctx)
	set, adapter, err := sc.x.candidates(r)
	sc.set, sc.scope = set, scope{set.base, adapter, r.Salt}
	if err != nil {
		return cmp.Or(unlisted, err)
	}
	if err := sc.readPrompt(ctx, r, asked); err != nil {
		return err
	}
	if len(sc.set.names) > 0 {
		if err := sc.match(ctx); err != nil {
			return err
		}
	}
	if unlisted != nil && sc.degraded == nil { // else pods that others feed would look unknown
		return unlisted
	}
	if len(sc.set.names) > 0 {
		if err := sc.foresee(ctx, -1); err != nil {
			return err
		}
		if r.Ranks {
			sc.listRanks()
		}
		sc.chooseRows()
		sc.exclude()
		sc.hashes = sc.set.hashes
		if r.Ranks {
			sc.spreadRanks()
		}
		sc.rank(r.Top)
		sc.answer(dst)
	}
	dst.PromptTokens, dst.Degraded = sc.length, sc.degraded
	if set.unknown != nil || adapter != "" && !set.guessed {
		dst.Unknown = sc.unknown()
	}
	return nil
}

// A scorer is one request on its way. Its memory is used again.
type scorer struct {
	x     *Indexer
	tally *tally
	set   *candidateSet
	times times // if a hook asks

	// Of the request: what keys are made of.
	scope  scope
	text   string   // that the prompt was made of, if it was
	prompt []uint32 // nil if not all of its ids are known
	length int      // of it
	media  []Media
	known  knownText
	allIDs bool // all ids are needed

	query    index.Query // whose Keys is the scorer's
	tokens   []uint32    // of a prompt that was text
	expanded []uint32    // those of a chat with media, each with all of its tokens
	padded   []uint32    // the prompt with its media written over it
	pairs    []uint32    // the prompt's, or the padded prompt's
	locals   []index.Local
	plain    index.Variant // that locals are of, if nothing but tokens is in them: its Unit and Pairs
	extras   []extra
	keys     []index.Key // of all variants, one after the other
	runs     []keyRun    // of keys
	given    []keyRun    // in place of those of a prompt; nil: none
	matches  index.Matches
	degraded error        // why the index was not asked
	held     []reuse.Held // by group, of the source that is judged
	entries  []entry      // of Request.Ranks; empty: each candidate is an entry
	best     []bestRow    // by entry
	order    []int32      // entries, best first

	rendering *chat.Rendering // of a chat, for its exclusions

	// Of predictions (foresee). Without a hit the others are not looked at.
	hits   []hit
	hitOf  []int32       // by row: the position in hits plus one; 0: none
	proven []int32       // by row: cached tokens without what was sent
	real   int           // the rows that the index has given
	sentTo []int32       // by sent.Holder: units
	behind index.Matches // rows with bits, if these are needed
	note   func(sent.Holder, int)

	anySent bool
	hitsOf  []int32 // by candidate: where its hits begin

	// Of ties:
	hashes []uint64 // of the pods of entries
	hash   uint64   // the prompt's, if hashed is not empty
	hashed []byte   // what it is of
	ranks  []uint64 // what entries are ordered by
	starts []int32  // where the entries of a part of the places begin

	// Of spreadRanks: the memory of hashes, and that of entries and best by turns.
	ofEntries    []uint64
	otherEntries []entry
	otherBest    []bestRow
}

// times are what a score spent where.
type times struct{ render, tokenize, match time.Duration }

// bestRow is the best row of an entry so far. It has four fields: the compiler keeps no
// more in registers.
type bestRow struct {
	cached, matched int   // tokens; cached with what was sent (foresee)
	row             int32 // in matches, plus one
	marks           rowMarks
}

type rowMarks uint8

const (
	markUpper   rowMarks = 1 << iota // cached is an upper bound
	markEvicted                      // blocks of some row of the entry were given up
	markStale                        // some row of the entry may not be true any more
)

func (b *bestRow) mark(m rowMarks, is bool) {
	if is {
		b.marks |= m
	}
}

func (x *Indexer) newScorer() *scorer {
	sc, _ := x.scorers.Get().(*scorer)
	if sc == nil {
		sc = &scorer{x: x, tally: &x.tallies[x.made.Add(1)%uint32(len(x.tallies))]}
		sc.query.Keys, sc.note = sc.keysIn, sc.noteSent
	}
	return sc
}

// release keeps the memory of a scorer and nothing of its request.
func (sc *scorer) release() {
	sc.set, sc.scope, sc.text, sc.prompt, sc.media, sc.query.Candidates, sc.hashes = nil, scope{}, "", nil, nil, nil, nil
	sc.known.release()
	sc.allIDs, sc.degraded, sc.plain = false, nil, index.Variant{}
	sc.times, sc.best = times{}, sc.best[:0]
	sc.entries, sc.hashed = sc.entries[:0], sc.hashed[:0]
	sc.rendering = nil
	sc.runs, sc.given, sc.hits, sc.hitOf = sc.runs[:0], nil, sc.hits[:0], sc.hitOf[:0]
	sc.query.Held = false
	sc.x.scorers.Put(sc)
}

// The prompt: text to tokens.

// readPrompt sets the prompt and its media to those of r, or of the chat that it asks
// for.
func (sc *scorer) readPrompt(ctx context.Context, r *Request, asked *chat.Request) error {
	sc.prompt, sc.media, sc.text = r.Tokens, r.Media, r.Prompt
	sc.length = len(sc.prompt)
	if sc.length > 0 && sc.x.prompts != nil && !sc.allIDs {
		sc.x.prompts.Pass()
	}
	if asked != nil || r.Prompt != "" {
		model, err := sc.model(ctx)
		if err != nil {
			return err
		}
		if asked != nil {
			err = sc.renderChat(ctx, model, asked)
		} else {
			err = sc.tokenize(ctx, model, !r.Rendered)
		}
		if err != nil {
			return err
		}
	}
	for _, m := range sc.media {
		if m.Offset >= sc.length {
			return fmt.Errorf("%w: media %q begins at token %d of %d", ErrRequest, m.Hash, m.Offset, sc.length)
		}
	}
	return nil
}

// model returns what texts of the base model are scored with.
func (sc *scorer) model(ctx context.Context) (m Model, err error) {
	x, base := sc.x, sc.set.base
	m, ok := x.given[base]
	if !ok && x.source != nil {
		began := sc.clock()
		m, err = x.source(ctx, base)
		sc.spend(&sc.times.tokenize, began)
		if err != nil {
			return m, sc.set.explain(fmt.Errorf("kvindex: model %q: %w", base, orNone(err, ErrNoTokenizer)))
		}
	}
	if m.Tokenizer == nil {
		return m, sc.set.explain(fmt.Errorf("%w for model %q: give it by WithModel or WithModels, or score token ids by Request.Tokens", ErrNoTokenizer, base))
	}
	return m, nil
}

// renderChat sets the prompt to the tokens of a chat, and puts each medium in its
// place.
func (sc *scorer) renderChat(ctx context.Context, model Model, asked *chat.Request) error {
	switch base := sc.set.base; {
	case model.Chat != nil:
	case model.ChatErr != nil:
		return sc.set.explain(fmt.Errorf("kvindex: the chat template of model %q: %w", base, orNone(model.ChatErr, ErrNoTemplate)))
	default:
		return sc.set.explain(fmt.Errorf("%w for model %q: its Model has no Chat: give one, or score the rendered text by Request.Prompt and Rendered", ErrNoTemplate, base))
	}
	began := sc.clock()
	text, err := model.Chat.Render(asked, sc.media)
	sc.spend(&sc.times.render, began)
	if err != nil {
		return ofBody(err)
	}
	sc.rendering, sc.text = text, text.Text
	if err := sc.tokenize(ctx, model, asked.AddSpecial); err != nil || len(sc.media) == 0 {
		return err
	}
	sc.expanded, sc.media, err = text.Expand(sc.expanded[:0], sc.prompt)
	sc.prompt, sc.length = sc.expanded, len(sc.expanded)
	if err != nil {
		return ofBody(err)
	}
	return nil
}

// tokenize sets the prompt to the text. special: it has no special tokens yet.
func (sc *scorer) tokenize(ctx context.Context, model Model, special bool) error {
	began := sc.clock()
	if err := sc.encoded(began, sc.encode(ctx, model.Tokenizer, special)); err != nil {
		return err
	}
	if sc.length == 0 {
		return fmt.Errorf("%w: the prompt has no tokens", ErrRequest)
	}
	return nil
}

// encoded notes how long an encoding took, and returns what its error is to the request.
func (sc *scorer) encoded(began time.Time, err error) error {
	sc.spend(&sc.times.tokenize, began)
	if err != nil {
		err = sc.set.explain(fmt.Errorf("kvindex: tokenizing for model %q: %w", sc.set.base, orNone(err, ErrNoTokenizer)))
	}
	return err
}

// orNone makes err one about what is not there if it says that a file is not.
func orNone(err, none error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", none, err)
	}
	return err
}

// The index: tokens to keys, keys to rows.

// match asks the index who holds what of the prompt. It asks back, by keysIn, for
// the keys of each variant that a candidate has.
func (sc *scorer) match(ctx context.Context) error {
	sc.query.Candidates = sc.set.index
	for {
		sc.keys, sc.runs, sc.plain = sc.keys[:0], sc.runs[:0], index.Variant{}
		began := sc.clock()
		err := sc.x.index.Match(ctx, &sc.query, &sc.matches)
		if err == nil && sc.given == nil {
			err = sc.addForms()
		}
		sc.spend(&sc.times.match, began)
		switch {
		case err == nil:
			sc.degraded = sc.matches.Degraded
			sc.learnForms()
			return nil
		case errors.Is(err, errMissing):
			began := sc.clock()
			if err := sc.encoded(began, sc.addMissing(ctx)); err != nil {
				return err
			}
			continue
		case errors.Is(err, ErrRequest): // of keysIn
			return err
		}
		return sc.x.failed(fmt.Errorf("kvindex: scoring for model %q: %w", sc.set.base, err))
	}
}

// addForms makes the keys of those variants of the candidates that the index has not asked
// for, because they hold nothing now: a prompt that is sent to them is told by its keys.
func (sc *scorer) addForms() error {
	for _, v := range sc.set.variants {
		if runOf(sc.runs, v) == nil {
			if _, err := sc.keysIn(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// keysIn returns the keys of the prompt in a variant.
func (sc *scorer) keysIn(v index.Variant) ([]index.Key, error) {
	if sc.given != nil {
		if r := runOf(sc.given, v); r != nil {
			return r.keys, nil
		}
		return nil, nil
	}
	if k := &sc.known; sc.x.prompts != nil && !slices.Contains(k.asked, v) {
		k.asked = append(k.asked, v)
	}
	if sc.known.tokenizer != nil {
		return sc.knownKeys(v)
	}
	if err := sc.cut(v); err != nil {
		return nil, err
	}
	return sc.keysOf(v, sc.locals), nil
}

// keysOf returns the keys of the prompt, which has these locals in a variant.
func (sc *scorer) keysOf(v index.Variant, locals []index.Local) []index.Key {
	s := sc.scope
	if v.Media == MediaBare {
		s.salt = "" // it is in the first unit
	}
	r := keyRun{variant: v, root: sc.x.hash.root(s, v)}
	from := len(sc.keys)
	sc.keys = keys(sc.keys, r.root, locals)
	r.keys = sc.keys[from:len(sc.keys):len(sc.keys)]
	sc.runs = append(sc.runs, r)
	return r.keys
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
	sc.locals = sc.x.hash.of(sc.scope.adapter).locals(sc.locals[:0], tokens, width, sc.extras)
	return nil
}

// The rows: which is an entry's best, and what it says.

// chooseRows finds the best row of each entry.
func (sc *scorer) chooseRows() {
	n := max(len(sc.set.names), len(sc.entries))
	sc.best = slices.Grow(sc.best[:0], n)[:n]
	clear(sc.best)
	rows := sc.matches.Rows
	for i := 0; i < len(rows); {
		if rows[i].Held == nil {
			sc.improve(rows[i].Pod, sc.bestOf(i))
			i++
			continue
		}
		from := i
		for i++; i < len(rows) && rows[i].Held != nil && rows[i].Pod == rows[from].Pod && rows[i].Source == rows[from].Source; i++ {
		}
		sc.judge(from, i)
	}
	for i := range rows {
		if row := &rows[i]; row.Evicted || row.Stale {
			b := &sc.best[sc.entry(row.Pod, row.Source.Rank)]
			b.mark(markEvicted, row.Evicted)
			b.mark(markStale, row.Stale)
		}
	}
}

// bestOf judges a row of a source of one full-attention group.
func (sc *scorer) bestOf(i int) bestRow {
	row := &sc.matches.Rows[i]
	length, again := sc.lengthIn(row), 0
	b := bestRow{matched: int(row.Run) * row.BlockSize, row: int32(i + 1)}
	if sc.set.profiled {
		if pm := sc.set.states[row.Pod]; pm != nil {
			group := pm.profile.corrected(row.Group)
			if group.Draft && !row.Pairs { // SGLang gives up the last pair only
				again = row.BlockSize // which the draft layers compute again
			}
			// A kept index may have a group of another kind, as its events told it.
			b.mark(markUpper, group.Kind != GroupFull || pm.profile.lists(row.Layout) || pm.hybrid.Load())
		}
	}
	b.cached = max(0, cachedTokens(int(row.GPU), row.BlockSize, length)-again)
	if len(sc.hits) > 0 {
		b = sc.withHit(i, b, again)
	}
	return b
}

func (sc *scorer) improve(pod int32, t bestRow) {
	at := pod
	if len(sc.entries) > 0 {
		at = sc.entry(pod, sc.rankOf(t))
	}
	if b := &sc.best[at]; b.row == 0 || sc.better(t, *b) {
		*b = t
	}
}

// better orders the rows of one pod: by what the engine would reuse, of which that comes
// first which is proven, then by what is held anywhere, then the lower rank first.
func (sc *scorer) better(a, b bestRow) bool {
	return cmp.Or(a.cached-b.cached, sc.provenOf(a)-sc.provenOf(b), a.matched-b.matched, sc.rankOf(b)-sc.rankOf(a), int(b.row-a.row)) > 0
}

func (sc *scorer) rankOf(b bestRow) int { return sc.matches.Rows[b.row-1].Source.Rank }

// cachedTokens is what the engine would reuse of so many leading gpu blocks of a size, in a
// prompt of so many tokens, or pairs.
func cachedTokens(blocks, size, promptTokens int) int {
	if cached := blocks * size; cached < promptTokens {
		return cached
	}
	// The last token is always computed, for its logits: vLLM 2026-08-17,
	// v1/core/kv_cache_manager.py, get_computed_blocks; SGLang 2026-08-22,
	// srt/managers/schedule_batch.py, init_next_round_input. So is EAGLE's last
	// pair.
	return (promptTokens - 1) / size * size
}

// rank fills order with the best entries, best first. Those that would reuse the
// same come in the order of their pods' places (hasher.pod), then as they are:
// candidates are ordered by name, and the ranks of one by spreadRanks.
func (sc *scorer) rank(top int) {
	if n := len(sc.best); top > 0 && top < n {
		sc.rankBest(top)
		return
	}
	order := slices.Grow(sc.order[:0], len(sc.best))[:len(sc.best)]
	sc.order = order
	// Most often only some hold anything: the others need no sorting.
	some, none := 0, len(order)
	sorted, last, least := true, math.MaxInt, 0
	for i := range sc.best {
		if cached := sc.best[i].cached; cached > 0 {
			order[some] = int32(i)
			some++
			sorted, last = sorted && cached <= last, cached
		} else {
			none--
			order[none] = int32(i)
			least = min(least, cached)
		}
	}
	most := func(a, b int32) int { return sc.best[b].cached - sc.best[a].cached }
	if !sorted {
		slices.SortFunc(order[:some], most)
	}
	if least < 0 {
		slices.SortFunc(order[some:], most)
	}
	for len(order) > 1 {
		n, cached := 1, sc.best[order[0]].cached
		if sc.best[order[len(order)-1]].cached == cached { // most often nothing
			n = len(order)
		}
		for n < len(order) && sc.best[order[n]].cached == cached {
			n++
		}
		if n > 1 {
			sc.spread(order[:n], sc.hashPrompt())
		}
		order = order[n:]
	}
}

// spread orders entries that would reuse the same. Places are even, so each is
// put near its own at once, and few have to be moved then.
func (sc *scorer) spread(tied []int32, prompt uint64) {
	n, hashes := len(tied), sc.hashes
	width := bits.Len(uint(n)) // of parts, more than entries
	shift := 64 - width
	sc.ranks = slices.Grow(sc.ranks[:0], 2*n)[:2*n]
	sc.starts = slices.Grow(sc.starts[:0], 1<<width)[:1<<width]
	clear(sc.starts)
	ranks, sorted, starts := sc.ranks[:n], sc.ranks[n:], sc.starts
	for i, at := range tied {
		r := uint64(^place(prompt, hashes[at]))<<32 | uint64(at)
		ranks[i] = r
		starts[r>>shift]++
	}
	sum := int32(0)
	for i, count := range starts {
		starts[i] = sum
		sum += count
	}
	for _, r := range ranks {
		at := starts[r>>shift]
		starts[r>>shift] = at + 1
		sorted[at] = r
	}
	for i, r := range sorted {
		for ; i > 0 && sorted[i-1] > r; i-- {
			sorted[i] = sorted[i-1]
		}
		sorted[i] = r
	}
	for i, r := range sorted {
		tied[i] = int32(uint32(r))
	}
}

// rankBest is rank for fewer than all. It asks for places only if some of the best
// are equal, or equal to the best of the rest.
func (sc *scorer) rankBest(top int) {
	sc.ranks = slices.Grow(sc.ranks[:0], len(sc.best))[:len(sc.best)]
	ranks := sc.ranks
	for i := range ranks {
		ranks[i] = uint64(sc.best[i].cached-notScorable) << 32
	}
	rest := sc.chooseBest(top)
	least := ranks[sc.order[top-1]]
	tied := rest == least
	for i := 1; i < top; i++ {
		tied = tied || ranks[sc.order[i]] == ranks[sc.order[i-1]]
	}
	if !tied {
		return
	}
	prompt, hashes := sc.hashPrompt(), sc.hashes
	for i, r := range ranks {
		if r >= least {
			ranks[i] = r | uint64(place(prompt, hashes[i]))
		}
	}
	sc.chooseBest(top)
}

// chooseBest fills order with the entries of the highest ranks, and returns the
// highest of the rest.
func (sc *scorer) chooseBest(top int) (rest uint64) {
	order, ranks := sc.order[:0], sc.ranks
	last := uint64(0) // the lowest of those in order, once it is full
	for i, rank := range ranks {
		at := len(order)
		switch {
		case at < top:
			order = append(order, 0)
		case rank <= last:
			rest = max(rest, rank)
			continue
		default:
			at--
			rest = last
		}
		for ; at > 0 && rank > ranks[order[at-1]]; at-- {
			order[at] = order[at-1]
		}
		order[at] = int32(i)
		last = ranks[order[len(order)-1]]
	}
	sc.order = order
	return rest
}

func (sc *scorer) hashPrompt() uint64 {
	if len(sc.hashed) == 0 {
		ties := sc.known.ties
		if sc.known.tokenizer == nil {
			if sc.plain != firstForms[0] {
				sc.locals = sc.x.hash.of(sc.scope.adapter).locals(sc.locals[:0], sc.prompt, tieUnit, nil)
				sc.plain = firstForms[0]
			}
			ties = foldedOf(sc.prompt, sc.locals)
		}
		sc.hash, sc.hashed = sc.x.hash.prompt(sc.hashed, sc.scope, ties, sc.media)
	}
	return sc.hash
}

// answer says what the best rows are.
func (sc *scorer) answer(dst *Answer) {
	ranks := len(sc.entries) > 0
	dst.Pods = slices.Grow(dst.Pods, len(sc.order))[:len(sc.order)]
	for i, at := range sc.order {
		s := &dst.Pods[i]
		*s = PodScore{}
		pod := at
		if ranks {
			e := &sc.entries[at]
			s.Rank, s.State, pod = e.rank, e.state, e.pod
		} else {
			s.State = sc.set.state(at)
		}
		s.Pod = sc.set.names[pod]
		b := sc.best[at]
		if b.marks&markEvicted != 0 {
			s.State = min(s.State, StatePartial)
		}
		if b.marks&markStale != 0 {
			s.State = min(s.State, StateUncertain)
		}
		switch {
		case b.cached == notScorable:
			s.NotScorable = true
		case b.row > 0:
			s.fill(&sc.matches.Rows[b.row-1], b)
			if pm := sc.set.states[pod]; pm != nil && pm.less.Load() {
				s.UpperBound = true
			}
			s.CachedTokens = sc.provenOf(b)
		}
	}
}

// unknown says what name of the request is not known. What a pod holds a part of
// is: an index may be older than what was heard.
func (sc *scorer) unknown() error {
	err := sc.set.unknown
	if adapter := sc.scope.adapter; err == nil && adapter != "" {
		err = sc.x.unknownAdapter(sc.set.base, adapter)
	}
	if err != nil && slices.ContainsFunc(sc.best, func(b bestRow) bool { return b.matched > 0 || b.cached > 0 }) {
		return nil
	}
	return err
}

func (s *PodScore) fill(row *index.Row, b bestRow) {
	s.Rank = row.Source.Rank
	s.Score = float64(b.cached)
	s.BlockTokens = row.BlockSize
	if b.matched > 0 {
		s.MatchedBlocks = int(row.Run)
		for t, n := range row.Tiers {
			s.Tiers.n[t] = int(n)
		}
	} else {
		for i := range row.Groups {
			if g := &row.Groups[i]; g.ID == row.Group.ID {
				s.BlockTokens = g.BlockSize // the row may be one of parts of a block
				break
			}
		}
	}
	s.PredictedTokens = b.cached
	s.UpperBound = b.marks&markUpper != 0
}
