package prompt

import (
	"bytes"
	"context"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashing"
)

// identity is a tokenizer with only an identity.
type identity byte

func (n identity) Identity() [32]byte { return [32]byte{byte(n)} }

func (identity) Encode(context.Context, []uint32, string, bool) ([]uint32, error) { return nil, nil }

// The scope of a cached text contains exactly the facts by which equal texts differ.
func TestScope(t *testing.T) {
	type text struct {
		tokenizer      identity
		special, pairs bool
		adapter, salt  string
		unit           int
		seed           byte
	}
	scope := func(x text) []byte {
		p := Prompt{seed: [16]byte{15: x.seed}, Scope: hashing.Scope{Model: "m", Adapter: x.adapter, Salt: x.salt}}
		p.known.tokenizer, p.known.special = x.tokenizer, x.special
		return p.scopeOf(index.Variant{Unit: x.unit, Pairs: x.pairs, Media: hashing.FormPad})
	}
	base := text{tokenizer: 1, adapter: "ab", salt: "cd", unit: 16, seed: 1}
	all := []text{base}
	for _, change := range []func(*text){
		func(x *text) { x.tokenizer = 2 },
		func(x *text) { x.seed = 2 },
		func(x *text) { x.special = true },
		func(x *text) { x.pairs = true },
		func(x *text) { x.unit = 1 },
		func(x *text) { x.adapter = "ax" },
		func(x *text) { x.salt = "cx" },
		func(x *text) { x.adapter, x.salt = "abc", "d" },
		func(x *text) { x.adapter, x.salt = "", "abcd" },
	} {
		x := base
		change(&x)
		all = append(all, x)
	}
	for i, x := range all {
		for j, o := range all {
			if equal := bytes.Equal(scope(x), scope(o)); equal != (i == j) {
				t.Errorf("%+v and %+v: equal is %v", x, o, equal)
			}
		}
	}
}
