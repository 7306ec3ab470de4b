package fakeengine

import "github.com/kvindex/kvindex/internal/publisher"

// A Publisher sends the batches of an engine, or loses them.
type (
	Publisher       = publisher.Publisher
	PublisherConfig = publisher.Config
)

// NewPublisher opens the sockets and serves them until Close.
func NewPublisher(cfg PublisherConfig) (*Publisher, error) { return publisher.New(cfg) }
