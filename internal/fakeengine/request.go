package fakeengine

import (
	"slices"

	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
)

// Request is one request of a client.
type Request struct {
	Tokens  []uint32 // the prompt
	Adapter string   // LoRA adapter; "" for none
	Salt    string   // cache salt; "" for none

	// MaxTokens to generate; the engine always generates that many. Default:
	// as many as Output has, at least 1.
	MaxTokens int
	// Output is the beginning of the model's answer; behind it tokens are
	// sampled.
	Output []uint32
	// Greedy makes the sampled tokens depend on model, adapter and all tokens
	// before, and on nothing else: equal prompts get equal answers. Otherwise
	// they are drawn at random.
	Greedy bool

	// SkipReadingPrefixCache computes the whole prompt, whatever is cached
	// (vLLM does so for prompt logprobs). Its blocks are stored again.
	SkipReadingPrefixCache bool
	// ReportFull announces again what the request hits
	// (kv_cache_report_mode=full), at each attempt to admit it.
	ReportFull bool
}

// Handle is a request in an engine.
type Handle struct {
	engine  *Engine
	request Request
	scope   scope

	tokens []uint32            // prompt and output so far
	prompt int                 // tokens of the prompt
	hashes []enginehash.Digest // of all full blocks of tokens

	// While the request runs; empty while it waits and when it is done.
	blocks   []int // hold tokens 0 to computed: len = ceil(computed / block size)
	computed int   // tokens that this request has computed or hit, or does in the step under way
	stored   int   // blocks that were hit or announced: computed / block size

	greedy   uint64 // state of the greedy model after tokens
	admitted bool
	cached   int
	done     bool
}

func (e *Engine) newHandle(r Request) *Handle {
	if _, known := e.adapters[r.Adapter]; !known && r.Adapter != "" {
		e.adapters[r.Adapter] = len(e.adapters) + 1
	}
	h := &Handle{engine: e, request: r, scope: newScope(r.Adapter, r.Salt), prompt: len(r.Tokens)}
	h.greedy = greedyState(e.cfg.Model, r.Adapter)
	for _, t := range r.Tokens {
		e.append(h, t)
	}
	h.request.Tokens, h.request.Output = nil, slices.Clone(r.Output)
	return h
}

// append adds a token to a request and names the block that it fills.
func (e *Engine) append(h *Handle, token uint32) {
	h.tokens = append(h.tokens, token)
	h.greedy = mix(h.greedy ^ uint64(token))
	if len(h.tokens)%e.cfg.BlockSize == 0 {
		h.hashes = e.appendHash(h.hashes, h.tokens, h.scope)
	}
}

// sample returns the next token of a request.
func (e *Engine) sample(h *Handle) uint32 {
	n := len(h.tokens) - h.prompt
	switch {
	case n < len(h.request.Output):
		return h.request.Output[n]
	case h.request.Greedy:
		return uint32(h.greedy % uint64(e.cfg.Vocabulary))
	}
	return e.random.Uint32N(e.cfg.Vocabulary)
}

// Done reports whether the request has ended, be it by Abort.
func (h *Handle) Done() bool { return h.done }

// Output is what was generated so far.
func (h *Handle) Output() []uint32 { return slices.Clone(h.tokens[h.prompt:]) }

// CachedTokens is how many tokens of the prompt were hits when the request was
// first admitted (usage.prompt_tokens_details.cached_tokens); 0 before.
func (h *Handle) CachedTokens() int { return h.cached }

// Abort ends the request. Its computed blocks stay in the cache; a request
// that has ended stays as it is.
func (h *Handle) Abort() {
	if !h.done {
		h.engine.end(h)
	}
}

// scope is what the engine hashes into the blocks of a request besides tokens.
type scope struct {
	first, rest []enginehash.Extra
}

func newScope(adapter, salt string) scope {
	var s scope
	if adapter != "" {
		s.rest = []enginehash.Extra{enginehash.Text(adapter)}
	}
	s.first = s.rest
	if salt != "" {
		s.first = append(slices.Clip(s.rest), enginehash.Text(salt))
	}
	return s
}

// extra is what belongs to the block with index i.
func (s scope) extra(i int) []enginehash.Extra {
	if i == 0 {
		return s.first
	}
	return s.rest
}

// appendHash names the block that follows those which are named.
func (e *Engine) appendHash(hashes []enginehash.Digest, tokens []uint32, s scope) []enginehash.Digest {
	i, parent := len(hashes), e.root
	if i > 0 {
		parent = hashes[i-1]
	}
	block := tokens[i*e.cfg.BlockSize : (i+1)*e.cfg.BlockSize]
	return append(hashes, e.hasher.Block(parent, block, s.extra(i)))
}

// greedyState is the state of the greedy model before the first token.
func greedyState(model, adapter string) uint64 {
	var state uint64
	for _, c := range []byte(model + "\x00" + adapter) {
		state = mix(state ^ uint64(c))
	}
	return state
}

// mix is SplitMix64: one step of its counter and its finaliser.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
