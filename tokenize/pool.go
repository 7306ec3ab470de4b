package tokenize

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of a PoolConfig, in bytes.
const (
	defaultMemory  = 1 << 30   // dozens of tokenizers
	maxWaiting     = 256 << 20 // bytes of texts that wait
	defaultMaxText = 4 << 20
)

const (
	// maxLookups bounds the names that are looked up at a time, their loading included, and
	// maxParses the files of these that are read and parsed: that is work for a core, and
	// takes several times the memory of the result.
	maxLookups = 16
	maxParses  = 2

	// A name whose lookup failed is looked up again after failedFor, or ten times
	// as long as it took, at most failedForMost. Until then it has the same error.
	failedFor     = time.Second
	failedForMost = time.Minute

	// maxFailed bounds such names. A request for more names gets ErrBusy, so that requests for
	// names that do not exist cannot keep the disk busy.
	maxFailed = 256

	maxNames     = 1 << 12 // of loaded tokenizers, each under as many names as there are
	maxModelName = 1 << 10 // bytes
)

var (
	// ErrPoolClosed is returned after Close by the methods of a Pool and its
	// tokenizers, and by calls that wait when Close is called.
	ErrPoolClosed = errors.New("tokenize: pool is closed")

	// ErrBusy is returned by the tokenizers of a Pool for a text that would have to wait while
	// too many wait already, and for a model that is not loaded, while too many others have
	// failed to load. A text that has waited for its model can get it, too: the wait for its turn
	// is another one.
	ErrBusy = errors.New("tokenize: pool is busy")
)

// PoolConfig configures a Pool. A zero field is its default.
type PoolConfig struct {
	// Find returns the folder of a model, or the path of a tokenizer.json. LoadPretrained
	// reads a folder with a tokenizer_config.json, and Load anything else. nil is Hub{}.Find,
	// for the local HuggingFace cache.
	//
	// Clients choose the names. So Find must check a name before it uses it in a path. It
	// should refuse models that you do not serve, because loading them can evict others.
	//
	// The context ends when the Pool is closed. It does not end with a request, because other
	// requests may wait for the same model. Find runs for at most 16 models at a time, so
	// calls that hang keep other models from being loaded. 256 names that Find refuses within
	// a second do the same: call Preload for the models that you serve.
	Find func(ctx context.Context, model string) (path string, err error)

	// Engine returns the version of vLLM that serves a model, as for LoadPretrained. nil is ""
	// for all models. An invalid version is an error of the model.
	Engine func(model string) string

	// Memory bounds the bytes of the loaded tokenizers. Beyond it the least recently used
	// ones are evicted; one that is in use stays in memory until its encodings end. A
	// tokenizer that is larger than Memory is refused. 0: 1 GiB, which is dozens of them.
	//
	// The memory of encodings is not counted: up to 60 bytes for each byte of a text that
	// is one long word, and up to 4 MiB for each tokenizer and CPU, which is freed after
	// two garbage collections without use.
	Memory int64

	// Encodings is the number of texts that are encoded at a time. The others wait in the
	// order in which they came, with 256 MiB at most, of which each text counts as 4 KiB at
	// least. A text that would have to wait gets ErrBusy if the room left is less than eight
	// times its size: so short texts still find room when long ones do not. A text of 64 KiB
	// or more lets waiting texts go first after 64 KiB at most; but normalizing, and the search
	// for one piece, have no pause, each some 10 ms for a million bytes. Long texts that have
	// begun have at most twice PoolConfig.MaxText bytes together. 0: runtime.GOMAXPROCS(0).
	Encodings int

	// MaxText is the length of the longest text, in bytes. A longer one is ErrTextTooLong
	// at once. It cannot be more than the 16 MiB of a BPE. 0: 4 MiB, a million tokens of
	// English.
	MaxText int
}

// A Pool has tokenizers by the names of models. It loads each at its first use, once. Models
// with the same files, in the HuggingFace cache the same blobs, share one. A name is looked up
// at its first use. It is looked up again only after its tokenizer was evicted, or by Preload.
//
// All methods are safe for concurrent use. A Pool without work has no goroutine. NewPool makes
// it.
type Pool struct {
	find    func(model string) (string, error) // with a context that stop ends
	engine  func(model string) string
	stop    context.CancelFunc
	stopped <-chan struct{}
	memory  int64
	maxText int

	gate    gate
	lookups chan struct{} // a place each
	parses  chan struct{} // a place each
	running sync.WaitGroup

	clock atomic.Uint64                    // ticks when another file is used than at the last tick
	named atomic.Pointer[map[string]*file] // loaded, by name; replaced by who has mu, and never changed

	mu     sync.Mutex // guards all fields below, and the fields of each file but ready, tokenizer, err and used
	closed bool
	poolFiles
}

// poolFiles are the files of a Pool, and its lookups.
type poolFiles struct {
	pending map[string]*lookup // by name
	failed  map[string]failure // by name
	expires time.Time          // the first of failed does not before
	files   []*file            // loaded or being loaded; a loaded one has a name, or a lookup that will give it one
	bytes   int64              // of the loaded files

	loads, failures, evictions uint64
}

// A lookup finds the tokenizer of a name.
type lookup struct {
	done      chan struct{} // closed when the rest is there
	tokenizer *fileTokenizer
	err       error
}

// A file is a tokenizer in a Pool.
type file struct {
	info      os.FileInfo
	config    [sha256.Size]byte // of LoadPretrained's input beside it; zeros for none
	ready     chan struct{}     // closed when tokenizer or err is there
	tokenizer *fileTokenizer
	err       error
	used      atomic.Uint64 // Pool.clock at the last use

	size    int64 // 0: not counted in Pool.bytes
	names   int   // in Pool.named
	lookups int   // that will name it, or fail
}

type failure struct {
	err   error
	until time.Time
}

// NewPool returns a Pool without tokenizers, or an error that names a wrong field.
func NewPool(c PoolConfig) (*Pool, error) {
	switch {
	case c.Memory < 0, c.Encodings < 0, c.MaxText < 0:
		return nil, fmt.Errorf("tokenize: PoolConfig: Memory %d, Encodings %d, MaxText %d: none can be negative", c.Memory, c.Encodings, c.MaxText)
	case c.MaxText > maxText:
		return nil, fmt.Errorf("tokenize: PoolConfig: MaxText %d is more than %d", c.MaxText, maxText)
	}
	if c.Find == nil {
		c.Find = Hub{}.Find
	}
	if c.Engine == nil {
		c.Engine = func(string) string { return "" }
	}
	c.Memory = cmp.Or(c.Memory, defaultMemory)
	c.Encodings = cmp.Or(c.Encodings, runtime.GOMAXPROCS(0))
	c.MaxText = cmp.Or(c.MaxText, defaultMaxText)
	ctx, stop := context.WithCancel(context.Background())
	p := &Pool{
		find:      func(model string) (string, error) { return c.Find(ctx, model) },
		engine:    c.Engine,
		stop:      stop,
		stopped:   ctx.Done(),
		memory:    c.Memory,
		maxText:   c.MaxText,
		gate:      gate{slots: c.Encodings, free: c.Encodings, maxBegun: 2 * int64(c.MaxText), maxWaiting: maxWaiting},
		lookups:   make(chan struct{}, maxLookups),
		parses:    make(chan struct{}, maxParses),
		poolFiles: poolFiles{pending: make(map[string]*lookup), failed: make(map[string]failure)},
	}
	p.clock.Store(1) // no file has been used
	p.named.Store(&map[string]*file{})
	return p, nil
}

// Preload loads the tokenizers of these models now, and returns when all are loaded, with the
// errors of those that failed. It looks up each name again, even if it is loaded, is being
// loaded or has just failed: call it when a name leads to another file. If the new file cannot
// be loaded, the name keeps its tokenizer.
func (p *Pool) Preload(ctx context.Context, models ...string) error {
	var errs []error
	var lookups []*lookup
	for _, model := range models {
		if ctx.Err() != nil {
			break
		}
		l, err := p.look(ctx, model, true)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lookups = append(lookups, l)
	}
	for _, l := range lookups {
		if _, err := p.wait(ctx, l); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// Close makes waiting calls return ErrPoolClosed, and waits for calls of Find. It does not
// wait for encodings: short ones end as usual, long ones with ErrPoolClosed. A second Close
// does nothing.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.gate.close()
	p.stop()
	p.running.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.named.Store(&map[string]*file{})
	p.failed, p.files, p.bytes = nil, nil, 0
	return nil
}

// PoolStats are the present figures of a Pool, and counts since NewPool.
type PoolStats struct {
	Tokenizers int   // loaded
	Bytes      int64 // of their memory

	Loads     uint64 // tokenizers loaded
	Failures  uint64 // names that led to no tokenizer
	Evictions uint64 // tokenizers that were evicted to make room
	Refused   uint64 // texts that got ErrBusy because too many waited

	Encoding int // texts that are being encoded now
	Waiting  int // texts that have not begun
}

// Stats returns the present figures.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	s := PoolStats{Bytes: p.bytes, Loads: p.loads, Failures: p.failures, Evictions: p.evictions}
	for _, f := range p.files {
		if f.size > 0 {
			s.Tokenizers++
		}
	}
	p.mu.Unlock()
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	s.Refused, s.Encoding, s.Waiting = p.gate.refused, p.gate.slots-p.gate.free, p.gate.waiters
	return s
}

// look starts a lookup, or joins the one of that name; with anew only one that has begun since
// the call. Without anew it returns a finished one for a known name, and an error for one that
// has just failed.
func (p *Pool) look(ctx context.Context, model string, anew bool) (*lookup, error) {
	p.mu.Lock()
	l, err := p.known(model, anew)
	p.mu.Unlock()
	if anew && l != nil { // it may have found what the name led to before this call
		_, _ = p.wait(ctx, l)
	} else if l != nil || err != nil {
		return l, err
	}
	select {
	case p.lookups <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.stopped:
		return nil, ErrPoolClosed
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l, err = p.known(model, anew); l != nil || err != nil {
		<-p.lookups
		return l, err
	}
	l = &lookup{done: make(chan struct{})}
	p.pending[model] = l
	p.running.Go(func() { p.lookUp(model, l) })
	return l, nil
}

// known returns the result of look that needs no lookup; nil and nil if there is none.
func (p *Pool) known(model string, anew bool) (*lookup, error) {
	if p.closed {
		return nil, ErrPoolClosed
	}
	if len(model) > maxModelName {
		return nil, fmt.Errorf("tokenize: a model's name of %d bytes: %w", len(model), fs.ErrInvalid)
	}
	if l := p.pending[model]; l != nil || anew {
		return l, nil
	}
	if f := (*p.named.Load())[model]; f != nil {
		l := &lookup{make(chan struct{}), f.tokenizer, nil}
		close(l.done)
		return l, nil
	}
	p.forgiveFailed()
	if f, ok := p.failed[model]; ok {
		return nil, f.err
	}
	if len(p.failed) >= maxFailed {
		return nil, fmt.Errorf("%w: model %q is not loaded, and %d others have just failed", ErrBusy, model, len(p.failed))
	}
	return nil, nil
}

func (p *Pool) wait(ctx context.Context, l *lookup) (*fileTokenizer, error) {
	select {
	case <-l.done:
		return l.tokenizer, l.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.stopped:
		return nil, ErrPoolClosed
	}
}

// lookUp executes a lookup, which has a place.
func (p *Pool) lookUp(model string, l *lookup) {
	began := time.Now()
	f, err := p.load(model)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pending, model)
	switch {
	case err == nil:
		p.name(model, f)
		l.tokenizer = f.tokenizer
	case p.closed:
		l.err = ErrPoolClosed
	default:
		l.err = fmt.Errorf("tokenize: model %q: %w", model, err)
		p.fail(model, l.err, time.Since(began))
	}
	<-p.lookups
	close(l.done)
}

// load returns the loaded file of a model, with the lookup counted in it.
func (p *Pool) load(model string) (*file, error) {
	path, err := p.find(model)
	if err != nil {
		return nil, err
	}
	c, path, err := source(path, p.engine(model))
	if err != nil {
		return nil, err
	}
	r, err := open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	info, err := r.Stat()
	if err != nil {
		return nil, err
	}
	f, ours := p.join(info, c)
	if ours {
		p.read(f, r, c)
	}
	<-f.ready
	if f.err != nil {
		return nil, fmt.Errorf("%s: %w", path, f.err)
	}
	return f, nil
}

// join returns the file that is the same, or a new one, which is then the
// caller's to read.
func (p *Pool) join(info os.FileInfo, c *config) (f *file, ours bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := c.identity()
	for _, f := range p.files {
		if f.config == sum && os.SameFile(f.info, info) && f.info.Size() == info.Size() && f.info.ModTime().Equal(info.ModTime()) {
			f.lookups++
			return f, false
		}
	}
	f = &file{info: info, config: sum, ready: make(chan struct{}), lookups: 1}
	p.files = append(p.files, f)
	return f, true
}

func (p *Pool) read(f *file, r *os.File, c *config) {
	select {
	case p.parses <- struct{}{}:
		f.tokenizer = &fileTokenizer{pool: p}
		f.tokenizer.bpe, f.err = parse(r, c)
		<-p.parses
	case <-p.stopped:
		f.err = ErrPoolClosed
	}
	size := int64(0)
	if f.err == nil {
		size = int64(f.tokenizer.bpe.size())
		if size > p.memory {
			f.tokenizer, f.err = nil, fmt.Errorf("it takes %d bytes of memory, more than the %d of the pool", size, p.memory)
		}
	}
	p.mu.Lock()
	if f.err != nil {
		p.drop(f)
	} else {
		f.size = size
		p.bytes += size
		p.loads++
	}
	p.mu.Unlock()
	close(f.ready)
}

// name gives f the name of a lookup that ends with it.
func (p *Pool) name(model string, f *file) {
	named := maps.Clone(*p.named.Load())
	if named[model] != f {
		f.names++
		p.unname(named, model)
		if len(named) == maxNames {
			for other := range named {
				p.unname(named, other)
				break
			}
		}
		named[model] = f
	}
	delete(p.failed, model)
	p.touch(f)
	f.lookups--
	p.evict(named, f)
	p.named.Store(&named)
}

// unname removes a name from its file, if it has one.
func (p *Pool) unname(named map[string]*file, model string) {
	f := named[model]
	if f == nil {
		return
	}
	delete(named, model)
	if f.names--; f.names == 0 && f.lookups == 0 {
		p.drop(f)
	}
}

// evict makes room for keep, which has just been named.
func (p *Pool) evict(named map[string]*file, keep *file) {
	for p.bytes > p.memory {
		var oldest *file
		for _, f := range p.files {
			if f != keep && f.size > 0 && f.lookups == 0 && (oldest == nil || f.used.Load() < oldest.used.Load()) {
				oldest = f
			}
		}
		if oldest == nil {
			return // the lookups of the others evict, too
		}
		maps.DeleteFunc(named, func(_ string, f *file) bool { return f == oldest })
		p.drop(oldest)
		p.evictions++
	}
}

func (p *Pool) drop(f *file) {
	p.files = slices.DeleteFunc(p.files, func(other *file) bool { return other == f })
	p.bytes -= f.size
}

// fail remembers a failed lookup that took so long.
func (p *Pool) fail(model string, err error, took time.Duration) {
	p.failures++
	p.forgiveFailed()
	if len(p.failed) >= maxFailed {
		return // names that are not in failed are not looked up now
	}
	until := time.Now().Add(min(max(failedFor, 10*took), failedForMost))
	if len(p.failed) == 0 || until.Before(p.expires) {
		p.expires = until
	}
	p.failed[model] = failure{err, until}
}

// forgiveFailed forgets the failures whose time has passed.
func (p *Pool) forgiveFailed() {
	now := time.Now()
	if now.Before(p.expires) {
		return
	}
	p.expires = time.Time{}
	for model, f := range p.failed {
		if !now.Before(f.until) {
			delete(p.failed, model)
		} else if p.expires.IsZero() || f.until.Before(p.expires) {
			p.expires = f.until
		}
	}
}
