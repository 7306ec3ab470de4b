// Package backendtest is the suite that every offload.Backend passes.
package backendtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/kvindex/kvindex/offload"
)

// blockBytes is odd, so that no block ends where a sector does.
const blockBytes = 5003

var ctx = context.Background()

// Run tests a Backend. open returns an empty one with room for 1,000 blocks of 5 KB, and
// again returns the Backend of the same blocks after the first was closed; it is nil for a
// Backend that does not outlive its process.
func Run(t *testing.T, open func(t testing.TB) (b offload.Backend, again func() offload.Backend)) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, b offload.Backend, again func() offload.Backend)
	}{
		{"Prefix", prefix}, {"Spaces", spaces}, {"Twice", twice}, {"Delete", deleted}, {"Arguments", arguments},
		{"Canceled", canceled}, {"Again", reopened}, {"Concurrent", concurrent}, {"Close", closed},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, again := open(t)
			c.test(t, b, again)
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

var space = offload.SpaceID{1}

func keys(from, n int) (ks []offload.Key) {
	for i := range n {
		ks = append(ks, offload.Key{byte(from + i), byte((from + i) >> 8), 9})
	}
	return ks
}

func content(sp offload.SpaceID, k offload.Key) []byte {
	b := make([]byte, blockBytes)
	for i := range b {
		b[i] = k[i%2] ^ sp[0] ^ byte(i) ^ byte(i>>8)
	}
	return b
}

func contents(sp offload.SpaceID, ks []offload.Key) (bs [][]byte) {
	for _, k := range ks {
		bs = append(bs, content(sp, k))
	}
	return bs
}

func put(t *testing.T, b offload.Backend, sp offload.SpaceID, ks []offload.Key) {
	t.Helper()
	if n, err := b.Put(ctx, sp, ks, contents(sp, ks)); n != len(ks) || err != nil {
		t.Fatalf("Put: %d of %d, %v", n, len(ks), err)
	}
}

// get returns how many blocks Get returned, all of which are right.
func get(t *testing.T, b offload.Backend, sp offload.SpaceID, ks []offload.Key) int {
	t.Helper()
	dst := make([][]byte, len(ks))
	for i := range dst {
		dst[i] = make([]byte, blockBytes)
	}
	n, err := b.Get(ctx, sp, ks, dst)
	if err != nil {
		t.Fatalf("Get: %d, %v", n, err)
	}
	for i := range n {
		if !bytes.Equal(dst[i], content(sp, ks[i])) {
			t.Fatalf("Get: block %d has other bytes", i)
		}
	}
	return n
}

func has(t *testing.T, b offload.Backend, sp offload.SpaceID, ks []offload.Key) string {
	t.Helper()
	hit := make([]bool, len(ks))
	for i := range hit {
		hit[i] = i%2 == 0 // earlier values must not matter
	}
	if err := b.Has(ctx, sp, ks, hit); err != nil {
		t.Fatal(err)
	}
	s := ""
	for _, h := range hit {
		s += map[bool]string{true: "x", false: "."}[h]
	}
	return s
}

// prefix: Get ends at the first hole, and Has reports each block.
func prefix(t *testing.T, b offload.Backend, _ func() offload.Backend) {
	ks := keys(0, 6)
	if n := get(t, b, space, ks); n != 0 {
		t.Errorf("Get of an empty one: %d", n)
	}
	put(t, b, space, ks[:2])
	put(t, b, space, ks[3:5])
	if n := get(t, b, space, ks); n != 2 {
		t.Errorf("Get: %d before a hole, want 2", n)
	}
	if n := get(t, b, space, ks[3:]); n != 2 {
		t.Errorf("Get: %d behind a hole, want 2", n)
	}
	if got := has(t, b, space, ks); got != "xx.xx." {
		t.Errorf("Has: %s", got)
	}
	put(t, b, space, nil)
	if n := get(t, b, space, nil); n != 0 {
		t.Errorf("Get of nothing: %d", n)
	}
}

// spaces: the same key in two spaces is two blocks.
func spaces(t *testing.T, b offload.Backend, _ func() offload.Backend) {
	other, ks := offload.SpaceID{2}, keys(0, 3)
	put(t, b, space, ks)
	if got := has(t, b, other, ks); got != "..." {
		t.Errorf("Has in another space: %s", got)
	}
	put(t, b, other, ks[:2])
	if n, m := get(t, b, space, ks), get(t, b, other, ks); n != 3 || m != 2 {
		t.Errorf("Get: %d and %d", n, m)
	}
	if err := b.Delete(ctx, space, ks); err != nil {
		t.Error(err)
	}
	if n := get(t, b, other, ks); n != 2 {
		t.Errorf("Delete in another space left %d", n)
	}
}

// twice: a block that is there keeps its bytes.
func twice(t *testing.T, b offload.Backend, _ func() offload.Backend) {
	ks := keys(0, 3)
	put(t, b, space, ks[1:2])
	src := contents(space, ks)
	clear(src[1])
	if n, err := b.Put(ctx, space, ks, src); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if n := get(t, b, space, ks); n != 3 {
		t.Errorf("Get: %d", n)
	}
}

// deleted: a deleted block is absent, and can come again.
func deleted(t *testing.T, b offload.Backend, again func() offload.Backend) {
	ks := keys(0, 4)
	put(t, b, space, ks)
	if err := b.Delete(ctx, space, []offload.Key{ks[2], {77}}); err != nil {
		t.Fatal(err)
	}
	if n := get(t, b, space, ks); n != 2 {
		t.Errorf("Get: %d", n)
	}
	if again != nil {
		b.Close()
		b = again()
		defer b.Close()
	}
	if got := has(t, b, space, ks); got != "xx.x" {
		t.Errorf("Has: %s", got)
	}
	put(t, b, space, ks)
	if n := get(t, b, space, ks); n != 4 {
		t.Errorf("Get: %d", n)
	}
}

// arguments: slices that do not fit together are an error, and nothing of the caller's is kept.
func arguments(t *testing.T, b offload.Backend, _ func() offload.Backend) {
	ks := keys(0, 3)
	if _, err := b.Put(ctx, space, ks, contents(space, ks[:2])); !errors.Is(err, offload.ErrMisaligned) {
		t.Errorf("Put: %v", err)
	}
	if _, err := b.Get(ctx, space, ks, contents(space, ks[:2])); !errors.Is(err, offload.ErrMisaligned) {
		t.Errorf("Get: %v", err)
	}
	if err := b.Has(ctx, space, ks, make([]bool, 2)); !errors.Is(err, offload.ErrMisaligned) {
		t.Errorf("Has: %v", err)
	}
	src, names := contents(space, ks), append([]offload.Key(nil), ks...)
	if n, err := b.Put(ctx, space, names, src); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	for i := range src {
		clear(src[i])
	}
	clear(names)
	if n := get(t, b, space, ks); n != 3 {
		t.Errorf("Get: %d", n)
	}
	if n, err := b.Get(ctx, space, ks[:1], [][]byte{make([]byte, 8)}); n != 0 || !errors.Is(err, offload.ErrMisaligned) {
		t.Errorf("Get into a short buffer: %d, %v", n, err)
	}
}

// canceled: a context that is over ends an operation.
func canceled(t *testing.T, b offload.Backend, _ func() offload.Backend) {
	ks := keys(0, 2)
	put(t, b, space, ks)
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err := b.Put(over, space, keys(5, 1), contents(space, keys(5, 1)))
	_, err2 := b.Get(over, space, ks, contents(space, ks))
	for i, err := range []error{err, err2, b.Has(over, space, ks, make([]bool, 2)), b.Delete(over, space, ks)} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if n := get(t, b, space, ks); n != 2 {
		t.Errorf("Get: %d", n)
	}
}

// reopened: blocks that Put returned for are there again, if the Backend outlives its process.
func reopened(t *testing.T, b offload.Backend, again func() offload.Backend) {
	if again == nil {
		t.Skip("it does not outlive its process")
	}
	ks := keys(0, 500)
	put(t, b, space, ks[:499])
	b.Close()
	b = again()
	if n := get(t, b, space, ks); n != 499 {
		t.Errorf("Get: %d", n)
	}
	put(t, b, space, ks)
	b.Close()
	b = again()
	defer b.Close()
	if n := get(t, b, space, ks); n != 500 {
		t.Errorf("Get: %d", n)
	}
}

// concurrent: results are right while others write and delete.
func concurrent(t *testing.T, b offload.Backend, _ func() offload.Backend) {
	var wg sync.WaitGroup
	failed := make(chan error, 4*30*10)
	for worker := range 4 {
		wg.Go(func() {
			dst := contents(space, keys(0, 8))
			for round := range 30 {
				ks := keys((worker*7+round*5)%100, 8)
				if n, err := b.Get(ctx, space, ks, dst); err != nil {
					failed <- err
				} else {
					for i := range n {
						if !bytes.Equal(dst[i], content(space, ks[i])) {
							failed <- fmt.Errorf("block %d has other bytes", i)
						}
					}
				}
				if n, err := b.Put(ctx, space, ks, contents(space, ks)); n != 8 || err != nil {
					failed <- fmt.Errorf("block %d was not put: %w", n, err)
				}
				if err := b.Delete(ctx, space, ks[:2]); err != nil {
					failed <- err
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
}

// closed: nothing works after Close, and Close can be called again.
func closed(t *testing.T, b offload.Backend, _ func() offload.Backend) {
	ks := keys(0, 2)
	put(t, b, space, ks)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	_, err := b.Put(ctx, space, ks, contents(space, ks))
	_, err2 := b.Get(ctx, space, ks, contents(space, ks))
	for i, err := range []error{err, err2, b.Has(ctx, space, ks, make([]bool, 2)), b.Delete(ctx, space, ks)} {
		if !errors.Is(err, offload.ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
}
