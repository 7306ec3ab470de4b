package tokenize_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex/tokenize"
)

// openPool closes the pool at the end of the test, or bubble, and checks that it is consistent.
func openPool(t *testing.T, c tokenize.PoolConfig) *tokenize.Pool {
	t.Helper()
	p, err := tokenize.NewPool(c)
	must(t, err)
	t.Cleanup(func() {
		if err := p.Check(); err != nil {
			t.Error(err)
		}
		p.Close()
	})
	return p
}

// finds returns a Find for the files of a folder, by name.
func finds(dir string) func(context.Context, string) (string, error) {
	return func(_ context.Context, model string) (string, error) { return filepath.Join(dir, model), nil }
}

// tinies writes n copies of tiny.json.
func tinies(tb testing.TB, n int) (dir string) {
	dir = tb.TempDir()
	tiny := readTiny(tb)
	for i := range n {
		must(tb, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), tiny, 0o600))
	}
	return dir
}

func encodeErr(ctx context.Context, p *tokenize.Pool, model string) error {
	_, err := p.Tokenizer(model).Encode(ctx, nil, "the wall", true)
	return err
}

// The tokenizers of a pool encode like those of Load, and each file of the hub is loaded once,
// whatever its names.
func TestPoolSharesFiles(t *testing.T) {
	tiny := loadTiny(t)
	c := newHubCache(t)
	const repo = "models--org--a"
	c.ref(repo, "main", oneCommit)
	c.ref(repo, "v1", otherCommit)
	c.snapshot(repo, oneCommit, "blob", readTiny(t))
	must(t, os.Symlink(filepath.Join("..", "..", "blobs", "blob"), c.path(repo, "snapshots", otherCommit, "tokenizer.json")))
	c.model("org/copy", zip(t, readTiny(t)))
	must(t, os.Link(c.path(repo, "blobs", "blob"), c.path("models--hard--link", "snapshots", oneCommit, "tokenizer.json")))
	names := []string{"org/a", "org/a@main", "org/a@v1", "org/a@" + oneCommit, "org/copy", "hard/link@" + oneCommit}
	const callers = 64
	for round := range 4 {
		synctest.Test(t, func(t *testing.T) {
			p := openPool(t, tokenize.PoolConfig{Find: tokenize.Hub{Dir: c.dir}.Find})
			for caller := range callers {
				go func() {
					r := rand.New(rand.NewPCG(uint64(round), uint64(caller)))
					for range 20 {
						text := strings.Repeat("the boats come and go ", r.IntN(8))
						got := encode(t, p.Tokenizer(names[r.IntN(len(names))]), text, true)
						if want := encode(t, tiny, text, true); !slices.Equal(got, want) {
							t.Errorf("%q: got %v, want %v", text, got, want)
						}
					}
				}()
			}
			synctest.Wait()
			want := tokenize.PoolStats{Tokenizers: 2, Bytes: 2 * tiny.Size(), Loads: 2}
			if got := p.Stats(); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// Each caller of a lookup waits as long as its own context. The lookup goes on. Preload makes one
// of its own behind it: the name may lead to another file since the first began.
func TestPoolWaitsForALookup(t *testing.T) {
	dir := tinies(t, 1)
	synctest.Test(t, func(t *testing.T) {
		var finds atomic.Int32
		proceed := make(chan struct{})
		p := openPool(t, tokenize.PoolConfig{Find: func(ctx context.Context, model string) (string, error) {
			finds.Add(1)
			<-proceed
			return filepath.Join(dir, model), ctx.Err()
		}})
		first, cancel := context.WithCancel(t.Context())
		errs := make(chan error, 100)
		go func() { errs <- encodeErr(first, p, "0") }()
		synctest.Wait()
		for range 40 {
			go func() { errs <- encodeErr(t.Context(), p, "0") }()
		}
		go func() { errs <- p.Preload(t.Context(), "0") }()
		synctest.Wait()
		if got := p.Stats().Waiting; got != 41 {
			t.Errorf("%d wait", got)
		}
		cancel()
		if err := <-errs; err != context.Canceled {
			t.Errorf("the first: %v", err)
		}
		deadline, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Preload(deadline, "0"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the deadline: %v", err)
		}
		close(proceed)
		for range 41 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if finds.Load() != 2 {
			t.Errorf("looked up %d times", finds.Load())
		}
	})
}

// A lookup without callers still loads the tokenizer for later ones.
func TestPoolLoadsForNobody(t *testing.T) {
	dir := tinies(t, 1)
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		p := openPool(t, tokenize.PoolConfig{Find: func(context.Context, string) (string, error) {
			<-proceed
			return filepath.Join(dir, "0"), nil
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := encodeErr(ctx, p, "m"); err != context.DeadlineExceeded {
			t.Error(err)
		}
		close(proceed)
		synctest.Wait()
		if got := p.Stats(); got.Tokenizers != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// A failed lookup is an error for all callers, and is not repeated for some time.
func TestPoolFailures(t *testing.T) {
	dir := tinies(t, 1)
	must(t, os.WriteFile(filepath.Join(dir, "cut"), readTiny(t)[:5000], 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		find string
		err  error
		want error
	}{
		"a find that fails":     {"", broken, broken},
		"no file":               {filepath.Join(dir, "none"), nil, fs.ErrNotExist},
		"a folder without":      {filepath.Join(dir, "empty"), nil, fs.ErrNotExist},
		"no path":               {"", nil, fs.ErrNotExist},
		"a file that is broken": {filepath.Join(dir, "cut"), nil, tokenize.ErrMalformed},
		"a device":              {os.DevNull, nil, fs.ErrInvalid},
	} {
		synctest.Test(t, func(t *testing.T) {
			finds, took, repaired := 0, time.Duration(0), false
			p := openPool(t, tokenize.PoolConfig{Find: func(context.Context, string) (string, error) {
				finds++
				<-time.After(took)
				if repaired {
					return filepath.Join(dir, "0"), nil
				}
				return c.find, c.err
			}})
			fails := func(wantFinds int) {
				t.Helper()
				if err := encodeErr(t.Context(), p, "model-of-mine"); !errors.Is(err, c.want) || !strings.Contains(err.Error(), "model-of-mine") {
					t.Errorf("%s: %v", name, err)
				}
				if finds != wantFinds {
					t.Errorf("%s: looked up %d times, want %d", name, finds, wantFinds)
				}
			}
			fails(1)
			fails(1)
			<-time.After(tokenize.FailedFor - 1)
			fails(1)
			<-time.After(1)
			took = 2 * time.Second
			fails(2)
			<-time.After(20*time.Second - 1)
			fails(2)
			<-time.After(1)
			took = time.Hour
			fails(3)
			<-time.After(time.Minute - 1)
			fails(3)
			took = 0
			<-time.After(1)
			fails(4)
			if err := p.Preload(t.Context(), "model-of-mine"); !errors.Is(err, c.want) {
				t.Errorf("%s: preloading: %v", name, err)
			}
			fails(5)
			repaired = true
			if err := p.Preload(t.Context(), "model-of-mine"); err != nil {
				t.Errorf("%s: repaired: %v", name, err)
			}
			if err := encodeErr(t.Context(), p, "model-of-mine"); err != nil || finds != 6 {
				t.Errorf("%s: repaired: %v, looked up %d times", name, err, finds)
			}
			if got := p.Stats(); got.Failures != 5 || got.Loads != 1 {
				t.Errorf("%s: %+v", name, got)
			}
		})
	}
}

// Names of missing models cost neither memory nor many lookups, and loaded models stay in use.
func TestPoolUnknownNames(t *testing.T) {
	dir := tinies(t, 2)
	synctest.Test(t, func(t *testing.T) {
		var finds atomic.Int64
		p := openPool(t, tokenize.PoolConfig{Find: func(_ context.Context, model string) (string, error) {
			finds.Add(1)
			return filepath.Join(dir, model), nil
		}})
		must(t, p.Preload(t.Context(), "0"))
		const callers, each, seconds = 32, 500, 3
		var busy atomic.Int64
		for second := range seconds {
			for caller := range callers {
				go func() {
					for i := range each {
						switch err := encodeErr(t.Context(), p, fmt.Sprintf("none-%d-%d-%d", second, caller, i)); {
						case errors.Is(err, tokenize.ErrBusy):
							busy.Add(1)
						case !errors.Is(err, fs.ErrNotExist):
							t.Error(err)
						}
						if err := encodeErr(t.Context(), p, "0"); err != nil {
							t.Error(err)
						}
					}
				}()
			}
			synctest.Wait()
			if err := p.Check(); err != nil {
				t.Error(err)
			}
			if err := encodeErr(t.Context(), p, "1"); !errors.Is(err, tokenize.ErrBusy) && second == 0 {
				t.Errorf("another model: %v", err)
			}
			if second == 1 { // Preload is not refused
				if err := p.Preload(t.Context(), "1"); err != nil {
					t.Error(err)
				}
			}
			<-time.After(tokenize.FailedFor)
		}
		if got := finds.Load(); got > seconds*(tokenize.MaxFailed+tokenize.MaxLookups)+2 {
			t.Errorf("looked up %d times", got)
		}
		t.Logf("%d names, looked up %d, %d times busy", seconds*callers*each, finds.Load(), busy.Load())
		for _, model := range []string{strings.Repeat("x", 1<<20), "none-of-them"} {
			before := finds.Load()
			err := encodeErr(t.Context(), p, model)
			if tooLong := len(model) > 1<<10; err == nil || tooLong != errors.Is(err, fs.ErrInvalid) || tooLong != (before == finds.Load()) {
				t.Errorf("%.20q: %.200v", model, err)
			}
		}
	})
}

// Lookups that hang delay neither loaded models nor Close.
func TestPoolLookupsThatHang(t *testing.T) {
	dir := tinies(t, 2)
	synctest.Test(t, func(t *testing.T) {
		p := openPool(t, tokenize.PoolConfig{Find: func(ctx context.Context, model string) (string, error) {
			if strings.HasPrefix(model, "hang") {
				<-ctx.Done()
				return "", ctx.Err()
			}
			return filepath.Join(dir, model), nil
		}})
		must(t, p.Preload(t.Context(), "0"))
		errs := make(chan error, 100)
		for i := range tokenize.MaxLookups {
			go func() { errs <- encodeErr(t.Context(), p, fmt.Sprint("hang", i)) }()
		}
		synctest.Wait()
		if err := encodeErr(t.Context(), p, "0"); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := encodeErr(ctx, p, "1"); err != context.DeadlineExceeded {
			t.Errorf("behind those that hang: %v", err)
		}
		go func() { errs <- encodeErr(t.Context(), p, "1") }()
		go func() { errs <- p.Preload(t.Context(), "1") }()
		synctest.Wait()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		for range tokenize.MaxLookups + 2 {
			if err := <-errs; !errors.Is(err, tokenize.ErrPoolClosed) {
				t.Error(err)
			}
		}
		for name, err := range map[string]error{
			"a loaded one": encodeErr(t.Context(), p, "0"),
			"a new one":    encodeErr(t.Context(), p, "new"),
			"Preload":      p.Preload(t.Context(), "0"),
		} {
			if !errors.Is(err, tokenize.ErrPoolClosed) {
				t.Errorf("%s after Close: %v", name, err)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if got := p.Stats(); got.Tokenizers != 0 || got.Bytes != 0 || got.Waiting != 0 {
			t.Errorf("after Close: %+v", got)
		}
	})
}

// Callers that wait for a free place share one lookup of a name. Close does not wait for a Find
// that hangs.
func TestPoolWaitsForAPlace(t *testing.T) {
	dir := tinies(t, 1)
	synctest.Test(t, func(t *testing.T) {
		var finds atomic.Int32
		proceed := make(chan struct{}, tokenize.MaxLookups)
		p := openPool(t, tokenize.PoolConfig{Find: func(_ context.Context, model string) (string, error) {
			if strings.HasPrefix(model, "hang") {
				<-proceed
				return "", fs.ErrNotExist
			}
			finds.Add(1)
			return filepath.Join(dir, model), nil
		}})
		errs := make(chan error, 100)
		hang := func() {
			for i := range tokenize.MaxLookups {
				go func() { errs <- p.Preload(t.Context(), fmt.Sprint("hang", i)) }()
			}
			synctest.Wait()
		}
		hang()
		for range 40 {
			go func() { errs <- encodeErr(t.Context(), p, "0") }()
		}
		synctest.Wait()
		for range tokenize.MaxLookups {
			proceed <- struct{}{}
		}
		missing := 0
		for range tokenize.MaxLookups + 40 {
			if err := <-errs; errors.Is(err, fs.ErrNotExist) {
				missing++
			} else if err != nil {
				t.Error(err)
			}
		}
		if missing != tokenize.MaxLookups || finds.Load() != 1 {
			t.Errorf("%d failed, looked up %d times", missing, finds.Load())
		}
		hang()
		go func() { errs <- p.Close() }()
		for range tokenize.MaxLookups {
			if err := <-errs; !errors.Is(err, tokenize.ErrPoolClosed) {
				t.Errorf("while Close waits: %v", err)
			}
		}
		close(proceed)
		if err := <-errs; err != nil {
			t.Error(err)
		}
	})
}

// The least recently used tokenizers are evicted when there is no room.
func TestPoolMemory(t *testing.T) {
	dir := tinies(t, 4)
	size := loadTiny(t).Size()
	p := openPool(t, tokenize.PoolConfig{Find: finds(dir), Memory: 3*size + size/2})
	for i, step := range []struct {
		model            string
		loads, evictions uint64
	}{
		{"0", 1, 0}, {"1", 2, 0}, {"2", 3, 0},
		{"0", 3, 0},
		{"3", 4, 1}, // evicts 1
		{"2", 4, 1}, {"0", 4, 1},
		{"1", 5, 2}, // evicts 3
		{"0", 5, 2}, {"1", 5, 2}, {"2", 5, 2},
		{"3", 6, 3}, // evicts 0
		{"1", 6, 3}, {"2", 6, 3},
	} {
		must(t, encodeErr(t.Context(), p, step.model))
		if got := p.Stats(); got.Loads != step.loads || got.Evictions != step.evictions || got.Bytes > 3*size+size/2 {
			t.Fatalf("step %d: %+v, want %d loads, %d evictions", i, got, step.loads, step.evictions)
		}
	}
	p = openPool(t, tokenize.PoolConfig{Find: finds(dir), Memory: size - 1})
	for range 3 {
		err := encodeErr(t.Context(), p, "0")
		if want := fmt.Sprintf("it takes %d bytes of memory, more than the %d of the pool", size, size-1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("too large by itself: %v", err)
		}
	}
	if got := p.Stats(); got.Failures != 1 || got.Bytes != 0 {
		t.Errorf("too large by itself: %+v", got)
	}
}

// A tokenizer has a limited number of names.
func TestPoolNames(t *testing.T) {
	dir := tinies(t, 1)
	p := openPool(t, tokenize.PoolConfig{Find: func(context.Context, string) (string, error) { return filepath.Join(dir, "0"), nil }})
	for i := range tokenize.MaxNames + 100 {
		must(t, encodeErr(t.Context(), p, fmt.Sprint(i)))
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	if got := p.Stats(); got.Loads != 1 || got.Tokenizers != 1 {
		t.Errorf("%+v", got)
	}
}

// Preload loads again if the name is of another file, or the file has changed.
func TestPoolPreloadAnew(t *testing.T) {
	c := newHubCache(t)
	c.model("org/a", readTiny(t))
	p := openPool(t, tokenize.PoolConfig{Find: tokenize.Hub{Dir: c.dir}.Find})
	want := func(when string, loads, tokenizers int) {
		t.Helper()
		if err := encodeErr(t.Context(), p, "org/a"); err != nil {
			t.Error(err)
		}
		if got := p.Stats(); got.Loads != uint64(loads) || got.Tokenizers != tokenizers {
			t.Errorf("%s: %+v, want %d loads, %d tokenizers", when, got, loads, tokenizers)
		}
	}
	preload := func() {
		t.Helper()
		if err := p.Preload(t.Context(), "org/a", "org/a@"+oneCommit, "org/a"); err != nil {
			t.Error(err)
		}
	}
	preload()
	want("at first", 1, 1)
	preload()
	want("again", 1, 1)
	c.snapshot("models--org--a", otherCommit, "new", readTiny(t))
	c.ref("models--org--a", "main", otherCommit)
	want("not asked", 1, 1)
	preload()
	want("main has moved", 2, 2)
	c.write(zip(t, readTiny(t)), "models--org--a", "blobs", "blob")
	preload()
	want("another content in the same file", 3, 2)
	then := time.Unix(1e9, 0)
	must(t, os.Chtimes(c.path("models--org--a", "blobs", "blob"), then, then))
	preload()
	want("another of the same size", 4, 2)
	c.ref("models--org--a", "main", oneCommit)
	preload()
	want("main has moved back", 4, 1)
	c.ref("models--org--a", "main", otherCommit[1:]+"0")
	if err := p.Preload(t.Context(), "org/a", "org/none"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "org/none") {
		t.Errorf("got %v", err)
	}
	want("main has moved to nowhere", 4, 1)
}

// signal is a context that signals the n-th call of Err.
type signal struct {
	context.Context
	looks atomic.Int32
	n     int32
	now   chan struct{}
	then  chan struct{} // if not nil, that call returns when it is closed
}

func (s *signal) Err() error {
	if s.looks.Add(1) == s.n {
		close(s.now)
		if s.then != nil {
			<-s.then
		}
	}
	return s.Context.Err()
}

// signals is for an encoding that has begun: the first call of Err is before the gate.
func signals(t *testing.T) *signal {
	return &signal{Context: t.Context(), n: 2, now: make(chan struct{})}
}

// turns is a context that calls a function at each call of Err. A long text makes one when it may
// give its slot away.
type turns struct {
	context.Context
	look func()
}

func (c turns) Err() error {
	c.look()
	return c.Context.Err()
}

// Short texts overtake a long one, one at each of its turns. The long one gets the same
// ids as alone, even if its tokenizer is evicted meanwhile.
func TestPoolLongText(t *testing.T) {
	dir := tinies(t, 2)
	tiny := loadTiny(t)
	const wantTurns = 16
	for _, h := range hostileTexts(t, wantTurns*tokenize.LongText) {
		if !slices.Contains([]string{"prose", "one letter"}, h.name) {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			p := openPool(t, tokenize.PoolConfig{Find: finds(dir), Encodings: 1, Memory: tiny.Size()})
			must(t, p.Preload(t.Context(), "0"))
			looks, came, served := 0, 0, 0
			ctx := turns{t.Context(), func() {
				if looks++; looks <= 2 {
					return // before the gate, and at the beginning of the encoding
				}
				synctest.Wait()
				if served != came {
					t.Errorf("%s: the short text of turn %d still waits", h.name, came)
				}
				came++
				go func() {
					if err := encodeErr(t.Context(), p, "1"); err != nil {
						t.Error(err)
					}
					served++
				}()
				synctest.Wait() // the short text waits for the slot
			}}
			long, err := p.Tokenizer("0").Encode(ctx, nil, h.text, true)
			if err != nil || !slices.Equal(long, encode(t, tiny, h.text, true)) {
				t.Errorf("%s: %v, or other ids than alone", h.name, err)
			}
			synctest.Wait()
			if got := p.Stats(); got.Evictions != 1 || served != came {
				t.Errorf("%s: %d of %d short texts were served, %+v", h.name, served, came, got)
			}
			if came < wantTurns-1 {
				t.Errorf("%s: %d turns, want %d", h.name, came, wantTurns)
			}
		})
	}
}

// Close ends a long text, and one that waits for a slot.
func TestPoolCloseEndsTexts(t *testing.T) {
	dir := tinies(t, 1)
	p := openPool(t, tokenize.PoolConfig{Find: finds(dir), Encodings: 1})
	must(t, p.Preload(t.Context(), "0"))
	ctx := signals(t)
	ctx.then = make(chan struct{})
	errs := make(chan error, 1)
	go func() {
		_, err := p.Tokenizer("0").Encode(ctx, nil, strings.Repeat("a word ", tokenize.LongText), true)
		errs <- err
	}()
	<-ctx.now
	p.Close()
	close(ctx.then)
	if err := <-errs; err != tokenize.ErrPoolClosed {
		t.Error(err)
	}
}

// The bound of waiting texts also holds for those that wait for a tokenizer.
func TestPoolBusy(t *testing.T) {
	dir := tinies(t, 1)
	synctest.Test(t, func(t *testing.T) {
		proceed := make(chan struct{})
		p := openPool(t, tokenize.PoolConfig{Find: func(context.Context, string) (string, error) {
			<-proceed
			return filepath.Join(dir, "0"), nil
		}})
		p.SetMaxWaiting(1 << 20)
		text := strings.Repeat("a wall ", 1<<13)
		var waited, busy atomic.Int32
		for range 100 {
			go func() {
				switch _, err := p.Tokenizer("m").Encode(t.Context(), nil, text, true); {
				case err == nil:
					waited.Add(1)
				case errors.Is(err, tokenize.ErrBusy):
					busy.Add(1)
				default:
					t.Error(err)
				}
			}()
		}
		synctest.Wait()
		if got := p.Stats(); got.Waiting > 20 || got.Refused < 80 {
			t.Errorf("before it is loaded: %+v", got)
		}
		go func() {
			if err := encodeErr(t.Context(), p, "m"); err != nil {
				t.Errorf("a short text: %v", err)
			}
		}()
		synctest.Wait()
		close(proceed)
		synctest.Wait()
		t.Logf("%d waited, %d did not", waited.Load(), busy.Load())
		if p.Stats().Refused != uint64(busy.Load()) || waited.Load() < 4 {
			t.Errorf("%d waited, %d did not; %+v", waited.Load(), busy.Load(), p.Stats())
		}
	})
}

func TestPoolConfig(t *testing.T) {
	for _, c := range []tokenize.PoolConfig{{Memory: -1}, {Encodings: -1}, {MaxText: -1}, {MaxText: tokenize.MaxText + 1}} {
		if p, err := tokenize.NewPool(c); err == nil || p != nil {
			t.Errorf("%+v: %v, %v", c, p, err)
		}
	}
	c := newHubCache(t)
	c.model("org/m", readTiny(t))
	t.Setenv("HF_HUB_CACHE", c.dir)
	if err := encodeErr(t.Context(), openPool(t, tokenize.PoolConfig{}), "org/m"); err != nil {
		t.Errorf("by default: %v", err)
	}
}

// Models with room for few, names that fail, long and short texts, cancellations at any moment,
// Preload and Close in between: each call gets its ids or an expected error, and nothing is left.
func TestPoolRaces(t *testing.T) {
	const models, callers = 6, 64
	rounds, each := 2, 60
	if testing.Short() {
		each = 15
	}
	dir := tinies(t, models)
	tiny := loadTiny(t)
	long := strings.Repeat("the boats come and go ", 2*tokenize.LongText/20)
	texts := []string{"the wall", "a letter of a friend", long}
	var want [][]uint32
	for _, text := range texts {
		want = append(want, encode(t, tiny, text, true))
	}
	broken := errors.New("broken")
	var encoded, gaveUp, failed, closed atomic.Int64
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			p := openPool(t, tokenize.PoolConfig{Memory: 3 * tiny.Size(), Encodings: 2, Find: func(_ context.Context, model string) (string, error) {
				n := calls.Add(1)
				for range n % 50 {
					runtime.Gosched()
				}
				if n%7 == 0 {
					return "", broken
				}
				return filepath.Join(dir, model), nil
			}})
			one := func(r *rand.Rand) error {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if r.IntN(3) == 0 {
					turns := r.IntN(500)
					go func() {
						for range turns {
							runtime.Gosched()
						}
						cancel()
					}()
				}
				model := fmt.Sprint(r.IntN(models))
				if r.IntN(10) == 0 {
					return p.Preload(ctx, model, fmt.Sprint(r.IntN(models)))
				}
				i := r.IntN(2)
				if r.IntN(150) == 0 {
					i = 2
				}
				got, err := p.Tokenizer(model).Encode(ctx, nil, texts[i], true)
				if err == nil && !slices.Equal(got, want[i]) {
					t.Errorf("%.40q: other ids than alone", texts[i])
				}
				return err
			}
			var done sync.WaitGroup
			for caller := range callers {
				r := rand.New(rand.NewPCG(uint64(round), uint64(caller)))
				done.Go(func() {
					for i := range each {
						if caller == 0 && i == each-5 && round%2 == 1 {
							p.Close()
						}
						switch err := one(r); {
						case err == nil:
							encoded.Add(1)
						case errors.Is(err, context.Canceled):
							gaveUp.Add(1)
						case errors.Is(err, broken):
							failed.Add(1)
						case errors.Is(err, tokenize.ErrPoolClosed) && round%2 == 1:
							closed.Add(1)
						default:
							t.Error(err)
						}
					}
				})
			}
			done.Wait()
			synctest.Wait() // for abandoned lookups
			t.Logf("%+v", p.Stats())
		})
	}
	t.Logf("%d encoded, %d given up, %d failed, %d closed", encoded.Load(), gaveUp.Load(), failed.Load(), closed.Load())
	if min(encoded.Load(), gaveUp.Load(), failed.Load(), closed.Load()) < int64(rounds) {
		t.Error("too few of one kind")
	}
}
