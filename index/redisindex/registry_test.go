package redisindex

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvindex/kvindex/index"
)

// newReader returns an Index that can only read registries.
func newReader() *redisIndex {
	ix := &redisIndex{seed: [16]byte{1}}
	ix.mark = bytesOf(fingerprint(ix.seed))
	return ix
}

// rowOf returns the row of a source with a full group and lanes of these numbers.
func rowOf(writer uint64, numbers ...uint32) string {
	of := &row{layout: &index.Layout{Groups: []index.GroupLayout{{BlockSize: 16, Grain: 16}}}}
	for i, n := range numbers {
		of.lanes = append(of.lanes, lane{number: n, tier: index.Tier(i % index.NumTiers), variant: index.Variant{Unit: 16}, size: 16})
	}
	return string(appendRow(nil, writer, sourceOfRow(of)))
}

// meaning returns the holder of a writer's number.
func (r *registry) meaning(writer uint64, number uint32) string {
	of := r.numbers[writer]
	if of == nil {
		return "nobody"
	}
	at := of.find(number)
	if at <= 0 {
		return "nobody"
	}
	l := r.lanes[at-1]
	return fmt.Sprintf("%s in %v", r.views[l.place].Source.Pod, l.tier)
}

// Invalid rows are left out and counted.
func TestRegistryGarbage(t *testing.T) {
	ix := newReader()
	r, err := ix.read("m", map[string]string{
		versionField: ix.mark + "1",
		"s0 b":       rowOf(1, 5),
		"s1 a":       rowOf(2, 5, 6),
		"s0 a":       rowOf(1, 7),
		"s0 c":       "",
		"s0 d":       rowOf(1, 8)[:20],
		"s0 e":       "garbage, and more of it than a row has in front",
		"s01 a":      rowOf(1, 9),
		"x":          rowOf(1, 10),
	}, nil)
	must(t, err)
	var got []string
	for _, l := range r.sources {
		got = append(got, fieldOf(l.Source))
	}
	if want := []string{"s0 a", "s1 a", "s0 b"}; !slices.Equal(got, want) {
		t.Errorf("sources %q, want %q", got, want)
	}
	if n := ix.Unreadable(); n != 5 {
		t.Errorf("%d rows are unreadable, want 5", n)
	}
	for _, c := range []struct {
		writer uint64
		number uint32
		want   string
	}{
		{1, 5, "b in gpu"}, {1, 7, "a in gpu"}, {2, 5, "a in gpu"}, {2, 6, "a in cpu"},
		{1, 6, "nobody"}, {1, 8, "nobody"}, {1, 9, "nobody"}, {1, 10, "nobody"}, {3, 5, "nobody"},
		{1, 0, "nobody"}, {1, 4, "nobody"}, {1, 1 << 31, "nobody"}, {1, 1<<31 + 5, "nobody"}, {1, 1<<32 - 1, "nobody"},
	} {
		if got := r.meaning(c.writer, c.number); got != c.want {
			t.Errorf("number %d of writer %d is %s, want %s", c.number, c.writer, got, c.want)
		}
	}
}

// A number with two holders is ambiguous, so it has none.
func TestNumbersTwice(t *testing.T) {
	ix := newReader()
	r, err := ix.read("m", map[string]string{
		"s0 a": rowOf(1, 5, 6, 7), "s0 b": rowOf(1, 6, 8), "s0 c": rowOf(1, 6), "s0 d": rowOf(2, 6), "s0 e": rowOf(1, 9, 9),
	}, nil)
	must(t, err)
	for _, c := range []struct {
		number uint32
		want   string
	}{{5, "a in gpu"}, {6, "nobody"}, {7, "a in disk"}, {8, "b in cpu"}, {9, "nobody"}} {
		if got := r.meaning(1, c.number); got != c.want {
			t.Errorf("number %d is %s, want %s", c.number, got, c.want)
		}
	}
	if got := r.meaning(2, 6); got != "d in gpu" {
		t.Errorf("number 6 of another writer is %s", got)
	}
}

// Numbers are found whether they are dense or sparse, and no others are.
func TestNumbersRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	var dense, sparse, found, nobody int
	for i := range 3000 {
		by := make(map[uint32]int32)
		first, room := r.Uint32N(1<<31), uint32(1)<<r.IntN(31)
		for range r.IntN(40) {
			by[first+r.Uint32N(room)] = int32(r.IntN(100)) - 1
		}
		n := newNumbers(by)
		if n.rest != nil {
			sparse++
		} else if dense++; len(n.dense) > 16*40+4096+1 {
			t.Fatalf("%d numbers take %d places", len(by), len(n.dense))
		}
		for number, want := range by {
			if got := n.find(number); got != want {
				t.Fatalf("case %d: number %d is at %d, want %d", i, number, got, want)
			}
			found++
		}
		for range 50 {
			number := first - 5 + r.Uint32N(min(room, 1<<30)+10)
			if r.IntN(3) == 0 {
				number = r.Uint32()
			}
			if got := n.find(number); got != by[number] {
				t.Fatalf("case %d: number %d is at %d, want %d", i, number, got, by[number])
			}
			nobody++
		}
	}
	if t.Logf("%d dense, %d sparse, %d numbers found, %d others", dense, sparse, found, nobody); dense < 500 || sparse < 500 || found < 10_000 {
		t.Error("there are too few of these")
	}
}

// The decoded form of an unchanged row stays, and that of a changed one is replaced.
func TestRegistryKeeps(t *testing.T) {
	ix := newReader()
	rows := map[string]string{versionField: ix.mark + "1", "s0 a": rowOf(1, 5), "s0 b": rowOf(1, 6), "s0 c": rowOf(1, 7)}
	was, err := ix.read("m", rows, nil)
	must(t, err)
	rows[versionField], rows["s0 b"] = ix.mark+"2", rowOf(1, 66)
	delete(rows, "s0 c")
	now, err := ix.read("m", rows, was)
	must(t, err)
	if len(now.sources) != 2 || now.sources[0] != was.sources[0] || now.sources[1] == was.sources[1] || now.version == was.version {
		t.Errorf("of %+v was made %+v", was, now)
	}
	for number, want := range map[uint32]string{5: "a in gpu", 6: "nobody", 66: "b in gpu", 7: "nobody"} {
		if got := now.meaning(1, number); got != want {
			t.Errorf("number %d is %s, want %s", number, got, want)
		}
	}
	if was.meaning(1, 6) != "b in gpu" {
		t.Error("the registry of before has changed")
	}
}

// A registry of another seed is an error; a missing one is not.
func TestRegistrySeed(t *testing.T) {
	ix := newReader()
	for version, want := range map[string]error{"": nil, ix.mark: nil, ix.mark + "more": nil, ix.mark[:7]: ErrSeed, "x": ErrSeed, "another seed's version": ErrSeed} {
		if _, err := ix.read("m", map[string]string{versionField: version, "s0 a": rowOf(1, 5)}, nil); !errors.Is(err, want) {
			t.Errorf("version %q: %v, want %v", version, err, want)
		}
	}
}

// TestUnknownModels: nothing is kept of models without rows.
func TestUnknownModels(t *testing.T) {
	h := newHands(t, 2)
	p := newPrompt(1, 40)
	h[0].apply("a", 1, p.store(1, 0, 40))
	h[0].flush()
	ask := func(model string) int {
		var m index.Matches
		q := &index.Query{Candidates: index.NewCandidates(model, nil), Keys: func(index.Variant) ([]index.Key, error) { return p.keys, nil }}
		must(t, h[1].Match(t.Context(), q, &m))
		return len(m.Rows)
	}
	for i := range 100 {
		ask(fmt.Sprint("model ", i))
	}
	if rows := ask("m"); rows != 1 {
		t.Errorf("%d rows of the model that there is", rows)
	}
	must(t, h[1].client.Close())
	if err := h[1].Match(t.Context(), &index.Query{Candidates: index.NewCandidates("away", nil)}, new(index.Matches)); err == nil {
		t.Error("a closed client has answered")
	}
	kept := 0
	h[1].readers.Range(func(any, any) bool { kept++; return true })
	if kept != 1 {
		t.Errorf("%d models are kept", kept)
	}
}

// A registry may have no rows, and a row no lanes.
func TestRegistryOfNothing(t *testing.T) {
	ix := newReader()
	r, err := ix.read("m", nil, nil)
	if err != nil || len(r.sources)+len(r.views)+len(r.lanes) > 0 || r.version != "" {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err = ix.read("m", map[string]string{"s0 a": rowOf(1)}, nil); err != nil || len(r.sources) != 1 || r.meaning(1, 0) != "nobody" || r.meaning(1, 1<<32-1) != "nobody" {
		t.Errorf("a source without lanes: %+v, %v", r, err)
	}
}
