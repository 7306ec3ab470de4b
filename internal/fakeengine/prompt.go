package fakeengine

// Prompt is a run of tokens in blocks, for events that no engine made. Block i
// has the hash Hash+i.
type Prompt struct {
	Tokens []uint32
	Size   int // of a block, in tokens
	Hash   uint64
}

// NewPrompt returns prompt n, of so many blocks. Two of fewer than 1,000 tokens
// have no token and no hash in common.
func NewPrompt(n uint64, size, blocks int) Prompt {
	p := Prompt{Size: size, Hash: n << 32}
	for i := range size * blocks {
		p.Tokens = append(p.Tokens, uint32(n*1000)+uint32(i))
	}
	return p
}

// Stored returns the event that stores the blocks from one to before another.
func (p Prompt) Stored(from, to int) *Stored {
	s := &Stored{Tokens: p.Tokens[from*p.Size : to*p.Size], BlockSize: p.Size, Medium: MediumGPU}
	for i := from; i < to; i++ {
		s.Hashes = append(s.Hashes, IntHash(p.Hash+uint64(i)))
	}
	if from > 0 {
		parent := IntHash(p.Hash + uint64(from-1))
		s.Parent = &parent
	}
	return s
}

// Removed returns the event that removes some blocks.
func (p Prompt) Removed(blocks ...int) *Removed {
	r := &Removed{Medium: MediumGPU}
	for _, b := range blocks {
		r.Hashes = append(r.Hashes, IntHash(p.Hash+uint64(b)))
	}
	return r
}

// Payload returns a message of an engine with the zero Encoding.
func Payload(time float64, rank int, evs ...Event) []byte {
	return Encoding{}.Append(nil, &Batch{Time: time, Rank: rank, Events: evs})
}
