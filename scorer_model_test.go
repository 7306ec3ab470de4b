package kvindex_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/internal/fakeengine/enginehash"
	"github.com/vmihailenco/msgpack/v5"
)

// model is an engine as the set of its blocks. Blocks are equal if the real engine hashes the same
// into them.
type model struct {
	name  string
	size  int
	form  kvindex.MediaForm
	pairs bool // with MediaPad
	blind bool // without adapters in events, as SGLang

	hashes map[string]uint64 // by the parent's hash and the block's content
	held   map[uint64]bool
	batch  int
}

// block is a block of a prompt.
type block struct {
	hash, parent uint64
	first        bool
	tokens       any // []uint32 or [][2]uint32
	extra        []enginehash.Extra
}

// blocks cuts a prompt.
func (m *model) blocks(q *kvindex.Request) (blocks []block) {
	tokens := slices.Clone(q.Tokens)
	n := len(tokens)
	if m.form == kvindex.MediaPad {
		for _, item := range q.Media {
			hash, _ := new(big.Int).SetString(item.Hash, 10)
			pad := hash.Mod(hash, big.NewInt(1<<30)).Uint64() + 1e6
			for i := range item.Length {
				tokens[item.Offset+i] = uint32(pad)
			}
		}
	}
	var pairs [][2]uint32
	for i := 1; i < n; i++ {
		pairs = append(pairs, [2]uint32{tokens[i-1], tokens[i]})
	}
	if m.pairs {
		n--
	}
	var id []byte
	parent := uint64(0)
	for from := 0; from+m.size <= n; from += m.size {
		b := block{parent: parent, first: from == 0, tokens: tokens[from : from+m.size]}
		if m.pairs {
			b.tokens = pairs[from : from+m.size]
		}
		if m.form != kvindex.MediaPad {
			b.extra = m.extraOf(q, from)
		}
		id = binary.LittleEndian.AppendUint64(id[:0], parent)
		for i := from; i < from+m.size; i++ {
			id = binary.LittleEndian.AppendUint32(id, tokens[i])
			if m.pairs {
				id = binary.LittleEndian.AppendUint32(id, tokens[i+1])
			}
		}
		if m.form == kvindex.MediaPad && from == 0 {
			id = append(id, q.Salt...)
		} else if b.extra != nil {
			id = fmt.Append(id, b.extra)
		}
		b.hash = m.hashes[string(id)]
		if b.hash == 0 {
			b.hash = uint64(len(m.hashes)+1) * 0x9E3779B97F4A7C15 // some negative as int64
			m.hashes[string(id)] = b.hash
		}
		parent = b.hash
		blocks = append(blocks, b)
	}
	return blocks
}

// extraOf returns vLLM's extra keys of the block that begins at a token.
func (m *model) extraOf(q *kvindex.Request, from int) (extra []enginehash.Extra) {
	if id, err := strconv.Atoi(q.Adapter); err == nil {
		extra = append(extra, enginehash.Int(int64(id)))
	} else if q.Adapter != "" {
		extra = append(extra, enginehash.Text(q.Adapter))
	}
	for _, item := range q.Media {
		if item.Offset >= from+m.size || item.Offset+item.Length <= from {
			continue
		}
		if m.form == kvindex.MediaBare {
			extra = append(extra, enginehash.Text(item.Hash))
		} else {
			extra = append(extra, enginehash.Media(item.Hash, int64(item.Offset-from)))
		}
	}
	if from == 0 && q.Salt != "" {
		extra = append(extra, enginehash.Text(q.Salt))
	}
	return extra
}

// run returns how much of a prompt the engine holds and would reuse. hole: it also holds a later
// block.
func (m *model) run(q *kvindex.Request) (run, reused int, hole bool) {
	if m.blind && q.Adapter != "" {
		return 0, 0, false
	}
	blocks := m.blocks(q)
	for _, b := range blocks {
		if !m.held[b.hash] {
			break
		}
		run++
	}
	hole = slices.ContainsFunc(blocks[run:], func(b block) bool { return m.held[b.hash] })
	limit := len(q.Tokens) - 1
	if m.pairs {
		limit--
	}
	return run, min(run, max(limit, 0)/m.size) * m.size, hole
}

// blockEvents are the events of a message, for vLLM and for SGLang.
type blockEvents struct {
	vllm   []fakeengine.Event
	sglang []any
}

// add publishes a block of a prompt. It returns vLLM's event, or nil for SGLang.
func (m *model) add(e *blockEvents, b block, q *kvindex.Request) *fakeengine.Stored {
	if m.form == kvindex.MediaPad {
		var parent any
		if !b.first {
			parent = int64(b.parent)
		}
		s := []any{"BlockStored", []int64{int64(b.hash)}, parent, b.tokens, m.size, nil, "GPU"}
		if q.Salt != "" {
			s = append(s, map[string]string{"cache_salt": q.Salt})
		}
		e.sglang = append(e.sglang, s)
		return nil
	}
	s := &fakeengine.Stored{
		Hashes: []enginehash.Digest{fakeengine.IntHash(b.hash)}, Tokens: b.tokens.([]uint32), BlockSize: m.size,
		Medium: "GPU", Extra: [][]enginehash.Extra{b.extra},
	}
	if !b.first {
		parent := fakeengine.IntHash(b.parent)
		s.Parent = &parent
	}
	if id, err := strconv.Atoi(q.Adapter); err == nil {
		s.AdapterID = id
	} else {
		s.Adapter = q.Adapter
	}
	e.vllm = append(e.vllm, s)
	return s
}

func (e *blockEvents) remove(group int, hash uint64) {
	e.vllm = append(e.vllm, &fakeengine.Removed{Hashes: []enginehash.Digest{fakeengine.IntHash(hash)}, Medium: "GPU", Group: group})
	e.sglang = append(e.sglang, []any{"BlockRemoved", []int64{int64(hash)}, "GPU"})
}

func (e *blockEvents) clear() {
	e.vllm, e.sglang = append(e.vllm, fakeengine.Cleared{}), append(e.sglang, []any{"AllBlocksCleared"})
}

// payload encodes a message of the engine. form is for vLLM.
func (m *model) payload(e *blockEvents, time float64, rank int, form fakeengine.Encoding) []byte {
	if m.form != kvindex.MediaPad {
		return form.Append(nil, &fakeengine.Batch{Time: time, Rank: rank, Events: e.vllm})
	}
	payload, err := msgpack.Marshal([]any{time, append([]any{}, e.sglang...), rank})
	if err != nil {
		panic(err)
	}
	return payload
}

// store publishes the missing ones of the first blocks of a prompt, each by an event of its own;
// remove publishes the loss of some.
func (m *model) store(q *kvindex.Request, most int) (payload []byte) {
	var e blockEvents
	blocks := m.blocks(q)
	for _, b := range blocks[:min(most, len(blocks))] {
		if !m.held[b.hash] {
			m.held[b.hash] = true
			m.add(&e, b, q)
		}
	}
	return m.encode(&e)
}

func (m *model) remove(r *rand.Rand, share float64) (payload []byte, n int) {
	var e blockEvents
	for _, h := range slices.Sorted(maps.Keys(m.held)) { // the same order in each run
		if r.Float64() > share {
			continue
		}
		delete(m.held, h)
		n++
		e.remove(0, h)
	}
	return m.encode(&e), n
}

// encode writes vLLM's events in changing forms, with hashes as integers or bytes.
func (m *model) encode(e *blockEvents) []byte {
	m.batch++
	form := fakeengine.Encoding{ByteHashes: m.batch%3 == 0, Form: fakeengine.FormMaps}
	if m.batch%2 == 0 {
		form.Form = fakeengine.FormArrays12
	}
	return m.payload(e, float64(m.batch), 0, form)
}

// items are media at positions of their own.
var items = []kvindex.Media{
	{Hash: "11", Length: 5}, {Hash: "2147483651", Length: 20}, {Hash: "-5", Length: 3}, {Hash: "12", Length: 1},
	{Hash: "987654321987654321987654321", Length: 40},
}

// randomRequest returns a request whose prompt often begins like an earlier one.
func randomRequest(r *rand.Rand, before []kvindex.Request) (q kvindex.Request) {
	salts := []string{"", "pepper", "11"}
	q.Salt = salts[r.IntN(3)]
	if len(before) > 0 && r.IntN(8) > 0 {
		q = before[r.IntN(len(before))]
		q.Tokens, q.Media = slices.Clone(q.Tokens), slices.Clone(q.Media)
		switch r.IntN(6) {
		case 0:
			q.Adapter = []string{"", "lora", "7"}[r.IntN(3)]
		case 1:
			q.Salt = salts[r.IntN(3)]
		case 2:
			if len(q.Media) > 0 { // another item of that length, or another position
				q.Media[r.IntN(len(q.Media))].Hash = "12"
			}
		case 3, 4:
			cut := 1 + r.IntN(len(q.Tokens))
			if r.IntN(2) == 0 { // at the end of a block or of a pair's block
				cut = min(cut/16*16+1+r.IntN(2)*15, len(q.Tokens))
			}
			q.Tokens = q.Tokens[:cut]
			q.Media = slices.DeleteFunc(q.Media, func(m kvindex.Media) bool { return m.Offset+m.Length > cut })
			return q
		}
	}
	for more := r.IntN(600); more > 0 && len(q.Tokens) < 1400; more-- {
		q.Tokens = append(q.Tokens, uint32(r.IntN(2)))
		if r.IntN(100) > 0 {
			continue
		}
		item := items[r.IntN(len(items))]
		item.Offset = len(q.Tokens)
		q.Media = append(q.Media, item)
		for range item.Length {
			q.Tokens = append(q.Tokens, 7)
		}
	}
	if len(q.Tokens) == 0 {
		q.Tokens = []uint32{1}
	}
	return q
}

// TestScopesAgainstModel: engines of all media forms, of many block sizes and with pairs serve one
// model, one block an event; each score is compared with the engine's blocks.
func TestScopesAgainstModel(t *testing.T) {
	var engines []*model
	for i, size := range []int{1, 16, 48, 528} {
		for _, e := range []model{
			{name: "offsets", form: kvindex.MediaOffsets},
			{name: "bare", form: kvindex.MediaBare},
			{name: "pad", form: kvindex.MediaPad, blind: true},
			{name: "pairs", form: kvindex.MediaPad, blind: true, pairs: true},
		} {
			e.size = size
			if e.form == kvindex.MediaBare {
				e.size = []int{1, 16, 64, 256}[i] // powers of two
			}
			e.name += strconv.Itoa(e.size)
			e.hashes, e.held = make(map[string]uint64), make(map[uint64]bool)
			engines = append(engines, &e)
		}
	}
	slices.SortFunc(engines, func(a, b *model) int { return cmp.Compare(a.name, b.name) })
	ix := open(t, kvindex.WithProfile(func(pod, _ string) kvindex.Profile {
		i := slices.IndexFunc(engines, func(m *model) bool { return m.name == pod })
		return kvindex.Profile{Media: engines[i].form}
	}))
	r := rand.New(rand.NewPCG(1, 2))
	var before []kvindex.Request
	fired := make(map[string]int)
	for round := range choose(40, 100) {
		q := randomRequest(r, before)
		before = append(before, q)
		for _, m := range engines {
			var payload []byte
			switch {
			case round%10 == 9:
				var n int
				payload, n = m.remove(r, 0.2)
				fired["removed by "+strconv.Itoa(m.size)] += n
			case m.blind && q.Adapter != "":
				continue // they would look like events of the base model
			default:
				payload = m.store(&q, 250)
			}
			must(t, ix.Ingest(m.name, "m", payload))
		}
		for range 4 {
			q := randomRequest(r, before)
			q.Model = "m"
			got := score(t, ix, q)
			place := func(pod string) uint32 { return kvindex.Place(ix, pod, q.Adapter, q.Salt, q.Tokens, q.Media) }
			if !slices.IsSortedFunc(got, func(a, b kvindex.PodScore) int {
				return cmp.Or(b.PredictedTokens-a.PredictedTokens, cmp.Compare(place(b.Pod), place(a.Pod)))
			}) {
				t.Fatalf("round %d: the order is %+v", round, got)
			}
			slices.SortFunc(got, func(a, b kvindex.PodScore) int { return strings.Compare(a.Pod, b.Pod) })
			for i, m := range engines {
				run, reused, hole := m.run(&q)
				s := got[i]
				if s.Pod != m.name || s.MatchedBlocks != run || s.CachedTokens != reused || run > 0 && s.BlockTokens != m.size {
					t.Fatalf("round %d, adapter %q, salt %q, media %v, %d tokens: %+v, want %d blocks, %d tokens", round, q.Adapter, q.Salt, q.Media, len(q.Tokens), s, run, reused)
				}
				if run == 0 {
					continue
				}
				kind := strings.TrimRight(m.name, "0123456789")
				fired["hits of "+m.name]++
				if q.Adapter != "" {
					fired["hits of "+kind+" with an adapter"]++
				}
				if q.Salt != "" {
					fired["hits of "+kind+" with a salt"]++
				}
				if len(q.Media) > 0 && q.Media[0].Offset < run*m.size {
					fired["hits of "+kind+" with media"]++
				}
				if reused < run*m.size {
					fired["last tokens of "+kind]++
				}
				if hole {
					fired["holes of "+kind]++
				}
			}
		}
	}
	for _, m := range engines {
		fired["hits of "+m.name] += 0
	}
	for _, what := range slices.Sorted(maps.Keys(fired)) {
		t.Logf("%5d %s", fired[what], what)
		if least := choose(1, 10); fired[what] < least {
			t.Errorf("only %d %s", fired[what], what)
		}
	}
	if len(fired) < 38 {
		t.Errorf("only %d things happened", len(fired))
	}
}
