package events

// DoubtsOf has a connection bring each topic, doubt it and go; and then another
// one bring each again, in order. It returns the topics that are doubted still.
func DoubtsOf(names []string) (doubted []string) {
	ts := topics{open: make(map[string]*topic)}
	for _, name := range names {
		t := ts.join(name)
		t.doubted = true
		ts.leave(name, t, 1)
	}
	for _, name := range names {
		if ts.join(name).doubted {
			doubted = append(doubted, name)
		}
	}
	return doubted
}

// RememberedDoubts is how many doubted topics without a connection are remembered
// at least.
const RememberedDoubts = rememberedDoubts

func (c SubscriberConfig) WithDefaults() SubscriberConfig { return c.withDefaults() }
func (c PoolConfig) WithDefaults() PoolConfig             { return c.withDefaults() }
