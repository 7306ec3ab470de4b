// Requests and answers. Answer.RoutePods is the only place that uses both scores and package
// route.
//
// RoutePods computes the tie of each entry from its name (ranking.Tie), and not from its
// place in the answer. A pod or a rank that the host appends would lose every tie by its
// place, so a rank that is not known yet would never be chosen. Pods come before ranks, as in
// the answer: each pod has the same share, whatever the number of its ranks. For this each
// score hashes its prompt, also if none of its own pods tie.

package kvindex

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/catalog"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/ranking"
	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// Request is a prompt to score. It has exactly one of Body, Prompt and Tokens.
type Request struct {
	// Model is the base model, or the name of an adapter that an event of one of the
	// Pods has named, or a name that WithResolver resolves. With Body it may be empty: then
	// the model of the body is used.
	Model string
	// Adapter is the LoRA adapter: its name, or its number in decimal if the engine's
	// events have numbers only and Profile.Adapters has no name for it. "" is none. It
	// is needed only for an adapter that no event has named and that WithResolver does
	// not resolve. It replaces the adapter that Model stands for.
	Adapter string
	// Salt is the request's cache_salt. With Body it may be empty: then the salt of the
	// body is used.
	Salt string

	// Body is the body of a request as it came over HTTP: for the chat, completion or Responses
	// API of OpenAI, or for Anthropic's Messages API, with the fields that vLLM adds, for vLLM's
	// /inference/v1/generate or for SGLang's /generate. A chat needs a Model with a Chat, or with a
	// Tokenizer that is a chat.Renderer (WithModel).
	Body []byte
	// Path is the path of the HTTP request that Body came with, such as
	// "/v1/chat/completions". If it is empty, kvindex infers the API, a chat or a completion,
	// from the fields of the body, and a body that could be for another API is an error.
	// Bodies that cannot be read go to an engine (chat.Renderer) only with a Path.
	Path string
	// Prompt is a text. Special tokens are put around it, as an engine does for
	// /v1/completions, unless Rendered is set: then the text has them already, like the
	// output of a chat template.
	Prompt   string
	Rendered bool
	// Tokens are token ids.
	Tokens []uint32

	// Media are the media items of the prompt, in order of Offset. For a chat they are in
	// the order of its parts, and Offset is not needed. With a Body that has the hashes of
	// its media they may be empty: then those of the body are used.
	Media []Media

	// Pods are the names of the pods to score. With nil all registered pods of the model are
	// scored, with an empty list none. An empty name is an error. Candidates, if not nil,
	// replace Pods, and are faster for many requests about the same pods; Pods must be nil
	// then. If the Candidates have a model, it replaces Model, which must be empty or the
	// same, and the model of a body.
	Pods       []string
	Candidates *Candidates

	// Ranks requests an entry for each known rank of each pod, instead of one entry for
	// each pod with its best rank. A rank is known from its first message on, also if it
	// holds nothing, and while a prompt that was routed to it counts. A pod without a known
	// rank has one entry, with rank 0.
	//
	// A rank that has published nothing yet has no entry. So a router that always sends to
	// a rank of the answer never fills such a rank. If you know how many ranks a pod has,
	// append the missing ranks to Answer.Pods, with 0 cached tokens. Else let the engine
	// choose the rank where CachedTokens is 0.
	Ranks bool
	// Top limits the answer to the best entries, at most Top of them; 0 is no limit.
	Top int
}

// Answer is the answer to a Request. The zero value is ready. An Answer can be used for
// one ScoreRequest after the other: the next one overwrites Pods.
type Answer struct {
	PromptTokens int // with special tokens, and with the placeholders of media
	// Text is the text of a chat, as its template made it. It is the prompt, so JSON leaves it
	// out.
	Text string `json:"-"`
	// Unknown, if not nil, means that all scores are 0 because the name of the model or of
	// the adapter is not registered. It wraps ErrUnknownModel or ErrUnknownAdapter, and its
	// text has names that are. A model is registered if an event or a Subscriber has named it,
	// here or in a process that shares the index. Unknown is nil as long as no model is
	// registered at all, and for an adapter as long as all pods of its model are silent.
	Unknown error
	// Degraded, if not nil, means that a backend (WithIndex) failed, and that it is
	// configured to go on without its data: it is index.Matches.Degraded. CachedTokens is 0
	// then, also for pods that hold blocks; prompts that were routed still count
	// (PodScore.PredictedTokens). A gateway can choose a pod by load. The index in memory is
	// never degraded.
	Degraded error
	// Pods has an entry for each pod, or with Request.Ranks for each rank of each pod.
	// They are ordered by Score, most first; pods that are NotScorable are last.
	// States have no influence on the order.
	//
	// Pods with equal Scores have an order that comes from the prompt, the names of
	// the pods and the seed (WithKeySeed). One prompt has the same order each time, and
	// different prompts have different orders. So the first pod is a good choice even if
	// no pod holds anything: equal prompts meet, and others spread evenly. All tokens of
	// the prompt count, and its media, salt and adapter.
	//
	// Ranks of one pod with equal Scores stand next to each other, in an order that
	// comes from the same values and from their numbers. So the first entries of the pods
	// have one order, with and without Request.Ranks.
	Pods []PodScore

	sent *keptPrompt // for Routed; nil: none
	turn uint64      // sent.turn when this answer was filled

	hasher *hashing.Hasher // hashes ties for RoutePods; nil: no ScoreRequest has filled this
	prompt uint64          // hash of the prompt for ties; after an error, of the request
}

// MarshalJSON writes Unknown and Degraded as their texts.
func (a Answer) MarshalJSON() ([]byte, error) {
	type fields Answer
	return json.Marshal(struct {
		fields
		Unknown, Degraded string `json:",omitempty"`
	}{fields(a), textOf(a.Unknown), textOf(a.Degraded)})
}

// PodScore is the part of a prompt that a pod holds, or, with Request.Ranks, a rank of it.
type PodScore struct {
	Pod string
	// Rank is the rank that the other fields describe: the rank that holds most of the
	// prompt or, with Request.Ranks, the rank of the entry.
	Rank int
	// Score is the tokens that the engine need not compute, weighted by their tiers
	// (Profile.Weights): PredictedTokens, the part of CachedTokens and LoadedTokens beyond
	// those, and the part of FetchedTokens beyond both. It is PredictedTokens if no lower tier
	// holds more.
	Score float64

	// PredictedTokens is the number of tokens that the engine would reuse if it had
	// computed all prompts that Routed registered for the rank. It is never less than
	// CachedTokens, and equal to it if the host does not call Routed. In a hybrid model a
	// block of a routed prompt counts in all groups.
	PredictedTokens int

	// CachedTokens is proven by events: the number of tokens that the engine would reuse
	// from its gpu, in the blocks at the beginning of the prompt, up to the first block that
	// is not in the gpu. For a hybrid model it is the number that all groups together allow.
	// Only whole blocks count, but see Profile.Grain. The last token of the prompt never
	// counts, because engines always compute it.
	CachedTokens int
	// LoadedTokens is the number of tokens beyond CachedTokens that the engine would load now
	// from its host memory (vLLM's OffloadingConnector), and FetchedTokens the number beyond
	// those after its lower tiers were read.
	LoadedTokens, FetchedTokens int
	// MatchedBlocks is the number of blocks at the beginning of the prompt that the rank
	// holds in any tier, each of BlockTokens tokens. Tiers has the same blocks by tier;
	// a block in two tiers counts in the faster one.
	MatchedBlocks int
	BlockTokens   int
	Tiers         [index.NumTiers]int
	// UpperBound is true if the engine may reuse less than CachedTokens, or load less than
	// LoadedTokens and FetchedTokens, because a fact is missing: the length of a chunk
	// (Profile.Chunk), whether a hybrid model has draft layers (Profile.Draft), the kind or window of
	// a group, a group that events do not mention (Profile.Groups), the meaning of an
	// event that is not recognized (PodInfo.Unrecognized), or newer messages of an offload
	// daemon, whose connection is lost or waits (stats.Stream.State). Where it is false, the engine
	// would reuse CachedTokens, as far as its events have come and are kept (State); but if a
	// model of one full-attention group runs with draft layers and Profile.Draft is not set,
	// CachedTokens is a block too high.
	UpperBound bool
	// NotScorable is true if this chat uses a feature that chat.Model.Exclude excludes
	// for this pod. The figures of the pod are 0, and it comes after all other pods.
	NotScorable bool

	// State shows how far the figures can be trusted. It is the state of the pod or, with
	// Request.Ranks, of the rank, as in RankInfo: other ranks, and streams that have brought
	// nothing yet, do not change it. The entry of a pod without a known rank has the state of
	// the pod. If the index has evicted blocks of a rank (WithMemory), the rank is
	// StatePartial at best from its next message on, and an entry that counts a block of it
	// is so at once.
	//
	// For a pod that another process feeds (WithIndex), it is the state that the Indexer
	// there published last. It is StateUncertain at best if that Indexer has published
	// nothing for a while, or if an entry counts blocks that the index marks as stale
	// (index.Row.Stale). With Request.Ranks an entry is StateUncertain at best if it counts
	// blocks of a rank that is in the index and that no Indexer has published.
	State State
}

// LogValue returns a group of the figures by which a pod is chosen.
func (s PodScore) LogValue() slog.Value {
	return slog.GroupValue(slog.String("pod", s.Pod), slog.Int("rank", s.Rank), slog.Float64("score", s.Score), slog.Int("predicted", s.PredictedTokens),
		slog.Int("cached", s.CachedTokens), slog.Int("loaded", s.LoadedTokens), slog.Int("fetched", s.FetchedTokens), slog.Int("matched_blocks", s.MatchedBlocks), slog.String("state", s.State.String()))
}

// RoutePods appends a route.Pod to dst for each of Pods, in their order. It leaves out the
// load, which a route.Tracker fills in. Lower is the number of tokens beyond the
// predicted ones that the engine would read from lower tiers.
//
// The host may append its own entries to Pods: pods that were not in the request, or ranks
// that are not known yet. The Tie of an entry comes from the request, the name, the rank and
// the seed (WithKeySeed), whoever made the entry. So cold prompts spread evenly over pods, and
// those of a pod over its ranks, in the same way in all processes with the same seed. Entries
// of ScoreRequest that tie have the order of Pods. After an error, the body, text or tokens
// stand for the request as they came, the first two by 128 kB of each end. An Answer that no ScoreRequest has filled has no
// request: there the place in Pods is the Tie.
func (a *Answer) RoutePods(dst []route.Pod) []route.Pod {
	from := len(dst)
	dst = slices.Grow(dst, len(a.Pods))[:from+len(a.Pods)]
	to, h, prompt := dst[from:], a.hasher, a.prompt
	for i := range a.Pods {
		s, p := &a.Pods[i], &to[i]
		p.Name, p.Rank, p.Cached = s.Pod, s.Rank, s.PredictedTokens // field by field: that is faster
		p.Lower = max(s.CachedTokens+s.LoadedTokens+s.FetchedTokens-s.PredictedTokens, 0)
		p.Load, p.Speed, p.Tie = route.Load{}, 0, uint64(i)
		if h != nil {
			p.Tie = ranking.Tie(prompt, h.Pod(s.Pod), s.Rank)
		}
	}
	return dst
}

// The request: reading its body, and validation.

// read returns r with its empty fields filled from its Body, and the chat in the
// body, if there is one. A body that an engine may be able to read has inBody and an error.
func (r *Request) read() (read *Request, inBody *chat.Prompt, err error) {
	if r.Prompt != "" || len(r.Tokens) > 0 || r.Rendered {
		return r, nil, fmt.Errorf("%w: Body excludes Prompt, Tokens and Rendered", ErrRequest)
	}
	inBody, err = chat.Parse(r.Path, r.Body)
	if err != nil {
		err = ofBody(err)
	}
	if inBody == nil {
		return r, nil, err
	}
	filled := *r
	if r.Model == "" && (r.Candidates == nil || r.Candidates.of.Model == "") {
		filled.Model = inBody.Model
	}
	if r.Salt == "" {
		filled.Salt = inBody.Salt
	}
	if inBody.Chat() || err != nil {
		return &filled, inBody, err
	}
	filled.Prompt, filled.Tokens, filled.Rendered = inBody.Text, inBody.Tokens, !inBody.AddSpecial
	if len(r.Media) == 0 {
		filled.Media = inBody.Media
	}
	return &filled, nil, nil
}

// ofBody wraps ErrRequest around an error for which every engine would refuse the request.
func ofBody(err error) error {
	if errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrTemplate) {
		return fmt.Errorf("%w: the body: %w", ErrRequest, err)
	}
	return fmt.Errorf("kvindex: the body: %w", err)
}

// validate refuses contradictions. inBody is the chat of the body, or nil.
func (r *Request) validate(inBody *chat.Prompt) error {
	c := r.Candidates
	switch {
	case r.Model == "" && (c == nil || c.of.Model == ""):
		return fmt.Errorf("%w: the model is empty", ErrRequest)
	case c != nil && r.Pods != nil:
		return fmt.Errorf("%w: Pods and Candidates exclude each other", ErrRequest)
	case c != nil && r.Model != "" && c.of.Model != "" && r.Model != c.of.Model:
		return fmt.Errorf("%w: Model is %.100q, but the Candidates are of model %.100q", ErrRequest, r.Model, c.of.Model)
	case r.Top < 0:
		return fmt.Errorf("%w: Top is %d, must not be negative", ErrRequest, r.Top)
	case inBody != nil:
	case r.Prompt == "" && len(r.Tokens) == 0:
		return fmt.Errorf("%w: the prompt is empty", ErrRequest)
	case r.Prompt != "" && len(r.Tokens) > 0:
		return fmt.Errorf("%w: Prompt and Tokens exclude each other", ErrRequest)
	}
	for i, m := range r.Media {
		switch {
		case m.Hash == "":
			return fmt.Errorf("%w: media %d has no Hash", ErrRequest, i)
		case inBody != nil && m.Length == 0:
			return fmt.Errorf("%w: media %.100q of a chat has no Length", ErrRequest, m.Hash)
		case m.Offset < 0 || m.Length < 0:
			return fmt.Errorf("%w: media %.100q: Offset is %d and Length is %d, must not be negative", ErrRequest, m.Hash, m.Offset, m.Length)
		case i > 0 && m.Offset < r.Media[i-1].Offset:
			return fmt.Errorf("%w: media %.100q: Offset %d is lower than that of the item before", ErrRequest, m.Hash, m.Offset)
		}
	}
	return nil
}

// Candidates is a list of pods to score for one model, for many requests: the names are
// resolved once and not for each request. It follows pods as they come and go. It
// is made by Indexer.Candidates, never changes for its user, and is safe for concurrent
// use. A Request with the zero value, or with Candidates of another Indexer, is an error.
type Candidates struct{ of *catalog.List }

// Candidates returns the pods with these names as Candidates for model, which is a name
// as in Request.Model; with model empty, each request names its own. With pods nil, they are
// all registered pods of the model, now and later; with pods empty, none. The slice is not kept.
// If a name is empty, each request with the Candidates is an error.
func (x *Indexer) Candidates(model string, pods []string) *Candidates {
	return &Candidates{x.names.NewList(model, pods)}
}
