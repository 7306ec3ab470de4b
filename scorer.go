// Scorer: the way of a request to its answer.
//
// A score computes four values, each from those before it: the prompt (text, ids, keys), the
// rows that the index matches, the forecast (prompts that were routed to the candidates,
// beside the rows), and the ranking (the best entries). A scorer holds their memory. Explain
// uses the prompt and the row of its score. Routed computes the rows and the forecast of one
// rank.
//
// # Keys by a function
//
// The backend requests keys by a function, variant by variant, because only the backend has
// the units of the pods of a model. So the tokens are hashed once for each unit that a
// candidate uses, without a second round trip for variants. Variants that differ only in
// their form of media share the hashing if the prompt has no media, and cost one chain each.
//
// # Rows
//
// A row is the part of the prompt that one group of one source holds in blocks of one size. It
// becomes a score without any other data. A source of one full-attention group has one row
// without bits. Any other source has a row for each group that holds a block, with a bit for
// each block of the prompt and the sizes of all its groups (index.Layout), because the
// engine's reuse of several groups depends on blocks after the leading ones. A row names its
// pod by its position among the candidates, so nothing is looked up by name, and only the best
// k rows become a PodScore.

package kvindex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/catalog"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/ranking"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// ScoreRequest scores a request and writes the answer to dst. On an error dst has no
// pods. Neither r nor dst may be nil.
//
// An unknown model or adapter is no error: all scores are 0, and
// Answer.Unknown has the reason. Errors wrap ErrRequest if the engine would refuse the
// request too, else chat.ErrNotScorable, ErrNoTokenizer, ErrNoTemplate,
// chat.ErrUnsupported, tokenize.ErrUnsupported, tokenize.ErrBusy,
// tokenize.ErrTextTooLong, ErrClosed, the error of a backend, or the error of ctx. After any
// error a gateway can choose a pod by load.
func (x *Indexer) ScoreRequest(ctx context.Context, r *Request, dst *Answer) error {
	*dst = Answer{Pods: dst.Pods[:0], sent: dst.sent}
	if dst.sent != nil {
		dst.sent.turn.Add(1)
	}
	if x.reg.Closed() {
		return ErrClosed
	}
	sc := x.newScorer()
	defer sc.release()
	sc.began = sc.clock()
	err := sc.score(ctx, r, dst)
	dst.hasher = &x.hash
	if err == nil {
		dst.prompt = sc.prompt.TieHash()
		sc.keepFor(dst)
	} else {
		dst.prompt = x.hash.Request(r.Body, r.Prompt, r.Tokens)
	}
	if !errors.Is(err, ErrClosed) {
		sc.report(ctx, r, dst, err)
	}
	return err
}

func (sc *scorer) score(ctx context.Context, r *Request, dst *Answer) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if c := r.Candidates; c != nil && !c.of.In(sc.x.names) {
		return fmt.Errorf("%w: the Candidates do not come from this Indexer", ErrRequest)
	}
	var inBody *chat.Prompt
	var unread error // the reason why the body has to be rendered by an engine
	if r.Body != nil {
		began := sc.clock()
		r, inBody, err = r.read()
		sc.spend(&sc.times.render, began)
		if inBody != nil {
			unread = err
		} else if err != nil {
			return err
		}
	}
	if err := r.validate(inBody); err != nil {
		return err
	}
	unlisted := sc.x.reg.List(ctx)
	var list *catalog.List
	if r.Candidates != nil {
		list = r.Candidates.of
	}
	set, adapter, err := sc.x.names.Candidates(r.Model, r.Adapter, r.Pods, list)
	sc.set, sc.prompt.Scope = set, hashing.Scope{Model: set.Base, Adapter: adapter, Salt: r.Salt}
	if err != nil {
		return cmp.Or(unlisted, err)
	}
	if err := sc.readPrompt(ctx, r, inBody, unread); err != nil {
		return err
	}
	if len(sc.set.Names) > 0 {
		if err := sc.match(ctx); err != nil {
			return err
		}
	}
	if unlisted != nil && sc.degraded == nil { // else pods that other processes feed would look unknown
		return unlisted
	}
	if len(sc.set.Names) > 0 {
		if err := sc.predict(ctx, -1); err != nil {
			return err
		}
		sc.judge(r.Ranks)
		if sc.rendering != nil {
			for pod := range sc.rendering.Excluded() {
				if i, ok := slices.BinarySearch(set.Names, pod); ok {
					sc.judging.Exclude(int32(i))
				}
			}
		}
		sc.answer(dst, sc.judging.Order(r.Top))
	}
	dst.PromptTokens, dst.Degraded = sc.prompt.Length, sc.degraded
	if sc.rendering != nil {
		dst.Text = sc.rendering.Text
	}
	if set.Unknown != nil || adapter != "" && !set.Guessed {
		dst.Unknown = sc.unknown()
	}
	return nil
}

// A scorer computes the score of one request. Its memory is used again.
type scorer struct {
	x     *Indexer
	tally *tally
	set   *catalog.Set
	began time.Time // if Hooks.Scored is set
	times times     // measured if Hooks.Scored is set

	prompt   prompt.Prompt
	query    index.Query // its Keys are prompt.KeysIn
	matches  index.Matches
	degraded error // index.Matches.Degraded
	judging  ranking.Judge

	rendering *chat.Rendering // of a chat, for its excluded pods

	forecast predict.Forecast
}

// times are the durations of the steps of a score.
type times struct{ render, tokenize, match time.Duration }

func (x *Indexer) newScorer() *scorer {
	sc, _ := x.scorers.Get().(*scorer)
	if sc == nil {
		sc = &scorer{x: x, tally: &x.tallies[x.made.Add(1)%uint32(len(x.tallies))]}
		sc.prompt.Init(&x.hash, x.index.Seed(), x.prompts)
		sc.query.Keys = sc.prompt.KeysIn
		sc.forecast.Init()
	}
	return sc
}

// release keeps the memory of a scorer and nothing of its request.
func (sc *scorer) release() {
	sc.set, sc.query.Candidates = nil, nil
	sc.prompt.Release()
	sc.degraded, sc.rendering = nil, nil
	sc.times = times{}
	sc.judging.Release()
	sc.forecast.Clear()
	sc.query.Held = false
	sc.x.scorers.Put(sc)
}

// The prompt: text to tokens.

// readPrompt sets the prompt and its media to those of r, or of inBody. unread is the reason why
// inBody has nothing but names.
func (sc *scorer) readPrompt(ctx context.Context, r *Request, inBody *chat.Prompt, unread error) error {
	sc.prompt.Set(r.Prompt, r.Tokens, r.Media)
	if sc.prompt.Length > 0 && sc.x.prompts != nil && !sc.prompt.AllIDs {
		sc.x.prompts.Pass()
	}
	if inBody != nil || r.Prompt != "" {
		model, err := sc.model(ctx)
		if err != nil {
			return cmp.Or(unread, err)
		}
		if inBody != nil {
			err = sc.readChat(ctx, model, r, inBody, unread)
		} else {
			err = sc.tokenize(ctx, model, !r.Rendered)
		}
		if err != nil {
			return err
		}
	}
	for _, m := range sc.prompt.Media {
		if m.Offset >= sc.prompt.Length {
			return fmt.Errorf("%w: media %.100q: Offset %d is not within the %d tokens of the prompt", ErrRequest, m.Hash, m.Offset, sc.prompt.Length)
		}
	}
	return nil
}

// model returns the Model of the base model.
func (sc *scorer) model(ctx context.Context) (m Model, err error) {
	x, base := sc.x, sc.set.Base
	m, ok := x.given[base]
	if !ok && x.source != nil {
		began := sc.clock()
		m, err = x.source(ctx, base)
		sc.spend(&sc.times.tokenize, began)
		if err != nil {
			return m, sc.set.Explain(fmt.Errorf("kvindex: model %.100q: %w", base, orNone(err, ErrNoTokenizer)))
		}
	}
	if m.Tokenizer == nil {
		return m, sc.set.Explain(fmt.Errorf("%w for model %.100q: give it by WithModel or WithModels, or score token ids by Request.Tokens", ErrNoTokenizer, base))
	}
	if judged, ok := m.Tokenizer.(interface{ Verdict() error }); ok { // as of a remote.Judge
		if err := judged.Verdict(); err != nil {
			m.Chat, m.ChatErr = nil, err
		}
	}
	return m, nil
}

// readChat sets the prompt to that of a chat, or of another body that was not read. An
// engine may support bodies that the Model does not. It never gets a body that is wrong.
func (sc *scorer) readChat(ctx context.Context, model Model, r *Request, inBody *chat.Prompt, unread error) error {
	engine, ok := model.Tokenizer.(chat.Renderer)
	err, byEngine := unread, ok && model.Chat == nil && model.ChatErr == nil
	if err == nil && !byEngine {
		if err = sc.renderChat(ctx, model, inBody); err == nil {
			return nil
		}
	}
	if !ok || model.Chat != nil && !errors.Is(err, chat.ErrNotScorable) && !errors.Is(err, chat.ErrUnsupported) {
		return err
	}
	began := sc.clock()
	rendered, failed := engine.RenderBody(ctx, r.Path, r.Body)
	sc.spend(&sc.times.render, began)
	sc.tally.countByEngine(failed)
	switch {
	case failed != nil && err == nil:
		return fmt.Errorf("%w (by an engine, as the Model has no Chat)", ofBody(failed))
	case failed != nil:
		return fmt.Errorf("%w (by an engine, because of: %s)", ofBody(failed), err.Error())
	}
	if len(rendered.Tokens) == 0 {
		return fmt.Errorf("%w: the prompt has no tokens", ErrRequest)
	}
	if sc.prompt.Scope.Salt == "" {
		sc.prompt.Scope.Salt = rendered.Salt
	}
	sc.prompt.Set("", rendered.Tokens, rendered.Media)
	sc.rendering = nil
	if sc.x.prompts != nil {
		sc.x.prompts.Pass()
	}
	return nil
}

// renderChat sets the prompt to the tokens of a chat, and puts each medium in its
// place.
func (sc *scorer) renderChat(ctx context.Context, model Model, inBody *chat.Prompt) error {
	switch base := sc.set.Base; {
	case model.Chat != nil:
	case model.ChatErr != nil:
		return sc.set.Explain(fmt.Errorf("kvindex: the chat template of model %.100q: %w", base, orNone(model.ChatErr, ErrNoTemplate)))
	default:
		return sc.set.Explain(fmt.Errorf("%w for model %.100q: its Model has no Chat: give one, or score the rendered text by Request.Prompt and Rendered", ErrNoTemplate, base))
	}
	began := sc.clock()
	text, err := model.Chat.Render(inBody, sc.prompt.Media)
	sc.spend(&sc.times.render, began)
	if err != nil {
		return ofBody(err)
	}
	sc.rendering, sc.prompt.Text = text, text.Text
	if !text.Whole() {
		sc.prompt.Chat = text
	}
	if err := sc.tokenize(ctx, model, inBody.AddSpecial); err != nil || len(sc.prompt.Media) == 0 {
		return err
	}
	if err := sc.prompt.Expand(text); err != nil {
		return ofBody(err)
	}
	return nil
}

// tokenize sets the prompt to the text. With special, special tokens are put around it.
func (sc *scorer) tokenize(ctx context.Context, model Model, special bool) error {
	began := sc.clock()
	if err := sc.encoded(began, sc.prompt.Encode(ctx, model.Tokenizer, special, sc.set.Forms())); err != nil {
		return err
	}
	if sc.prompt.Length == 0 {
		return fmt.Errorf("%w: the prompt has no tokens", ErrRequest)
	}
	return nil
}

// encoded records the duration of an encoding and converts its error to the request's.
func (sc *scorer) encoded(began time.Time, err error) error {
	sc.spend(&sc.times.tokenize, began)
	if err != nil {
		err = sc.set.Explain(fmt.Errorf("kvindex: tokenizing for model %.100q: %w", sc.set.Base, orNone(err, ErrNoTokenizer)))
	}
	return err
}

// orNone wraps err in none if err is fs.ErrNotExist.
func orNone(err, none error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", none, err)
	}
	return err
}

// The index: tokens to keys, keys to rows.

// match finds the rows of the prompt in the index. The index calls prompt.KeysIn for each
// variant of a candidate.
func (sc *scorer) match(ctx context.Context) error {
	sc.query.Candidates = sc.set.Index
	sc.query.Held = sc.query.Held || sc.set.Bits
	for {
		sc.prompt.Begin()
		began := sc.clock()
		err := sc.x.index.Match(ctx, &sc.query, &sc.matches)
		if err == nil && !sc.prompt.Given() {
			err = sc.addForms()
		}
		sc.spend(&sc.times.match, began)
		switch {
		case err == nil && sc.set.Tiered && !sc.query.Held && sc.loads():
			sc.query.Held = true
			continue
		case err == nil:
			sc.degraded = sc.matches.Degraded
			sc.prompt.Asked = sc.set.LearnForms(sc.prompt.Asked)
			return nil
		case errors.Is(err, prompt.ErrMissing):
			began := sc.clock()
			if err := sc.encoded(began, sc.prompt.AddMissing(ctx)); err != nil {
				return err
			}
			continue
		case errors.Is(err, ErrRequest): // from prompt.KeysIn
			return err
		}
		return sc.x.reg.Failed(fmt.Errorf("kvindex: scoring for model %.100q: %w", sc.set.Base, err))
	}
}

// loads reports whether a source may have more in lower tiers than in its gpu. Then the rows are
// needed with bits: blocks in the gpu behind a gap do not count.
func (sc *scorer) loads() bool {
	for i := range sc.matches.Rows {
		if row := &sc.matches.Rows[i]; row.Held == nil && (row.Run > row.GPU || int(row.GPU)*row.BlockSize >= sc.prompt.LengthIn(row)) {
			return true
		}
	}
	return false
}

// addForms makes the keys for variants of the candidates that the index did not request,
// because these candidates hold nothing now: the forecast and Routed need the keys.
func (sc *scorer) addForms() error {
	for _, v := range sc.set.Variants {
		if prompt.RunIn(sc.prompt.Runs(), v) == nil {
			if _, err := sc.prompt.KeysIn(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// The forecast: prompts that were routed.

// predict finds, for each candidate rank, the longest beginning of the prompt that was routed
// to it. rank -1 is all ranks.
func (sc *scorer) predict(ctx context.Context, rank int) error {
	f, set := &sc.forecast, sc.set
	f.Begin(len(sc.matches.Rows))
	if !f.Find(sc.x.ledger, predict.Candidates{Pods: set.Sent, Lent: &set.Lent, Approximate: set.Approximate}, sc.prompt.Runs(), rank) {
		return nil
	}
	if after := f.Attach(&sc.matches, &sc.prompt); after < math.MaxInt {
		return sc.matchBits(ctx, after)
	}
	return nil
}

// matchBits queries the index again, for the bits of the blocks after so many tokens.
func (sc *scorer) matchBits(ctx context.Context, after int) error {
	given := sc.prompt.Freeze()
	sc.query.Held, sc.query.Behind = true, after
	f := &sc.forecast
	err := sc.x.index.Match(ctx, &sc.query, &f.Behind)
	sc.prompt.Use(given, sc.prompt.Length)
	sc.query.Held, sc.query.Behind = false, 0
	if err != nil {
		return sc.x.reg.Failed(fmt.Errorf("kvindex: scoring for model %.100q: %w", sc.set.Base, err))
	}
	if why := f.Behind.Degraded; why != nil {
		sc.degraded = why
	}
	f.AttachBits()
	return nil
}

// judge finds the best row of each candidate or, with ranks, of each of its ranks.
func (sc *scorer) judge(ranks bool) {
	set, j := sc.set, &sc.judging
	j.Input = ranking.Input{
		Pods: set.Pods, PodHashes: set.Hashes, Profiled: set.Profiled, Unregistered: &sc.x.unregistered,
		Tiered: set.Tiered, Rows: sc.matches.Rows, Prompt: &sc.prompt, Forecast: &sc.forecast,
	}
	if ranks {
		j.ListRanks()
	}
	j.Choose()
}

// The answer.

// answer fills dst with the best entries, in their order.
func (sc *scorer) answer(dst *Answer, order []int32) {
	ranks := len(sc.judging.Entries) > 0
	dst.Pods = slices.Grow(dst.Pods, len(order))[:len(order)]
	for i, at := range order {
		s := &dst.Pods[i]
		*s = PodScore{}
		pod := at
		if ranks {
			e := &sc.judging.Entries[at]
			s.Rank, s.State, pod = e.Rank, State(e.State), e.Pod
		} else {
			s.State = State(sc.set.Pods[at].Facts().State)
		}
		s.Pod = sc.set.Names[pod]
		b := sc.judging.Best[at]
		if b.Marks&ranking.Evicted != 0 {
			s.State = min(s.State, StatePartial)
		}
		if b.Marks&ranking.Stale != 0 {
			s.State = min(s.State, StateUncertain)
		}
		switch {
		case b.Cached == ranking.NotScorable:
			s.NotScorable = true
		case b.Row > 0:
			s.fill(&sc.matches.Rows[b.Row-1], b)
			facts := sc.set.Pods[pod].Facts()
			s.UpperBound = s.UpperBound || facts.Less
			s.CachedTokens = sc.judging.Proven(b)
			l := sc.judging.LowerOf(b)
			s.LoadedTokens, s.FetchedTokens, s.Score = l.Loaded, l.Fetched, sc.judging.Score(b)
			s.UpperBound = s.UpperBound || facts.Loose && l.Loaded+l.Fetched > 0
		}
	}
}

// unknown returns the error about an unknown model or adapter. If a pod holds a part of the
// prompt, neither is unknown: the index may be older than the catalog.
func (sc *scorer) unknown() error {
	err := sc.set.Unknown
	if adapter := sc.prompt.Scope.Adapter; err == nil && adapter != "" {
		err = sc.x.names.UnknownAdapter(sc.set.Base, adapter)
	}
	if err != nil && slices.ContainsFunc(sc.judging.Best, func(b ranking.Best) bool { return b.Matched > 0 || b.Cached > 0 }) {
		return nil
	}
	return err
}

func (s *PodScore) fill(row *index.Row, b ranking.Best) {
	s.Rank = row.Source.Rank
	s.BlockTokens = row.BlockSize
	if b.Matched > 0 {
		s.MatchedBlocks = int(row.Run)
		for t, n := range row.Tiers {
			s.Tiers[t] = int(n)
		}
	} else {
		for i := range row.Groups {
			if g := &row.Groups[i]; g.ID == row.Group.ID {
				s.BlockTokens = g.BlockSize // the blocks of the row may be parts of a block
				break
			}
		}
	}
	s.PredictedTokens = b.Cached
	s.UpperBound = b.Marks&ranking.Upper != 0
}
