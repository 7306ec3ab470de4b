package tokenize

// A normalizer changes a text before it is cut into pieces (tokenizers 0.23.2,
// normalizers/). The zero value changes nothing.
type normalizer struct{}

type normalScratch struct{}

func (w *normalScratch) bytes() int { return 0 }

// parseNormalizer reads the normalizer section; raw is empty or null for none.
func parseNormalizer(raw []byte) (normalizer, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return normalizer{}, nil
	}
	n, err := parseComponent("normalizer", raw)
	if err != nil {
		return normalizer{}, err
	}
	return normalizer{}, unsupported("normalizer %.60q", n.kind)
}

// apply returns s normalized: s itself if that changes nothing, else memory of w
// that the next call with w overwrites.
func (n *normalizer) apply(w *normalScratch, s []byte) []byte { return s }
