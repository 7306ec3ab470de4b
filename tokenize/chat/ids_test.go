package chat_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

const (
	ofVLLM   = "/inference/v1/generate"
	ofSGLang = "/generate"
)

// Bodies of both engines as clients send them.
var tokenBodies = []struct {
	path, body string
	want       chat.Prompt
}{
	{ofVLLM, `{"request_id":"r","model":"m","token_ids":[1,2,4294967295],"sampling_params":{"max_tokens":5,"n":2},"stream":true,"cache_salt":"s","priority":1,"kv_transfer_params":{"do_remote_decode":true}}`,
		chat.Prompt{Model: "m", Salt: "s", Tokens: []uint32{1, 2, 4294967295}}},
	{"/proxy" + ofVLLM + "?x=1", `{"token_ids":[7],"sampling_params":{},"features":null,"content_parts":[],"text":"a","input_ids":[1]}`,
		chat.Prompt{Tokens: []uint32{7}}},
	{ofVLLM, `{"token_ids":[1,9,9,9,2,8,8,3],"sampling_params":{},"features":{"mm_hashes":{"image":["cat","dog"],"audio":["moo"]},` +
		`"mm_placeholders":{"audio":[{"offset":4,"length":1}],"image":[{"offset":5,"length":2,"is_embed":null},{"offset":1,"length":3}]},"kwargs_data":{"image":["` + strings.Repeat("AA", 1000) + `",null],"audio":[null]}}}`,
		chat.Prompt{Tokens: []uint32{1, 9, 9, 9, 2, 8, 8, 3}, Media: []chat.Media{{Hash: "dog", Offset: 1, Length: 3}, {Hash: "moo", Offset: 4, Length: 1}, {Hash: "cat", Offset: 5, Length: 2}}}},
	{ofVLLM, `{"token_ids":[1],"sampling_params":{},"features":{"mm_hashes":{},"mm_placeholders":{}}}`, chat.Prompt{Tokens: []uint32{1}}},
	{ofSGLang, `{"text":"hello","sampling_params":{"temperature":0,"n":4},"stream":true}`, chat.Prompt{Text: "hello", AddSpecial: true}},
	{"/v1/generate/", `{"text":["hello"],"sampling_params":[{}],"image_data":[],"token_ids":[1]}`, chat.Prompt{Text: "hello", AddSpecial: true}},
	{ofSGLang, `{"rid":"r","model":"m","input_ids":[1,2],"cache_salt":"s","return_logprob":true,"session_id":"x"}`,
		chat.Prompt{Model: "m", Salt: "s", Tokens: []uint32{1, 2}, AddSpecial: true}},
	{ofSGLang, `{"input_ids":[[1,2]],"text":null,"extra_key":null,"cache_salt":""}`, chat.Prompt{Tokens: []uint32{1, 2}, AddSpecial: true}},
	{"", `{"token_ids":[1,2],"sampling_params":{}}`, chat.Prompt{Tokens: []uint32{1, 2}}},
	{"/my/route", `{"input_ids":[1,2],"sampling_params":{}}`, chat.Prompt{Tokens: []uint32{1, 2}, AddSpecial: true}},
	{"/v1/completions", `{"prompt":[1,2]}`, chat.Prompt{Tokens: []uint32{1, 2}, AddSpecial: true}},
	{"/v1/completions", `{"prompt":[[1,2]]}`, chat.Prompt{Tokens: []uint32{1, 2}, AddSpecial: true}},
	{"/v1/completions", `{"prompt":["hello"]}`, chat.Prompt{Text: "hello", AddSpecial: true}},
}

func equalPrompts(a, b *chat.Prompt) bool {
	return a.Model == b.Model && a.Salt == b.Salt && a.AddSpecial == b.AddSpecial && a.Text == b.Text && a.Chat() == b.Chat() &&
		slices.Equal(a.Tokens, b.Tokens) && slices.Equal(a.Media, b.Media)
}

func TestTokenBodies(t *testing.T) {
	for _, c := range tokenBodies {
		if r, err := chat.Parse(c.path, []byte(c.body)); err != nil || !equalPrompts(r, &c.want) {
			t.Errorf("%s of %.200s: %+v, %v", c.path, c.body, r, err)
		}
	}
	// The last of equal keys counts, as in Python.
	for _, c := range []struct{ path, body string }{
		{ofVLLM, `{"token_ids":"x","sampling_params":1,"token_ids":[1],"sampling_params":{}}`},
		{ofSGLang, `{"input_ids":[[1],[2]],"text":"a","text":null,"input_ids":[1]}`},
	} {
		if r, err := chat.Parse(c.path, []byte(c.body)); err != nil || !slices.Equal(r.Tokens, []uint32{1}) {
			t.Errorf("%s: %+v, %v", c.body, r, err)
		}
	}
}

// checkIDs compares a parsed list of ids with encoding/json's.
func checkIDs(t *testing.T, text string) {
	t.Helper()
	want := []uint32{}
	var numbers []json.Number
	ok := json.Unmarshal([]byte(text), &numbers) == nil && len(numbers) > 0
	for _, n := range numbers {
		id, err := strconv.ParseUint(strings.TrimPrefix(string(n), "-"), 10, 32)
		ok = ok && err == nil && (n[0] != '-' || id == 0)
		want = append(want, uint32(id))
	}
	for _, body := range []string{`{"prompt":` + text + `}`, `{"prompt":[` + text + `]}`, `{"token_ids":` + text + `,"sampling_params":{}}`, `{"input_ids":` + text + `}`, `{"input_ids":[` + text + `]}`} {
		r, err := chat.Parse("", []byte(body))
		if (err == nil) != ok || ok && !slices.Equal(r.Tokens, want) {
			t.Fatalf("%s: %+v, %v, want %v, %v", body, r, err, want, ok)
		}
	}
}

func TestTokenLists(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pieces := []string{"0", "1", "23", "4294967295", "4294967296", "99999999999", "18446744073709551617", "01", "00", "-0", "-1", "1.5", "1e2", "1.0", ",", "[", "]", " ", "\n", "+1", "x", "1 2"}
	for range 3000 {
		var b strings.Builder
		b.WriteByte('[')
		for i := range r.IntN(6) {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString([]string{"", " ", "\n\t"}[r.IntN(3)])
			n := 3
			if r.IntN(4) == 0 {
				n = len(pieces)
			}
			b.WriteString(pieces[r.IntN(n)])
			b.WriteString([]string{"", "", " "}[r.IntN(3)])
		}
		b.WriteByte(']')
		checkIDs(t, b.String())
	}
	long := "[" + strings.Repeat("7,", 1<<20) + "7]"
	if _, err := chat.Parse("", []byte(`{"prompt":`+long+`}`)); !errors.Is(err, chat.ErrNotScorable) {
		t.Errorf("a million ids: %v", err)
	}
}

func TestTokenBodyErrors(t *testing.T) {
	features := func(more string) string {
		return `{"token_ids":[1,2,3],"sampling_params":{},"features":` + more + `}`
	}
	place := func(hashes, at string) string {
		return features(`{"mm_hashes":{"image":` + hashes + `},"mm_placeholders":{"image":` + at + `}}`)
	}
	for _, c := range []struct{ path, body, want string }{
		{ofVLLM, `{}`, "malformed: token_ids: missing"},
		{ofVLLM, `{"token_ids":null}`, "malformed: token_ids: missing"},
		{ofVLLM, `{"token_ids":[],"sampling_params":{}}`, "malformed: token_ids: empty"},
		{ofVLLM, `{"token_ids":"1","sampling_params":{}}`, "malformed: token_ids: a string, not an array"},
		{ofVLLM, `{"token_ids":[1,-1]}`, "malformed: token_ids[1]: not the id of a token"},
		{ofVLLM, `{"token_ids":[4294967296]}`, "malformed: token_ids[0]: not the id of a token"},
		{ofVLLM, `{"token_ids":[1,null]}`, "malformed: token_ids[1]: not the id of a token"},
		{ofVLLM, `{"token_ids":[[1]]}`, "malformed: token_ids[0]: not the id of a token"},
		{ofVLLM, `{"token_ids":[1,"2"]}`, "not scorable: token_ids[1]: not the id of a token as it is written"},
		{ofVLLM, `{"token_ids":[true]}`, "not scorable: token_ids[0]: not the id of a token as it is written"},
		{ofVLLM, `{"token_ids":[1]}`, "malformed: sampling_params: missing"},
		{ofVLLM, `{"token_ids":[1],"sampling_params":[]}`, "malformed: sampling_params: an array, not an object"},
		{ofVLLM, `{"token_ids":[1],"sampling_params":{"truncate_prompt_tokens":1}}`, "not scorable: sampling_params.truncate_prompt_tokens: its effect on the tokens is not known here"},
		{ofVLLM, `{"token_ids":[1],"sampling_params":{},"cache_salt":""}`, "not scorable: cache_salt: empty: some versions of the engine refuse it"},
		{ofVLLM, `{"token_ids":[1],"sampling_params":{},"cache_salt":1}`, "malformed: cache_salt: a number, not a string"},
		{ofVLLM, `{"token_ids":[1],"sampling_params":{},"model":1}`, "malformed: model: a number, not a string"},
		{ofVLLM, `{"token_ids":[1],"sampling_params":{},"kv_transfer_params":{"prompt_token_ids":[2]}}`, "not scorable: kv_transfer_params.prompt_token_ids: the engine takes them for the prompt"},
		{ofVLLM, `{"token_ids":[1],"sampling_params":{},"content_parts":[{"type":"image_url"}]}`, "not scorable: content_parts: raw media: the engine's hashes of them and the numbers of their tokens are not known"},
		{ofVLLM, `{"token_ids":[1],"sampling_params":{},"content_parts":{}}`, "malformed: content_parts: an object, not an array"},
		{ofVLLM, features(`"x"`), "not scorable: features: a string: some versions of the engine refuse it"},
		{ofVLLM, features(`[]`), "malformed: features: an array, not an object"},
		{ofVLLM, features(`{}`), "malformed: features.mm_hashes: missing"},
		{ofVLLM, features(`{"mm_hashes":{}}`), "malformed: features.mm_placeholders: missing"},
		{ofVLLM, features(`{"mm_hashes":{"image":[]},"mm_placeholders":{}}`), "malformed: features.mm_placeholders: of other kinds of media than mm_hashes"},
		{ofVLLM, features(`{"mm_hashes":{"image":[]},"mm_placeholders":{"audio":[]}}`), "malformed: features.mm_placeholders: of other kinds of media than mm_hashes"},
		{ofVLLM, features(`{"mm_hashes":{},"mm_placeholders":{},"kwargs_data":1}`), "malformed: features.kwargs_data: a number, not an object"},
		{ofVLLM, place(`1`, `[]`), "malformed: features.mm_hashes.image: a number, not an array"},
		{ofVLLM, place(`[]`, `1`), "malformed: features.mm_placeholders.image: a number, not an array"},
		{ofVLLM, place(`["a","b"]`, `[{"offset":0,"length":1}]`), "malformed: features.mm_placeholders.image: 1 of 2"},
		{ofVLLM, place(`["a"]`, `[1]`), "malformed: features.mm_placeholders.image[0]: a number, not an object"},
		{ofVLLM, place(`["a"]`, `[{"offset":0}]`), "malformed: features.mm_placeholders.image[0].length: missing"},
		{ofVLLM, place(`["a"]`, `[{"offset":-1,"length":1}]`), "malformed: features.mm_placeholders.image[0].offset: less than 0"},
		{ofVLLM, place(`["a"]`, `[{"offset":0,"length":0}]`), "malformed: features.mm_placeholders.image[0].length: less than 1"},
		{ofVLLM, place(`["a"]`, `[{"offset":0,"length":"1"}]`), "not scorable: features.mm_placeholders.image[0].length: no number from 1 to 16777216"},
		{ofVLLM, place(`["a"]`, `[{"offset":null,"length":1}]`), "malformed: features.mm_placeholders.image[0].offset: null, not an integer"},
		{ofVLLM, place(`[1]`, `[{"offset":0,"length":1}]`), "malformed: features.mm_hashes.image[0]: a number, not a string"},
		{ofVLLM, place(`[""]`, `[{"offset":0,"length":1}]`), "not scorable: features.mm_hashes.image[0]: empty"},
		{ofVLLM, place(`["a"]`, `[{"offset":2,"length":2}]`), "not scorable: features.mm_placeholders: media overlap, or are not within the tokens: some versions of the engine refuse it"},
		{ofVLLM, place(`["a","b"]`, `[{"offset":1,"length":1},{"offset":0,"length":2}]`), "not scorable: features.mm_placeholders: media overlap, or are not within the tokens: some versions of the engine refuse it"},

		{ofSGLang, `{}`, "not scorable: it has neither text nor input_ids, as SGLang's has: it may be another engine's"},
		{ofSGLang, `{"inputs":"a"}`, "not scorable: it has neither text nor input_ids, as SGLang's has: it may be another engine's"},
		{ofSGLang, `{"prompt":"a"}`, "not scorable: it has neither text nor input_ids, as SGLang's has: it may be another engine's"},
		{ofSGLang, `{"text":"a","input_ids":[1]}`, "not scorable: text: beside input_ids"},
		{ofSGLang, `{"text":1}`, "malformed: text: a number, not a string"},
		{ofSGLang, `{"text":[1]}`, "malformed: text: a number, not a string"},
		{ofSGLang, `{"text":""}`, "not scorable: text: empty"},
		{ofSGLang, `{"text":[]}`, "not scorable: text: 0 prompts in one request"},
		{ofSGLang, `{"text":["a","b"]}`, "not scorable: text: 2 prompts in one request"},
		{ofSGLang, `{"input_ids":"a"}`, "malformed: input_ids: a string, not an array"},
		{ofSGLang, `{"input_ids":[]}`, "malformed: input_ids: empty"},
		{ofSGLang, `{"input_ids":[[]]}`, "not scorable: input_ids[0]: empty"},
		{ofSGLang, `{"input_ids":[[1],[2]]}`, "not scorable: input_ids: 2 prompts in one request"},
		{ofSGLang, `{"input_ids":[1,"2"]}`, "malformed: input_ids[1]: not the id of a token"},
		{ofSGLang, `{"input_ids":[1.0]}`, "malformed: input_ids[0]: not the id of a token"},
		{ofSGLang, `{"input_ids":[1,-1]}`, "not scorable: input_ids[1]: not the id of a token as it is written"},
		{ofSGLang, `{"input_ids":[[true]]}`, "not scorable: input_ids[0][0]: not the id of a token as it is written"},
		{ofSGLang, `{"input_ids":[1],"image_data":"` + strings.Repeat("A", 1000) + `"}`, "not scorable: image_data: raw media: the engine's hash of it and the number of its tokens are not known"},
		{ofSGLang, `{"text":"a","session_params":{"id":"s"}}`, "not scorable: session_params: the prompt goes on from an earlier one, which is not known here"},
		{ofSGLang, `{"text":"a","lora_path":"l"}`, "not scorable: lora_path: the adapter: events do not tell of it in each version"},
		{ofSGLang, `{"text":"a","extra_key":"k"}`, "not scorable: extra_key: events do not tell of it"},
		{ofSGLang, `{"text":"a","input_embeds":[[0.5]]}`, "not scorable: input_embeds: a prompt without token ids"},
		{ofSGLang, `{"text":"a","cache_salt":["s"]}`, "not scorable: cache_salt: an array, as batches have it"},
		{ofSGLang, `{"text":"a","cache_salt":1}`, "malformed: cache_salt: a number, not a string"},

		{"", `{"token_ids":[1],"input_ids":[1]}`, "not scorable: it has both token_ids and input_ids"},
		{"", `{"token_ids":[1],"query":"a"}`, "not scorable: query: of an API for reranking, whose bodies are not read"},
		{"", `{"input_ids":[1],"instructions":"a"}`, "not scorable: instructions: of OpenAI's Responses API, whose bodies are read if the path names it"},
		{"", `{"token_ids":[]}`, "malformed: token_ids: empty"},
		{"/encode", `{"input_ids":[1]}`, "not scorable: it was sent to an API for pooling, whose bodies are not read"},
		{"/v1/completions", `{"prompt":[[1],[2]]}`, "not scorable: prompt: 2 prompts in one request"},
		{"/v1/completions", `{"prompt":[1,2.0]}`, "not scorable: prompt[1]: not the id of a token as it is written"},
		{"/v1/completions", `{"prompt":[2.0]}`, "not scorable: prompt[0]: not the id of a token as it is written"},
	} {
		_, err := chat.Parse(c.path, []byte(c.body))
		if err == nil || err.Error() != c.want {
			t.Errorf("%s of %.200s: %v, want %s", c.path, c.body, err, c.want)
		} else if strings.HasPrefix(c.want, "malformed") != errors.Is(err, chat.ErrMalformed) {
			t.Errorf("%s: %v", c.body, err)
		}
	}
}

// A cut body is an error, with and without its path, and so is one with a field of another type.
// Without a path, none of these bodies is another API's.
func TestTokenBodiesCut(t *testing.T) {
	for _, c := range tokenBodies {
		for i := range c.body {
			for _, path := range []string{c.path, ""} {
				if r, err := chat.Parse(path, []byte(c.body[:i])); !errors.Is(err, chat.ErrMalformed) && (path != "/my/route" || !errors.Is(err, chat.ErrNotScorable)) {
					t.Fatalf("%s of %.200s: %+v, %v", path, c.body[:i], r, err)
				}
			}
		}
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", ofVLLM, ofSGLang} {
			r, err := chat.Parse(path, []byte(c.body))
			if err == nil && !equalPrompts(r, &c.want) && !strings.Contains(c.body, `"token_ids":[1]`) && !strings.Contains(c.body, `"input_ids":[1]`) {
				t.Errorf("%s of %.200s: %+v", path, c.body, r)
			}
		}
	}
}

// The parsed ids are those in the body, and an error has one of the sentinels.
func FuzzTokenBodies(f *testing.F) {
	for _, c := range tokenBodies {
		f.Add(c.path, []byte(c.body))
	}
	f.Add(ofVLLM, []byte(`{"token_ids":[1],"sampling_params":{},"features":{"mm_hashes":{"a":["b"]},"mm_placeholders":{"a":[{"offset":0,"length":16777216}]}}}`))
	f.Fuzz(func(t *testing.T, path string, body []byte) {
		r, err := chat.Parse(path, body)
		switch {
		case err == nil:
		case errors.Is(err, chat.ErrMalformed) == errors.Is(err, chat.ErrNotScorable):
			t.Fatal(err)
		default:
			return
		}
		if r.Chat() {
			return
		}
		if len(r.Tokens) > 0 && r.Text != "" || len(r.Media) > 0 && len(r.Tokens) == 0 {
			t.Fatalf("%+v", r)
		}
		end := 0
		for _, m := range r.Media {
			if m.Hash == "" || m.Offset < end || m.Length < 1 || m.Offset+m.Length > len(r.Tokens) {
				t.Fatalf("%+v", r)
			}
			end = m.Offset + m.Length
		}
	})
}
