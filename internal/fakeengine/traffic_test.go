package fakeengine_test

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"slices"

	"github.com/kvindex/kvindex/internal/fakeengine"
)

// prefix identifies tokens from the start to the end of a block, with their scope, independently of
// the engine's hashes.
type prefix [sha256.Size]byte

// extend adds a block. The scope is the chain's, which is in the first block's event.
func (p prefix) extend(tokens []uint32, scope string) prefix {
	b := append(p[:], scope...)
	b = append(b, 0)
	for _, t := range tokens {
		b = binary.BigEndian.AppendUint32(b, t)
	}
	return sha256.Sum256(b)
}

// traffic makes requests like clients: growing conversations, prompts repeated whole, in part or
// changed, and concurrent equal ones.
type traffic struct {
	random  *rand.Rand
	blocks  int // of the longest prompt
	size    int // tokens of a block
	memory  int // number of recent conversations that may continue
	salts   bool
	said    []exchange // so far
	serving []*service
}

// exchange is a prompt and its output, with their scope.
type exchange struct {
	tokens        []uint32
	adapter, salt string
}

type service struct {
	handle  *fakeengine.Handle
	request fakeengine.Request
}

func (t *traffic) fresh(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = t.random.Uint32N(50_000)
	}
	return out
}

// prompt returns a prompt and its scope.
func (t *traffic) prompt() exchange {
	longest := t.blocks * t.size
	if len(t.said) == 0 || t.random.IntN(7) == 0 {
		adapter, salt := t.scope()
		if t.random.IntN(3) == 0 { // whole blocks
			return exchange{t.fresh(t.size * (1 + t.random.IntN(t.blocks))), adapter, salt}
		}
		return exchange{t.fresh(1 + t.random.IntN(longest)), adapter, salt}
	}
	p := t.said[len(t.said)-1-t.random.IntN(min(len(t.said), t.memory))]
	tokens := slices.Clone(p.tokens)
	switch t.random.IntN(7) {
	case 0: // unchanged
	case 1:
		tokens = tokens[:1+t.random.IntN(len(tokens))]
	case 2: // whole blocks
		tokens = tokens[:max(1, t.random.IntN(len(tokens)/t.size+1)*t.size)]
	case 3:
		tokens[t.random.IntN(len(tokens))]++
	default:
		tokens = append(tokens, t.fresh(1+t.random.IntN(3*t.size))...)
	}
	p.tokens = tokens[:min(len(tokens), longest)]
	if t.random.IntN(10) == 0 {
		p.adapter, p.salt = t.scope()
	}
	return p
}

func (t *traffic) scope() (adapter, salt string) {
	if t.random.IntN(3) == 0 {
		adapter = []string{"sql", "chat"}[t.random.IntN(2)]
	}
	if t.salts && t.random.IntN(4) == 0 {
		salt = []string{"tenant-a", "tenant-b"}[t.random.IntN(2)]
	}
	return adapter, salt
}

func (t *traffic) request() fakeengine.Request {
	p := t.prompt()
	return fakeengine.Request{
		Tokens: p.tokens, Adapter: p.adapter, Salt: p.salt,
		MaxTokens: 1 + t.random.IntN(2*t.size), Greedy: t.random.IntN(2) == 0,
		SkipReadingPrefixCache: t.random.IntN(15) == 0,
	}
}

// submit submits a request, or the same one several times.
func (t *traffic) submit(r *rig) {
	q, n := t.request(), 1
	if t.random.IntN(6) == 0 {
		n += 1 + t.random.IntN(3)
	}
	for range n {
		t.serving = append(t.serving, &service{r.submit(q), q})
	}
}

// collect collects the outputs of finished requests.
func (t *traffic) collect() {
	t.serving = slices.DeleteFunc(t.serving, func(s *service) bool {
		if s.handle.Done() {
			q := s.request
			t.said = append(t.said, exchange{append(slices.Clone(q.Tokens), s.handle.Output()...), q.Adapter, q.Salt})
		}
		return s.handle.Done()
	})
	if len(t.said) > 300 {
		t.said = slices.Delete(t.said, 0, 150)
	}
}

// disturb sometimes calls something other than a request. It reports whether the engine must first
// become idle.
func (t *traffic) disturb(r *rig) (idle bool) {
	switch t.random.IntN(300) {
	case 0, 1, 2, 3, 4:
		if len(t.serving) > 0 {
			t.serving[t.random.IntN(len(t.serving))].handle.Abort()
		}
	case 5:
		r.ResetRunning()
	case 6, 7, 8, 9:
		return true
	}
	return false
}
