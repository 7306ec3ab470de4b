package predict

// Suspects returns how many suspects are kept of the first rank.
func (p *Pod) Suspects() int { return len(p.holders[0].near) }
