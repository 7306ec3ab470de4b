//go:build linux

package systemtest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
)

// churnEnv makes the test binary run one pod of TestChurn, so that the pod can be killed and
// stopped.
const churnEnv = "KVINDEX_SERVE_CHURN"

func init() { servers[churnEnv] = serveChurn }

// churnKind is a kind of engine with its form of events.
type churnKind struct {
	name     string
	encoding fakeengine.Encoding
	sglang   bool
	pages    bool // SGLang before mid 2026: an event for each page
	lmcache  int  // blocks of a chunk in LMCache beside the gpu; 0: no LMCache
	own      bool // LMCache computes its own hashes of chunks, not vLLM's, so no prompt finds them
}

var churnKinds = []churnKind{
	{name: "vLLM, maps"},
	{name: "vLLM, maps, digests", encoding: fakeengine.Encoding{ByteHashes: true}},
	{name: "vLLM, 12 fields", encoding: fakeengine.Encoding{Form: fakeengine.FormArrays12}},
	{name: "vLLM, 12 fields, digests", encoding: fakeengine.Encoding{Form: fakeengine.FormArrays12, ByteHashes: true}},
	{name: "vLLM, 7 fields", encoding: fakeengine.Encoding{Form: fakeengine.FormArrays7}},
	{name: "SGLang, runs", encoding: fakeengine.Encoding{Form: fakeengine.FormArrays7, SignedHashes: true}, sglang: true},
	{name: "SGLang, pages", encoding: fakeengine.Encoding{Form: fakeengine.FormArrays7, SignedHashes: true}, sglang: true, pages: true},
	{name: "LMCache", lmcache: 1},
	{name: "LMCache, own names", encoding: fakeengine.Encoding{Form: fakeengine.FormArrays12}, lmcache: 4, own: true},
}

// churnSetup is the configuration of an engine.
type churnSetup struct {
	Kind         int // of churnKinds
	Host         string
	Port, Replay int // of rank 0
	Ranks        int
	Topic, Model string
	BlockSize    int
	Blocks       int    // of the pool of each rank
	Seed         uint64 // of the prompts
}

// churnOrder is a line that an engine reads.
type churnOrder struct {
	Start   *churnSetup `json:",omitempty"` // the first order
	Ranks   int         `json:",omitempty"` // their number from now on
	Rank    int         // which carries out the rest
	Clear   bool        `json:",omitempty"`
	Evict   []int       `json:",omitempty"` // prompts that lose blocks in their middle
	Prompts []int       `json:",omitempty"` // served at once
	Ask     bool        `json:",omitempty"` // answered by a line with a churnTruth
}

// churnTruth is the holding of an engine.
type churnTruth struct {
	Ranks []churnRankTruth
}

// churnRankTruth is the holding of a rank: by prompt, the tokens that it would reuse, and its
// leading blocks in any tier (-1: blocks of several sizes).
type churnRankTruth struct {
	Next    uint64
	Cached  map[int]int
	Matched map[int]int
}

// churnPrompts returns the prompts of a seed. Some share prefixes.
func churnPrompts(seed uint64, n int) [][]uint32 {
	r := rand.New(rand.NewPCG(seed, 22))
	var prompts [][]uint32
	for range n {
		var p []uint32
		if len(prompts) > 0 && r.IntN(3) > 0 {
			before := prompts[r.IntN(len(prompts))]
			p = slices.Clone(before[:min(len(before), 300)])
		}
		prompts = append(prompts, append(p, randomTokens(r, 20+r.IntN(180))...))
	}
	return prompts
}

// serveChurn runs an engine that obeys the lines of its input, until that ends.
func serveChurn() error {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var e churnEngine
	for {
		var o churnOrder
		switch err := in.Decode(&o); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if o.Start != nil {
			e = churnEngine{churnSetup: *o.Start, prompts: churnPrompts(o.Start.Seed, churnPromptCount)}
			o.Ranks = e.Ranks
		}
		if o.Ranks > 0 {
			if err := e.resize(o.Ranks); err != nil {
				return err
			}
		}
		if o.Ask {
			if err := out.Encode(e.truth()); err != nil {
				return err
			}
			continue
		}
		e.work(o)
	}
}

// churnEngine is an engine with its ranks.
type churnEngine struct {
	churnSetup
	prompts [][]uint32
	ranks   []*churnRank
}

// churnRank is a rank of an engine with its sockets.
type churnRank struct {
	cache churnCache
	*fakeengine.Publisher
}

// churnCache is the cache of a rank. Each method publishes its changes.
type churnCache interface {
	serve(prompts [][]uint32)
	clear()
	evict(prompt []uint32)
	// held returns the tokens of a prompt that would be reused, and its leading blocks in any tier.
	held(prompt []uint32) (cached, matched int)
}

func (e *churnEngine) resize(n int) error {
	for len(e.ranks) > n {
		last := len(e.ranks) - 1
		if err := e.ranks[last].Close(); err != nil {
			return err
		}
		e.ranks = e.ranks[:last]
	}
	for len(e.ranks) < n {
		r, err := e.open(len(e.ranks))
		if err != nil {
			return err
		}
		e.ranks = append(e.ranks, r)
	}
	return nil
}

// open starts a rank. Sockets of an earlier engine may still be closing.
func (e *churnEngine) open(n int) (r *churnRank, err error) {
	r = &churnRank{}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		r.Publisher, err = fakeengine.NewPublisher(fakeengine.PublisherConfig{
			Topic:    e.Topic,
			Endpoint: fmt.Sprintf("tcp://%s:%d", e.Host, e.Port+n),
			Replay:   fmt.Sprintf("tcp://%s:%d", e.Host, e.Replay+n),
		})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return nil, err
		}
	}
	r.cache = newChurnCache(e.churnSetup, n, func(payload []byte) { r.Publish(payload) })
	return r, nil
}

// newChurnCache returns the empty cache of a rank.
func newChurnCache(s churnSetup, rank int, publish func([]byte)) churnCache {
	kind := churnKinds[s.Kind]
	if kind.sglang {
		return &churnSGLang{
			rank: rank, size: s.BlockSize, room: s.Blocks, encoding: kind.encoding, pages: kind.pages,
			publish: publish, nodes: make(map[enginehash.Digest]*churnNode), fresh: true,
		}
	}
	seed := fmt.Sprint(s.Host, rank)
	engine, err := fakeengine.New(fakeengine.Config{
		Model: s.Model, Rank: rank, BlockSize: s.BlockSize, Blocks: s.Blocks, ChunkTokens: 100, HashSeed: seed,
		Encoding: kind.encoding, Now: churnNow, Publish: publish, Seed: s.Seed,
	})
	if err != nil {
		panic(err)
	}
	if kind.own {
		seed = "lmcache"
	}
	return &churnVLLM{
		engine: engine, rank: rank, size: s.BlockSize, encoding: kind.encoding, publish: publish,
		chunk: kind.lmcache * s.BlockSize, own: kind.own, root: enginehash.NoneHash(seed), chunks: make(map[enginehash.Digest]bool),
	}
}

func churnNow() float64 { return float64(time.Now().UnixNano()) / 1e9 }

func (e *churnEngine) work(o churnOrder) {
	if o.Rank >= len(e.ranks) {
		return
	}
	cache := e.ranks[o.Rank].cache
	if o.Clear {
		cache.clear()
	}
	for _, n := range o.Evict {
		cache.evict(e.prompts[n])
	}
	var prompts [][]uint32
	for _, n := range o.Prompts {
		prompts = append(prompts, e.prompts[n])
	}
	cache.serve(prompts)
}

func (e *churnEngine) truth() (t churnTruth) {
	for _, r := range e.ranks {
		rank := churnRankTruth{Next: r.Next(), Cached: make(map[int]int), Matched: make(map[int]int)}
		for i, p := range e.prompts {
			cached, matched := r.cache.held(p)
			if cached > 0 {
				rank.Cached[i] = cached
			}
			if matched != 0 {
				rank.Matched[i] = matched
			}
		}
		t.Ranks = append(t.Ranks, rank)
	}
	return t
}

// churnVLLM is the cache of a vLLM, with LMCache if chunk is not 0.
type churnVLLM struct {
	engine     *fakeengine.Engine
	rank, size int
	encoding   fakeengine.Encoding
	publish    func([]byte)

	chunk  int // tokens
	own    bool
	hasher enginehash.Hasher
	root   enginehash.Digest
	chunks map[enginehash.Digest]bool // in LMCache
}

func (v *churnVLLM) serve(prompts [][]uint32) {
	for _, p := range prompts {
		if _, err := v.engine.Submit(fakeengine.Request{Tokens: p, MaxTokens: 1 + len(p)%20, Greedy: true}); err != nil {
			panic(err)
		}
	}
	v.engine.Drain()
	if v.chunk == 0 {
		return
	}
	batch := fakeengine.Batch{Time: churnNow(), Rank: v.rank}
	for _, p := range prompts {
		parent := (*enginehash.Digest)(nil)
		for from := 0; from+v.chunk <= len(p); from += v.chunk {
			h := v.name(parent, p[from:from+v.chunk])
			if !v.chunks[h] {
				v.chunks[h] = true
				batch.Events = append(batch.Events, &fakeengine.Stored{
					Hashes: []enginehash.Digest{h}, Parent: parent, Tokens: p[from : from+v.chunk], BlockSize: v.chunk, Medium: "cpu",
				})
			}
			parent = &h
		}
	}
	if len(batch.Events) > 0 {
		v.publish(v.encoding.Append(nil, &batch))
	}
}

// name returns LMCache's hash of a chunk.
func (v *churnVLLM) name(parent *enginehash.Digest, tokens []uint32) enginehash.Digest {
	return v.hasher.Block(*cmp.Or(parent, &v.root), tokens, nil)
}

// clear empties the GPU. The event empties all tiers, though LMCache really keeps its chunks; so
// this LMCache loses them.
func (v *churnVLLM) clear() {
	v.engine.Reset()
	clear(v.chunks)
}

func (v *churnVLLM) evict(p []uint32) {
	for i, id := range v.engine.BlockIDs(p, "", "") {
		if i%3 == 2 {
			v.engine.EvictBlocks(id)
		}
	}
}

func (v *churnVLLM) held(p []uint32) (cached, matched int) {
	gpu := 0 // blocks
	if v.engine.Held(p[:min(len(p), v.size)], "", "") > 0 {
		gpu = v.engine.Held(p, "", "") / v.size
		cached = v.engine.Cached(p, "", "")
	}
	if v.chunk == 0 || v.own {
		return cached, gpu
	}
	ids, parent := v.engine.BlockIDs(p, "", ""), (*enginehash.Digest)(nil)
	for i, id := range ids {
		h := v.name(parent, p[i*v.size:(i+1)*v.size])
		if id == 0 && !v.chunks[h] {
			return cached, i
		}
		parent = &h
	}
	return cached, len(ids)
}

// churnSGLang is the cache of an SGLang: a tree of pages, of which the least recently used leaf is
// evicted.
type churnSGLang struct {
	rank, size, room int
	encoding         fakeengine.Encoding
	pages, fresh     bool
	publish          func([]byte)

	hasher enginehash.Hasher
	nodes  map[enginehash.Digest]*churnNode
	clock  int
}

type churnNode struct {
	hash     enginehash.Digest
	parent   *churnNode
	children int
	used     int
}

// chain hashes the pages of a prompt.
func (s *churnSGLang) chain(p []uint32) (names []enginehash.Digest) {
	h := enginehash.NoneHash("sglang")
	for ; len(p) >= s.size; p = p[s.size:] {
		h = s.hasher.Block(h, p[:s.size], nil)
		names = append(names, h)
	}
	return names
}

func (s *churnSGLang) serve(prompts [][]uint32) {
	var evs []fakeengine.Event
	if s.fresh {
		evs, s.fresh = append(evs, fakeengine.Cleared{}), false
	}
	for _, p := range prompts {
		s.clock++
		names := s.chain(p)
		var parent *churnNode
		first := len(names)
		for i, h := range names {
			n := s.nodes[h]
			if n == nil {
				n = &churnNode{hash: h, parent: parent}
				s.nodes[h] = n
				if parent != nil {
					parent.children++
				}
				first = min(first, i)
			}
			n.used, parent = s.clock, n
		}
		step := max(1, len(names)-first)
		if s.pages {
			step = 1
		}
		for from := first; from < len(names); from += step {
			e := &fakeengine.Stored{Hashes: names[from : from+step], Tokens: p[from*s.size : (from+step)*s.size], BlockSize: s.size, Medium: fakeengine.MediumGPU}
			if from > 0 {
				e.Parent = &names[from-1]
			}
			evs = append(evs, e)
		}
		for len(s.nodes) > s.room {
			evs = append(evs, s.drop(s.oldest()))
		}
	}
	s.tell(evs)
}

func (s *churnSGLang) tell(evs []fakeengine.Event) {
	if len(evs) > 0 {
		s.publish(s.encoding.Append(nil, &fakeengine.Batch{Time: churnNow(), Rank: s.rank, Events: evs}))
	}
}

// oldest returns the least recently used leaf. Hashes decide between equals, because a map has no
// order.
func (s *churnSGLang) oldest() (oldest *churnNode) {
	for _, n := range s.nodes {
		if n.children == 0 && (oldest == nil || n.used < oldest.used || n.used == oldest.used && bytes.Compare(n.hash[:], oldest.hash[:]) < 0) {
			oldest = n
		}
	}
	return oldest
}

// drop removes a leaf.
func (s *churnSGLang) drop(n *churnNode) fakeengine.Event {
	delete(s.nodes, n.hash)
	if n.parent != nil {
		n.parent.children--
	}
	return &fakeengine.Removed{Hashes: []enginehash.Digest{n.hash}, Medium: fakeengine.MediumGPU}
}

func (s *churnSGLang) clear() {
	clear(s.nodes)
	s.tell([]fakeengine.Event{fakeengine.Cleared{}})
}

// evict drops the end of a prompt, except pages that others follow.
func (s *churnSGLang) evict(p []uint32) {
	var evs []fakeengine.Event
	names := s.chain(p)
	for _, h := range slices.Backward(names[len(names)/2:]) {
		if n := s.nodes[h]; n != nil && n.children == 0 {
			evs = append(evs, s.drop(n))
		}
	}
	s.tell(evs)
}

func (s *churnSGLang) held(p []uint32) (cached, matched int) {
	for _, h := range s.chain(p) {
		if s.nodes[h] == nil {
			break
		}
		matched++
	}
	return min(matched, (len(p)-1)/s.size) * s.size, matched
}

// churnPeer is the process of an engine.
type churnPeer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	to  *json.Encoder
	out *json.Decoder
}

// startPeer starts an engine and does not wait until it listens.
func startPeer(s churnSetup) (*churnPeer, error) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), churnEnv+"=1", "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	// A stopped process does not notice the end of its input.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &churnPeer{cmd: cmd, in: in, to: json.NewEncoder(in), out: json.NewDecoder(out)}
	return p, p.order(churnOrder{Start: &s})
}

func (p *churnPeer) order(o churnOrder) error {
	if err := p.to.Encode(&o); err != nil {
		return fmt.Errorf("process %d: %w", p.cmd.Process.Pid, err)
	}
	return nil
}

// truth returns the engine's holding after all earlier orders.
func (p *churnPeer) truth() (t churnTruth, err error) {
	if err = p.out.Decode(&t); err != nil {
		err = fmt.Errorf("process %d: %w", p.cmd.Process.Pid, err)
	}
	return t, err
}

func (p *churnPeer) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// kill ends the process, stopped or not, and waits until its sockets are closed.
func (p *churnPeer) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
