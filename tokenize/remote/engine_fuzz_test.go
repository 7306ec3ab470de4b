package remote_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/tokenize/remote"
)

// An answer has the tokens and the count that encoding/json decodes, and is an error if
// encoding/json returns one.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{`{"count":2,"max_model_len":4096,"tokens":[1,100000],"token_strs":null}`, `{"tokens":[]}`, ` { "token_ids" : [ 0 , 2147483647 ] , "a" : { "]" : ["}\"", -1e5, true] } } `,
		`{"token_ids":[1,2,3],"features":{"mm_hashes":{"image":["h"]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}}`, `{"tokens":[2147483648]}`, `{"t\u006fkens":[1],"cOunt":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		tokens, count, media, err := remote.DecodeAnswer(raw)
		if err != nil {
			if tokens != nil {
				t.Fatalf("%q: tokens beside %v", raw, err)
			}
			return
		}
		var plain map[string]json.RawMessage
		if err := json.Unmarshal(raw, &plain); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		list := plain["tokens"]
		if list == nil {
			list = plain["token_ids"]
		}
		var want []uint32
		if err := json.Unmarshal(list, &want); err != nil || !slices.Equal(tokens, want) {
			t.Fatalf("%q: %v, want %v, %v", raw, tokens, want, err)
		}
		var n *int
		if raw := plain["count"]; raw != nil {
			_ = json.Unmarshal(raw, &n)
		}
		if (n == nil) != (count == nil) || n != nil && *n != *count {
			t.Fatalf("%q: another count", raw)
		}
		for i, m := range media {
			if m.Offset < 0 || m.Length <= 0 || m.Hash == "" || i > 0 && m.Offset < media[i-1].Offset {
				t.Fatalf("%q: media %v", raw, media)
			}
		}
	})
}

// A body is sent with all its fields but with the engine's model.
func FuzzBody(f *testing.F) {
	for _, s := range []string{`{"model":"x","messages":[{"role":"user","content":[{"type":"image_url"},{"image_url":1}]}],"b":1e5,"model":"y"}`, `{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image"}]}]}]}`,
		`{"input":[{"type":"message","content":[{"type":"input_image"}]},{"type":"function_call_output","output":[{"type":"input_image"}]}]}`, `{"messages":[null,5,[],{}]}`} {
		for i := range 3 {
			f.Add(i, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, api int, raw []byte) {
		path := []string{chatPath, "/v1/messages", "/v1/responses"}[uint(api)%3]
		sent, media, err := remote.ReadBody(path, raw)
		if err != nil {
			return
		}
		var want, got map[string]json.RawMessage
		if json.Unmarshal(raw, &want) != nil || json.Unmarshal(sent, &got) != nil {
			t.Fatalf("%q: sent %q", raw, sent)
		}
		if want == nil { // null
			want = map[string]json.RawMessage{}
		}
		want["model"] = json.RawMessage(`"m"`)
		if !maps.EqualFunc(want, got, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
			t.Fatalf("%q: sent %q", raw, sent)
		}
		if media < 0 || media > len(raw)/10 {
			t.Fatalf("%q: %d media", raw, media)
		}
	})
}
