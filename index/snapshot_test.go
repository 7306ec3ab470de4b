package index

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/internal/trace"
)

// sectionsOf returns the snapshot of an index without other users. then is called after each cut.
func sectionsOf(tb testing.TB, m *memory, then ...func()) (sections [][]byte) {
	tb.Helper()
	free := func(mu *sync.Mutex) {
		if !mu.TryLock() {
			tb.Fatal("a lock is held while a section is written")
		}
		mu.Unlock()
	}
	err := m.Snapshot(context.Background(), func(section []byte) error {
		m.sweepers.Wait() // a removed source is swept before the snapshot
		free(&m.mu)
		free(&m.ground.mu.mu)
		for _, pod := range m.podNames() {
			for _, s := range m.sourcesOf(pod) {
				free(&s.writer)
			}
		}
		sections = append(sections, slices.Clone(section))
		return nil
	}, func(_ string, last func() error) error {
		err := last()
		for _, f := range then {
			f()
		}
		return err
	})
	must(tb, err)
	return sections
}

// reader returns a read function for Restore.
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

// restored returns the index of sections.
func restored(tb testing.TB, cfg MemoryConfig, sections [][]byte) *memory {
	tb.Helper()
	m, err := newMemory(cfg)
	must(tb, err)
	must(tb, m.Restore(context.Background(), reader(sections)))
	return m
}

// TestSnapshotGoesOn draws hashes, parents and keys at random, as TestInvariants does, and compares
// an index with its restored copy.
func TestSnapshotGoesOn(t *testing.T) {
	seeds := uint64(choose(6, 12, 60))
	var parked, unplaced, blocks int
	for seed := range seeds {
		if seed == 0 {
			seed = 216 // inside a snapshot, one of two hidden names of a key is left
		}
		r := rand.New(rand.NewPCG(seed, 7))
		cfg := MemoryConfig{pendingBytes: 8 << 10, idleNames: 64, Seed: [16]byte{1}}
		clears := seed%3 > 0
		if !clears { // a clear orders idle names at random
			cfg.idleNames = 1 + r.IntN(20)
		}
		m, err := newMemory(cfg)
		must(t, err)
		var srcs []Source
		for pod := range 1 + r.IntN(4) {
			srcs = append(srcs, Source{Pod: fmt.Sprint(pod / 2), Model: "m", Rank: pod % 2})
		}
		var copied *memory
		for step := range 1000 {
			src := srcs[min(r.IntN(2*len(srcs)), len(srcs)-1)]
			if step == r.IntN(1000) || step == 500 {
				copied = restored(t, cfg, sectionsOf(t, m))
				if err := copied.check(); err != nil {
					t.Fatalf("seed %d, step %d: %v", seed, step, err)
				}
				if a, b := m.inside(), copied.inside(); a != b {
					t.Fatalf("seed %d, step %d: inside are\n%s, and in the copy\n%s", seed, step, a, b)
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
			remove, one := r.IntN(80) == 0, r.IntN(2) == 0
			var all [2]Effect
			for i, of := range []*memory{m, copied} {
				if of == nil {
					continue
				}
				done, err := of.Apply(context.Background(), src, cur, []Change{c})
				if err != nil {
					t.Fatalf("%+v: %v", c, err)
				}
				all[i] = done
				switch {
				case remove && one:
					err = of.RemoveSource(context.Background(), src)
				case remove:
					err = of.Remove(context.Background(), src.Pod)
				}
				must(t, err)
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

// A snapshot has the state at its cut, whatever happens before the names are written.
func TestSnapshotIsOfItsCut(t *testing.T) {
	seeds := uint64(choose(20, 40, 300))
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 17))
		cfg := MemoryConfig{pendingBytes: 8 << 10, idleNames: 64, Seed: [16]byte{1}}
		m, err := newMemory(cfg)
		must(t, err)
		step := uint64(0)
		apply := func(c Change, of ...*memory) (all []Effect) {
			step++
			src := Source{Pod: "p", Model: "m", Rank: r.IntN(2)}
			for _, m := range of {
				done, err := m.Apply(context.Background(), src, Cursor{Stream: "s", Next: step}, []Change{c})
				must(t, err)
				all = append(all, done)
			}
			return all
		}
		for range 50 + r.IntN(300) {
			apply(randomChange(r), m)
		}
		want := restored(t, cfg, sectionsOf(t, m))
		was := step
		got := restored(t, cfg, sectionsOf(t, m, func() {
			for range r.IntN(60) {
				apply(randomChange(r), m)
			}
			switch r.IntN(4) {
			case 0:
				apply(Change{Op: OpClear}, m)
			case 1:
				apply(Change{Op: OpClearTier}, m)
			case 2:
				must(t, m.Remove(context.Background(), "p"))
				m.sweepers.Wait() // it is swept before the snapshot
			}
		}))
		if err := got.check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		m.sweepers.Wait()
		if err := m.check(); err != nil {
			t.Fatalf("seed %d: what was written: %v", seed, err)
		}
		step = was
		for range 100 {
			if diff := different(want, got, r); diff != "" {
				t.Fatalf("seed %d: %s", seed, diff)
			}
			c := randomChange(r)
			if all := apply(c, want, got); all[0] != all[1] {
				t.Fatalf("seed %d: %+v does %+v, and in the copy %+v", seed, c, all[0], all[1])
			}
		}
	}
}

// different returns the differences of two indexes.
func different(a, b *memory, r *rand.Rand) string { return differentIn(a, b, r, 0) }

func differentIn(a, b *memory, r *rand.Rand, page uint64) string {
	if a, b := a.described(), b.described(); !slices.Equal(a, b) {
		return fmt.Sprintf("described as\n%+v, and in the copy\n%+v", a, b)
	}
	for _, s := range a.Describe(nil) {
		for n := range 4 {
			stream := []string{"s", "0", "1", "2"}[n]
			was, _ := a.Cursor(context.Background(), s.Source, stream)
			if got, err := b.Cursor(context.Background(), s.Source, stream); err != nil || got != was {
				return fmt.Sprintf("%v has the cursor %+v, and in the copy %+v", s.Source, was, got)
			}
		}
	}
	locals := make([]Local, 24)
	for i := range locals {
		locals[i] = Local(r.IntN(2))
	}
	same := rand.NewPCG(r.Uint64(), 1)
	again := *same
	if a, b := a.answer(locals, page, rand.New(same)), b.answer(locals, page, rand.New(&again)); a != b {
		return fmt.Sprintf("%v has the rows\n%s, and in the copy\n%s", locals, a, b)
	}
	return ""
}

// inside shows hidden state: the idle names and the waiting stores in order, and the hidden names
// that share keys.
func (m *memory) inside() (text string) {
	for _, pod := range m.podNames() {
		for _, s := range m.sourcesOf(pod) {
			text += fmt.Sprint(s.id, " idle")
			for i := s.idle.first; i != 0; i = s.idle.at(i).next {
				text += fmt.Sprint(" ", s.idle.at(i).hash, "@", s.idle.at(i).since)
			}
			for h := range Hash(40) {
				var buf [2]loc
				n := s.seen(h)
				for _, l := range n.locs(&buf) {
					if at := s.hidden.names.at(l); at != nil {
						text += fmt.Sprintf(" hidden %d: %d %v", h, at.n, at.many)
					}
				}
				for n := range m.ground.variants {
					for _, p := range s.waits.allFor(variantHash{h, uint32(n)}) {
						text += fmt.Sprintf(" behind %d: %v@%d %v", h, p.hashes, p.since, p.locals)
					}
				}
			}
			text += "\n"
		}
	}
	return text
}

// described is Describe, sorted by source.
func (m *memory) described() (all []SourceInfo) {
	all = m.Describe(nil)
	slices.SortFunc(all, func(a, b SourceInfo) int { return compareSources(a.Source, b.Source) })
	return all
}

// answer shows all answers of m about a prompt.
func (m *memory) answer(locals []Local, page uint64, r *rand.Rand) string {
	var got Matches
	root := r.IntN(2)
	err := m.Match(context.Background(), &Query{
		Candidates: NewCandidates("m", nil), Held: true,
		Keys: func(v Variant) (keys []Key, err error) {
			k := randomRoot(root, v) ^ Key(page)<<20
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
		rows = append(rows, fmt.Sprint(row.Source, row.Group, row.BlockSize, row.Groups, row.Run, row.GPU, row.Tiers, row.Evicted, held))
	}
	slices.Sort(rows)
	return fmt.Sprint(rows)
}

// Anything but a whole snapshot of the same seed is rejected, and the index closed.
func TestRestoreRefuses(t *testing.T) {
	cfg := MemoryConfig{Seed: [16]byte{1}}
	m, err := newMemory(cfg)
	must(t, err)
	defer m.Close()
	c := Change{Op: OpStore, Copies: CopiesExact, Hashes: []Hash{1, 2, 3}, Variant: Variant{Unit: 16}, BlockSize: 16, Locals: make([]Local, 3)}
	other := c
	other.Root, other.Hashes = 1, []Hash{4, 5, 6}
	if _, err := m.Apply(context.Background(), Source{Pod: "p", Model: "m"}, Cursor{Stream: "s", Next: 1}, []Change{c, other}); err != nil {
		t.Fatal(err)
	}
	whole := sectionsOf(t, m)
	if len(whole) != 1 {
		t.Fatalf("%d sections", len(whole))
	}
	restore := func(cfg MemoryConfig, sections ...[]byte) error {
		m, err := newMemory(cfg)
		must(t, err)
		defer m.Close()
		if err = m.Restore(context.Background(), reader(sections)); err == nil {
			return m.check()
		}
		if _, err := m.Cursor(context.Background(), Source{}, ""); !errors.Is(err, ErrClosed) {
			t.Errorf("after a Restore that failed: %v", err)
		}
		return err
	}
	must(t, restore(cfg, whole...))
	if err := restore(MemoryConfig{Seed: [16]byte{2}}, whole...); !errors.Is(err, errRecord) {
		t.Errorf("of another seed: %v", err)
	}
	for n := range len(whole[0]) {
		if err := restore(cfg, whole[0][:n]); !errors.Is(err, errRecord) {
			t.Errorf("cut off at %d of %d: %v", n, len(whole[0]), err)
		}
	}
	// The number of names follows the mark of the end of the source.
	at := bytes.LastIndex(whole[0], []byte{tagDone, 6})
	wrong := slices.Clone(whole[0])
	wrong[at+1] = 4
	if err := restore(cfg, wrong); !errors.Is(err, errRecord) {
		t.Errorf("with another number of names: %v", err)
	}
	record := func(key Key) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(key)) }
	double := bytes.Replace(whole[0], record(Chain(Chain(1, 0), 0)), record(Chain(Chain(0, 0), 0)), 1)
	if err := restore(cfg, double); !errors.Is(err, errRecord) || bytes.Equal(double, whole[0]) {
		t.Errorf("with a key in two places: %v", err)
	}
	shared := slices.Clone(whole[0])
	name := func(h byte) []byte { return []byte{tagPlain, h, 0, 0, 0, 0, 0, 0, 0} }
	shared[bytes.Index(shared, name(2))+9] = shared[bytes.Index(shared, name(1))+9]
	if err := restore(cfg, shared); !errors.Is(err, errRecord) {
		t.Errorf("with two names of a key: %v", err)
	}
	if err := m.Restore(context.Background(), reader(whole)); err == nil || m.check() != nil {
		t.Errorf("into an index that is not empty: %v", err)
	}
}

// The clock of the index has 32 bits. Names and stores may be older than half of that.
func TestRestoreOfWhatIsOld(t *testing.T) {
	cfg := MemoryConfig{Seed: [16]byte{1}}
	m, err := newMemory(cfg)
	must(t, err)
	defer m.Close()
	held := Change{Op: OpStore, Copies: CopiesGuarded, Hashes: []Hash{1}, Variant: Variant{Unit: 16}, BlockSize: 16, Locals: []Local{1}}
	idle, hidden, waits := held, held, held
	idle.Root, idle.Hashes = 1, []Hash{2}
	hidden.Root, hidden.Hashes = 2, []Hash{3}
	waits.HasParent, waits.Parent, waits.Hashes = true, 8, []Hash{9}
	src := Source{Pod: "p", Model: "m"}
	apply := func(changes ...Change) {
		_, err := m.Apply(context.Background(), src, Cursor{}, changes)
		must(t, err)
	}
	apply(held, idle, hidden, hidden, waits, Change{Op: OpRemove, Hashes: []Hash{2, 3}})
	m.ground.forest.SetNow(m.ground.forest.Now() + 3<<30)
	apply(Change{Op: OpRemove, Hashes: []Hash{1}})
	removed := trace.Block[Variant, Key, Local]{Variant: held.Variant, Size: 16, Key: Chain(0, 1)}
	if tr, err := m.Explain(context.Background(), src, removed); err != nil || tr.Gone != trace.GoneRemoved {
		t.Errorf("a block that was removed: %+v, %v", tr, err)
	}
	again := restored(t, cfg, sectionsOf(t, m))
	defer again.Close()
	must(t, again.check())
	if got, want := again.Describe(nil), m.Describe(nil); !slices.Equal(got, want) || Names(again, src) != 4 || want[0].Parked != 1 {
		t.Errorf("%+v\nis the restored form of\n%+v", got, want)
	}
}

// A key of a snapshot was changed. The engine's own store reveals it, as the names of the blocks
// behind that key get a second place: the restored blocks of the source are forgotten and counted.
// Other sources keep theirs, and the next store is whole.
func TestForgedPlace(t *testing.T) {
	cfg := MemoryConfig{Seed: [16]byte{1}}
	m, err := newMemory(cfg)
	must(t, err)
	defer m.Close()
	apply := func(m *memory, pod string, next uint64, c Change) Effect {
		t.Helper()
		done, err := m.Apply(context.Background(), Source{Pod: pod, Model: "m"}, Cursor{Stream: "s", Next: next}, []Change{c})
		must(t, err)
		return done
	}
	locals := []Local{1, 2, 3, 4, 5, 6}
	c := Change{Op: OpStore, Copies: CopiesExact, Variant: Variant{Unit: 16}, BlockSize: 16}
	c.Hashes, c.Locals = []Hash{1, 2, 3, 4, 5, 6}, locals
	other := c
	other.Root, other.Hashes = 1, []Hash{7, 8, 9, 10, 11, 12}
	orphan := c
	orphan.HasParent, orphan.Parent, orphan.Hashes, orphan.Locals = true, 99, []Hash{20}, locals[:1]
	apply(m, "p", 1, c)
	apply(m, "p", 2, other)
	apply(m, "p", 3, orphan)
	apply(m, "q", 1, other)
	second := Chain(Chain(0, 1), 2)
	sections := sectionsOf(t, m)
	from := binary.LittleEndian.AppendUint64(nil, uint64(second))
	if bytes.Count(sections[0], from) != 1 {
		t.Fatal("the snapshot has the key elsewhere")
	}
	sections[0] = bytes.Replace(sections[0], from, binary.LittleEndian.AppendUint64(nil, 77), 1)
	forged, err := newMemory(cfg)
	must(t, err)
	defer forged.Close()
	must(t, forged.Restore(context.Background(), reader(sections)))
	blocks := func(pod string) int {
		info, _ := forged.DescribeSource(Source{Pod: pod, Model: "m"})
		return info.Blocks[TierGPU]
	}
	done := apply(forged, "p", 4, c)
	info, _ := forged.DescribeSource(Source{Pod: "p", Model: "m"})
	if done.Evicted != 12 || done.Counts.Dropped != 1 || Names(forged, info.Source)+info.Parked > 0 || blocks("p") != 0 || blocks("q") != 6 {
		t.Errorf("after the store: %+v, names %+v, %d blocks of the other source", done, info, blocks("q"))
	}
	if err := forged.check(); err != nil {
		t.Error(err)
	}
	apply(forged, "p", 5, c)
	apply(forged, "p", 6, other)
	var keys []Key
	for k, i := Key(0), 0; i < len(locals); i++ {
		k = Chain(k, locals[i])
		keys = append(keys, k)
	}
	var got Matches
	q := Query{Candidates: NewCandidates("m", nil), Keys: func(Variant) ([]Key, error) { return keys, nil }}
	must(t, forged.Match(context.Background(), &q, &got))
	if blocks("p") != 12 || len(got.Rows) != 1 || got.Rows[0].Run != 6 || !got.Rows[0].Evicted {
		t.Errorf("stored again: %d blocks, rows %+v", blocks("p"), got.Rows)
	}
	if err := forged.check(); err != nil {
		t.Error(err)
	}
}

// A smaller budget restores preferably the blocks used last, and counts the rest as evicted. Not
// all of the former: during the restore a chain may end before its used slab.
func TestRestoreIntoLess(t *testing.T) {
	m, err := newMemory(MemoryConfig{Seed: [16]byte{1}})
	must(t, err)
	defer m.Close()
	const chains, blocks = 300, 256
	hash, r := Hash(0), rand.New(rand.NewPCG(5, 6))
	var all []Change
	for range chains {
		c := Change{Op: OpStore, Copies: CopiesExact, Variant: Variant{Unit: 16}, BlockSize: 16}
		for range blocks {
			hash++
			c.Hashes, c.Locals = append(c.Hashes, hash), append(c.Locals, Local(r.Uint64()))
		}
		all = append(all, c)
	}
	run := func(m *memory, c Change) int {
		var got Matches
		err := m.Match(context.Background(), &Query{
			Candidates: NewCandidates("m", nil),
			Keys: func(Variant) (keys []Key, err error) {
				k := Key(0)
				for _, l := range c.Locals {
					k = Chain(k, l)
					keys = append(keys, k)
				}
				return keys, nil
			},
		}, &got)
		must(t, err)
		if len(got.Rows) == 0 {
			return 0
		}
		return int(got.Rows[0].Run)
	}
	for i, c := range all {
		src := Source{Pod: fmt.Sprint(i % 4), Model: "m"}
		if _, err := m.Apply(context.Background(), src, Cursor{}, []Change{c}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range all[:chains/4] { // used again
		if n := run(m, c); n != blocks {
			t.Fatalf("%d of %d", n, blocks)
		}
	}
	got := restored(t, MemoryConfig{Seed: [16]byte{1}, Bytes: m.MemoryUsage().Total * 5 / 8}, sectionsOf(t, m))
	defer got.Close()
	must(t, got.check())
	u := got.MemoryUsage()
	held, evicted := 0, 0
	for _, s := range got.Describe(nil) {
		held, evicted = held+s.Blocks[TierGPU], evicted+int(s.Evicted)
	}
	t.Logf("%d blocks held, %d evicted; %d bytes of %d", held, evicted, u.Total, u.Budget)
	if u.Total > u.Budget || held+evicted < chains*blocks || held < chains*blocks/4 {
		t.Errorf("%d blocks and %d evicted of %d, %+v", held, evicted, chains*blocks, u)
	}
	hot, cold := 0, 0
	for i, c := range all {
		if n := run(got, c); i < chains/4 {
			hot += n
		} else {
			cold += n
		}
	}
	t.Logf("of %d blocks that were used latest %d are there, of %d others %d", chains/4*blocks, hot, chains*3/4*blocks, cold)
	if hot < chains/4*blocks { // less than half of the budget
		t.Errorf("of %d blocks that were used latest %d are there, and %d others", chains/4*blocks, hot, cold)
	}
}

// A snapshot ends by its context, its writer and Close, and frees all its memory. Only one is
// written at a time; a second one waits within its context.
func TestSnapshotEnds(t *testing.T) {
	fill := func() *memory {
		m, err := newMemory(MemoryConfig{Seed: [16]byte{1}, Bytes: 16 << 20})
		must(t, err)
		for i := range 60 {
			c := Change{Op: OpStore, Copies: CopiesExact, Root: Key(i), Variant: Variant{Unit: 16}, BlockSize: 16}
			for n := range 512 {
				c.Hashes, c.Locals = append(c.Hashes, Hash(512*i+n)), append(c.Locals, Local(n))
			}
			src := Source{Pod: fmt.Sprint(i % 2), Model: "m"}
			if _, err := m.Apply(context.Background(), src, Cursor{}, []Change{c}); err != nil {
				t.Fatal(err)
			}
		}
		return m
	}
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		end  func(*memory, context.CancelFunc) error
		want error
	}{
		{"its context", func(_ *memory, cancel context.CancelFunc) error { cancel(); return nil }, context.Canceled},
		{"its writer", func(*memory, context.CancelFunc) error { return broken }, broken},
		{"Close", func(m *memory, _ context.CancelFunc) error { return m.Close() }, ErrClosed},
	} {
		m := fill()
		ctx, cancel := context.WithCancel(context.Background())
		was, wasBy := m.usage()
		src := Source{Pod: "1", Model: "m"}
		err := m.Snapshot(ctx, func([]byte) error {
			if _, err := m.Apply(context.Background(), src, Cursor{}, []Change{{Op: OpRemove, Hashes: []Hash{513, 514}}}); err != nil {
				t.Error(err)
			}
			ended, stop := context.WithCancel(context.Background())
			stop()
			if err := m.Snapshot(ended, nil, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("another one beside it: %v", err)
			}
			return c.end(m, cancel)
		}, func(_ string, last func() error) error { return last() })
		if !errors.Is(err, c.want) {
			t.Errorf("ended by %s: %v", c.name, err)
		}
		cancel()
		if c.want == ErrClosed {
			continue
		}
		if now, by := m.usage(); now.Total > was.Total+4096 || by.sources != wasBy.sources {
			t.Errorf("ended by %s, %d bytes are taken, and were %d", c.name, now.Total, was.Total)
		}
		if err := m.check(); err != nil {
			t.Errorf("ended by %s: %v", c.name, err)
		}
		m.Close()
	}
}

// A removed source that a snapshot still needs has its memory.
func TestRemovedDuringASnapshot(t *testing.T) {
	m, err := newMemory(MemoryConfig{})
	must(t, err)
	defer m.Close()
	c := Change{Op: OpStore, Copies: CopiesSet, Hashes: []Hash{1}}
	_, err = m.Apply(context.Background(), Source{Pod: "a", Model: "m"}, Cursor{}, []Change{c})
	must(t, err)
	sectionsOf(t, m, func() {
		must(t, m.Remove(context.Background(), "a"))
		if n := m.Unswept(); n != 1 {
			t.Errorf("%d sources are not swept", n)
		}
	})
	if m.sweepers.Wait(); m.Unswept() != 0 {
		t.Errorf("%d sources are not swept", m.Unswept())
	}
}

// If a pod changes completely while the writer hangs, the snapshot fails, not the pod. Its notes
// are freed, and the next snapshot is whole.
func TestSnapshotOfWhatChangesTooMuch(t *testing.T) {
	m, err := newMemory(MemoryConfig{Seed: [16]byte{1}, Bytes: 4 << 20})
	must(t, err)
	defer m.Close()
	f := filler{r: rand.New(rand.NewPCG(1, 10))}
	src := Source{Pod: "a", Model: "m"}
	var all []Change
	for range 200 {
		c := f.chain(512)
		all = append(all, Change{Op: OpRemove, Hashes: c.Hashes})
		if _, err := m.Apply(context.Background(), src, Cursor{}, []Change{c}); err != nil {
			t.Fatal(err)
		}
	}
	was := m.MemoryUsage()
	err = m.Snapshot(context.Background(), func([]byte) error {
		for _, c := range all {
			if _, err := m.Apply(context.Background(), src, Cursor{}, []Change{c}); err != nil {
				t.Error(err)
			}
			if u := m.MemoryUsage(); u.Total > u.Budget {
				t.Fatalf("%d bytes are taken of %d", u.Total, u.Budget)
			}
		}
		all = nil
		return nil
	}, func(_ string, last func() error) error { return last() })
	if err == nil || !strings.Contains(err.Error(), "notes") || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("the snapshot ended with %v", err)
	}
	if u := m.MemoryUsage(); u.Memberships != 0 || u.Total > was.Total {
		t.Errorf("%d blocks are held in %d bytes, there were %d", u.Memberships, u.Total, was.Total)
	}
	if err := m.check(); err != nil {
		t.Error(err)
	}
	again := restored(t, MemoryConfig{Seed: [16]byte{1}}, sectionsOf(t, m))
	defer again.Close()
	if got, want := fmt.Sprint(again.described()), fmt.Sprint(m.described()); got != want {
		t.Errorf("restored %s, want %s", got, want)
	}
}

// Blocks evicted between a pod's cut and the writing of its names are omitted and counted: the
// restored blocks are the held ones without those reported as evicted. If a table grows in that
// moment, the eviction can make the notes exceed their bound and end the snapshot: then the test
// tries again.
func TestSnapshotOfWhatIsEvicted(t *testing.T) {
	for range 5 {
		if snapshotWhileEvicting(t) {
			return
		}
	}
	t.Error("each snapshot was given up")
}

func snapshotWhileEvicting(t *testing.T) (taken bool) {
	cfg := MemoryConfig{Seed: [16]byte{1}, Bytes: 8 << 20}
	m, err := newMemory(cfg)
	must(t, err)
	defer m.Close()
	f := filler{r: rand.New(rand.NewPCG(1, 10))}
	store := func(pod string, n int) {
		t.Helper()
		if _, err := m.Apply(context.Background(), Source{Pod: pod, Model: "m"}, Cursor{}, []Change{f.chain(n)}); err != nil {
			t.Fatal(err)
		}
	}
	held := 0
	for ; m.MemoryUsage().Evicted == 0; held += 512 {
		store("a", 512)
	}
	var cut SourceInfo
	var sections [][]byte
	err = m.Snapshot(context.Background(), func(section []byte) error {
		sections = append(sections, slices.Clone(section))
		if len(sections) <= 6 {
			store("b", 512)
		}
		return nil
	}, func(pod string, last func() error) error {
		if pod == "a" {
			cut = m.Describe(nil)[0]
		}
		return last()
	})
	if err != nil && strings.Contains(err.Error(), "of notes about it") {
		return false
	}
	must(t, err)
	cfg.Bytes *= 4
	again := restored(t, cfg, sections)
	defer again.Close()
	must(t, again.check())
	got := again.described()[0]
	t.Logf("of %d blocks %d are in the snapshot and %d are reported as evicted, %d of them since the cut", held, got.Blocks[0], got.Evicted, got.Evicted-cut.Evicted)
	if got.Blocks[0]+int(got.Evicted) != held {
		t.Errorf("of %d blocks %d are in the snapshot, and %d are reported as evicted", held, got.Blocks[0], got.Evicted)
	}
	if got.Evicted-cut.Evicted < 500 || got.Blocks[0] < held/2 {
		t.Error("the test tests too little")
	}
	return true
}

// The declared number of a source's names is not trusted: room is reserved only in proportion to
// the bytes read, over all sources.
func TestRestoreOfPromises(t *testing.T) {
	cfg := MemoryConfig{Seed: [16]byte{1}}
	m, err := newMemory(cfg)
	must(t, err)
	defer m.Close()
	for i := range 200 {
		c := Change{Op: OpStore, Copies: CopiesExact, Hashes: []Hash{1}, Variant: Variant{Unit: 16}, BlockSize: 16, Locals: make([]Local, 1)}
		if _, err := m.Apply(context.Background(), Source{Pod: fmt.Sprintf("pod %03d", i), Model: "m"}, Cursor{}, []Change{c}); err != nil {
			t.Fatal(err)
		}
	}
	sections := sectionsOf(t, m)
	if len(sections) != 1 {
		t.Fatalf("%d sections", len(sections))
	}
	tables := func(promise byte) int {
		section := slices.Clone(sections[0])
		for i := range 200 {
			text := fmt.Sprintf("pod %03d\x01m\x00", i)
			at := strings.Index(string(section), text) + len(text) + 8 // after the times
			if section[at] != 1 {
				t.Fatalf("%d names are promised", section[at])
			}
			section[at] = promise
		}
		m := restored(t, cfg, [][]byte{section})
		defer m.Close()
		must(t, m.check())
		_, by := m.usage()
		return by.names + by.pending
	}
	kept, broken := tables(1), tables(127)
	t.Logf("names take %d bytes, %d where 127 times as many were promised, of a snapshot of %d", kept, broken, len(sections[0]))
	if broken > kept+creditEach*len(sections[0]) || broken <= kept {
		t.Errorf("names take %d bytes, %d where 127 times as many were promised, of a snapshot of %d", kept, broken, len(sections[0]))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
