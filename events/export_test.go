package events

// DoubtsOf has a connection bring a stream for each topic, doubt it and go; and
// then another one bring each again, in order. It returns the topics of the
// streams that are doubted still.
func DoubtsOf(topics []string) (doubted []string) {
	var owners streamOwners
	for _, topic := range topics {
		o := owners.join(topic)
		o.trust.doubted = true
		owners.leave(topic, o, 1)
	}
	for _, topic := range topics {
		if owners.join(topic).trust.doubted {
			doubted = append(doubted, topic)
		}
	}
	return doubted
}

const (
	RememberedTrusts = rememberedTrusts
	ProbeStart       = probeStart
)

func (c SubscriberConfig) WithDefaults() SubscriberConfig { return c.withDefaults() }
func (c PoolConfig) WithDefaults() PoolConfig             { return c.withDefaults() }
