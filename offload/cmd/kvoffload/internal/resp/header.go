package resp

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/kvindex/kvindex/offload"
)

// The first page of a value begins with a header, and its bytes begin at dataAt. All numbers
// are little-endian.
//
//	 0  4  "kvrv"
//	 4  1  version, 1
//	 5  1  1 if it is a pair: kv_bytes with metadata
//	 6  2  length of the name
//	 8  8  length of the bytes
//	16 16  XXH3-128 of the bytes
//	32  8  when it ends, in milliseconds of Unix time; 0: never
//	40  4  length of the metadata
//	44  4  database
//	48     name, metadata
const (
	headerMagic = "kvrv\x01"
	nameAt      = 48
	dataAt      = 2048
	maxName     = 1024
)

// content names the bytes of a value.
type content [16]byte

// ref names a value.
type ref struct {
	db   uint32
	pair bool
	name string // of a pair: without kv_bytes and metadata
}

// header has the properties of a value, without its bytes.
type header struct {
	ref
	meta    string // of a pair
	size    int64
	content content
	ends    int64
}

// fits reports whether the header has room for a name and metadata.
func (h *header) fits() bool {
	return len(h.name) <= maxName && nameAt+len(h.name)+len(h.meta) <= dataAt
}

// put writes a header that fits.
func (h *header) put(page []byte) {
	copy(page, headerMagic)
	page[5] = 0
	if h.pair {
		page[5] = 1
	}
	binary.LittleEndian.PutUint16(page[6:], uint16(len(h.name)))
	binary.LittleEndian.PutUint64(page[8:], uint64(h.size))
	copy(page[16:], h.content[:])
	binary.LittleEndian.PutUint64(page[32:], uint64(h.ends))
	binary.LittleEndian.PutUint32(page[40:], uint32(len(h.meta)))
	binary.LittleEndian.PutUint32(page[44:], h.db)
	copy(page[nameAt:], h.name)
	copy(page[nameAt+len(h.name):], h.meta)
}

// parseHeader reads the header of a page of at least dataAt bytes, and reports false for
// anything that put does not write.
func parseHeader(page []byte) (h header, ok bool) {
	name, meta := int64(binary.LittleEndian.Uint16(page[6:])), int64(binary.LittleEndian.Uint32(page[40:]))
	h = header{
		ref: ref{pair: page[5] == 1, db: binary.LittleEndian.Uint32(page[44:])}, size: int64(binary.LittleEndian.Uint64(page[8:])),
		content: content(page[16:32]), ends: int64(binary.LittleEndian.Uint64(page[32:])),
	}
	if string(page[:5]) != headerMagic || page[5] > 1 || name > maxName || nameAt+name+meta > dataAt || h.size < 0 || h.ends < 0 {
		return h, false
	}
	h.name, h.meta = string(page[nameAt:][:name]), string(page[nameAt+name:][:meta])
	return h, h.pair || h.meta == ""
}

// pages returns how many pages of so many bytes a value of so many takes.
func pages(size int64, page int) int { return int((dataAt + size + int64(page) - 1) / int64(page)) }

// The keys of the pages of a value. The first page has the name in its key alone, so that it
// is found by it; the others have the bytes in theirs, too, so that a page of an older value
// of that name is never taken for one of a newer:
//
//	 0 16  SHA-256 of epoch, database, whether it is a pair, and name, its beginning
//	16 12  XXH3-128 of the bytes, its beginning; zero for the first page
//	28  4  number of the page, big-endian
func (id ref) firstKey(epoch uint64) (k offload.Key) {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 13+len(id.name)), epoch)
	b = binary.LittleEndian.AppendUint32(b, id.db)
	if id.pair {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	sum := sha256.Sum256(append(b, id.name...))
	copy(k[:16], sum[:])
	return k
}

// laterKeys returns the keys of all pages but the first.
func laterKeys(first offload.Key, c content, pages int) []offload.Key {
	keys := make([]offload.Key, pages-1)
	copy(first[16:28], c[:])
	for i := range keys {
		keys[i] = first
		binary.BigEndian.PutUint32(keys[i][28:], uint32(i+1))
	}
	return keys
}

// part is the part of a value that a name of the protocol refers to.
type part uint8

const (
	whole part = iota
	kvBytes
	metadata
)

// split divides the name of a half of a pair into that of the pair and the half, as LMCache
// makes it: redis_connector.py appends the words, and valkey_connector.py a colon before
// them, which belongs to the name of the pair (LMCache's lmcache/v1/storage_backend/connector
// at 030c771 and ccef52f).
func split(name string) (string, part) {
	if base, ok := strings.CutSuffix(name, "kv_bytes"); ok {
		return base, kvBytes
	}
	if base, ok := strings.CutSuffix(name, "metadata"); ok {
		return base, metadata
	}
	return name, whole
}
