package tokenize

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A file that is loaded but not named yet is not evicted.
func TestPoolBetweenLoadingAndNaming(t *testing.T) {
	dir := t.TempDir()
	tiny, err := os.ReadFile("testdata/tiny.json")
	must(t, err)
	for _, name := range []string{"a", "b"} {
		must(t, os.WriteFile(filepath.Join(dir, name), tiny, 0o600))
	}
	alone, err := Load("testdata/tiny.json")
	must(t, err)
	p, err := NewPool(PoolConfig{
		Find:   func(_ context.Context, model string) (string, error) { return filepath.Join(dir, model), nil },
		Memory: int64(alone.size()),
	})
	must(t, err)
	load := func(model string) *file {
		t.Helper()
		f, err := p.load(model)
		must(t, err)
		return f
	}
	check := func(loaded, evictions int) {
		t.Helper()
		if got := p.Stats(); got.Tokenizers != loaded || got.Evictions != uint64(evictions) {
			t.Errorf("%+v, want %d tokenizers, %d evictions", got, loaded, evictions)
		}
	}
	a := load("a")
	if load("a") != a {
		t.Fatal("two of one file")
	}
	p.name("a", a)
	check(1, 0)
	b := load("b")
	p.name("b", b) // a is in use by its other lookup
	check(2, 0)
	p.unname(*p.named.Load(), "a")
	check(2, 0)
	p.fail("a2", errors.New("failed"), time.Second)
	p.name("a2", a)
	check(1, 1)
	if named := *p.named.Load(); named["a2"] != a || named["b"] != nil || len(p.failed) > 0 {
		t.Errorf("named %v, failed %v", named, p.failed)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	p.Close()
	l := &lookup{done: make(chan struct{})}
	p.lookups <- struct{}{}
	if p.lookUp("none", l); l.err != ErrPoolClosed {
		t.Errorf("a lookup that ends after Close: %v", l.err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
