package enginehash_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/internal/testdata"
)

// peer hashes blocks with another CBOR encoder.
type peer struct {
	mode cbor.EncMode
}

func newPeer(tb testing.TB) peer {
	tb.Helper()
	mode, err := cbor.CanonicalEncOptions().EncMode()
	if err != nil {
		tb.Fatal(err)
	}
	return peer{mode}
}

func (p peer) digest(tb testing.TB, item any) enginehash.Digest {
	b, err := p.mode.Marshal(item)
	if err != nil {
		tb.Fatal(err)
	}
	return sha256.Sum256(b)
}

func (p peer) block(tb testing.TB, parent enginehash.Digest, tokens []uint32, extra []enginehash.Extra) enginehash.Digest {
	item := []any{parent[:], tokens, nil}
	if len(extra) > 0 {
		var keys []any
		for _, e := range extra {
			switch e.Kind {
			case enginehash.ExtraText:
				keys = append(keys, e.Text)
			case enginehash.ExtraInt:
				keys = append(keys, e.Int)
			case enginehash.ExtraMedia:
				keys = append(keys, []any{e.Text, e.Int})
			case enginehash.ExtraBytes:
				keys = append(keys, []byte(e.Text))
			}
		}
		item[2] = keys
	}
	return p.digest(tb, item)
}

// chain hashes all full blocks of tokens; extra may be shorter than the chain.
func chain(h *enginehash.Hasher, parent enginehash.Digest, tokens []uint32, size int, extra [][]enginehash.Extra) []enginehash.Digest {
	var out []enginehash.Digest
	for i := 0; (i+1)*size <= len(tokens); i++ {
		var keys []enginehash.Extra
		if i < len(extra) {
			keys = extra[i]
		}
		parent = h.Block(parent, tokens[i*size:(i+1)*size], keys)
		out = append(out, parent)
	}
	return out
}

func TestAgainstPeer(t *testing.T) {
	p, h, r := newPeer(t), new(enginehash.Hasher), rand.New(rand.NewPCG(1, 2))
	text := func() string {
		b := make([]byte, r.IntN(300))
		for i := range b {
			b[i] = byte('!' + r.IntN(90))
		}
		return string(b)
	}
	kinds := map[enginehash.ExtraKind]int{}
	for n := range 5000 {
		seed := fmt.Sprint(r.Uint32())
		parent := enginehash.NoneHash(seed)
		if want := p.digest(t, seed); parent != want {
			t.Fatalf("NoneHash(%q) = %x, want %x", seed, parent, want)
		}
		for range 1 + r.IntN(3) {
			tokens := make([]uint32, r.IntN(300))
			for i := range tokens {
				tokens[i] = r.Uint32() >> r.IntN(33)
			}
			var extra []enginehash.Extra
			for range r.IntN(5) {
				e := enginehash.Extra{Kind: enginehash.ExtraKind(r.IntN(4)), Text: text(), Int: int64(r.Uint64()) >> r.IntN(64)}
				kinds[e.Kind]++
				extra = append(extra, e)
			}
			got, want := h.Block(parent, tokens, extra), p.block(t, parent, tokens, extra)
			if got != want {
				t.Fatalf("chain %d: Block(%x, %v, %v) = %x, want %x", n, parent, tokens, extra, got, want)
			}
			parent = got
		}
	}
	for k := enginehash.ExtraText; k <= enginehash.ExtraBytes; k++ {
		if kinds[k] < 1000 {
			t.Errorf("only %d extra keys of kind %d", kinds[k], k)
		}
	}
}

// row is a chain with the hashes of the engine's own functions.
type row struct {
	Engine     string   `json:"engine"`
	Algo       string   `json:"algo"`
	Seed       string   `json:"pythonhashseed"`
	NoneHash   string   `json:"none_hash"`
	BlockSize  int      `json:"block_size"`
	Tokens     []uint32 `json:"tokens"`
	ExtraKeys  any      `json:"extra_keys"`
	Hashes     []string `json:"hashes"`
	External   []string `json:"external"`
	Extra      string   `json:"extra"`
	extraKinds map[enginehash.ExtraKind]int
}

func (r *row) extra(t *testing.T) [][]enginehash.Extra {
	blocks, _ := r.ExtraKeys.([]any)
	out := make([][]enginehash.Extra, len(blocks))
	for i, b := range blocks {
		keys, _ := b.([]any)
		for _, k := range keys {
			out[i] = append(out[i], r.extraKey(t, k))
			r.extraKinds[out[i][len(out[i])-1].Kind]++
		}
	}
	return out
}

func (r *row) extraKey(t *testing.T, k any) enginehash.Extra {
	switch k := k.(type) {
	case string:
		return enginehash.Text(k)
	case json.Number:
		n, err := k.Int64()
		if err != nil {
			t.Fatal(err)
		}
		return enginehash.Int(n)
	case []any:
		n, err := k[1].(json.Number).Int64()
		if err != nil {
			t.Fatal(err)
		}
		return enginehash.Media(k[0].(string), n)
	case map[string]any:
		b, err := hex.DecodeString(k["hex"].(string))
		if err != nil {
			t.Fatal(err)
		}
		return enginehash.Bytes(b)
	}
	t.Fatalf("an extra key of a form that is not known: %v", k)
	return enginehash.Extra{}
}

// TestEngineChains compares with hashes of vLLM's own functions.
func TestEngineChains(t *testing.T) {
	path := testdata.Path(t, "the block hashes of the real engine", "wire", "hashes.jsonl")
	var h enginehash.Hasher
	rows, blocks, kinds := 0, 0, map[enginehash.ExtraKind]int{}
	for _, r := range testdata.Rows[row](t, path) {
		r.extraKinds = kinds
		if r.Engine != "vllm" || r.Algo != "sha256_cbor" {
			continue
		}
		rows++
		root := enginehash.NoneHash(r.Seed)
		if got := hex.EncodeToString(root[:]); got != r.NoneHash {
			t.Fatalf("row %d: NoneHash(%q) = %s, want %s", rows, r.Seed, got, r.NoneHash)
		}
		got := chain(&h, root, r.Tokens, r.BlockSize, r.extra(t))
		if len(got) != len(r.Hashes) {
			t.Fatalf("row %d (%s): %d blocks, want %d", rows, r.Extra, len(got), len(r.Hashes))
		}
		for i, d := range got {
			blocks++
			if hex.EncodeToString(d[:]) != r.Hashes[i] || fmt.Sprint(d.Int()) != r.External[i] {
				t.Errorf("row %d (%s), block %d: %x, published as %d, want %s and %s", rows, r.Extra, i, d, d.Int(), r.Hashes[i], r.External[i])
			}
		}
	}
	t.Logf("%d rows, %d blocks, extra keys by kind: %v", rows, blocks, kinds)
	if rows < 60 || len(kinds) < 4 {
		t.Errorf("only %d rows and %d kinds of extra keys", rows, len(kinds))
	}
}

func BenchmarkBlock(b *testing.B) {
	const size, fresh = 16, 4096
	r := rand.New(rand.NewPCG(5, 6))
	tokens := make([]uint32, size*fresh)
	for i := range tokens {
		tokens[i] = r.Uint32N(150_000)
	}
	next := func(i int) []uint32 { i %= fresh; return tokens[i*size : (i+1)*size] }

	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		var h enginehash.Hasher
		parent, i := enginehash.NoneHash("0"), 0
		for b.Loop() {
			parent = h.Block(parent, next(i), nil)
			i++
		}
	})
	b.Run("fxamacker", func(b *testing.B) {
		b.ReportAllocs()
		p := newPeer(b)
		parent, i := enginehash.NoneHash("0"), 0
		for b.Loop() {
			parent = p.block(b, parent, next(i), nil)
			i++
		}
	})
}
