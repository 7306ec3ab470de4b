package index_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
)

// smallest returns a Memory of the smallest budget.
func smallest(t *testing.T) inmemory.Memory {
	t.Helper()
	m, err := inmemory.New(index.MemoryConfig{Bytes: index.MinMemory})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func within(t *testing.T, m inmemory.Memory) {
	t.Helper()
	if u := m.MemoryUsage(); u.Total > u.Budget {
		t.Fatalf("%d bytes are taken of %d", u.Total, u.Budget)
	}
}

func TestABudgetThatIsTooSmall(t *testing.T) {
	if _, err := inmemory.New(index.MemoryConfig{Bytes: index.MinMemory - 1}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(index.MinMemory)) {
		t.Errorf("%v does not name the least budget", err)
	}
}

// Sources without blocks fill the budget. The next one is an error until a pod is removed; the
// others continue.
func TestSourcesFillTheBudget(t *testing.T) {
	m := smallest(t)
	apply(t, m, podA, blocksFrom(1, 20_000))
	var err error
	n := 0
	for ; err == nil; n++ {
		_, err = m.Apply(bounded, index.Source{Pod: fmt.Sprint("pod-", n), Model: "m"}, index.Cursor{}, nil)
		within(t, m)
	}
	t.Logf("%d sources: %v; %+v", n, err, m.MemoryUsage())
	if !errors.Is(err, index.ErrFull) || !strings.Contains(err.Error(), fmt.Sprintf("pod-%d", n-1)) || !strings.Contains(err.Error(), fmt.Sprint(index.MinMemory)) || n < 100 {
		t.Errorf("after %d sources: %v", n, err)
	}
	apply(t, m, podA, blocksFrom(2, 1000))
	within(t, m)
	for i := range 20 {
		must(t, m.Remove(bounded, fmt.Sprint("pod-", i)))
	}
	if _, err := m.Apply(bounded, podB, index.Cursor{}, nil); err != nil {
		t.Errorf("there is room: %v", err)
	}
	within(t, m)
}

// A source may have streams while there is room. The next one is an error that applies nothing.
func TestStreamsFillTheBudget(t *testing.T) {
	m := smallest(t)
	c := blocksFrom(1, 4)
	apply(t, m, podA, c)
	var err error
	n := 0
	for ; err == nil && n < 100_000; n++ {
		_, err = m.Apply(bounded, podA, index.Cursor{Stream: fmt.Sprintf("tcp://10.0.0.1:5557/%d", n), Next: 1}, nil)
		within(t, m)
	}
	t.Logf("%d streams: %v", n, err)
	if !errors.Is(err, index.ErrFull) || !strings.Contains(err.Error(), fmt.Sprintf(`"tcp://10.0.0.1:5557/%d"`, n-1)) || !strings.Contains(err.Error(), `"a"`) || n < 1000 {
		t.Fatalf("after %d streams: %v", n, err)
	}
	cur := index.Cursor{Stream: "another", Next: 1}
	if _, err := m.Apply(bounded, podA, cur, []index.Change{{Op: index.OpClear}}); !errors.Is(err, index.ErrFull) {
		t.Error(err)
	}
	if got, err := m.Cursor(bounded, podA, "another"); got != (index.Cursor{}) || err != nil || m.MemoryUsage().Memberships == 0 {
		t.Errorf("%+v, %v, %+v: a part was applied", got, err, m.MemoryUsage())
	}
	if _, err := m.Apply(bounded, podA, index.Cursor{Stream: "tcp://10.0.0.1:5557/7", Next: 2}, nil); err != nil {
		t.Error(err)
	}
}

// The name of a pod needs room like everything else.
func TestANameThatFillsTheBudget(t *testing.T) {
	m := smallest(t)
	if _, err := m.Apply(bounded, index.Source{Pod: strings.Repeat("x", index.MinMemory), Model: "m"}, index.Cursor{}, nil); !errors.Is(err, index.ErrFull) {
		t.Error("a pod with a name of the whole budget is there")
	}
	within(t, m)
}

// A dropped store drops its hashes, and all affected rows report it.
func TestADroppedStoreIsSaid(t *testing.T) {
	m := smallest(t)
	kept, cold := blocksFrom(1, 8), blocksFrom(2, 100)
	cold.Group.ID = 2
	apply(t, m, podA, kept, cold)
	row := func() (found index.Row) {
		var out index.Matches
		q := index.Query{Candidates: index.NewCandidates("m", []string{"a"}), Keys: func(index.Variant) (keys []index.Key, _ error) {
			key := kept.Root
			for _, l := range kept.Locals {
				key = index.Chain(key, l)
				keys = append(keys, key)
			}
			return keys, nil
		}}
		must(t, m.Match(bounded, &q, &out))
		for _, r := range out.Rows {
			if r.Group.ID == 0 {
				found = r
			}
		}
		return found
	}
	evicted := func() uint64 {
		for _, info := range m.Describe(nil) {
			if info.Source == podA {
				return info.Evicted
			}
		}
		return 0
	}
	for n := index.Key(10); evicted() < 100; n++ {
		if apply(t, m, podB, blocksFrom(n, 512)); row().Run != 8 || n > 1000 {
			t.Fatalf("%+v, %d blocks were evicted", row(), evicted())
		}
	}
	if row().Evicted {
		t.Fatal("the group has lost nothing yet")
	}
	c := blocksFrom(1, 8) // after an evicted parent
	c.Group.ID, c.HasParent, c.Parent = 1, true, cold.Hashes[50]
	c.Hashes, c.Locals = c.Hashes[5:], c.Locals[5:]
	if n := apply(t, m, podA, c); n.Dropped != 1 {
		t.Fatalf("counts %+v", n)
	}
	if r := row(); r.Run != 5 || !r.Evicted {
		t.Errorf("%+v", r)
	}
	if n := evicted(); n != 100+3+3 {
		t.Errorf("%d blocks are evicted, want those of the cold chain, 3 that were held and 3 that were not", n)
	}
}

// An Apply far above the budget drops and counts the excess, and lets other writers in meanwhile.
func TestALargeApply(t *testing.T) {
	m := smallest(t)
	const blocks, stores = 10_000, 50
	apply(t, m, podB, blocksFrom(1, 1))
	c := blocksFrom(2, blocks)
	changes := make([]index.Change, stores)
	for i := range changes {
		changes[i] = c
		changes[i].Root += index.Key(i)
	}
	done := make(chan index.Counts)
	go func() {
		var all index.Counts
		applied, err := m.Apply(context.Background(), podA, index.Cursor{}, changes)
		if err != nil {
			t.Error(err)
		}
		all.Add(applied.Counts)
		done <- all
	}()
	turns := 0
	for {
		select {
		case counts := <-done:
			t.Logf("%d turns of another writer; %+v; %+v", turns, counts, m.MemoryUsage())
			if within(t, m); turns < 3 || counts.Stored != uint64(blocks*stores) {
				t.Errorf("another writer had %d turns; %+v", turns, counts)
			}
			return
		default:
			apply(t, m, podB, blocksFrom(index.Key(1<<30+turns), 1))
			turns++
		}
	}
}
