package redisindex

import (
	"encoding/binary"
	"encoding/hex"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/index"
)

// findResult is a result of find.
type findResult struct {
	isSplit bool
	held    []lineHolder
}

func (s *findResult) holder(number, mask uint32) { s.held = append(s.held, lineHolder{number, mask}) }
func (s *findResult) split()                     { s.isSplit = true }

// slotKey is a key with its slot.
type slotKey struct {
	slot int
	index.Key
}

// plainBody has the holders of keys.
type plainBody map[slotKey]map[uint32]bool

func (p plainBody) add(slot int, k index.Key, number uint32) {
	at := slotKey{slot, k}
	if p[at] == nil {
		p[at] = make(map[uint32]bool)
	}
	p[at][number] = true
}

// of returns the part of p along a prompt: by slot, until a key without a holder.
func (p plainBody) of(keys []index.Key) map[slotKey]map[uint32]bool {
	all := make(map[slotKey]map[uint32]bool)
	for slot, k := range keys {
		if of := p[slotKey{slot, k}]; of != nil {
			all[slotKey{slot, k}] = of
		}
	}
	return all
}

// told returns the results of find for keys.
func (s *findResult) told(keys []index.Key) plainBody {
	p := make(plainBody)
	for _, h := range s.held {
		for mask := h.mask; mask != 0; mask &= mask - 1 {
			slot := bits.TrailingZeros32(mask)
			p.add(slot, keys[slot], h.number)
		}
	}
	return p
}

func sameBody(a, b plainBody) bool {
	return maps.EqualFunc(a, b, func(x, y map[uint32]bool) bool { return maps.Equal(x, y) })
}

// Appended lines are found by the prompts with their keys, and by no other.
func TestLinesRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	var lines, found, holes, cut, empty, tellings, wide int
	for range 3000 {
		plain := make(plainBody)
		body := []byte{bodyLines}
		var prompts [][]index.Key
		trunk := make([]index.Key, spans[0])
		for i := range trunk {
			trunk[i] = index.Key(r.Uint64())
		}
		for range 1 + r.IntN(6) {
			// A line is a part of a prompt that leaves the trunk at the line's start.
			slot := r.IntN(spans[0])
			l := line{slot: slot}
			keys := slices.Clone(trunk)
			for i := slot; i < len(keys); i++ {
				keys[i] = index.Key(r.Uint64())
			}
			l.keys = keys[slot : slot+1+r.IntN(len(keys)-slot)]
			var who []lineHolder
			number := uint32(0)
			for range r.IntN(20) {
				if number += 1 + uint32(r.IntN(300)); r.IntN(10) == 0 {
					number += 1 << 28
				}
				mask := r.Uint32()
				if r.IntN(2) == 0 {
					mask = ^uint32(0)
				}
				mask &= uint32((uint64(1)<<len(l.keys) - 1) << slot)
				if mask == 0 {
					continue
				}
				who = append(who, lineHolder{number, mask})
				for i, k := range l.keys {
					if mask>>(slot+i)&1 != 0 {
						plain.add(slot+i, k, number)
					}
				}
			}
			was := len(body)
			body = appendLine(body, &l, who)
			switch n := len(body) - was; {
			case n == 0:
				empty++
			case int(body[was+1]) < len(l.keys):
				cut++
				fallthrough
			default:
				lines++
			}
			prompts = append(prompts, keys, keys[:r.IntN(len(keys))])
		}
		prompts = append(prompts, trunk)
		value := valueHead + section(1, 2, "") + section(3, 4, string(body)) + section(5, 6, string([]byte{bodySplit}))
		for _, keys := range prompts {
			var s findResult
			var writers []uint64
			fine := sections(value, func(writer, _ uint64, body string) bool {
				writers = append(writers, writer)
				return body == "" || find(body, keys, &s)
			})
			if !fine || !s.isSplit || !slices.Equal(writers, []uint64{1, 3, 5}) {
				t.Fatalf("%x: fine %v, split %v, writers %v", value, fine, s.isSplit, writers)
			}
			got, want := s.told(keys), plain.of(keys)
			if !sameBody(got, want) {
				t.Fatalf("%x of %v:\n got %v\nwant %v", value, keys, got, want)
			}
			found += len(want)
			tellings += len(s.held)
			for slot := 1; slot < len(keys); slot++ {
				a, b := want[slotKey{slot - 1, keys[slot-1]}], want[slotKey{slot, keys[slot]}]
				if a == nil && b != nil {
					holes++
				}
			}
			for _, h := range s.held {
				if h.number > 1<<28 {
					wide++
				}
			}
		}
	}
	t.Logf("%d lines, %d cut, %d of nobody; %d keys found, %d behind a hole, for %d holders, %d with large numbers", lines, cut, empty, found, holes, tellings, wide)
	if lines < 5000 || cut < 100 || empty < 300 || found < 50_000 || holes < 1000 || wide < 10_000 {
		t.Error("there are too few of these")
	}
}

// The layout of values does not change by mistake, because other processes read them.
func TestValueLayout(t *testing.T) {
	l := line{slot: 2, keys: []index.Key{0x0102030405060708, 0x1112131415161718, 0x2122232425262728}}
	who := []lineHolder{{300, 0b11100}, {7, 0b00100}, {5, 0b01100}, {9, 0b01100}}
	for _, c := range []struct{ name, got, want string }{
		{"lines", string(appendLine([]byte{bodyLines}, &l, slices.Clone(who))),
			"00" + // lines
				"0203" + // three keys from slot 2 on
				"0807060504030201" + "1817161514131211" + "2827262524232221" +
				"14" + // bytes of groups
				"04000000" + "01" + "07" +
				"0c000000" + "02" + "05" + "04" +
				"1c000000" + "01" + "ac02"},
		{"a line whose end nobody holds", string(appendLine([]byte{bodyLines}, &l, slices.Clone(who[1:2]))),
			"00" + "0201" + "0807060504030201" + "06" + "04000000" + "01" + "07"},
		{"a line of nobody", string(appendLine([]byte{bodyLines}, &l, nil)), "00"},
		{"value", valueHead + section(0x0102030405060708, 9, string([]byte{bodySplit})),
			"4b01" + "0807060504030201" + "0900000000000000" + "01000000" + "01"},
	} {
		if got := hex.EncodeToString([]byte(c.got)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
	n := names{"p:", 16}
	for _, c := range []struct{ name, got, want string }{
		{"root", n.root(), "p:root"},
		{"models", n.models(), "p:models"},
		{"sweeper", n.sweeper(), "p:sweeper"},
		{"bucket", n.bucket(2, 0x4142434445464748), "p:{8}2ABCDEFGH"},
		{"registry", n.registry("m1"), "p:{m:m1}r"},
		{"cursors", n.cursors("m1"), "p:{m:m1}c"},
		{"token", n.token("8", 0x4142434445464748), "p:{8}tHGFEDCBA"},
		{"lease", n.lease("m:m1", 0x4142434445464748), "p:{m:m1}lHGFEDCBA"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.name, c.got, c.want)
		}
	}
}

// split and isBucket return the parts of a key's name.
func TestNamesSplit(t *testing.T) {
	n := names{"p{x}:", 7}
	for _, c := range []struct {
		key, rest string
		of        part
		bucket    bool
	}{
		{n.bucket(1, 0x7d7b7d7b7d7b7d7b), "1}{}{}{}{", n.partOf(0x7d7b7d7b7d7b7d7b), true},
		{n.token("3", 1), "t" + bytesOf(1), "3", false},
		{n.lease("3", 1), "l" + bytesOf(1), "3", false},
		{n.registry("m"), "r", "m:m", false},
		{n.of("3", "3ABCDEFGH"), "3ABCDEFGH", "3", false}, // no such level
		{n.of("3", "1ABCDEFG"), "1ABCDEFG", "3", false},
	} {
		of, rest, ok := n.split(c.key)
		if !ok || of != c.of || rest != c.rest || n.isBucket(rest) != c.bucket {
			t.Errorf("%q: part %q, rest %q, %v, a bucket %v", c.key, of, rest, ok, n.isBucket(rest))
		}
	}
	for _, key := range []string{"", "p{x}:", "p{x}:root", "p{x}:{3", "q{x}:{3}r"} {
		if _, _, ok := n.split(key); ok {
			t.Errorf("%q is split", key)
		}
	}
}

// Of an invalid section the part before the fault counts, and all sections of other writers.
func TestValueGarbage(t *testing.T) {
	keys := []index.Key{1, 2, 3}
	l := line{keys: keys}
	good := string(appendLine([]byte{bodyLines}, &l, []lineHolder{{4, 0b111}}))
	for _, c := range []struct {
		name, value string
		fine        bool
		told        int
	}{
		{"nothing", "", false, 0},
		{"another value", "K\x02" + section(1, 1, good), false, 0},
		{"no section", valueHead, true, 0},
		{"a section", valueHead + section(1, 1, good), true, 1},
		{"an end that is cut off", valueHead + section(1, 1, good) + section(2, 1, good)[:30], false, 1},
		{"garbage behind it", valueHead + section(1, 1, good) + "garbage", false, 1},
		{"garbage between", valueHead + section(1, 1, good) + section(2, 1, "garbage") + section(3, 1, good), false, 2},
		{"garbage behind a line", valueHead + section(1, 1, good+"g") + section(2, 1, good), false, 2},
		{"a line without keys", valueHead + section(1, 1, "\x00\x00\x00\x00"), false, 0},
		{"a line beyond the bucket", valueHead + section(1, 1, "\x00\x1f\x02"+strings.Repeat("k", 16)+"\x00"), false, 0},
		{"more numbers than bytes", valueHead + section(1, 1, good[:len(good)-2]+"\x05"+good[len(good)-1:]), false, 0},
		{"a number without an end", valueHead + section(1, 1, good[:len(good)-1]+"\xff"), false, 0},
		{"more bytes than there are", valueHead + section(1, 1, good[:27]+"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), false, 0},
	} {
		var s findResult
		fine := sections(c.value, func(_, _ uint64, body string) bool { return find(body, keys, &s) })
		room := &findResult{held: make([]lineHolder, 0, 8)}
		if n := testing.AllocsPerRun(5, func() {
			room.held = room.held[:0]
			sections(c.value, func(_, _ uint64, body string) bool { return find(body, keys, room) })
		}); n > 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
		if fine != c.fine || len(s.held) != c.told {
			t.Errorf("%s: fine %v, want %v; %d held, want %d", c.name, fine, c.fine, len(s.held), c.told)
		}
	}
}

func FuzzValue(f *testing.F) {
	l := line{slot: 1, keys: []index.Key{0x6161616161616161, 0x6262626262626262}}
	body := string(appendLine([]byte{bodyLines}, &l, []lineHolder{{1, 2}, {2, 6}, {1 << 31, 6}}))
	f.Add([]byte(valueHead+section(1, 2, body)+section(2, 2, "\x01")), uint16(0), uint8(0))
	f.Add([]byte(valueHead+section(1, 2, body)), uint16(25), uint8(1))
	f.Add([]byte(valueHead+section(1, 2, body+body)), uint16(25), uint8(1))
	f.Add([]byte(valueHead+section(1, 2, "\x00\x00\x01aaaaaaaa\x0b\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a")), uint16(25), uint8(0))
	f.Add([]byte(valueHead+section(1, 2, "")), uint16(0), uint8(31))
	f.Fuzz(func(t *testing.T, in []byte, from uint16, before uint8) {
		value := string(in)
		// First the prompt's own keys, and then some from the value.
		var keys []index.Key
		for i := range int(before) % spans[0] {
			keys = append(keys, index.Key(i))
		}
		for at := int(from); at+8 <= len(value) && len(keys) < spans[0]; at += 8 {
			keys = append(keys, index.Key(u64(value[at:])))
		}
		var s findResult
		sections(value, func(_, _ uint64, body string) bool { find(body, keys, &s); return true })
		if len(s.held) > len(value) {
			t.Errorf("%d findings for %d bytes", len(s.held), len(value))
		}
		for _, h := range s.held {
			if h.mask == 0 || bits.Len32(h.mask) > len(keys) {
				t.Fatalf("slots %b of a prompt of %d keys", h.mask, len(keys))
			}
			for mask := h.mask; mask != 0; mask &= mask - 1 {
				k := keys[bits.TrailingZeros32(mask)]
				if !strings.Contains(value, string(binary.LittleEndian.AppendUint64(nil, uint64(k)))) {
					t.Fatalf("key %x is not in the value", k)
				}
			}
		}
		sections(value, func(_, _ uint64, body string) bool {
			var s findResult
			if want, ok := plainRead(body, keys); ok != find(body, keys, &s) || ok && !sameBody(want, s.told(keys)) {
				t.Fatalf("%x of %v:\n got %v\nwant %v, fine %v", body, keys, s.told(keys), want, ok)
			}
			return true
		})
	})
}

// plainRead is a plain find: it reads everything, and then looks for the prompt.
func plainRead(body string, keys []index.Key) (found plainBody, ok bool) {
	found = make(plainBody)
	if body == "" || body[0] > bodySplit {
		return nil, false
	}
	if body[0] == bodySplit {
		return found, true
	}
	b := []byte(body[1:])
	take := func(n uint64) (of []byte) {
		if ok = ok && n <= uint64(len(b)); !ok {
			return nil
		}
		of, b = b[:n], b[n:]
		return of
	}
	uvarint := func() uint64 {
		v, n := binary.Uvarint(b)
		if n == 0 || n < 0 && -n <= binary.MaxVarintLen64 && len(b) < binary.MaxVarintLen64 {
			ok = false
			return 0
		}
		if n < 0 { // more than 64 bits; the upper ones are dropped
			if n = slices.IndexFunc(b[:min(len(b), binary.MaxVarintLen64)], func(c byte) bool { return c < 0x80 }) + 1; n == 0 {
				ok = false
				return 0
			}
			v = 0
			for i, c := range b[:n] {
				v |= uint64(c&0x7f) << (7 * i)
			}
		}
		b = b[n:]
		return v
	}
	for ok = true; ok && len(b) > 0; {
		head := take(2)
		if !ok || head[1] == 0 || int(head[0])+int(head[1]) > spans[0] {
			return nil, false
		}
		slot, n := int(head[0]), int(head[1])
		run := take(uint64(8 * n))
		groups := take(uvarint())
		if !ok {
			return nil, false
		}
		var line []index.Key
		for i := range n {
			line = append(line, index.Key(binary.LittleEndian.Uint64(run[8*i:])))
		}
		same := 0
		for same < n && slot+same < len(keys) && keys[slot+same] == line[same] {
			same++
		}
		if same == 0 {
			continue // its groups are not read
		}
		rest := b
		for b = groups; ok && len(b) > 0; {
			raw := take(4)
			count := uvarint()
			if ok = ok && count <= uint64(len(b)); !ok {
				return nil, false
			}
			number := uint32(0)
			for range count {
				number += uint32(uvarint())
				for i := range same {
					if ok && binary.LittleEndian.Uint32(raw)>>(slot+i)&1 != 0 {
						found.add(slot+i, line[i], number)
					}
				}
			}
		}
		b = rest
	}
	return found, ok
}
