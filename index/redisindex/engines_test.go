package redisindex_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/redisindex"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/kvindex/kvindex/internal/faultproxy"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	model     = "m"
	blockSize = 16
	root      = index.Key(77)

	lease = 300 * time.Millisecond
	// patience bounds waits for events that must happen. Only a failing test waits that long.
	patience = 30 * time.Second
)

var variant = index.Variant{Unit: blockSize}

// block is a block of the prompts, one for each of their prefixes.
type block struct {
	parent int // -1: the first
	local  index.Local
	key    index.Key
}

func (b *block) hash(i int) index.Hash { return index.Hash(i + 1) }

// prompts are prompts with shared prefixes.
type prompts struct {
	blocks []block
	paths  [][]int       // blocks of each prompt
	keys   [][]index.Key // of each prompt
}

// newPrompts makes prompts, each a fork of an earlier one or of none.
func newPrompts(rnd *rand.Rand, n, longest int) *prompts {
	p := &prompts{}
	for i := range n {
		var path []int
		if i > 0 && rnd.IntN(6) > 0 {
			of := p.paths[rnd.IntN(i)]
			path = append(path, of[:rnd.IntN(len(of))+1]...)
		}
		for length := len(path) + 1 + rnd.IntN(longest/2); len(path) < length; {
			b := block{parent: -1, local: index.Local(rnd.Uint64()), key: root}
			if len(path) > 0 {
				b.parent = path[len(path)-1]
				b.key = p.blocks[b.parent].key
			}
			b.key = index.Chain(b.key, b.local)
			path = append(path, len(p.blocks))
			p.blocks = append(p.blocks, b)
		}
		keys := make([]index.Key, len(path))
		for j, at := range path {
			keys[j] = p.blocks[at].key
		}
		p.paths, p.keys = append(p.paths, path), append(p.keys, keys)
	}
	return p
}

// store stores the blocks of a path.
func (p *prompts) store(path []int) index.Change {
	c := index.Change{Op: index.OpStore, Copies: index.CopiesSet, Variant: variant, BlockSize: blockSize, Root: root}
	if up := p.blocks[path[0]].parent; up >= 0 {
		c.HasParent, c.Parent = true, p.blocks[up].hash(up)
	}
	for _, at := range path {
		c.Hashes = append(c.Hashes, p.blocks[at].hash(at))
		c.Locals = append(c.Locals, p.blocks[at].local)
	}
	return c
}

func (p *prompts) remove(blocks []int) index.Change {
	c := index.Change{Op: index.OpRemove}
	for _, at := range blocks {
		c.Hashes = append(c.Hashes, p.blocks[at].hash(at))
	}
	return c
}

// engine is a fake engine with its present and former blocks. Its version is the number of events
// that it has sent.
type engine struct {
	*prompts
	src index.Source

	mu     sync.Mutex
	held   []bool
	events [][]index.Change // events[i-1] makes version i
	// spans has for each block the versions in which it was held, as pairs of first and end. The
	// last pair has no end while the block is held.
	spans [][]int
	news  chan struct{} // closed by the next event
}

func newEngine(p *prompts, pod string) *engine {
	return &engine{
		prompts: p, src: index.Source{Pod: pod, Model: model},
		held: make([]bool, len(p.blocks)), spans: make([][]int, len(p.blocks)), news: make(chan struct{}),
	}
}

// set sets whether a block is held from the next version on; e.mu is held.
func (e *engine) set(at int, held bool) {
	if e.held[at] != held {
		e.held[at] = held
		e.spans[at] = append(e.spans[at], len(e.events)+1)
	}
}

// send adds an event whose changes are already made; e.mu is held.
func (e *engine) send(changes ...index.Change) {
	e.events = append(e.events, changes)
	close(e.news)
	e.news = make(chan struct{})
}

// storeTo stores the missing ones of the first n blocks of a prompt, and reports whether there were
// any.
func (e *engine) storeTo(prompt, n int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	var changes []index.Change
	path := e.paths[prompt][:n]
	for from := 0; from < len(path); {
		to := from
		for to < len(path) && !e.held[path[to]] {
			e.set(path[to], true)
			to++
		}
		if to > from {
			changes = append(changes, e.store(path[from:to]))
		}
		from = to + 1
	}
	if changes != nil {
		e.send(changes...)
	}
	return changes != nil
}

// drop removes the held ones of some blocks, and reports whether there were any.
func (e *engine) drop(blocks []int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	var gone []int
	for _, at := range blocks {
		if e.held[at] {
			e.set(at, false)
			gone = append(gone, at)
		}
	}
	if gone != nil {
		e.send(e.remove(gone))
	}
	return gone != nil
}

func (e *engine) clear() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for at := range e.held {
		e.set(at, false)
	}
	e.send(index.Change{Op: index.OpClear})
}

// act sends a random event.
func (e *engine) act(rnd *rand.Rand) {
	for {
		prompt := rnd.IntN(len(e.paths))
		path := e.paths[prompt]
		switch n := rnd.IntN(100); {
		case n < 2:
			e.clear()
			return
		case n < 20: // the end of a prompt
			if e.drop(path[rnd.IntN(len(path)):]) {
				return
			}
		case n < 40: // a hole
			at := rnd.IntN(len(path))
			if e.drop(path[at:min(at+1+rnd.IntN(3), len(path))]) {
				return
			}
		default:
			if e.storeTo(prompt, 1+rnd.IntN(len(path))) {
				return
			}
		}
	}
}

func (e *engine) version() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.events)
}

// event waits for the event of a version.
func (e *engine) event(ctx context.Context, version int) ([]index.Change, error) {
	for {
		e.mu.Lock()
		if len(e.events) >= version {
			defer e.mu.Unlock()
			return e.events[version-1], nil
		}
		news := e.news
		e.mu.Unlock()
		select {
		case <-news:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// report is a full report: a clear, and then all held blocks. Before that it removes the blocks
// behind holes.
func (e *engine) report() (version int, changes []index.Change) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var gone []int
	for at, b := range e.blocks { // parents come first
		if e.held[at] && b.parent >= 0 && !e.held[b.parent] {
			e.set(at, false)
			gone = append(gone, at)
		}
	}
	if gone != nil {
		e.send(e.remove(gone))
	}
	changes = []index.Change{{Op: index.OpClear}}
	said := make([]bool, len(e.blocks))
	for _, path := range e.paths {
		var run []int
		for _, at := range path {
			if e.held[at] && !said[at] {
				said[at] = true
				run = append(run, at)
			}
		}
		if run != nil {
			changes = append(changes, e.store(run))
		}
	}
	return len(e.events), changes
}

func (e *engine) spansOf(at int) []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.spans[at])
}

// heldBetween reports whether a block was held in any version of first to last.
func (e *engine) heldBetween(at, first, last int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.spans[at]
	for i := 0; i < len(s); i += 2 {
		if s[i] <= last && (i+1 == len(s) || s[i+1] > first) {
			return true
		}
	}
	return false
}

func (e *engine) cursor(version int) index.Cursor {
	return index.Cursor{Stream: "s", Next: uint64(version), Time: float64(version)}
}

// process stands for a process: an Index with its own client, whose connections go through a proxy.
type process struct {
	*redisindex.RedisIndex
	proxy  *faultproxy.Proxy // or nil
	client redis.UniversalClient
}

// start starts a process with the prefix of c.
func start(tb testing.TB, s *redistest.Server, c redisindex.Config, login ...string) *process {
	tb.Helper()
	proxy, err := faultproxy.Listen(s.Addr())
	must(tb, err)
	tb.Cleanup(func() { proxy.Close() })
	return startBehind(tb, proxy, c, login...)
}

// startBehind starts a process behind an existing proxy. login is a name and a password.
func startBehind(tb testing.TB, proxy *faultproxy.Proxy, c redisindex.Config, login ...string) *process {
	tb.Helper()
	options := &redis.Options{
		Addr: proxy.Addr(), ContextTimeoutEnabled: true, PoolSize: 1, DialTimeout: lease, DialerRetries: 1, PoolTimeout: lease,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if len(login) > 0 {
		options.Username, options.Password = login[0], login[1]
	}
	client := redis.NewClient(options)
	p := startWith(tb, client, c)
	p.proxy = proxy
	return p
}

// startWith starts a process with a client.
func startWith(tb testing.TB, client redis.UniversalClient, c redisindex.Config) *process {
	tb.Helper()
	tb.Cleanup(func() { client.Close() })
	if c.Lease == 0 {
		c.Lease = lease
	}
	p := &process{client: client}
	eventually(tb, "an index", func() (err error) {
		p.RedisIndex, err = redisindex.Open(client, c)
		return err
	})
	tb.Cleanup(func() { p.Close() })
	return p
}

// kill ends a process as kill -9 does: it sends nothing more.
func (p *process) kill() {
	p.client.Close()
}

// do applies the event of a version.
func (p *process) do(tb testing.TB, e *engine, version int) error {
	tb.Helper()
	changes, err := e.event(tb.Context(), version)
	must(tb, err)
	done, err := p.Apply(tb.Context(), e.src, e.cursor(version), changes)
	if done.Duplicate {
		tb.Fatalf("%s: event %d is a duplicate", e.src.Pod, version)
	}
	return err
}

func (p *process) must(tb testing.TB, e *engine, version int) {
	tb.Helper()
	must(tb, p.do(tb, e, version))
}

// claim is the blocks in the row of a pod.
type claim struct {
	stale bool
	held  map[int]bool // blocks of the prompts
}

// ask matches a prompt, and returns the rows by pod.
func (p *process) ask(ctx context.Context, ps *prompts, prompt int, m *index.Matches) (map[string]claim, error) {
	q := &index.Query{
		Candidates: index.NewCandidates(model, nil), Held: true,
		Keys: func(index.Variant) ([]index.Key, error) { return ps.keys[prompt], nil },
	}
	if err := p.Match(ctx, q, m); err != nil {
		return nil, err
	}
	rows := make(map[string]claim)
	for _, row := range m.Rows {
		c := claim{row.Stale, make(map[int]bool)}
		for _, set := range row.Held {
			for i, word := range set {
				for ; word != 0; word &= word - 1 {
					c.held[ps.paths[prompt][64*i+bits.TrailingZeros64(word)]] = true
				}
			}
		}
		rows[row.Source.Pod] = c
	}
	return rows, nil
}

var errStale = errors.New("stale")

// equals returns nil if a reader's rows are not stale and equal the engines' blocks. Rows of a
// writer whose beat is late are stale: the error wraps errStale.
func (p *process) equals(ctx context.Context, ps *prompts, engines ...*engine) error {
	var m index.Matches
	for prompt, path := range ps.paths {
		rows, err := p.ask(ctx, ps, prompt, &m)
		if err != nil {
			return err
		}
		for _, e := range engines {
			row := rows[e.src.Pod]
			if row.stale {
				return fmt.Errorf("%s: prompt %d: %w", e.src.Pod, prompt, errStale)
			}
			for i, at := range path {
				e.mu.Lock()
				held := e.held[at]
				e.mu.Unlock()
				if held != row.held[at] {
					return fmt.Errorf("%s: prompt %d: block %d: the engine holds it: %v, the row claims it: %v", e.src.Pod, prompt, i, held, row.held[at])
				}
			}
		}
	}
	return nil
}

// overclaims returns an error if a row that is not stale has blocks that its engine does not hold.
func (p *process) overclaims(ctx context.Context, ps *prompts, engines ...*engine) error {
	var m index.Matches
	for prompt, path := range ps.paths {
		rows, err := p.ask(ctx, ps, prompt, &m)
		if err != nil {
			continue
		}
		for _, e := range engines {
			for i, at := range path {
				if row := rows[e.src.Pod]; !row.stale && row.held[at] && !e.heldBetween(at, e.version(), e.version()) {
					return fmt.Errorf("%s: prompt %d: block %d is claimed", e.src.Pod, prompt, i)
				}
			}
		}
	}
	return nil
}

// eventually calls check until it returns nil.
func eventually(tb testing.TB, what string, check func() error) {
	tb.Helper()
	within(tb, patience, what, check)
}

var promises = flag.Bool("promises", false, "fail if something takes longer than is promised; long form, for a machine that does nothing else")

// within is eventually with a documented bound.
func within(tb testing.TB, bound time.Duration, what string, check func() error) {
	tb.Helper()
	if !*promises {
		bound = patience
	}
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	began := time.Now()
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Since(began) > bound {
			tb.Fatalf("%s: not within %v: %v", what, bound, err)
		}
		<-poll.C
	}
}

// pass waits.
func pass(d time.Duration) { <-time.After(d) }

// wantTTLs checks that every key of an index has a TTL.
func wantTTLs(tb testing.TB, prefix string, servers ...*redistest.Server) {
	tb.Helper()
	for _, s := range servers {
		if s.Info(tb, "role") == "slave" {
			continue
		}
		client := s.Client(tb)
		for it := client.Scan(tb.Context(), 0, prefix+"*", 1000).Iterator(); it.Next(tb.Context()); {
			ttl, err := client.PTTL(tb.Context(), it.Val()).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				tb.Fatal(err)
			}
			if ttl == -1 { // -1 ns is Redis's -1: no TTL
				tb.Errorf("%q has no TTL", it.Val())
			}
		}
	}
}
