package kvindex_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/prefixcache"
)

func TestOptions(t *testing.T) {
	m := memory(t)
	wordy := kvindex.Model{Tokenizer: words{}}
	source := func(context.Context, string) (kvindex.Model, error) { return wordy, nil }
	for _, c := range []struct {
		want string
		opts []kvindex.Option
	}{
		{"WithKeySeed and WithIndex exclude each other", []kvindex.Option{kvindex.WithIndex(m), kvindex.WithKeySeed(testSeed)}},
		{"WithMemory and WithIndex exclude each other", []kvindex.Option{kvindex.WithIndex(m), kvindex.WithMemory(index.MinMemory)}},
		{"WithMemory: bytes is 1048575, must be at least 1048576", []kvindex.Option{kvindex.WithMemory(index.MinMemory - 1)}},
		{"WithMemory: bytes is 0,", []kvindex.Option{kvindex.WithMemory(0)}},
		{"WithMemory: bytes is -1,", []kvindex.Option{kvindex.WithMemory(-1)}},
		{"WithMemory is given twice", []kvindex.Option{kvindex.WithMemory(1 << 30), kvindex.WithMemory(1 << 30)}},
		{"WithPromptCache: bytes is 1048575, must be 0 or at least 1048576", []kvindex.Option{kvindex.WithPromptCache(prefixcache.MinBytes - 1)}},
		{"WithPromptCache: bytes is -1,", []kvindex.Option{kvindex.WithPromptCache(-1)}},
		{"WithPromptCache is given twice", []kvindex.Option{kvindex.WithPromptCache(0), kvindex.WithPromptCache(0)}},
		{"the seed is all zeros", []kvindex.Option{kvindex.WithKeySeed([16]byte{})}},
		{"the index is nil", []kvindex.Option{kvindex.WithIndex(nil)}},
		{`model "x" has no Tokenizer`, []kvindex.Option{kvindex.WithModel("x", kvindex.Model{})}},
		{"the name is empty", []kvindex.Option{kvindex.WithModel("", wordy)}},
		{`model "x" is given twice`, []kvindex.Option{kvindex.WithModel("x", wordy), kvindex.WithModel("x", wordy)}},
		{"WithModels: the function is nil", []kvindex.Option{kvindex.WithModels(nil)}},
		{"WithResolver: the function is nil", []kvindex.Option{kvindex.WithResolver(nil)}},
		{"WithResolver is given twice", []kvindex.Option{kvindex.WithResolver(aliases{}.resolve), kvindex.WithResolver(aliases{}.resolve)}},
		{"WithModels is given twice", []kvindex.Option{kvindex.WithModels(source), kvindex.WithModels(source)}},
		{"WithProfile: the function is nil", []kvindex.Option{kvindex.WithProfile(nil)}},
		{"WithIndex is given twice", []kvindex.Option{kvindex.WithIndex(m), kvindex.WithIndex(m)}},
		{"option 2 of 3 is nil", []kvindex.Option{kvindex.WithMemory(1 << 30), nil, kvindex.WithMemory(1 << 30)}},
		{"WithKeySeed is given twice", []kvindex.Option{kvindex.WithKeySeed(testSeed), kvindex.WithKeySeed(testSeed)}},
		{"WithHooks is given twice", []kvindex.Option{kvindex.WithHooks(kvindex.Hooks{}), kvindex.WithHooks(kvindex.Hooks{})}},
	} {
		if _, err := kvindex.New(c.opts...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	_, err := kvindex.New(kvindex.WithIndex(nil), kvindex.WithProfile(nil))
	if err == nil || !strings.Contains(err.Error(), "index") || !strings.Contains(err.Error(), "function") {
		t.Errorf("two mistakes: %v", err)
	}

	for want, opts := range map[int64][]kvindex.Option{4 << 30 >> (3 * (^uint(0)>>63 ^ 1)): nil, 1 << 25: {kvindex.WithMemory(1 << 25)}} {
		if got := open(t, opts...).Stats().Index.Budget; got != want {
			t.Errorf("the budget is %d, want %d", got, want)
		}
	}

	// A passed backend is not closed, and its seed is used.
	ix := open(t, kvindex.WithIndex(m))
	p := fakeengine.NewPrompt(1, 16, 2)
	ingest(t, ix, "a", p.Stored(0, 2))
	must(t, ix.Close())
	if got := open(t, kvindex.WithIndex(m)); blocks(t, got, "a", p) != 2 {
		t.Error("the backend was closed, or its seed is not used")
	}
}

func TestProfiles(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 1)
	for _, c := range []struct {
		profile kvindex.Profile
		want    string
	}{
		{kvindex.Profile{}, ""},
		{kvindex.Profile{Media: kvindex.MediaPad, Copies: kvindex.CopiesSet}, ""},
		{kvindex.Profile{Media: kvindex.MediaPad + 1}, "field Media: unknown value 3"},
		{kvindex.Profile{Copies: 4}, "field Copies: unknown value 4"},
		{kvindex.Profile{Adapters: map[string]string{"0": "sql", "18446744073709551615": "chat"}}, ""},
		{kvindex.Profile{Adapters: map[string]string{}}, ""},
		{kvindex.Profile{Adapters: map[string]string{"1": "sql", "": "chat"}}, `pod "a": model "m": field Adapters: key "" is not a decimal number`},
		{kvindex.Profile{Adapters: map[string]string{"sql": "1"}}, `key "sql" is not a decimal number`},
		{kvindex.Profile{Adapters: map[string]string{"07": "sql"}}, `key "07" is not a decimal number`},
		{kvindex.Profile{Adapters: map[string]string{"-7": "sql"}}, `key "-7" is not a decimal number`},
		{kvindex.Profile{Adapters: map[string]string{"18446744073709551616": "sql"}}, `key "18446744073709551616" is not a decimal number`},
		{kvindex.Profile{Adapters: map[string]string{"7": ""}}, `field Adapters: the name of number 7 is empty`},
		{kvindex.Profile{Adapters: map[string]string{"7": "8"}}, `field Adapters: the name of number 7 is a number, "8"`},
		{kvindex.Profile{Adapters: map[string]string{"7": "sql", "3": "chat", "12": "sql"}}, `field Adapters: numbers 12 and 7 have one name, "sql"`},
		{kvindex.Profile{Draft: 3}, "field Draft: unknown value 3"},
		{kvindex.Profile{Grain: -1}, "field Grain: -1 is negative"},
		{kvindex.Profile{Chunk: -1}, `pod "a"|model "m"|field Chunk: -1 is negative`},
		{kvindex.Profile{Weights: [index.NumTiers]float64{index.TierCPU: -0.1}}, "field Weights: -0.1 of tier cpu is not within 0 and 1"},
		{kvindex.Profile{Weights: [index.NumTiers]float64{index.TierDisk: 1.5}}, `pod "a"|model "m"|field Weights: 1.5 of tier disk is not within 0 and 1`},
		{kvindex.Profile{MaxAge: [index.NumTiers]time.Duration{index.TierDisk: -time.Second}}, `pod "a"|model "m"|field MaxAge: -1s of tier disk is negative`},
		{kvindex.Profile{MaxAge: [index.NumTiers]time.Duration{time.Second}}, `pod "a"|model "m"|field MaxAge: 1s of tier gpu`},
		{kvindex.Profile{Weights: [index.NumTiers]float64{math.NaN()}}, "field Weights: NaN of tier gpu is not within 0 and 1"},
		{kvindex.Profile{Grain: 8}, ""},
		{kvindex.Profile{Grain: 32}, `"a"|"m"|Grain 32 does not divide the block size 16 of group 0`},
		{kvindex.Profile{Groups: []index.Group{{ID: 1}, {ID: 0}, {ID: 1}}}, `"a"|"m"|Groups: ID 1 is given twice`},
		{kvindex.Profile{Groups: []index.Group{{ID: -1}}}, "Groups: ID -1"},
		{kvindex.Profile{Groups: []index.Group{{ID: index.MaxGroups}}}, "Groups: ID"},
		{kvindex.Profile{Groups: []index.Group{{ID: 2, Kind: 9}}}, "group 2: unknown Kind 9"},
		{kvindex.Profile{Groups: []index.Group{{ID: 2, Window: -3}}}, "group 2: Window -3 is negative"},
		{kvindex.Profile{Groups: []index.Group{{ID: 2, Draft: true}}}, "group 2 has Draft, but Profile.Draft is not DraftLayers"},
		{kvindex.Profile{Groups: []index.Group{{ID: 2, Draft: true}}, Draft: kvindex.DraftLayers}, ""},
	} {
		ix := open(t, withProfile(c.profile))
		err := ix.Ingest("a", "m", fakeengine.Payload(1, 0, p.Stored(0, 1)))
		for _, want := range strings.Split(c.want, "|") {
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q", c.profile, err, want)
			}
		}
		if n := len(ix.Pods(nil)); (n == 0) != (err != nil) {
			t.Errorf("%+v: %d pods are known", c.profile, n)
		}
	}
}

// TestProfilesAreAskedOnce: WithProfile's function is called once for each pod and model, even if
// its result is invalid. The call registers no pod.
func TestProfilesAreAskedOnce(t *testing.T) {
	asked := make(map[string]int)
	ix := open(t, kvindex.WithProfile(func(pod, model string) kvindex.Profile {
		asked[pod+" "+model]++
		switch model {
		case "grain":
			return kvindex.Profile{Grain: 32}
		case "fine":
			return kvindex.Profile{}
		}
		return kvindex.Profile{Draft: 3}
	}))
	small, large := fakeengine.NewPrompt(1, 16, 1), fakeengine.NewPrompt(2, 64, 1)
	refused := fakeengine.Payload(1, 0, small.Stored(0, 1))
	none := func(what string) {
		t.Helper()
		if s := ix.Stats(); len(ix.Pods(nil)) != 0 || s.Pods != 0 || s.Models != 0 {
			t.Errorf("%s: %+v", what, s)
		}
	}
	for _, c := range []struct{ model, want string }{{"grain", "Grain 32 does not divide"}, {"draft", "field Draft: unknown value 3"}} {
		_ = ix.Sink().StreamNote("a", "draft", "s", events.NoteOpened)
		for range 3 {
			err := ix.Ingest("a", c.model, refused)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"a": model "`+c.model+`"`) {
				t.Errorf("%s: %v", c.model, err)
			}
			_, err = ix.IngestMessage(kvindex.Message{Pod: "a", Model: c.model, Payload: refused})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.model, err)
			}
			_, err = ix.IngestMessage(kvindex.Message{Pod: "a", Model: c.model, Seq: 1, Payload: []byte("?")})
			if !errors.Is(err, kvindex.ErrMalformed) {
				t.Errorf("%s: %v", c.model, err)
			}
		}
		none(c.model)
	}
	_ = ix.Sink().StreamNote("a", "fine", "s", events.NoteOpened)
	_ = ix.Sink().StreamNote("a", "fine", "s", events.NoteClosed)
	none("a stream that has come and gone")
	_ = ix.Ingest("a", "grain", refused)
	if asked["a grain"] != 1 || asked["a draft"] != 1 {
		t.Errorf("profiles of %v", asked)
	}

	// A divisor of the Grain is accepted.
	for _, model := range []string{"grain", "fine"} {
		if err := ix.Ingest("a", model, fakeengine.Payload(1, 0, large.Stored(0, 1))); err != nil {
			t.Error(err)
		}
	}
	if s := ix.Stats(); asked["a grain"] != 1 || s.Pods != 1 || s.Models != 2 {
		t.Errorf("profiles of %v, %+v", asked, s)
	}

	// No more profiles are kept than a pod may have models, and none of a removed pod.
	count := func() (n int) {
		for i := range 2 * kvindex.MaxModels {
			if ix.Ingest("a", fmt.Sprint("bad", i), refused) == nil {
				t.Error("a bad profile was taken")
			}
			n += asked[fmt.Sprint("a bad", i)]
		}
		return n
	}
	if n := count(); n != kvindex.MaxModels-3 {
		t.Errorf("%d further calls", n)
	}
	must(t, ix.RemovePod("a"))
	none("removed")
	if n := count(); n != kvindex.MaxModels-3+kvindex.MaxModels {
		t.Errorf("%d calls", n)
	}
}

// SGLang stores and removes a block once for each namespace, which its events omit, so its profile
// counts copies; a guarded view takes the second store for a report.
func TestSGLangCounts(t *testing.T) {
	for _, c := range []struct {
		profile kvindex.Profile
		want    int
	}{
		{kvindex.Profile{Media: kvindex.MediaPad}, 2},
		{kvindex.Profile{Media: kvindex.MediaPad, Copies: kvindex.CopiesGuarded}, 0},
		{kvindex.Profile{}, 0},
	} {
		ix := open(t, withProfile(c.profile))
		p := fakeengine.NewPrompt(1, 16, 2)
		ingest(t, ix, "a", p.Stored(0, 2), p.Stored(0, 2), p.Removed(1, 0))
		if got := blocks(t, ix, "a", p); got != c.want {
			t.Errorf("%+v: %d blocks, want %d", c.profile, got, c.want)
		}
	}
}

// TestMediaForms: package index keeps index.Variant.Media below 3, in snapshots too.
func TestMediaForms(t *testing.T) {
	if kvindex.MediaForms != 3 || kvindex.MediaPad != 2 {
		t.Errorf("%d forms, the last is %d: raise mediaForms of index/restore.go too", kvindex.MediaForms, kvindex.MediaPad)
	}
}
