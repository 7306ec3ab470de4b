package index

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
)

// sectionsOf returns the snapshot of an index.
func sectionsOf(tb testing.TB, m *Memory) (sections [][]byte) {
	tb.Helper()
	err := m.Snapshot(context.Background(), func(section []byte) error {
		sections = append(sections, slices.Clone(section))
		return nil
	}, func(_ string, last func() error) error { return last() })
	if err != nil {
		tb.Fatal(err)
	}
	return sections
}

// reader returns a read for Restore.
func reader(sections [][]byte) func() ([]byte, error) {
	return func() ([]byte, error) {
		if len(sections) == 0 {
			return nil, io.EOF
		}
		s := sections[0]
		sections = sections[1:]
		return s, nil
	}
}

// restored returns what sections hold.
func restored(tb testing.TB, cfg MemoryConfig, sections [][]byte) *Memory {
	tb.Helper()
	m, err := NewMemory(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	if err := m.Restore(context.Background(), reader(sections)); err != nil {
		tb.Fatal(err)
	}
	return m
}

// TestSnapshotGoesOn has hashes, parents and keys drawn at random, as TestInvariants,
// and goes on with an index and its copy.
func TestSnapshotGoesOn(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 20
	}
	var parked, unplaced, blocks int
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 7))
		cfg := MemoryConfig{PendingBytes: 8 << 10, IdleNames: 64, Seed: [16]byte{1}}
		clears := seed%3 > 0
		if !clears { // a clear makes names idle in any order
			cfg.IdleNames = 1 + r.IntN(20)
		}
		m, err := NewMemory(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var srcs []Source
		for pod := range 1 + r.IntN(4) {
			srcs = append(srcs, Source{Pod: fmt.Sprint(pod / 2), Model: "m", Rank: pod % 2})
		}
		var copied *Memory
		for step := range 1000 {
			src := srcs[min(r.IntN(2*len(srcs)), len(srcs)-1)]
			if step == r.IntN(1000) || step == 500 {
				copied = restored(t, cfg, sectionsOf(t, m))
				if err := copied.check(); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, step, err)
				}
				for _, s := range m.Describe(nil) {
					parked, unplaced, blocks = parked+s.Parked, unplaced+s.Unplaced, blocks+s.Blocks[0]
				}
			}
			cur := Cursor{Stream: fmt.Sprint(r.IntN(3)), Epoch: 1, Next: uint64(step), Time: float64(step), Digest: uint64(step)}
			c := randomChange(r)
			for !clears && (c.Op == OpClear || c.Op == OpClearTier) {
				c = randomChange(r)
			}
			remove := r.IntN(80) == 0
			var all [2]Applied
			for i, of := range []*Memory{m, copied} {
				if of == nil {
					continue
				}
				done, err := of.Apply(context.Background(), src, cur, []Change{c})
				if err != nil {
					t.Fatalf("%+v: %v", c, err)
				}
				all[i] = done
				if remove {
					if err := of.Remove(context.Background(), src.Pod); err != nil {
						t.Fatal(err)
					}
				}
			}
			if copied == nil {
				continue
			}
			if all[0] != all[1] {
				t.Fatalf("seed %d, step %d: %+v of %v does %+v, and in the copy %+v", seed, step, c, src, all[0], all[1])
			}
			if diff := different(m, copied, r); diff != "" {
				t.Fatalf("seed %d, step %d, after %+v of %v: %s", seed, step, c, src, diff)
			}
			if step%50 == 0 {
				if err := copied.check(); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, step, err)
				}
			}
		}
	}
	t.Logf("%d stores parked, %d names unplaced, %d blocks in snapshots", parked, unplaced, blocks)
}

// different says what two indexes say differently.
func different(a, b *Memory, r *rand.Rand) string {
	describe := func(m *Memory) (all []SourceInfo) {
		all = m.Describe(nil)
		for i := range all {
			all[i].Bytes = 0
		}
		slices.SortFunc(all, func(a, b SourceInfo) int { return compareSources(a.Source, b.Source) })
		return all
	}
	if a, b := describe(a), describe(b); !slices.Equal(a, b) {
		return fmt.Sprintf("described as\n%+v, and in the copy\n%+v", a, b)
	}
	locals := make([]Local, 24)
	for i := range locals {
		locals[i] = Local(r.IntN(2))
	}
	root := r.IntN(2)
	answer := func(m *Memory) string {
		var got Matches
		err := m.Match(context.Background(), &Query{
			Candidates: NewCandidates("m", nil), Held: true,
			Keys: func(v Variant) (keys []Key, err error) {
				k := randomRoot(root, v)
				for _, l := range locals {
					k = Chain(k, l)
					keys = append(keys, k)
				}
				return keys, nil
			},
		}, &got)
		if err != nil {
			return err.Error()
		}
		var rows []string
		for i := range got.Rows {
			row := &got.Rows[i]
			var held [NumTiers][]uint64
			if row.Held != nil {
				held = *row.Held
			}
			rows = append(rows, fmt.Sprint(row.Source, row.Group, row.BlockSize, row.Layout.Groups, row.Run, row.GPU, row.Tiers, row.Last, row.Evicted, held))
		}
		slices.Sort(rows)
		return fmt.Sprint(rows)
	}
	if a, b := answer(a), answer(b); a != b {
		return fmt.Sprintf("%v has the rows\n%s, and in the copy\n%s", locals, a, b)
	}
	return ""
}
