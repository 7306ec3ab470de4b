package events_test

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/go-zeromq/zmq4"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/zmtp"
)

// counter is a sink that tells when it has counted another thousand.
type counter struct {
	deaf
	n         atomic.Int64
	thousands chan struct{}
}

func (c *counter) IngestMessage(events.Message) (events.Receipt, error) {
	if c.n.Add(1)%1000 == 0 {
		c.thousands <- struct{}{}
	}
	return events.Receipt{}, nil
}

// BenchmarkSubscriber receives batches of 256 bytes over the loopback interface,
// a thousand in each step, from a publisher that waits for its reader.
func BenchmarkSubscriber(b *testing.B) {
	report := func(b *testing.B) { b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "msgs/s") }
	b.Run("kvindex", func(b *testing.B) {
		sink := &counter{thousands: make(chan struct{})}
		s, err := events.NewSubscriber(sink, events.SubscriberConfig{Endpoint: flood(b), Pod: "pod", Model: "model"})
		must(b, err)
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Run(ctx) }()
		b.ReportAllocs()
		for b.Loop() {
			<-sink.thousands
		}
		report(b)
		cancel()
		for open := true; open; { // the sink may be waiting for us
			select {
			case <-sink.thousands:
			case <-done:
				open = false
			}
		}
	})
	b.Run("zmq4", func(b *testing.B) {
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		sub := zmq4.NewSub(ctx)
		defer sub.Close()
		must(b, errors.Join(sub.SetOption(zmq4.OptionSubscribe, ""), sub.Dial(flood(b))))
		b.ReportAllocs()
		for b.Loop() {
			for range 1000 {
				if _, err := sub.Recv(); err != nil {
					b.Fatal(err)
				}
			}
		}
		report(b)
	})
}

// flood publishes to the first subscriber that comes, as fast as that one reads.
func flood(b *testing.B) (endpoint string) {
	ln, err := zmtp.Listen(b.Context(), "tcp://127.0.0.1:0")
	must(b, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		nc, err := ln.Accept()
		if err != nil {
			return
		}
		c, err := zmtp.Handshake(b.Context(), nc, "the subscriber", zmtp.Config{Type: zmtp.PUB})
		if err != nil {
			return
		}
		defer c.Close()
		if _, _, err := c.ReceiveSubscription(); err != nil {
			return
		}
		topic, seq, payload := []byte("kv@pod@model"), make([]byte, 8), make([]byte, 256)
		for n := uint64(0); ; n++ {
			binary.BigEndian.PutUint64(seq, n)
			if err := c.Buffer(topic, seq, payload); err != nil {
				return
			}
		}
	}()
	b.Cleanup(func() { ln.Close(); <-done })
	return zmtp.Name(ln.Addr())
}
