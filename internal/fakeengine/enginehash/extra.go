package enginehash

// ExtraKind is the form of an Extra.
type ExtraKind uint8

// The forms of extra keys.
const (
	ExtraText  ExtraKind = iota // an adapter's name, a salt, or a bare media identifier
	ExtraInt                    // an adapter's id (vLLM up to 0.11.0)
	ExtraMedia                  // a media identifier and where the item begins
	ExtraBytes                  // the digest of prompt embeddings
)

// Extra is one thing that the engine hashes into a block besides its tokens.
// Make one with Text, Int, Media or Bytes; the zero Extra is the empty text.
type Extra struct {
	Kind ExtraKind
	Text string // of ExtraText and ExtraMedia; the bytes of ExtraBytes
	Int  int64  // of ExtraInt; of ExtraMedia the item's first token less the block's
}

// Text is an adapter's name or a salt.
func Text(s string) Extra { return Extra{Kind: ExtraText, Text: s} }

// Int is an adapter's id.
func Int(n int64) Extra { return Extra{Kind: ExtraInt, Int: n} }

// Media is an item that touches the block. The offset is that of the item's
// first token from the block's first, negative in later blocks of the item.
func Media(id string, offset int64) Extra {
	return Extra{Kind: ExtraMedia, Text: id, Int: offset}
}

// Bytes is the digest of prompt embeddings.
func Bytes(b []byte) Extra { return Extra{Kind: ExtraBytes, Text: string(b)} }

func (e *Extra) append(b []byte) []byte {
	switch e.Kind {
	case ExtraInt:
		return appendInt(b, e.Int)
	case ExtraMedia:
		return appendInt(appendText(append(b, majorArray|2), e.Text), e.Int)
	case ExtraBytes:
		return append(appendHead(b, majorBytes, uint64(len(e.Text))), e.Text...)
	}
	return appendText(b, e.Text)
}
