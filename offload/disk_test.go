package offload_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/offload"
	"github.com/kvindex/kvindex/offload/backendtest"
)

// table is a Backend on a map.
type table struct {
	mu     sync.Mutex
	closed bool
	blocks map[offload.SpaceID]map[offload.Key][]byte
}

func newTable() *table {
	return &table{blocks: make(map[offload.SpaceID]map[offload.Key][]byte)}
}

// begin locks a table for an operation with so many keys and values.
func (b *table) begin(ctx context.Context, keys, values int) error {
	b.mu.Lock()
	switch {
	case keys != values:
		return offload.ErrMisaligned
	case b.closed:
		return offload.ErrClosed
	}
	return ctx.Err()
}

func (b *table) Has(ctx context.Context, space offload.SpaceID, keys []offload.Key, hit []bool) error {
	defer b.mu.Unlock()
	if err := b.begin(ctx, len(keys), len(hit)); err != nil {
		return err
	}
	for i, k := range keys {
		hit[i] = b.blocks[space][k] != nil
	}
	return nil
}

func (b *table) Get(ctx context.Context, space offload.SpaceID, keys []offload.Key, dst [][]byte) (n int, err error) {
	defer b.mu.Unlock()
	if err := b.begin(ctx, len(keys), len(dst)); err != nil {
		return 0, err
	}
	for ; n < len(keys) && b.blocks[space][keys[n]] != nil; n++ {
		if len(dst[n]) != len(b.blocks[space][keys[n]]) {
			return n, offload.ErrMisaligned
		}
		copy(dst[n], b.blocks[space][keys[n]])
	}
	return n, nil
}

func (b *table) Put(ctx context.Context, space offload.SpaceID, keys []offload.Key, src [][]byte) (int, error) {
	defer b.mu.Unlock()
	if err := b.begin(ctx, len(keys), len(src)); err != nil {
		return 0, err
	}
	if b.blocks[space] == nil {
		b.blocks[space] = make(map[offload.Key][]byte)
	}
	for i, k := range keys {
		if b.blocks[space][k] == nil {
			b.blocks[space][k] = bytes.Clone(src[i])
		}
	}
	return len(keys), nil
}

func (b *table) Delete(ctx context.Context, space offload.SpaceID, keys []offload.Key) error {
	defer b.mu.Unlock()
	if err := b.begin(ctx, 0, 0); err != nil {
		return err
	}
	for _, k := range keys {
		delete(b.blocks[space], k)
	}
	return nil
}

func (b *table) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

func TestTable(t *testing.T) {
	backendtest.Run(t, func(testing.TB) (offload.Backend, func() offload.Backend) { return newTable(), nil })
}

// has returns the positions of the keys in a Backend.
func has(t *testing.T, b offload.Backend, sp offload.Space, keys []offload.Key) (at []int) {
	t.Helper()
	hit := make([]bool, len(keys))
	if err := b.Has(ctx, sp.ID(), keys, hit); err != nil {
		t.Fatal(err)
	}
	for i, h := range hit {
		if h {
			at = append(at, i)
		}
	}
	return at
}

func opened(t *testing.T, cfg offload.Config) *offload.Store {
	t.Helper()
	s, err := offload.Open(cfg)
	must(t, err)
	return s
}

func written(t *testing.T, s *offload.Store, sp offload.Space, prefix, keys []offload.Key) {
	t.Helper()
	if n, err := s.Write(ctx, prefix, keys, contents(sp, keys)); n != len(keys) || err != nil {
		t.Fatal(n, err)
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
}

func closed(t *testing.T, s *offload.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if st := s.Stats(); st.Leased != 0 || st.Disk.InFlight != 0 {
		t.Errorf("leaked: %+v", st)
	}
}

// TestIngestion checks the blocks on disk for each Ingestion.
func TestIngestion(t *testing.T) {
	sp := space(64)
	for _, policy := range []offload.Policy{offload.LRU, offload.S3FIFO} {
		for ingest, want := range map[offload.Ingestion][3][]int{
			offload.All:     {{0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}},
			offload.Hot:     {nil, {0, 1, 2}, {0, 1, 2}},
			offload.Evicted: {nil, nil, {4, 5}}, // and the last of other
		} {
			b := newTable()
			s := opened(t, offload.Config{Space: sp, Policy: policy, MemoryBytes: 64 * 10, Disk: offload.Disk{Backend: b, Ingest: ingest, MaxInFlight: 16 * 10}})
			c, other := chain(0, 6), chain(1, 7)[4:]
			got := [3][]int{}
			written(t, s, sp, nil, c)
			got[0] = has(t, b, sp, c)
			l, err := s.Acquire(ctx, c[:3])
			if l.Len() != 3 || err != nil {
				t.Fatal(l.Len(), err)
			}
			l.Release()
			s.Flush(ctx)
			got[1] = has(t, b, sp, c)
			written(t, s, sp, c[:4], other)
			written(t, s, sp, c[:4], chain(2, 8)[4:])
			got[2] = has(t, b, sp, c)
			if ingest == offload.Evicted && policy == offload.S3FIFO {
				want[2] = got[2] // FIFO order within the small queue
			}
			for i := range got {
				if !slices.Equal(got[i], want[i]) {
					t.Errorf("%s, %s: step %d: %v on disk, want %v", policy, ingest, i, got[i], want[i])
				}
			}
			if st := s.Stats().Disk; ingest == offload.All && (st.Written != 13 || st.Writes.N != 3) || st.Unwritten+st.OverQuota > 0 {
				t.Errorf("%s, %s: %+v", policy, ingest, st)
			}
			closed(t, s)
		}
	}
}

// TestDoubleGet: the disk is asked only if enough blocks are missing, and fills gaps of the memory.
func TestDoubleGet(t *testing.T) {
	sp, b := space(64), newTable()
	c := chain(0, 20)
	if n, err := b.Put(ctx, sp.ID(), c[:18], contents(sp, c[:18])); n != 18 || err != nil {
		t.Fatal(n, err)
	}
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 30, Disk: offload.Disk{Backend: b}})
	written(t, s, sp, nil, c[:5])
	written(t, s, sp, nil, c[8:10])
	for _, q := range []struct{ ask, want, memory, all int }{{8, 5, 5, 8}, {9, 9, 5, 9}, {20, 18, 10, 18}, {20, 18, 18, 18}} {
		memory, all, err := s.Lookup(ctx, c[:q.ask])
		if memory != q.memory || all != q.all || err != nil {
			t.Errorf("Lookup of %d: %d, %d, %v; want %d and %d", q.ask, memory, all, err, q.memory, q.all)
		}
		l, err := s.Acquire(ctx, c[:q.ask])
		if l.Len() != q.want || err != nil {
			t.Errorf("Acquire of %d: %d, %v; want %d", q.ask, l.Len(), err, q.want)
		}
		for i := range l.Len() {
			if !bytes.Equal(l.Block(i), content(sp, c[i])) {
				t.Errorf("block %d has other bytes", i)
			}
		}
		l.Release()
	}
	if st := s.Stats().Disk; st.Hits != 4+8-1 {
		t.Errorf("%+v", st)
	}
	if err := s.Delete(ctx, c[4:6]...); err != nil {
		t.Fatal(err)
	}
	if memory, all, err := s.Lookup(ctx, c); memory != 4 || all != 4 || err != nil {
		t.Errorf("after Delete: %d, %d, %v", memory, all, err)
	}
	closed(t, s)
}

// gateTable is a table whose Get and Put wait.
type gateTable struct {
	*table
	get, put chan struct{} // a receive releases one call; nil: no wait
	began    chan struct{}
}

func (g gateTable) Get(ctx context.Context, space offload.SpaceID, keys []offload.Key, dst [][]byte) (int, error) {
	if g.get != nil {
		g.began <- struct{}{}
		<-g.get // ctx does not end it
	}
	return g.table.Get(context.Background(), space, keys, dst)
}

func (g gateTable) Put(ctx context.Context, space offload.SpaceID, keys []offload.Key, src [][]byte) (int, error) {
	if g.put != nil {
		g.began <- struct{}{}
		<-g.put
	}
	return g.table.Put(ctx, space, keys, src)
}

// TestLateRead abandons a read: nobody else gets its memory until it has ended, and then the blocks
// are there.
func TestLateRead(t *testing.T) {
	sp, b := space(64), gateTable{newTable(), make(chan struct{}), nil, make(chan struct{})}
	c := chain(0, 10)
	b.Put(ctx, sp.ID(), c, contents(sp, c))
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 12, Disk: offload.Disk{Backend: b}})
	written(t, s, sp, nil, c[:2])
	waits, cancel := context.WithCancel(ctx)
	go func() {
		<-b.began
		cancel()
	}()
	l, err := s.Acquire(waits, c)
	if l.Len() != 2 || !errors.Is(err, context.Canceled) {
		t.Fatal(l.Len(), err)
	}
	if st := s.Stats().Disk; st.Reading != 1 {
		t.Errorf("%+v", st)
	}
	// 2 blocks are leased, and 8 are being read.
	fresh, err := s.Alloc(ctx, 5)
	if fresh.Len() != 2 || !errors.Is(err, offload.ErrNoMemory) {
		t.Errorf("%d blocks beside a read that goes on, %v", fresh.Len(), err)
	}
	for i := range fresh.Len() {
		clear(fresh.Block(i))
	}
	fresh.Release()
	l.Release()
	b.get <- struct{}{}
	for memory := 0; memory < 10; { // until the read ends
		memory, _, _ = s.Lookup(ctx, c)
	}
	got, err := s.Acquire(ctx, c)
	for i := range got.Len() {
		if !bytes.Equal(got.Block(i), content(sp, c[i])) {
			t.Errorf("block %d has other bytes", i)
		}
	}
	got.Release()
	closed(t, s) // waits for the end of the read
	if st := s.Stats(); err != nil || st.Disk.Late != 1 || st.Disk.Reads.N == 0 || st.Disk.Reading != 0 {
		t.Error(err, st)
	}
}

// hasGate is a table whose Has waits.
type hasGate struct {
	*table
	began, on chan struct{}
}

func (b hasGate) Has(ctx context.Context, space offload.SpaceID, keys []offload.Key, hit []bool) error {
	b.began <- struct{}{}
	<-b.on
	return b.table.Has(ctx, space, keys, hit)
}

// TestCloseWhileAsking closes a store during a request of a chain from its Backend, and releases
// the last lease meanwhile: the memory is freed, and the blocks on disk are not loaded.
func TestCloseWhileAsking(t *testing.T) {
	sp, b := space(64), hasGate{newTable(), make(chan struct{}), make(chan struct{})}
	c, other := chain(0, 2), chain(0, 12)[4:]
	b.Put(ctx, sp.ID(), other, contents(sp, other))
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 12, Disk: offload.Disk{Backend: b}})
	written(t, s, sp, nil, c)
	l, err := s.Acquire(ctx, c)
	if l.Len() != 2 || err != nil {
		t.Fatal(l.Len(), err)
	}
	if err := s.Flush(ctx); err != nil { // both have become hot
		t.Fatal(err)
	}
	s.Prefetch(ctx, other)
	<-b.began
	done := make(chan struct{})
	go func() {
		defer close(done)
		closed(t, s)
	}()
	for err == nil { // until Close has begun
		var l *offload.Lease
		l, err = s.Acquire(ctx, c)
		l.Release()
	}
	l.Release()
	close(b.on)
	<-done
}

// TestPrefetch: prefetched blocks come into memory without a waiting caller.
func TestPrefetch(t *testing.T) {
	sp, b := space(64), newTable()
	c := chain(0, 10)
	b.Put(ctx, sp.ID(), c, contents(sp, c))
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 12, Disk: offload.Disk{Backend: b}})
	s.Prefetch(ctx, c)
	for memory := 0; memory < 10; {
		memory, _, _ = s.Lookup(ctx, c)
	}
	if st := s.Stats(); st.Hits+st.Misses != 0 || st.Disk.Hits != 10 {
		t.Errorf("%+v", st)
	}
	closed(t, s)
	s.Prefetch(ctx, c) // no effect after Close
}

// endless is a Backend whose reads last until their context ends.
type endless struct{ *table }

func (b endless) Get(ctx context.Context, _ offload.SpaceID, _ []offload.Key, _ [][]byte) (int, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// TestWhoGivesUp: a read that takes longer than Disk.PerToken is an error of the Backend. One that
// takes longer than the caller's deadline is not.
func TestWhoGivesUp(t *testing.T) {
	sp, b, c := space(64), endless{newTable()}, chain(0, 10)
	b.Put(ctx, sp.ID(), c, contents(sp, c))
	for _, limit := range []time.Duration{0, 1} {
		var last error
		s := opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 12, Disk: offload.Disk{Backend: b, PerToken: limit, OnError: func(err error) { last = err }}})
		caller, cancel := ctx, func() {}
		if limit == 0 {
			caller, cancel = context.WithTimeout(ctx, time.Millisecond)
		}
		l, err := s.Acquire(caller, c)
		l.Release()
		cancel()
		closed(t, s)
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(last, context.DeadlineExceeded) != (limit > 0) {
			t.Errorf("PerToken %d: %v, and the last error of the Backend is %v", limit, err, last)
		}
	}
}

// TestTimeLimit: the time limit of a read depends on the missing tokens.
func TestTimeLimit(t *testing.T) {
	sp, b := space(64), gateTable{newTable(), make(chan struct{}), nil, make(chan struct{}, 1)}
	c := chain(0, 10)
	b.Put(ctx, sp.ID(), c, contents(sp, c))
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 12, Disk: offload.Disk{Backend: b, PerToken: 1}})
	dst := contents(sp, c)
	if n, err := s.Read(ctx, c, dst); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(n, err)
	}
	close(b.get)
	closed(t, s)
	for _, bad := range []offload.Disk{{Ingest: "some"}, {MaxInFlight: -1}, {MaxInFlight: 16 * 13}, {MinMissing: -1}, {MinMissingPart: 2}, {PerToken: -1}} {
		bad.Backend = b
		if _, err := offload.Open(offload.Config{Space: sp, MemoryBytes: 64 * 12, Disk: bad}); err == nil {
			t.Errorf("opened %+v", bad)
		}
	}
}

// TestOverQuota has more blocks than may wait to be written: the others are counted, and nothing
// leaks.
func TestOverQuota(t *testing.T) {
	for _, ingest := range []offload.Ingestion{offload.All, offload.Evicted} {
		sp, b := space(64), gateTable{newTable(), nil, make(chan struct{}), make(chan struct{})}
		s := opened(t, offload.Config{Space: sp, Policy: offload.LRU, MemoryBytes: 64 * 20, Disk: offload.Disk{Backend: b, Ingest: ingest, MaxInFlight: 16 * 3}})
		c := chain(0, 40)
		for i := range c {
			if n, err := s.Write(ctx, nil, c[i:i+1], contents(sp, c[i:i+1])); n != 1 || err != nil {
				t.Fatal(ingest, i, n, err)
			}
		}
		<-b.began
		over, cancel := context.WithCancel(ctx)
		cancel()
		if err := s.Flush(over); !errors.Is(err, context.Canceled) {
			t.Error(ingest, err)
		}
		want := uint64(37)
		if ingest == offload.Evicted {
			want = 17
		}
		if st := s.Stats(); st.Disk.InFlight != 3 || st.Disk.OverQuota != want || st.Blocks != 20 {
			t.Errorf("%s: %+v", ingest, st)
		}
		close(b.put)
		go func() {
			for range b.began {
			}
		}()
		if err := s.Flush(ctx); err != nil {
			t.Error(err)
		}
		if st := s.Stats(); st.Disk.Written != 3 || st.Disk.InFlight != 0 || st.Leased != 0 {
			t.Errorf("%s: %+v", ingest, st)
		}
		closed(t, s)
		close(b.began)
	}
}

// TestDeleteOfWhatWaits deletes a block during its write, and one that waits to be written. Delete
// does not wait for the writes of others behind them.
func TestDeleteOfWhatWaits(t *testing.T) {
	sp, b := space(64), gateTable{newTable(), nil, make(chan struct{}), make(chan struct{}, 9)}
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 20, Disk: offload.Disk{Backend: b, Ingest: offload.All, MaxInFlight: 16 * 9}})
	c := chain(0, 6)
	for i := range c {
		if n, err := s.Write(ctx, c[:i], c[i:i+1], contents(sp, c[i:i+1])); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if i == 0 {
			<-b.began // the first is being written, and the others wait
		}
	}
	done := make(chan error)
	go func() { done <- s.Delete(ctx, c[0], c[4]) }()
	for s.Stats().Disk.InFlight != 5 { // the waiting one is out
		runtime.Gosched()
	}
	b.put <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
	close(b.put)
	must(t, s.Flush(ctx))
	if got := has(t, b, sp, c); !slices.Equal(got, []int{1, 2, 3, 5}) {
		t.Errorf("%v on disk", got)
	}
	if memory, all, err := s.Lookup(ctx, c[1:]); memory != 3 || all != 3 || err != nil {
		t.Errorf("%d, %d, %v", memory, all, err)
	}
	closed(t, s)
}

// TestStalledBackend: with a Backend that hangs, blocks deleted meanwhile leave the queue, and each
// Close waits.
func TestStalledBackend(t *testing.T) {
	sp, b := space(64), gateTable{newTable(), nil, make(chan struct{}), make(chan struct{}, 9)}
	s := opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 20, Disk: offload.Disk{Backend: b, Ingest: offload.All, MaxInFlight: 16 * 3}})
	c := chain(0, 3)
	for i := range 2 {
		if n, err := s.Write(ctx, c[:i], c[i:i+1], contents(sp, c[i:i+1])); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if i == 0 {
			<-b.began
		}
	}
	for range 10 {
		if n, err := s.Write(ctx, c[:2], c[2:], contents(sp, c[2:])); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		over, cancel := context.WithCancel(ctx)
		done := make(chan error)
		go func() { done <- s.Delete(over, c[2]) }()
		for s.Stats().Disk.InFlight != 2 {
			runtime.Gosched()
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if st := s.Stats(); st.Blocks != 0 || st.Disk.Written != 2 || st.Disk.OverQuota != 0 {
				t.Errorf("Close returned at %+v", st)
			}
		})
	}
	for range 100 {
		runtime.Gosched()
	}
	close(b.put)
	wg.Wait()
	if got := has(t, b, sp, c); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("%v on disk", got)
	}
}

// failTable is a table whose operations fail.
type failTable struct{ *table }

func (b failTable) Has(context.Context, offload.SpaceID, []offload.Key, []bool) error {
	return errTrouble
}

func (b failTable) Put(context.Context, offload.SpaceID, []offload.Key, [][]byte) (int, error) {
	return 0, errTrouble
}

func (b failTable) Delete(context.Context, offload.SpaceID, []offload.Key) error { return errTrouble }

// TestOnError has each operation of the Backend fail. OnError may call the store.
func TestOnError(t *testing.T) {
	sp := space(64)
	var s *offload.Store
	var told []error
	s = opened(t, offload.Config{Space: sp, MemoryBytes: 64 * 20, Disk: offload.Disk{Backend: failTable{newTable()}, Ingest: offload.All, OnError: func(err error) {
		s.Stats()
		told = append(told, err)
	}}})
	defer closed(t, s)
	c := chain(0, 6)
	last := func(op string) {
		t.Helper()
		if len(told) != 1 || !errors.Is(told[0], errTrouble) || !strings.Contains(told[0].Error(), "STORAGE: "+op) {
			t.Errorf("%s: %v reported", op, told)
		}
		told = nil
	}
	written(t, s, sp, nil, c[:1])
	last("put")
	if memory, _, err := s.Lookup(ctx, c); memory != 1 || !errors.Is(err, errTrouble) {
		t.Error(memory, err)
	}
	last("has")
	if err := s.Delete(ctx, c[0]); !errors.Is(err, errTrouble) {
		t.Error(err)
	}
	last("delete")
	if st := s.Stats(); st.Disk.Unwritten != 1 {
		t.Errorf("%+v", st)
	}
}

// trouble is a table that fails, is full, or returns less than it has, at random.
type trouble struct {
	*table
	mu   sync.Mutex
	r    *rand.Rand
	seen map[string]int
}

// ends is the key of contexts that end before the operation does.
type ends struct{}

var errTrouble = errors.New("trouble")

func (b *trouble) now(name string, one int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.r.IntN(one) > 0 {
		return false
	}
	b.seen[name]++
	return true
}

func (b *trouble) Has(ctx context.Context, space offload.SpaceID, keys []offload.Key, hit []bool) error {
	if b.now("has", 20) {
		return errTrouble
	}
	return b.table.Has(ctx, space, keys, hit)
}

func (b *trouble) Get(ctx context.Context, space offload.SpaceID, keys []offload.Key, dst [][]byte) (int, error) {
	if ctx.Value(ends{}) != nil { // such a read is late
		<-ctx.Done()
		for range 20 {
			runtime.Gosched()
		}
	}
	if len(keys) > 1 && b.now("get", 5) {
		n, _ := b.table.Get(context.Background(), space, keys[:len(keys)/2], dst[:len(keys)/2])
		for _, d := range dst[n:] {
			clear(d)
		}
		return n, errTrouble
	}
	return b.table.Get(context.Background(), space, keys, dst)
}

func (b *trouble) Put(ctx context.Context, space offload.SpaceID, keys []offload.Key, src [][]byte) (int, error) {
	if b.now("full", 5) {
		n, _ := b.table.Put(ctx, space, keys[:len(keys)/2], src[:len(keys)/2])
		return n, errTrouble
	}
	return b.table.Put(ctx, space, keys, src)
}

// anything does a random operation, perhaps with a context that ends, and checks the bytes of the
// blocks.
func anything(t *testing.T, s *offload.Store, sp offload.Space, r *rand.Rand) {
	c := chain(r.IntN(12), 1+r.IntN(24))
	from := r.IntN(len(c))
	op, cancel := context.WithCancel(ctx)
	if r.IntN(4) == 0 {
		op = context.WithValue(op, ends{}, true)
		go cancel()
	}
	var err error
	switch r.IntN(12) {
	case 0, 1:
		_, err = s.Write(op, c[:from], c[from:], contents(sp, c[from:]))
	case 2:
		l, _ := s.Alloc(op, len(c)-from)
		for i := range l.Len() {
			copy(l.Block(i), content(sp, c[from+i]))
		}
		_, err = s.Commit(op, c[:from], c[from:from+l.Len()], l)
	case 3:
		err = s.Delete(op, c[from])
	case 4:
		s.Prefetch(ctx, c)
	case 5:
		err = s.Flush(op)
	case 6:
		dst := contents(sp, c)
		for _, d := range dst {
			clear(d)
		}
		var n int
		n, err = s.Read(op, c, dst)
		for i := range n {
			if !bytes.Equal(dst[i], content(sp, c[i])) {
				t.Errorf("Read: block %d has other bytes", i)
			}
		}
	default:
		var l *offload.Lease
		l, err = s.Acquire(op, c)
		for i := range l.Len() {
			if !bytes.Equal(l.Block(i), content(sp, c[i])) {
				t.Errorf("Acquire: block %d has other bytes", i)
			}
		}
		l.Truncate(from)
		l.Release()
	}
	for _, known := range []error{errTrouble, context.Canceled, offload.ErrNoMemory, offload.ErrTooLong} {
		if errors.Is(err, known) {
			err = nil
		}
	}
	if err != nil {
		t.Error(err)
	}
	cancel()
}

// TestTiersConcurrently runs all operations concurrently on a store with a disk that fails, with
// contexts that end: each returned block is right, and in the end no reference is left.
func TestTiersConcurrently(t *testing.T) {
	sum := make(map[string]int)
	var total offload.Stats
	for seed := range uint64(max(*seeds/4, 6)) {
		r := rand.New(rand.NewPCG(seed, 9))
		sp := space(40)
		b := &trouble{table: newTable(), r: r, seen: sum}
		s := opened(t, offload.Config{
			Space: sp, MemoryBytes: 40 * int64(30+r.IntN(60)), SlabBytes: 40 * 9, MaxTokens: 16 * 22,
			Policy: []offload.Policy{offload.LRU, offload.FIFO, offload.S3FIFO}[r.IntN(3)],
			Disk: offload.Disk{
				Backend: b, Ingest: []offload.Ingestion{offload.Hot, offload.All, offload.Evicted}[seed%3],
				MaxInFlight: 16 * (1 + r.IntN(20)), MinMissing: 1 + r.IntN(3),
			},
		})
		var wg sync.WaitGroup
		for worker := range 6 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, 100+uint64(worker)))
				for range 250 {
					anything(t, s, sp, r)
				}
			})
		}
		wg.Wait()
		if err := s.Flush(ctx); err != nil {
			t.Error(err)
		}
		closed(t, s)
		st := s.Stats()
		total.Hits += st.Hits
		total.Evicted += st.Evicted
		total.Disk.Hits += st.Disk.Hits
		total.Disk.Late += st.Disk.Late
		total.Disk.Written += st.Disk.Written
		total.Disk.Unwritten += st.Disk.Unwritten
		total.Disk.OverQuota += st.Disk.OverQuota
	}
	t.Logf("%+v, %v", total, sum)
	if d := total.Disk; d.Hits < 200 || d.Late < 10 || d.Written < 200 || d.Unwritten < 20 || d.OverQuota < 50 || total.Evicted < 500 || sum["get"] < 20 || sum["has"] < 20 {
		t.Error("too little of this happened")
	}
}
