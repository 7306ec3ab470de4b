package kvindex

import (
	"context"
	"slices"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/podstate"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/ranking"
	"github.com/kvindex/kvindex/internal/view"
)

// The strings of the API.
var (
	OutcomeNames = outcomeNames
	LossNames    = view.LossNames
	ReplayNames  = []string{"idle", "waiting", "none"}
)

const (
	MaxModels            = 16
	MaxRanks             = engine.MaxRanks
	MaxStreams           = engine.MaxStreams
	MaxAdapters          = engine.MaxAdapters
	MaxName              = engine.MaxName
	ApplyTimeout         = 5 * time.Second
	DefaultPredictionTTL = predict.DefaultTTL
	DefaultTicketAge     = 10 * time.Minute
	MinPredictionBytes   = predict.MinBytes
	DefaultPromptCache   = defaultPromptCache
)

// MediaForms is the number of media forms.
const MediaForms = hashing.NumForms

// ScoreCounts is scoreCounts for tests.
type ScoreCounts = scoreCounts

// HashPrompt does only the hashing of a score.
func HashPrompt(x *Indexer, model string, tokens []uint32) {
	sc := x.newScorer()
	defer x.scorers.Put(sc)
	v := index.Variant{Unit: 16}
	sc.prompt.Set("", tokens, nil)
	sc.prompt.Scope = hashing.Scope{Model: model}
	sc.prompt.Begin()
	_, _ = sc.prompt.KeysIn(v)
}

// Place is the position of a pod among equals, for a prompt of a scope without a model: the
// highest comes first.
func Place(x *Indexer, pod, adapter, salt string, tokens []uint32, media []Media) uint32 {
	tie := ranking.Tie(promptOf(x.hash, hashing.Scope{Adapter: adapter, Salt: salt}, tokens, media), x.hash.Pod(pod), 0)
	return ^uint32(tie >> 32)
}

// PlaceOfRank is the position of a rank among equals of its pod, for a prompt as in Place.
func PlaceOfRank(x *Indexer, pod string, rank int, adapter, salt string, tokens []uint32, media []Media) uint32 {
	return ^uint32(ranking.Tie(promptOf(x.hash, hashing.Scope{Adapter: adapter, Salt: salt}, tokens, media), x.hash.Pod(pod), rank))
}

func promptOf(h hashing.Hasher, s hashing.Scope, tokens []uint32, media []Media) uint64 {
	b := hashing.AppendPrompt(nil, s, hashing.FoldOf(tokens, h.Of(s.Adapter).Locals(nil, tokens, hashing.TieUnit, nil)))
	for i := range media {
		b = hashing.AppendName(b, media[i].Hash)
	}
	return h.Tie(b)
}

// Silence registers a pod for a model by a stream without messages.
func Silence(x *Indexer, pod, model string) error {
	return x.Sink().StreamNote(pod, model, "", events.NoteOpened)
}

type Tally = tally

func (t *tally) Count(o string, prompt, cached int) {
	t.count(outcome(slices.Index(outcomeNames, o)), prompt, cached)
}

// Sum returns the numbers of scores, prompt tokens, cached tokens and bad requests.
func (t *tally) Sum() [4]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settle()
	return [4]uint64{t.all.outcomes[outcomeScored], t.all.prompt, t.all.cached, t.all.outcomes[outcomeBadRequest]}
}

// ScoreKeys returns a function that scores a prompt with precomputed keys, for these pods or for
// all pods of a model, and returns the best score.
func ScoreKeys(x *Indexer, model string, tokens []uint32, pods ...string) func() int {
	c := x.Candidates(model, pods)
	root, locals := x.hash.Root(hashing.Scope{Model: model}, index.Variant{Unit: 16}), x.hash.Locals(nil, tokens, 16, nil)
	given := hashing.Keys(nil, root, locals)
	sc := &scorer{x: x}
	sc.prompt.Init(&x.hash, x.index.Seed(), x.prompts)
	sc.prompt.Set("", tokens, nil)
	sc.prompt.Use([]prompt.Run{{Variant: index.Variant{Unit: 16}, Root: root, Keys: given}}, len(tokens))
	sc.query.Keys = func(index.Variant) ([]index.Key, error) { return given, nil }
	return func() (best int) {
		sc.set = c.of.Now()
		if err := sc.match(context.Background()); err != nil {
			panic(err)
		}
		sc.judge(false)
		for _, b := range sc.judging.Best {
			best = max(best, b.Cached)
		}
		return best
	}
}

// NoteOf decodes a directory's note and encodes it again.
func NoteOf(note []byte) ([]byte, error) {
	n, err := podstate.ReadNote(note)
	return n.Append(nil), err
}

// Constants pairs each constant of the API with the internal one that it must equal.
var Constants = [][2]uint8{
	{uint8(StateUnknown), uint8(view.Unknown)},
	{uint8(StateSilent), uint8(view.Silent)},
	{uint8(StateUncertain), uint8(view.Uncertain)},
	{uint8(StateReplaying), uint8(view.Replaying)},
	{uint8(StatePartial), uint8(view.Partial)},
	{uint8(StateLive), uint8(view.Live)},
	{uint8(StateApproximate), uint8(view.Approximate)},
	{uint8(DraftUnknown), engine.DraftUnknown},
	{uint8(DraftNone), engine.DraftNone},
	{uint8(DraftLayers), engine.DraftLayers},
	{uint8(MediaOffsets), hashing.FormOffsets},
	{uint8(MediaBare), hashing.FormBare},
	{uint8(MediaPad), hashing.FormPad},
}
