package bench

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
)

// An Encode appends the ids of a text to dst. special: with those that a model puts
// around a text.
type Encode func(dst []uint32, text string, special bool) []uint32

// ChunkStore is the prefix store of llm-d's KV-cache manager
// (pkg/tokenization/prefixstore/lru_store.go and pkg/tokenization/pool.go, 2025): an LRU
// from the chained hash of each 256 bytes of a text to the ids that end in them. If the
// chunks that are known cover four fifths of a text, their ids are taken for those of
// the text. Else the text is encoded, and its whole chunks are kept.
//
// It differs in its hash, which is faster, and has no queue of workers.
type ChunkStore struct {
	chunks *lru.Cache[uint64, []uint32]
	length func(id uint32) int
	encode Encode
	seed   maphash.Seed
}

const (
	chunkBytes   = 256
	chunkOverlap = 0.8
)

// NewChunkStore returns an empty ChunkStore with room for a number of chunks (the
// original's default is 500,000). length returns how many bytes of text an id stands for.
func NewChunkStore(room int, length func(id uint32) int, encode Encode) (*ChunkStore, error) {
	chunks, err := lru.New[uint64, []uint32](room)
	return &ChunkStore{chunks, length, encode, maphash.MakeSeed()}, err
}

// Ids appends to dst what the store takes for the ids of a text, and returns how many
// bytes of the text were encoded.
func (s *ChunkStore) Ids(dst []uint32, text string, special bool) (ids []uint32, encoded int) {
	ids = dst
	known, last := 0, uint64(0)
	for ; known+chunkBytes <= len(text); known += chunkBytes {
		last = s.chain(last, text[known:known+chunkBytes])
		chunk, ok := s.chunks.Get(last)
		if !ok {
			break
		}
		ids = append(ids, chunk...)
	}
	if float64(known) >= chunkOverlap*float64(len(text)) {
		return ids, 0
	}
	ids = s.encode(ids[:len(dst)], text, special)
	s.add(text, ids[len(dst):])
	return ids, len(text)
}

func (s *ChunkStore) add(text string, ids []uint32) {
	last, at := uint64(0), 0
	for end := chunkBytes; end <= len(text); end += chunkBytes {
		last = s.chain(last, text[end-chunkBytes:end])
		n := 0
		for n < len(ids) && at+s.length(ids[n]) <= end {
			at += s.length(ids[n])
			n++
		}
		s.chunks.Add(last, slices.Clone(ids[:n]))
		ids = ids[n:]
	}
}

func (s *ChunkStore) chain(last uint64, chunk string) uint64 {
	var b [8 + chunkBytes]byte
	binary.LittleEndian.PutUint64(b[:], last)
	copy(b[8:], chunk)
	return maphash.Bytes(s.seed, b[:])
}

// TwoLevels is the tokenizer cache of smg (crates/tokenizer/src/cache, autumn 2026), both
// levels on: whole texts with their ids, and beginnings that end with a special token,
// each with all of its ids. On a miss it keeps a beginning for each special token; on a
// hit of a shorter one the longest. Texts and beginnings have a budget each; the oldest
// of a few random ones go.
//
// It differs in that its hash of beginnings is faster (the original's is BLAKE3), that
// it has no shards and locks, and that all special tokens are found in one pass.
type TwoLevels struct {
	texts      level[string]
	beginnings level[[2]uint64]
	special    []string
	encode     Encode
	seeds      [2]maphash.Seed
}

// A level of TwoLevels.
type level[K comparable] struct {
	room, used int // bytes, as the original counts them
	most       int // entries; 0: as many as there is room for
	sample     int // of which the oldest goes
	clock      int
	entries    map[K]*levelEntry
	keys       []K // for samples; entries know their place
}

type levelEntry struct {
	ids                []uint32
	bytes, used, place int
}

// NewTwoLevels returns an empty TwoLevels with room for a number of bytes of each kind
// (the original's defaults are 256 and 50 MiB, the latter switched off).
func NewTwoLevels(texts, beginnings int, special []string, encode Encode) *TwoLevels {
	return &TwoLevels{
		texts:      level[string]{room: texts, most: 10_000, sample: 8, entries: map[string]*levelEntry{}},
		beginnings: level[[2]uint64]{room: beginnings, sample: 32, entries: map[[2]uint64]*levelEntry{}},
		special:    special,
		encode:     encode,
		seeds:      [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
	}
}

// Ids appends the ids of a text, and returns how many bytes of it were encoded. All texts
// have the same special.
func (l *TwoLevels) Ids(dst []uint32, text string, special bool) (ids []uint32, encoded int) {
	if e := l.texts.get(text); e != nil {
		return append(dst, e.ids...), 0
	}
	ids, encoded = l.byBeginnings(dst, text, special)
	own := ids[len(dst):]
	if n := len(text) + 4*len(own) + 128; n <= l.texts.room/4 {
		l.texts.put(strings.Clone(text), own, n)
	}
	return ids, encoded
}

func (l *TwoLevels) byBeginnings(dst []uint32, text string, special bool) (ids []uint32, encoded int) {
	ends := l.ends(text)
	hashes := l.hashes(text, ends)
	for i := len(ends) - 1; i >= 0; i-- {
		e := l.beginnings.get(hashes[i])
		if e == nil {
			continue
		}
		ids = append(dst, e.ids...)
		at := ends[i]
		if last := len(ends) - 1; i < last {
			ids = l.encode(ids, text[at:ends[last]], false)
			at = ends[last]
			l.keep(hashes[last], at, ids[len(dst):])
		}
		return l.encode(ids, text[at:], false), len(text) - ends[i]
	}
	ids = dst
	at := 0
	for i, end := range ends {
		ids = l.encode(ids, text[at:end], special && i == 0)
		l.keep(hashes[i], end, ids[len(dst):])
		at = end
	}
	return l.encode(ids, text[at:], special && at == 0), len(text)
}

func (l *TwoLevels) keep(hash [2]uint64, length int, ids []uint32) {
	l.beginnings.put(hash, ids, length+4*len(ids))
}

// ends returns where special tokens end, but at the end of the text.
func (l *TwoLevels) ends(text string) (ends []int) {
	for at := strings.IndexByte(text, '<'); at >= 0; {
		for _, s := range l.special {
			if strings.HasPrefix(text[at:], s) {
				at += len(s) - 1
				ends = append(ends, at+1)
				break
			}
		}
		next := strings.IndexByte(text[at+1:], '<')
		if next < 0 {
			break
		}
		at += 1 + next
	}
	if n := len(ends); n > 0 && ends[n-1] == len(text) {
		ends = ends[:n-1]
	}
	return ends
}

// hashes returns those of the beginnings of a text with these ends.
func (l *TwoLevels) hashes(text string, ends []int) [][2]uint64 {
	hashes := make([][2]uint64, len(ends))
	for k, seed := range l.seeds {
		var h maphash.Hash
		h.SetSeed(seed)
		at := 0
		for i, end := range ends {
			h.WriteString(text[at:end])
			hashes[i][k] = h.Sum64()
			at = end
		}
	}
	return hashes
}

func (l *level[K]) get(key K) *levelEntry {
	e := l.entries[key]
	if e != nil {
		l.clock++
		e.used = l.clock
	}
	return e
}

func (l *level[K]) put(key K, ids []uint32, size int) {
	if e := l.entries[key]; e != nil {
		return
	}
	for len(l.keys) > 0 && (l.used+size > l.room || l.most > 0 && len(l.keys) >= l.most) {
		l.evict()
	}
	l.clock++
	l.entries[key] = &levelEntry{ids: slices.Clone(ids), bytes: size, used: l.clock, place: len(l.keys)}
	l.keys = append(l.keys, key)
	l.used += size
}

// evict gives up the oldest of a few random entries.
func (l *level[K]) evict() {
	oldest := l.keys[rand.IntN(len(l.keys))]
	for range l.sample - 1 {
		if k := l.keys[rand.IntN(len(l.keys))]; l.entries[k].used < l.entries[oldest].used {
			oldest = k
		}
	}
	e := l.entries[oldest]
	last := l.keys[len(l.keys)-1]
	l.keys[e.place] = last
	l.entries[last].place = e.place
	l.keys = l.keys[:len(l.keys)-1]
	delete(l.entries, oldest)
	l.used -= e.bytes
}

// Texts makes the texts of a trace: each block has one of its own, the same one in all
// requests. They have different lengths, so that no grid fits the blocks of the trace.
type Texts struct {
	Pool   []byte // that texts of blocks are taken from
	Before string // what each block begins with
	Size   int    // bytes of a block at most, less Before; a quarter less at least
}

// Append appends the text of a request.
func (t *Texts) Append(dst []byte, q *Request) []byte {
	for _, b := range q.Blocks {
		dst = append(append(dst, t.Before...), t.block(b)...)
	}
	return dst
}

func (t *Texts) block(name uint64) []byte {
	r := mix(name)
	at, size := int(r%uint64(len(t.Pool)-t.Size)), t.Size-int(r>>32)%(t.Size/4)
	return t.Pool[at : at+size]
}

// Shared says how much of a request's text an earlier one began with.
type Shared struct {
	texts *Texts
	root  sharedNode
}

type sharedNode map[uint64]sharedNode

// NewShared returns one that knows no request.
func NewShared(t *Texts) *Shared { return &Shared{t, sharedNode{}} }

// Add returns how many bytes of the text of a request are the longest beginning that it
// has in common with one that was added before, and adds it.
func (s *Shared) Add(q *Request) (shared int) {
	at, behind := s.root, false
	for _, b := range q.Blocks {
		next := at[b]
		if next == nil {
			if !behind {
				shared += s.common(at, b)
			}
			behind = true
			next = sharedNode{}
			at[b] = next
		} else {
			shared += len(s.texts.Before) + len(s.texts.block(b))
		}
		at = next
	}
	return shared
}

// common returns how much the text of a block has in common with one of the blocks that
// came in its place before.
func (s *Shared) common(at sharedNode, b uint64) (most int) {
	text := s.texts.block(b)
	for other := range at {
		n, o := 0, s.texts.block(other)
		for n < min(len(text), len(o)) && text[n] == o[n] {
			n++
		}
		most = max(most, n)
	}
	if len(at) > 0 {
		most += len(s.texts.Before)
	}
	return most
}

// ASCII drops all other bytes.
func ASCII(text []byte) []byte {
	return bytes.Map(func(r rune) rune {
		if r >= 0x80 || r == '<' {
			return -1
		}
		return r
	}, text)
}
