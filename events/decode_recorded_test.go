package events_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/fault"
	"github.com/kvindex/kvindex/internal/testdata"
	"github.com/vmihailenco/msgpack/v5"
)

// This file has the tests on payloads that engines have published.

// plain is the common form of golden rows and decoded events, for comparison.
type plain struct {
	Kind, Adapter, Medium, Extra, GroupKind, Locality, Ownership string

	Hashes           []uint64
	Parent           uint64
	HasParent, Pairs bool
	Tokens           []uint32
	BlockSize, Group int
	Window           int
	Salt             string
}

func plainEvent(t *testing.T, e events.Event) plain {
	p := plain{
		Kind: map[events.Kind]string{events.Stored: "BlockStored", events.Removed: "BlockRemoved", events.Cleared: "AllBlocksCleared"}[e.Kind], Adapter: e.Adapter,
		Medium: e.Medium, GroupKind: e.GroupKind, Locality: e.Locality, Ownership: e.Ownership, Hashes: e.Hashes, Parent: e.Parent, HasParent: e.HasParent,
		Pairs: e.Pairs, Tokens: e.Tokens, BlockSize: e.BlockSize, Group: e.Group, Window: e.Window, Salt: e.Salt,
	}
	if !e.HasExtra {
		return p
	}
	entries := make([][]any, len(e.Hashes))
	for _, k := range e.Extra {
		var v any
		switch k.Kind {
		case events.ExtraText:
			v = k.Text
		case events.ExtraInt:
			v = k.Int
		case events.ExtraMedia:
			v = []any{k.Text, k.Int}
		case events.ExtraBytes:
			v = []byte(k.Text)
		case events.ExtraOpaque:
			var err error
			if v, err = msgpack.NewDecoder(strings.NewReader(k.Text)).DecodeInterface(); err != nil {
				t.Fatal(err)
			}
		}
		entries[k.Block] = append(entries[k.Block], v)
	}
	p.Extra = jsonOf(t, entries)
	return p
}

// plainMap converts the fields of an event in JSON.
func plainMap(t *testing.T, kind string, m map[string]any) plain {
	text := func(key string) string { s, _ := m[key].(string); return s }
	number := func(key string) int {
		if m[key] == nil {
			return 0
		}
		return int(bits(t, m[key]))
	}
	p := plain{
		Kind: kind, Adapter: text("lora_name"), Medium: text("medium"), GroupKind: text("kv_cache_spec_kind"), Locality: text("locality"), Ownership: text("ownership"),
		BlockSize: number("block_size"), Group: number("group_idx"), Window: number("kv_cache_spec_sliding_window"), Salt: text("cache_salt"),
	}
	if p.Adapter == "" && m["lora_id"] != nil {
		p.Adapter = fmt.Sprint(m["lora_id"])
	}
	hashes, _ := m["block_hashes"].([]any)
	for _, h := range hashes {
		p.Hashes = append(p.Hashes, bits(t, h))
	}
	if parent := m["parent_block_hash"]; parent != nil {
		p.Parent, p.HasParent = bits(t, parent), true
	}
	tokens, _ := m["token_ids"].([]any)
	for _, token := range tokens {
		if two, ok := token.([]any); ok {
			p.Pairs = true
			p.Tokens = append(p.Tokens, uint32(bits(t, two[0])), uint32(bits(t, two[1])))
			continue
		}
		p.Tokens = append(p.Tokens, uint32(bits(t, token)))
	}
	if extra := m["extra_keys"]; extra != nil {
		p.Extra = jsonOf(t, extra)
	}
	return p
}

// bits is an integer or, for a byte string in hex, its last 64 bits.
func bits(t *testing.T, v any) uint64 {
	t.Helper()
	if digest, ok := v.(string); ok {
		raw := spell(t, digest)
		return binary.BigEndian.Uint64(raw[len(raw)-8:])
	}
	number := v.(json.Number).String()
	if n, err := strconv.ParseInt(number, 10, 64); err == nil {
		return uint64(n)
	}
	n, err := strconv.ParseUint(number, 10, 64)
	must(t, err)
	return n
}

// jsonOf writes extra keys as JSON: byte strings in hex, an entry without keys
// as null.
func jsonOf(t *testing.T, v any) string {
	var tidy func(any) any
	tidy = func(v any) any {
		switch v := v.(type) {
		case []byte:
			return hex.EncodeToString(v)
		case [][]any:
			out := make([]any, len(v))
			for i, x := range v {
				if x != nil {
					out[i] = tidy(x)
				}
			}
			return out
		case []any:
			out := make([]any, len(v))
			for i, x := range v {
				out[i] = tidy(x)
			}
			return out
		case map[string]any:
			out := map[string]any{}
			for k, x := range v {
				out[k] = tidy(x)
			}
			return out
		}
		return v
	}
	out, err := json.Marshal(tidy(v))
	must(t, err)
	return string(out)
}

// TestRows decodes recorded and malformed messages of all engines. Malformed ones must be
// rejected. Those of vLLM, SGLang and engines with vLLM's forms must be decoded, and those of
// other engines decoded right or rejected.
func TestRows(t *testing.T) {
	type message struct {
		Name, Hex, Engine, Format string
		HexRepeat                 []any `json:"hex_repeat"`
		OK                        bool
		Rank                      *int
		Events                    []map[string]any
	}
	// AIBrix's first encoder wrote a list of tokens for each block. llm-d's storage writes its
	// events as byte strings.
	foreign := []string{"aibrix", "llmd-fs"}
	count := map[string]int{}
	var b events.Batch
	for _, row := range testdata.Rows[message](t, testdata.Path(t, "the recorded messages of wire/events.jsonl", "wire", "events.jsonl")) {
		if row.Format != "msgpack" {
			continue
		}
		payload := spell(t, row.Hex)
		if len(row.HexRepeat) == 2 {
			payload = append(payload, bytes.Repeat(spell(t, row.HexRepeat[0].(string)), int(bits(t, row.HexRepeat[1])))...)
		}
		err := events.Decode(payload, &b)
		checkRefused(t, err, &b)
		switch {
		case !row.OK:
			if err == nil {
				t.Errorf("%s: accepted", row.Name)
			}
			count[row.Engine+" malformed, refused"]++
			count["refused: "+fault.Reason(err)]++
			continue
		case err != nil:
			if !slices.Contains(foreign, row.Engine) {
				t.Errorf("%s: %v", row.Name, err)
			}
			count[row.Engine+" refused"]++
			continue
		}
		count[row.Engine+" read"]++
		if row.Rank == nil != !b.HasRank || row.Rank != nil && *row.Rank != b.Rank {
			t.Errorf("%s: rank %d, %v", row.Name, b.Rank, b.HasRank)
		}
		if len(b.Events) != len(row.Events) {
			t.Errorf("%s: %d events, want %d", row.Name, len(b.Events), len(row.Events))
			continue
		}
		for i, e := range b.Events {
			if e.Salt != "" {
				count["salted"]++
			}
			if e.Pairs {
				count["pairs"]++
			}
			if got, want := plainEvent(t, e), plainMap(t, row.Events[i]["kind"].(string), row.Events[i]); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: event %d:\ngot  %+v\nwant %+v", row.Name, i, got, want)
			}
		}
	}
	t.Logf("rows: %v", count)
	for what, least := range map[string]int{
		"vllm read": 410, "sglang read": 77, "lmcache read": 14, "dynamo read": 9, "mooncake read": 8, "trtllm read": 8, "atom read": 1,
		"any malformed, refused": 284, "sglang malformed, refused": 1, "salted": 8, "pairs": 8,
	} {
		if count[what] < least {
			t.Errorf("%d rows of %q, want %d", count[what], what, least)
		}
	}
}

// TestRecorded decodes every payload that vLLM and SGLang published in the recorded runs and
// compares it with the result of an independent decoder.
func TestRecorded(t *testing.T) {
	const what = "the recorded runs of oracle/*.jsonl.gz and oracle/sglang/*.jsonl.gz"
	for _, tt := range []struct {
		engine string
		files  []string
	}{
		{"vllm", testdata.Glob(t, what, "oracle", "*.jsonl.gz")},
		{"sglang", testdata.Glob(t, what, "oracle", "sglang", "*.jsonl.gz")},
	} {
		t.Run(tt.engine, func(t *testing.T) {
			count := map[string]int{}
			var b events.Batch
			for _, file := range tt.files {
				for i, row := range testdata.Rows[struct{ Payload string }](t, file) {
					if row.Payload == "" || testing.Short() && i%4 > 0 {
						continue
					}
					count["payloads"]++
					payload := spell(t, row.Payload)
					if err := events.Decode(payload, &b); err != nil {
						t.Fatalf("%s: %v", file, err)
					}
					if checkAccepted(t, payload, &b); t.Failed() || b.Unknown != 0 {
						t.Fatalf("%s: %d unknown", file, b.Unknown)
					}
					for _, e := range b.Events {
						count[fmt.Sprint("kind ", e.Kind)]++
						if e.Kind == events.Stored && len(e.Hashes) == 0 && e.HasExtra {
							count["extra keys without hashes"]++
						}
						if e.Salt != "" {
							count["salted"]++
						}
						if e.Pairs {
							count["pairs"]++
						}
					}
				}
			}
			t.Logf("%d files: %v", len(tt.files), count)
			if testing.Short() {
				return
			}
			if count["payloads"] < 1000 || tt.engine == "sglang" && (count["salted"] < 100 || count["pairs"] < 100) {
				t.Error("too few payloads")
			}
		})
	}
}
