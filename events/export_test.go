package events

import (
	"context"
	"net"
)

// DoubtsOf has one connection bring, doubt and leave a stream for each topic, then another bring
// each again, in order. It returns the topics still in doubt.
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

// Normal is the description as a Fleet keeps it. Endpoint is the address of a rank.
func (p Pod) Normal() (Pod, error)     { return p.normal() }
func (p Pod) Endpoint(rank int) string { return endpoint(p.Host, p.Port+rank) }
func (p Pod) TiersAt() string          { return endpoint(p.Host, p.TiersPort) }
func (p Pod) ReplayAt(rank int) string { return endpoint(p.Host, p.ReplayPort+rank) }

const (
	MaxPodName       = maxName
	MaxPodRanks      = maxRanks
	RememberedTrusts = rememberedTrusts
	ProbeStart       = probeStart
)

func (c SubscriberConfig) WithDefaults() SubscriberConfig { return c.withDefaults() }
func (c PoolConfig) WithDefaults() PoolConfig             { return c.withDefaults() }
func (c FleetConfig) WithDefaults() FleetConfig           { return c.withDefaults() }

// Replay is the result of a replay. OnReplay has f get those of a Subscriber.
type Replay = replayResult

func (c *SubscriberConfig) OnReplay(f func(Replay)) { c.onReplay = f }

// Calls returns the number of calls of p.Sink that wait for their turn or are in the sink.
func (p *Pool) Calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

// PodMessages returns the buffered messages of each pod and the bytes of all.
func (p *Pool) PodMessages() (messages map[string]int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	messages = make(map[string]int)
	for name, q := range p.pods {
		messages[name] = q.messages
		bytes += q.bytes
	}
	return messages, bytes
}

// SourcesOf is the number of sources that a Fleet keeps.
func SourcesOf(f *Fleet) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sources)
}

// Accept runs a Subscriber that listens, with a listener.
func (s *Subscriber) Accept(ctx context.Context, ln net.Listener) error { return s.accept(ctx, ln) }

// Buffered is the room for messages that are being received.
func (c SubscriberConfig) Buffered() int64 { return c.buffered() }
