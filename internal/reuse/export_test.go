package reuse

// Derived returns the connector settings that l derives from its groups: for each group of
// [NewLoad] the tokens of a chunk, the window in chunks (0: full attention) and whether it has
// draft layers; and the tokens to which Mamba groups round the search down.
func (l *Load) Derived() (tokens, windows []int, drafts []bool, floor int) {
	tokens, windows, drafts = make([]int, len(l.groups)), make([]int, len(l.groups)), make([]bool, len(l.groups))
	for _, g := range l.groups {
		tokens[g.number], windows[g.number], drafts[g.number] = g.tokens, g.window, g.draft
	}
	return tokens, windows, drafts, l.floor
}
