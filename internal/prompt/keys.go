package prompt

import "github.com/kvindex/kvindex/index"

// Run has the keys of a prompt in a variant, and the key before the first one.
type Run struct {
	Variant index.Variant
	Root    index.Key
	Keys    []index.Key
}

// RunIn returns the Run in a variant, or nil.
func RunIn(runs []Run, v index.Variant) *Run {
	for i := range runs {
		if runs[i].Variant == v {
			return &runs[i]
		}
	}
	return nil
}
