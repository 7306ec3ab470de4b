package redisindex

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/kvindex/kvindex/index"
)

// The keys in Redis. P is the prefix, W the 8 bytes of a writer, K those of a prefix key.
//
//	P root          the common layout, seed and number of parts
//	P models        a set of the models with a registry. A name stays while any writer lives: it
//	                costs a Listing one lookup, and to remove it would need one more permission
//	P sweeper       the writer that sweeps all keys
//	P {N}LK         a bucket: L its level, K its name. N is the part of the keys that it is in
//	P {m:MODEL}r    the registry of a model, and
//	P {m:MODEL}c    the cursors of its sources
//	P {PART}tW      token: how far a writer has written in a part
//	P {PART}lW      lease: the writer lives, and has written all there. It ends by itself
//
// Parts are the units that a Cluster may have on different servers: those of the buckets, by
// number, and the registry of each model. All keys of a part have one hash slot, and so one
// server.
type names struct {
	prefix string
	parts  uint64
}

// maxParts bounds the parts of an index.
const maxParts = 1 << 12

func (n *names) root() string    { return n.prefix + "root" }
func (n *names) models() string  { return n.prefix + "models" }
func (n *names) sweeper() string { return n.prefix + "sweeper" }

// A part is a part of the keys: the text between the braces.
type part string

func (n *names) partOf(k index.Key) part { return part(strconv.FormatUint(uint64(k)%n.parts, 10)) }

func registryPart(model string) part { return part("m:" + model) }

func (n *names) registry(model string) string { return n.of(registryPart(model), "r") }
func (n *names) cursors(model string) string  { return n.of(registryPart(model), "c") }

func (n *names) token(p part, writer uint64) string { return n.of(p, "t"+bytesOf(writer)) }
func (n *names) lease(p part, writer uint64) string { return n.of(p, "l"+bytesOf(writer)) }

func (n *names) bucket(level int, k index.Key) string {
	b := make([]byte, 0, len(n.prefix)+16)
	b = append(b, n.prefix...)
	b = append(b, '{')
	b = strconv.AppendUint(b, uint64(k)%n.parts, 10)
	b = append(b, '}', byte('0'+level))
	return string(binary.BigEndian.AppendUint64(b, uint64(k)))
}

func (n *names) of(p part, rest string) string { return n.prefix + "{" + string(p) + "}" + rest }

// split returns the part of a key, and the rest behind it: of a model's part only that of the
// registry.
func (n *names) split(key string) (of part, rest string, ok bool) {
	key, ok = strings.CutPrefix(key, n.prefix+"{")
	if !ok {
		return "", "", false
	}
	if p, ok := strings.CutSuffix(key, "}r"); ok && strings.HasPrefix(p, "m:") { // a model's name may have braces
		return part(p), "r", true
	}
	p, rest, ok := strings.Cut(key, "}")
	return part(p), rest, ok
}

// isBucket reports whether the rest of a key is that of a bucket.
func (n *names) isBucket(rest string) bool {
	return len(rest) == 9 && rest[0] >= '0' && rest[0] < '0'+levels
}

// bytesOf returns a writer or a number in the form of values and keys.
func bytesOf(n uint64) string {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	return string(b[:])
}
