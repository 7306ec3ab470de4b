package engine_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/stats"
)

var hasher = hashing.New([16]byte{1})

// converter returns a Converter of an engine with a profile.
func converter(p engine.Profile) *engine.Converter {
	return &engine.Converter{Hash: hasher, Model: "m", Profile: p, Recent: new(engine.Recent)}
}

// convert converts events. The changes are valid until the next call.
func convert(c *engine.Converter, es ...events.Event) []index.Change {
	c.Changes = c.Changes[:0]
	c.Convert(&events.Batch{Events: es})
	return c.Changes
}

// changesOf returns the changes of the last of some payloads.
func changesOf(t *testing.T, p engine.Profile, payloads ...[]byte) (*engine.Converter, []index.Change) {
	t.Helper()
	c := converter(p)
	for _, payload := range payloads {
		var b events.Batch
		if err := events.Decode(payload, &b); err != nil {
			t.Fatal(err)
		}
		convert(c, b.Events...)
	}
	return c, c.Changes
}

// store stores a prompt's first blocks.
func store(tokens []uint32, size int) events.Event {
	e := events.Event{Kind: events.Stored, Tokens: tokens, BlockSize: size, HasExtra: true}
	for i := range len(tokens) / size {
		e.Hashes = append(e.Hashes, uint64(100+i))
	}
	return e
}

// Names of tiers ignore case. Blocks of an unknown tier are not in the GPU, and are noted.
func TestTierNames(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 2)
	for name, want := range map[string]index.Tier{
		"": index.TierGPU, "GPU": index.TierGPU, "gPu": index.TierGPU,
		"CPU": index.TierCPU, "cpu_pinned": index.TierCPU, "CPU_PINNED": index.TierCPU,
		"DISK": index.TierDisk, "storage": index.TierDisk,
		"EXTERNAL": index.TierRemote, "External": index.TierRemote, "OBJ": index.TierRemote,
		"GPU ": index.TierOther, "GPU2": index.TierOther, "HBM": index.TierOther, "ＧＰＵ": index.TierOther,
	} {
		stored := store(p.Tokens, 16)
		stored.Medium = name
		c := converter(engine.Profile{})
		if got := convert(c, stored); len(got) != 1 || got[0].Op != index.OpStore || got[0].Tier != want || c.MayRemove {
			t.Errorf("%q: %+v, may remove: %v", name, got, c.MayRemove)
		}
		if n := len(c.Unrecognized); (n > 0) != (want == index.TierOther) {
			t.Errorf("%q: %q", name, c.Unrecognized)
		}
		got := convert(c, events.Event{Kind: events.Removed, Hashes: []uint64{7}, Medium: name})
		if len(got) != 1 || got[0].Op != index.OpRemove || got[0].Tier != want || !slices.Equal(got[0].Hashes, []index.Hash{7}) || c.MayRemove != (want == index.TierOther) {
			t.Errorf("%q: a removal is %+v, may remove: %v", name, got, c.MayRemove)
		}
		want := []index.Change{{Op: index.OpClearTier, Tier: want}}
		if name == "" {
			want = []index.Change{{Op: index.OpClear}}
		}
		if got := convert(c, events.Event{Kind: events.Cleared, Medium: name}); len(got) != 1 || got[0].Op != want[0].Op || got[0].Tier != want[0].Tier {
			t.Errorf("%q: a clear is %+v", name, got)
		}
		if c.MayRemove != (want[0].Tier == index.TierOther) {
			t.Errorf("%q: a clear may remove: %v", name, c.MayRemove)
		}
	}
}

// Copies in another place do not belong to the pod.
func TestForeignCopies(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 2)
	for _, c := range []struct {
		locality, ownership string
		kind                events.Kind
		foreign             bool
		unknown             int
		mayRemove           bool
	}{
		{"", "", events.Stored, false, 0, false},
		{"local", "", events.Stored, false, 0, false},
		{"REMOTE", "", events.Stored, true, 0, false},
		{"remote", "", events.Removed, true, 0, false},
		{"", "peer", events.Stored, true, 0, false},
		{"LOCAL", "peer", events.Removed, true, 0, false},
		{"SOMEWHERE", "", events.Stored, true, 1, false},
		{"SOMEWHERE", "", events.Removed, true, 1, true},
	} {
		e := store(p.Tokens, 16)
		e.Kind, e.Locality, e.Ownership = c.kind, c.locality, c.ownership
		of := converter(engine.Profile{})
		got := convert(of, e, store(p.Tokens, 16))
		if (len(got) == 1) != c.foreign || (of.Skipped.Foreign == 1) != c.foreign || len(of.Unrecognized) != c.unknown || of.MayRemove != c.mayRemove {
			t.Errorf("%+v: %d changes, %+v, %q, %v", c, len(got), of.Skipped, of.Unrecognized, of.MayRemove)
		}
		if convert(of, store(p.Tokens, 16)); of.Skipped.Foreign != 0 {
			t.Errorf("%+v: counts with the next batch, too", c)
		}
	}
}

// Engines without extra_keys do not distinguish salted prompts from plain ones.
func TestScopelessEnginesAreCounted(t *testing.T) {
	s := fakeengine.NewPrompt(1, 16, 1).Stored(0, 1)
	s.Extra = [][]enginehash.Extra{nil}
	for form, want := range map[fakeengine.Form]uint64{fakeengine.FormArrays7: 1, fakeengine.FormMaps: 0} {
		payload := fakeengine.Encoding{Form: form}.Append(nil, &fakeengine.Batch{Events: []fakeengine.Event{s}})
		if c, _ := changesOf(t, engine.Profile{}, payload); c.Skipped.Scopeless != want {
			t.Errorf("form %d: %d scopeless stores", form, c.Skipped.Scopeless)
		}
	}
}

// A dense store is converted before masked ones of other groups that the engine published first.
// Media of a masked store are not those of its first blocks.
func TestMaskedStores(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 8)
	masked := func(group int, extra ...enginehash.Extra) *fakeengine.Stored {
		s := p.Stored(0, 8)
		s.Group, s.Kind, s.Window, s.Hashes = group, "sliding_window", 32, s.Hashes[6:]
		if len(extra) > 0 {
			s.Extra = [][]enginehash.Extra{extra, nil}
		}
		return s
	}
	dense := func(group int) *fakeengine.Stored {
		s := p.Stored(0, 8)
		s.Group = group
		return s
	}
	for _, c := range []struct {
		name      string
		events    []fakeengine.Event
		groups    []int
		uncertain []bool
	}{
		{"a dense store alone", []fakeengine.Event{dense(0)}, []int{0}, []bool{false}},
		{"masked ones first", []fakeengine.Event{masked(1), masked(2), dense(0)}, []int{0, 1, 2}, []bool{false, false, false}},
		{"masked ones behind", []fakeengine.Event{dense(0), masked(1), masked(2)}, []int{0, 1, 2}, []bool{false, false, false}},
		{"one of the same group", []fakeengine.Event{masked(1), masked(0), dense(0)}, []int{1, 0, 0}, []bool{false, false, false}},
		{"a removal between", []fakeengine.Event{masked(1), p.Removed(0), dense(0)}, []int{1, 0, 0}, []bool{false, false, false}},
		{"two prompts", []fakeengine.Event{masked(1), dense(0), masked(1), dense(0)}, []int{0, 0, 1, 1}, []bool{false, false, false, false}},
		{"media", []fakeengine.Event{masked(1, enginehash.Text("image")), dense(0)}, []int{0, 1}, []bool{false, true}},
	} {
		_, changes := changesOf(t, engine.Profile{}, fakeengine.Payload(1, 0, c.events...))
		var groups []int
		var uncertain []bool
		for _, ch := range changes {
			groups, uncertain = append(groups, ch.Group.ID), append(uncertain, ch.UncertainLocals)
		}
		if !slices.Equal(groups, c.groups) || !slices.Equal(uncertain, c.uncertain) {
			t.Errorf("%s: groups %v, uncertain %v", c.name, groups, uncertain)
		}
	}
	var many []fakeengine.Event // a dense store serves at most as many groups as a request has
	for range 20 {
		many = append(many, masked(1))
	}
	if _, changes := changesOf(t, engine.Profile{}, fakeengine.Payload(1, 0, append(many, dense(0))...)); changes[12].Group.ID != 0 {
		t.Errorf("%+v", changes)
	}
}

// A store has exactly the keys that the read path makes of its prompt.
func TestStoresHaveKeysOfPrompts(t *testing.T) {
	tokens := fakeengine.NewPrompt(1, 16, 4).Tokens
	media := func(block int, offset int64) events.ExtraKey {
		return events.ExtraKey{Block: block, Kind: events.ExtraMedia, Text: "cat", Int: offset}
	}
	text := func(block int, of string) events.ExtraKey {
		return events.ExtraKey{Block: block, Kind: events.ExtraText, Text: of}
	}
	of := func(extras ...hashing.Extra) []hashing.Extra { return extras }
	bare, pad := engine.Profile{Media: hashing.FormBare}, engine.Profile{Media: hashing.FormPad}
	for _, c := range []struct {
		name          string
		profile       engine.Profile
		change        func(e *events.Event)
		adapter, salt string
		extras        []hashing.Extra
		unscored      uint64
		other         bool // no prompt has these keys
	}{
		{name: "plain", change: func(*events.Event) {}},
		{name: "an adapter", change: func(e *events.Event) { e.Adapter = "x" }, adapter: "x"},
		{name: "its number", profile: engine.Profile{Adapters: map[string]string{"7": "x"}}, change: func(e *events.Event) { e.Adapter = "7" }, adapter: "x"},
		{name: "a salt of its own field", change: func(e *events.Event) { e.Salt = "pepper" }, salt: "pepper"},
		{name: "a salt", change: func(e *events.Event) { e.Extra = []events.ExtraKey{text(0, "pepper")} }, salt: "pepper"},
		{name: "an adapter and a salt", change: func(e *events.Event) {
			e.Adapter, e.Extra = "x", []events.ExtraKey{text(0, "x"), text(0, "pepper"), text(1, "x"), text(2, "x")}
		}, adapter: "x", salt: "pepper"},
		{name: "a salt with the adapter's name", change: func(e *events.Event) { e.Adapter, e.Extra = "x", []events.ExtraKey{text(0, "x"), text(0, "x")} }, adapter: "x", salt: "x"},
		{name: "a text before a salt", change: func(e *events.Event) { e.Extra = []events.ExtraKey{text(0, "odd"), text(0, "pepper")} }, salt: "pepper", unscored: 1, extras: of(hashing.BareAt("odd", 0))},
		{name: "media", change: func(e *events.Event) { e.Extra = []events.ExtraKey{media(1, 5), media(2, -11)} }, extras: of(hashing.MediaAt("cat", 21, 16))},
		{name: "media in another order", change: func(e *events.Event) { e.Extra = []events.ExtraKey{media(2, 3), media(1, 5), media(2, 7)} },
			extras: of(hashing.MediaAt("cat", 21, 16), hashing.MediaAt("cat", 35, 16), hashing.MediaAt("cat", 39, 16))},
		{name: "media before a salt", change: func(e *events.Event) { e.Extra = []events.ExtraKey{media(0, 5), text(0, "pepper")} }, salt: "pepper", extras: of(hashing.MediaAt("cat", 5, 16))},
		{name: "media behind their block", change: func(e *events.Event) { e.Extra = []events.ExtraKey{media(1, 99)} }, unscored: 1, other: true},
		{name: "bare media", profile: bare, change: func(e *events.Event) { e.Extra = []events.ExtraKey{text(1, "cat")} }, extras: of(hashing.BareAt("cat", 1))},
		{name: "bare media in the first block", profile: bare, change: func(e *events.Event) { e.Extra = []events.ExtraKey{text(0, "cat")} }, extras: of(hashing.BareAt("cat", 0))},
		{name: "bare media of an engine with offsets", change: func(e *events.Event) { e.Extra = []events.ExtraKey{text(1, "cat")} }, unscored: 1, extras: of(hashing.BareAt("cat", 1))},
		{name: "media of an engine that pads", profile: pad, change: func(e *events.Event) { e.Extra = []events.ExtraKey{media(1, 5)} }, unscored: 1, extras: of(hashing.MediaAt("cat", 21, 16))},
		{name: "embeddings", change: func(e *events.Event) {
			e.Extra = []events.ExtraKey{{Block: 1, Kind: events.ExtraBytes, Text: "embeddings"}}
		}, unscored: 1, other: true},
		{name: "a number", change: func(e *events.Event) { e.Extra = []events.ExtraKey{{Block: 1, Kind: events.ExtraInt, Int: 7}} }, unscored: 1, other: true},
		{name: "the number of the adapter", change: func(e *events.Event) {
			e.Adapter, e.Extra = "7", []events.ExtraKey{{Block: 0, Kind: events.ExtraInt, Int: 7}}
		}, adapter: "7"},
	} {
		v, _ := engine.VariantOf(16, false, c.profile.Media)
		e := store(tokens, 16)
		c.change(&e)
		of := converter(c.profile)
		got := convert(of, e)[0]
		root := hasher.Root(hashing.Scope{Model: "m", Adapter: c.adapter, Salt: c.salt}, v)
		locals := hasher.Of(c.adapter).Locals(nil, tokens, 16, c.extras)
		if got.Root != root || slices.Equal(got.Locals, locals) == c.other || of.Skipped.Unscored != c.unscored || got.Variant != v || got.BlockSize != 16 || got.UncertainLocals {
			t.Errorf("%s: root %x, want %x, locals %x, want %x, %+v", c.name, got.Root, root, got.Locals, locals, of.Skipped)
		}
		if plain := hasher.Of(c.adapter).Locals(nil, tokens, 16, nil); (c.extras == nil && !c.other) != slices.Equal(got.Locals, plain) {
			t.Errorf("%s: locals %x, without media %x", c.name, got.Locals, plain)
		}
	}
	// A store behind another has no root. Pairs are as wide as two tokens.
	e := store(tokens, 16)
	e.HasParent, e.Parent, e.Pairs, e.Reused = true, 5, true, true
	e.Hashes = e.Hashes[:2]
	got := convert(converter(pad), e)[0]
	if want := hasher.Locals(nil, tokens, 32, nil); got.Root != 0 || !got.HasParent || got.Parent != 5 || !got.Reused || !got.Variant.Pairs || !slices.Equal(got.Locals, want) {
		t.Errorf("%+v, want locals %x", got, want)
	}
}

// There are few variants for a prompt, whatever the block sizes of a pod. Blocks of other sizes are
// known by hash alone, and do not affect the rest of their batch.
func TestBlockSizes(t *testing.T) {
	for _, c := range []struct {
		size  int
		pairs bool
		media uint8
		ok    bool
		unit  int
	}{
		{16, false, hashing.FormOffsets, true, 16}, {1, false, hashing.FormOffsets, true, 1}, {528, false, hashing.FormOffsets, true, 16}, {24, true, hashing.FormPad, true, 8},
		{index.MaxBlockUnits, false, hashing.FormOffsets, true, 16}, {16 * index.MaxBlockUnits, false, hashing.FormOffsets, true, 16},
		{16*index.MaxBlockUnits + 16, false, hashing.FormOffsets, false, 16}, {index.MaxBlockUnits + 1, false, hashing.FormOffsets, false, 1},
		{64, false, hashing.FormBare, true, 16}, {256, false, hashing.FormBare, true, 16}, {512, false, hashing.FormBare, false, 16}, {48, false, hashing.FormBare, false, 16},
		{16, true, hashing.FormBare, false, 16},
	} {
		v, ok := engine.VariantOf(c.size, c.pairs, c.media)
		if ok != c.ok || v.Unit != c.unit || v.Pairs != c.pairs || v.Media != c.media || (v.Block == c.size) != (c.media == hashing.FormBare) {
			t.Errorf("%+v: %+v, %v", c, v, ok)
		}
		tokens := c.size
		if c.pairs {
			tokens *= 2
		}
		e := events.Event{Kind: events.Stored, Hashes: []uint64{1}, Tokens: make([]uint32, tokens), BlockSize: c.size, Pairs: c.pairs, HasExtra: true}
		of := converter(engine.Profile{Media: c.media})
		got := convert(of, e, store(make([]uint32, 32), 16))
		if (len(got[0].Locals) == c.size/c.unit) != c.ok || (of.Skipped.Unscored == 0) != c.ok || len(got[0].Hashes) != 1 || len(got[1].Locals) != 2 {
			t.Errorf("%+v: %d locals, %+v", c, len(got[0].Locals), of.Skipped)
		}
	}
}

// Draft of one of two equal groups counts for both if one batch has both.
func TestEqualGroupsShareDraft(t *testing.T) {
	p := fakeengine.NewPrompt(1, 16, 16)
	masked := func(group, window int) *fakeengine.Stored {
		s := p.Stored(0, 12)
		s.Group, s.Kind, s.Window, s.Hashes = group, "sliding_window", window, s.Hashes[6:9]
		return s
	}
	profile := engine.Profile{Draft: engine.DraftLayers, Groups: []index.Group{{ID: 1, Kind: index.GroupWindow, Draft: true}}}
	for _, c := range []struct {
		name     string
		payloads [][]byte
		drafts   []int // groups
	}{
		{"equal", [][]byte{fakeengine.Payload(1, 0, masked(1, 32), masked(2, 32))}, []int{1, 2}},
		{"the one with Draft is the last", [][]byte{fakeengine.Payload(1, 0, masked(2, 32), masked(1, 32))}, []int{1, 2}},
		{"another window", [][]byte{fakeengine.Payload(1, 0, masked(1, 32), masked(2, 48))}, []int{1}},
		{"another engine's", [][]byte{fakeengine.Payload(1, 0, masked(1, 32)), fakeengine.Payload(2, 0, masked(2, 32))}, nil},
	} {
		_, changes := changesOf(t, profile, c.payloads...)
		var drafts []int
		for _, ch := range changes {
			if ch.Group.Draft {
				drafts = append(drafts, ch.Group.ID)
			}
		}
		if slices.Sort(drafts); !slices.Equal(drafts, c.drafts) {
			t.Errorf("%s: %v, want %v", c.name, drafts, c.drafts)
		}
	}
}

// Unrecognized names are kept since the last clear, up to a bound.
func TestUnknown(t *testing.T) {
	odd := func(medium string) events.Event {
		e := store(make([]uint32, 16), 16)
		e.Medium = medium
		return e
	}
	c := converter(engine.Profile{})
	convert(c, odd("a"), events.Event{Kind: events.Removed, Medium: "a"}, events.Event{Kind: events.Cleared}, odd("b"), odd("b"))
	if want := []string{`medium "b"`}; !slices.Equal(c.Unrecognized, want) || c.MayRemove {
		t.Errorf("%q, %v, want %q", c.Unrecognized, c.MayRemove, want)
	}
	var many []events.Event
	for i := range 20 {
		many = append(many, odd(fmt.Sprint(i)))
	}
	if convert(c, many...); len(c.Unrecognized) != engine.MaxUnrecognized {
		t.Errorf("%q", c.Unrecognized)
	}
	far := store(make([]uint32, 16), 16)
	far.Group = index.MaxGroups
	if got := convert(c, far); len(got) != 0 || c.Skipped.Unscored != 1 {
		t.Errorf("a group that no index has: %+v, %+v", got, c.Skipped)
	}
	kind := store(make([]uint32, 16), 16)
	kind.GroupKind = "new"
	if got := convert(c, kind); got[0].Group.Kind != index.GroupOther || !slices.Equal(c.Unrecognized, []string{`kv_cache_spec_kind "new"`}) {
		t.Errorf("%+v, %q", got, c.Unrecognized)
	}
}

// The last scopes are kept for explanations, and in snapshots.
func TestRecent(t *testing.T) {
	c := converter(engine.Profile{})
	var want []index.Key
	for i := range 100 {
		e := store(make([]uint32, 16), 16)
		e.Salt, e.Extra = fmt.Sprint("salt", i), []events.ExtraKey{{Kind: events.ExtraMedia, Text: fmt.Sprint("image", i), Int: 3}}
		behind := e
		behind.Tokens = make([]uint32, 32)
		behind.Extra = []events.ExtraKey{{Block: 1, Kind: events.ExtraMedia, Text: fmt.Sprint("image", i), Int: 3}}
		convert(c, e, behind)
		want = append(want, hasher.Root(hashing.Scope{Model: "m", Salt: e.Salt}, index.Variant{Unit: 16}))
	}
	roots := func(r *engine.Recent) (got []index.Key) {
		for _, s := range r.Salted.Values {
			got = append(got, s.Root)
		}
		slices.Sort(got)
		return got
	}
	want = slices.Sorted(slices.Values(want[100-64:]))
	if got := roots(c.Recent); !slices.Equal(got, want) || len(c.Recent.Extras.Values) != 64 {
		t.Fatalf("%d salts, %d media", len(got), len(c.Recent.Extras.Values))
	}
	b := c.Recent.Append(nil)
	var read engine.Recent
	f := sections.NewFields(b)
	if read.Read(f); f.End() != nil || !slices.Equal(read.Append(nil), b) || !slices.Equal(roots(&read), want) {
		t.Errorf("read again: %d salts, %v", len(read.Salted.Values), f.End())
	}
	clone := c.Recent.Clone()
	e := store(make([]uint32, 16), 16)
	e.Salt = "another"
	if convert(c, e); !slices.Equal(roots(&clone), want) || slices.Equal(roots(c.Recent), want) {
		t.Error("a clone changes")
	}
	of := converter(engine.Profile{})
	of.Recent = &read // drops the oldest here too
	if convert(of, e); !slices.Equal(roots(&read), roots(c.Recent)) {
		t.Error("what was read has another order")
	}
}

// Groups are learned from stores in the GPU, and are decoded as they were encoded.
func TestLearn(t *testing.T) {
	e := func(group, size int, kind, medium string) *events.Event {
		return &events.Event{Kind: events.Stored, Group: group, BlockSize: size, GroupKind: kind, Medium: medium, Window: 9}
	}
	var groups []stats.Group
	for _, of := range []*events.Event{
		e(0, 16, "", ""), e(1, 32, "sliding_window", "GPU"), e(1, 64, "sliding_window", "CPU"), e(2, 16, "mamba", "CPU"), e(3, 0, "mamba", ""),
		e(index.MaxGroups, 16, "", ""), e(0, 48, "", ""), e(4, 16, "", ""), {Kind: events.Stored, Group: 5, BlockSize: 16, Locality: "REMOTE"},
	} {
		groups = engine.Learn(groups, of)
	}
	want := []stats.Group{
		{Group: index.Group{Window: 9}, BlockSize: 48}, {Group: index.Group{ID: 1, Kind: index.GroupWindow, Window: 9}, BlockSize: 32},
		{Group: index.Group{ID: 4, Kind: index.GroupOther}, BlockSize: 16}, // from an engine without kinds
	}
	if !slices.Equal(groups, want) {
		t.Errorf("%+v, want %+v", groups, want)
	}
	f := sections.NewFields(engine.AppendGroups(nil, groups))
	if got, err := engine.ReadGroups(f), f.End(); err != nil || !slices.Equal(got, groups) {
		t.Errorf("read again: %+v, %v", got, err)
	}
	form := engine.Form{Groups: []stats.Group{groups[1], groups[0]}}
	v := form.View(&engine.Profile{Groups: []index.Group{{ID: 1, Kind: index.GroupMamba}}})
	if v.BlockSize != 48 || v.Group.ID != 0 || len(v.Groups) != 2 || v.Groups[0].ID != 0 || v.Groups[1].Kind != index.GroupMamba || v.Groups[1].Window != 9 {
		t.Errorf("%+v", v)
	}
	if none := (engine.Form{}); none.View(&engine.Profile{}) != nil || none.Equal(&form) || !form.Equal(&engine.Form{Groups: slices.Clone(form.Groups)}) {
		t.Error("forms")
	}
}

// TestReadGroups: groups that no engine can report are refused.
func TestReadGroups(t *testing.T) {
	last := stats.Group{Group: index.Group{ID: index.MaxGroups - 1, Kind: index.GroupOther, Window: math.MaxInt32}, BlockSize: math.MaxInt32}
	large := math.MaxInt32
	large++ // on 32 bits it is negative
	for name, c := range map[string]struct {
		groups []stats.Group
		ok     bool
	}{
		"the last":       {[]stats.Group{last}, true},
		"two":            {[]stats.Group{last, {BlockSize: 1}}, true},
		"beyond":         {[]stats.Group{{Group: index.Group{ID: index.MaxGroups}, BlockSize: 1}}, false},
		"another kind":   {[]stats.Group{{Group: index.Group{Kind: index.GroupOther + 1}, BlockSize: 1}}, false},
		"no block size":  {[]stats.Group{{}}, false},
		"a large block":  {[]stats.Group{{BlockSize: large}}, false},
		"a large window": {[]stats.Group{{Group: index.Group{Window: large}, BlockSize: 1}}, false},
		"twice":          {[]stats.Group{last, last}, false},
	} {
		f := sections.NewFields(engine.AppendGroups(nil, c.groups))
		if got := engine.ReadGroups(f); (f.End() == nil) != c.ok || c.ok && !slices.Equal(got, c.groups) {
			t.Errorf("%s: %+v, %v", name, got, f.End())
		}
	}
}

// The Grain divides the sizes of blocks stored in the GPU.
func TestCheckGrain(t *testing.T) {
	for _, c := range []struct {
		grain  int
		kind   events.Kind
		medium string
		size   int
		ok     bool
	}{
		{0, events.Stored, "", 24, true}, {16, events.Stored, "", 48, true}, {16, events.Stored, "gpu", 24, false},
		{16, events.Stored, "CPU", 24, true}, {16, events.Removed, "", 24, true},
	} {
		p := engine.Profile{Grain: c.grain}
		if err := p.CheckGrain(&events.Batch{Events: []events.Event{{Kind: c.kind, Medium: c.medium, BlockSize: c.size}}}); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestGroupsUntold: an event of a lower tier without a group applies to each group of the rank.
func TestGroupsUntold(t *testing.T) {
	gpu := store(make([]uint32, 32), 16)
	window := gpu
	gpu.HasGroup, window.HasGroup, window.Group, window.GroupKind, window.Window = true, true, 1, "sliding_window", 64
	cpu := events.Event{Kind: events.Stored, Hashes: []uint64{100}, Medium: "CPU"}
	gone := events.Event{Kind: events.Removed, Hashes: []uint64{100}, Medium: "CPU"}
	told := cpu
	told.HasGroup = true
	known := []stats.Group{{Group: index.Group{ID: 0}}, {Group: index.Group{ID: 2, Kind: index.GroupMamba}}}
	for name, c := range map[string]struct {
		known  []stats.Group
		events []events.Event
		want   string
	}{
		"one group":              {nil, []events.Event{gpu, cpu, gone}, "1 gpu 0, 1 cpu 0 unique, 2 cpu 0"},
		"groups of the batch":    {nil, []events.Event{cpu, gpu, window, gone}, "1 cpu 0, 1 cpu 1, 1 gpu 0, 1 gpu 1, 2 cpu 0, 2 cpu 1"},
		"groups of earlier ones": {known, []events.Event{cpu}, "1 cpu 0, 1 cpu 2"},
		"a group that is told":   {known, []events.Event{told}, "1 cpu 0 unique"},
		"an event about the gpu": {known, []events.Event{{Kind: events.Removed, Hashes: []uint64{100}}}, "2 gpu 0"},
		"a group without a flag": {known, []events.Event{{Kind: events.Removed, Hashes: []uint64{100}, Medium: "CPU", Group: 2}}, "2 cpu 2"},
	} {
		cv := converter(engine.Profile{Copies: index.CopiesExact, ClearsGPU: true})
		cv.Groups = c.known
		var got []string
		for _, ch := range convert(cv, c.events...) {
			text := fmt.Sprintf("%d %s %d", ch.Op, []string{"gpu", "cpu"}[ch.Tier], ch.Group.ID)
			if ch.Unique {
				text += " unique"
			}
			got = append(got, text)
		}
		if got := strings.Join(got, ", "); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
	// Excess contents are dropped, and claim nothing.
	cv := converter(engine.Profile{Copies: index.CopiesExact})
	cv.Groups = known
	changes := convert(cv, slices.Repeat([]events.Event{gone}, 1<<16)...)
	if last := changes[len(changes)-1]; len(changes) > 1<<16+1<<15 || last.Op != index.OpClearTier || last.Tier != index.TierCPU {
		t.Errorf("%d changes, the last %+v", len(changes), last)
	}
}
