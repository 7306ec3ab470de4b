// Requests and answers. Answer.RoutePods is the only place that knows both scores and package
// route.
//
// RoutePods works the tie of each entry out from its name (ranking.Tie), and does not take its
// place in the answer. A pod or a rank that the host appends would lose every tie by its
// place, so a rank that is not known yet would never be chosen. Pods come before ranks, as in
// the answer: each pod has the same share, whatever the number of its ranks. For that each
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
	// Pods has named, or a name that WithResolver knows. With Body it may be empty: the
	// body's model is used then.
	Model string
	// Adapter is the LoRA adapter: its name, or its number in decimal if the engine's
	// events have numbers only and Profile.Adapters has no name for it. "" is none. It
	// is needed only for an adapter that no event has named and that WithResolver does
	// not know. It takes the place of the adapter that Model stands for.
	Adapter string
	// Salt is the request's cache_salt. With Body it may be empty: the body's is used
	// then.
	Salt string

	// Body is the body of a request for the chat or completion API of OpenAI, as it came
	// over HTTP, with the fields that vLLM adds. A chat needs a Model with a Chat
	// (WithModel).
	Body []byte
	// Path is the path of the HTTP request that Body came with, such as
	// "/v1/chat/completions". If it is empty, kvindex tells from the fields of the body
	// which API it is for, and a body that could be for two APIs is an error.
	Path string
	// Prompt is a text. Special tokens are put around it, as an engine does for
	// /v1/completions, unless Rendered is set: then the text has them already, as the
	// text that a chat template makes.
	Prompt   string
	Rendered bool
	// Tokens are token ids.
	Tokens []uint32

	// Media are the media items of the prompt, in order of Offset. For a chat they are in
	// the order of its parts, and Offset is not needed.
	Media []Media

	// Pods are the names of the pods to score. With nil all known pods of the model are
	// scored, with an empty list none. An empty name is an error. Candidates, if not nil,
	// take the place of Pods and Model, and are faster for many requests about the same
	// pods. Then Pods must be nil, and Model empty or that of the Candidates; the model of a
	// body is not looked at.
	Pods       []string
	Candidates *Candidates

	// Ranks asks for an entry for each known rank of each pod, in place of one for each
	// pod with its best rank. A rank is known from its first message on, also if it holds
	// nothing, and while something counts that was sent to it. A pod without a known rank
	// has one entry, with rank 0.
	//
	// A rank that has published nothing yet has no entry. So a router that always sends to
	// a rank of the answer never fills such a rank. Append the ranks that are missing to
	// Answer.Pods, with 0 cached tokens, if you know how many ranks a pod has, else let the engine choose the
	// rank where CachedTokens is 0.
	Ranks bool
	// Top is the greatest number of entries in the answer, the best ones; 0 is all.
	Top int
}

// Answer is the answer to a Request. The zero value is ready. An Answer can be used for
// one ScoreRequest after the other: the next one overwrites Pods.
type Answer struct {
	PromptTokens int
	// Unknown, if not nil, says that all scores are 0 because the model or the adapter
	// has a name that is not known. It wraps ErrUnknownModel or ErrUnknownAdapter, and its
	// text has names that are known. A model is known if an event or a Subscriber has
	// named it, here or in a process that shares the index. Unknown is nil as long as no model is known at all, and for an adapter as
	// long as all pods of its model are silent.
	Unknown error
	// Degraded, if not nil, says that a backend (WithIndex) could not be asked, and that its
	// user has chosen to go on without it: it is index.Matches.Degraded. CachedTokens is 0 then,
	// also of pods that hold something; what was sent counts (PodScore.PredictedTokens). A
	// gateway can choose a pod by load. The index in memory is never degraded.
	Degraded error
	// Pods has an entry for each pod, or with Request.Ranks for each rank of each pod.
	// They are ordered by PredictedTokens, most first; pods that are NotScorable are last.
	// States have no influence on the order.
	//
	// Pods with equal PredictedTokens have an order that comes from the prompt, the names of
	// the pods and the seed (WithKeySeed). One prompt has the same order each time, and
	// different prompts have different orders. So the first pod is a good choice even if
	// no pod holds anything: equal prompts meet, and others spread evenly. All tokens of
	// the prompt count, and its media, salt and adapter.
	//
	// Ranks of one pod with equal PredictedTokens stand next to each other, in an order that
	// comes from the same and from their numbers. So the pods have one order with and
	// without Request.Ranks, if of each pod only the first entry is looked at.
	Pods []PodScore

	sent *keptPrompt // for Routed; nil: none
	turn uint64      // of sent, when it was this answer's

	hasher *hashing.Hasher // of ties, for RoutePods; nil: no ScoreRequest has filled this
	prompt uint64          // its hash for ties; after an error that of the request
}

// MarshalJSON writes Unknown and Degraded as their texts.
func (a Answer) MarshalJSON() ([]byte, error) {
	type fields Answer
	return json.Marshal(struct {
		fields
		Unknown, Degraded string `json:",omitempty"`
	}{fields(a), textOf(a.Unknown), textOf(a.Degraded)})
}

// PodScore says what a pod, or with Request.Ranks a rank of it, holds of a prompt.
type PodScore struct {
	Pod string
	// Rank is the rank that the other fields are about: the one that holds most of the
	// prompt, or with Request.Ranks that of the entry.
	Rank int
	// Score is PredictedTokens.
	Score float64

	// PredictedTokens is the number of tokens that the engine would reuse if all that was
	// sent to the rank had been computed: what Routed has told, and what events have proven.
	// It is never less than CachedTokens, and the same for who does not call Routed. In a
	// hybrid model a block that was sent counts in all groups.
	PredictedTokens int

	// CachedTokens is what events have proven: the number of tokens that the engine would
	// reuse from its gpu, the blocks at the beginning of the prompt, up to the first one
	// that is not in the gpu. For a hybrid model it is what all groups together allow. Only whole blocks count,
	// but see Profile.Grain. The last token of the prompt never counts, because engines
	// always compute it.
	CachedTokens int
	// MatchedBlocks is the number of blocks at the beginning of the prompt that the rank
	// holds in any tier, each of BlockTokens tokens. Tiers has the same blocks by tier;
	// a block in two tiers counts in the faster one.
	MatchedBlocks int
	BlockTokens   int
	Tiers         [index.NumTiers]int
	// UpperBound says that the engine may reuse less than CachedTokens, because something
	// is not known: whether a hybrid model has draft layers (Profile.Draft), the kind or
	// window of a group, a group of which events say nothing (Profile.Groups), or what an
	// event said that is not recognized (PodInfo.Unrecognized). Where it
	// is false, CachedTokens is what the engine would reuse, as far as its events have
	// come and are kept (State); but if a model of one full-attention group runs with draft layers and
	// Profile.Draft does not say so, CachedTokens is a block too high.
	UpperBound bool
	// NotScorable says that this chat uses a feature that chat.Model.Exclude excludes
	// for this pod. Its figures are 0, and it comes after all other pods.
	NotScorable bool

	// State says how far the figures can be trusted. It is that of the pod. With
	// Request.Ranks it is that of the rank, as in RankInfo: what happens to other ranks,
	// or to streams that have brought nothing yet, does not change it. The entry of a pod
	// without a known rank has the state of the pod. A rank of which the index has given up
	// blocks (WithMemory) is StatePartial at best from its next message on; an entry that
	// counts a block of it is so at once. Of a pod that another process feeds (WithIndex)
	// it is what the Indexer there has said last. It is StateUncertain at best if nobody has
	// said so for a while, or if an entry counts blocks of which the index says that
	// (index.Row.Stale). With Request.Ranks an entry is StateUncertain at best if it counts
	// blocks of a rank that is in the index, and of which nobody has said anything.
	State State
}

// LogValue is a group of the figures that a choice of a pod rests on.
func (s PodScore) LogValue() slog.Value {
	return slog.GroupValue(slog.String("pod", s.Pod), slog.Int("rank", s.Rank), slog.Int("predicted", s.PredictedTokens),
		slog.Int("cached", s.CachedTokens), slog.Int("matched_blocks", s.MatchedBlocks), slog.String("state", s.State.String()))
}

// RoutePods appends to dst what package route wants to know of the pods, one for each of
// Pods, in their order, but for their load, which a route.Tracker fills in. What a lower tier
// adds is the blocks in it that follow what is predicted.
//
// Pods may have entries that the host has made: pods that were not asked about, ranks that
// are not known yet. The Tie of an entry comes from the request, the name, the rank and the
// seed (WithKeySeed), whoever made the entry. So cold prompts spread evenly over pods, and
// those of a pod over its ranks, in the same way in all processes with the same seed. Entries
// of ScoreRequest that tie have the order of Pods. After an error the request is known by its
// body, text or tokens as they came. An Answer that no ScoreRequest has filled has no request:
// there the place in Pods is the Tie.
func (a *Answer) RoutePods(dst []route.Pod) []route.Pod {
	from := len(dst)
	dst = slices.Grow(dst, len(a.Pods))[:from+len(a.Pods)]
	to, h, prompt := dst[from:], a.hasher, a.prompt
	for i := range a.Pods {
		s, p := &a.Pods[i], &to[i]
		p.Name, p.Rank, p.Cached = s.Pod, s.Rank, s.PredictedTokens // field by field: that is faster
		p.Lower = max(min(s.MatchedBlocks*s.BlockTokens, a.PromptTokens)-s.PredictedTokens, 0)
		p.Load, p.Speed, p.Tie = route.Load{}, 0, uint64(i)
		if h != nil {
			p.Tie = ranking.Tie(prompt, h.Pod(s.Pod), s.Rank)
		}
	}
	return dst
}

// The request: its body, and what makes no sense.

// read returns r with what its Body says where r says nothing, and the chat that it
// asks for, if it does.
func (r *Request) read() (read *Request, asked *chat.Request, err error) {
	if r.Prompt != "" || len(r.Tokens) > 0 || r.Rendered {
		return r, nil, fmt.Errorf("%w: it has a body, and a prompt or tokens or Rendered", ErrRequest)
	}
	body, err := chat.Parse(r.Path, r.Body)
	if err != nil {
		return r, nil, ofBody(err)
	}
	filled := *r
	if r.Model == "" && r.Candidates == nil {
		filled.Model = body.Model
	}
	if r.Salt == "" {
		filled.Salt = body.Salt
	}
	if body.Chat() {
		return &filled, body, nil
	}
	filled.Prompt, filled.Tokens, filled.Rendered = body.Prompt, body.Tokens, !body.AddSpecial
	return &filled, nil, nil
}

// ofBody tells requests that no engine takes from those that cannot be scored.
func ofBody(err error) error {
	if errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrTemplate) {
		return fmt.Errorf("%w: the body: %w", ErrRequest, err)
	}
	return fmt.Errorf("kvindex: the body: %w", err)
}

// validate refuses what makes no sense. asked is the chat of the body, if it is one.
func (r *Request) validate(asked *chat.Request) error {
	c := r.Candidates
	switch {
	case c == nil && r.Model == "":
		return fmt.Errorf("%w: the model is empty", ErrRequest)
	case c != nil && r.Pods != nil:
		return fmt.Errorf("%w: it has both pods and candidates", ErrRequest)
	case c != nil && r.Model != "" && r.Model != c.of.Model:
		return fmt.Errorf("%w: model %q, and candidates of %q", ErrRequest, r.Model, c.of.Model)
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

// Candidates is a list of pods to score for one model, for many requests: their names
// are looked up once and not for each request. It follows pods as they come and go. It
// is made by Indexer.Candidates, never changes for its user, and is safe for concurrent
// use.
type Candidates struct{ of *catalog.List }

// Candidates returns the pods with these names as Candidates for model, which is a name
// as in Request.Model. With pods nil it is all known pods of the model, now and later;
// with pods empty it is none. It keeps nothing of pods. If one of the names is empty, each
// request with the Candidates is an error.
func (x *Indexer) Candidates(model string, pods []string) *Candidates {
	return &Candidates{x.names.NewList(model, pods)}
}
