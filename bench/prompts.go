package bench

import "bytes"

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

// SharedTexts finds the longest prefix that a request's text shares with an earlier one.
type SharedTexts struct {
	texts *Texts
	root  sharedNode
}

type sharedNode map[uint64]sharedNode

// NewSharedTexts returns a SharedTexts without requests.
func NewSharedTexts(t *Texts) *SharedTexts { return &SharedTexts{t, sharedNode{}} }

// Add returns how many bytes of the text of a request are the longest beginning that it
// has in common with one that was added before, and adds it.
func (s *SharedTexts) Add(q *Request) (shared int) {
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
func (s *SharedTexts) common(at sharedNode, b uint64) (most int) {
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
