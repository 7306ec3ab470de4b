package tokenize

// A Normalizer is a normalizer with its scratch memory.
type Normalizer struct {
	normalizer
	scratch normalScratch
}

func ParseNormalizer(raw string) (*Normalizer, error) {
	n, err := parseNormalizer([]byte(raw))
	return &Normalizer{normalizer: n}, err
}

func (n *Normalizer) Apply(s []byte, start bool) ([]byte, error) {
	return n.apply(&n.scratch, s, start)
}

func (n *Normalizer) Boundary(l, r rune) (nl, nr rune, ok bool) { return n.boundary(l, r) }

func (n *Normalizer) KeepsStart() bool { return n.keepsStart() }

// The tables that forms_test.go compares with its own.

// FormPairs are the pairs that compose: the first, the second and the composed one, in 21 bits
// each.
var FormPairs = func() (pairs []uint64) {
	for i := range len(formPairs) / pairSize {
		pairs = append(pairs, pairAt(i))
	}
	return pairs
}()

func FormValue(r rune) uint16 { return formValue(r) }
