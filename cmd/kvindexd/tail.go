package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kvindex/kvindex/events"
)

// tail prints each event of an engine as a line of JSON, until ctx ends.
func tail(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	set := flag.NewFlagSet("tail", flag.ContinueOnError)
	set.SetOutput(stderr)
	replay := set.String("replay", "", "replay socket of the engine: its last messages come first")
	prefix := set.String("topic", "", "beginning of the topics")
	tokens := set.Bool("tokens", false, "print the token ids of prompts")
	if err := set.Parse(args); err != nil {
		return err
	}
	if set.NArg() != 1 {
		return errors.New("tail takes the endpoint of one engine, such as tcp://10.0.0.7:5557")
	}
	sub, err := events.NewSubscriber(&printer{to: json.NewEncoder(stdout), tokens: *tokens}, events.SubscriberConfig{
		Endpoint: set.Arg(0), Replay: *replay, Topic: *prefix, Pod: "engine", Model: "model",
		OnConnect: func(endpoint string) { fmt.Fprintln(stderr, "connected to", endpoint) },
		OnError:   func(err error) { fmt.Fprintln(stderr, err) },
	})
	if err != nil {
		return err
	}
	if err := sub.Run(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

var kinds = map[events.Kind]string{events.Stored: "BlockStored", events.Removed: "BlockRemoved", events.Cleared: "AllBlocksCleared"}

const maxTime = 253402300800 // the year 10,000 in seconds: JSON has no later times

// A printer is a sink that prints events.
type printer struct {
	tokens bool

	mu   sync.Mutex // guards the fields below
	to   *json.Encoder
	next uint64
	last []byte // payload of the message before next
}

// A line is an event, or a message that cannot be read.
type line struct {
	Seq       uint64    `json:"seq"`
	Time      time.Time `json:"time,omitzero"`
	Rank      int       `json:"rank"`
	Event     string    `json:"event,omitempty"`
	Hashes    []uint64  `json:"hashes,omitempty"`
	Parent    *uint64   `json:"parent,omitempty"`
	BlockSize int       `json:"block_size,omitempty"`
	Count     int       `json:"tokens,omitempty"`
	IDs       []uint32  `json:"token_ids,omitempty"`
	Medium    string    `json:"medium,omitempty"`
	Adapter   string    `json:"adapter,omitempty"`
	Group     int       `json:"group,omitempty"`
	Unknown   []string  `json:"unrecognized,omitempty"`
	Error     string    `json:"error,omitempty"`
}

func (p *printer) IngestMessage(m events.Message) (events.Receipt, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m.Seq < p.next && m.Replayed { // if it differs from the last one, the engine has restarted
		return events.Receipt{Duplicate: m.Seq+1 < p.next || bytes.Equal(m.Payload, p.last)}, nil
	}
	p.next, p.last = m.Seq+1, append(p.last[:0], m.Payload...)
	var b events.Batch
	if err := errors.Join(m.Err, events.Decode(m.Payload, &b)); err != nil {
		return events.Receipt{Applied: true}, p.to.Encode(line{Seq: m.Seq, Error: err.Error()})
	}
	at := line{Seq: m.Seq, Rank: b.Rank, Unknown: b.Unrecognized}
	if b.Time > 0 && b.Time < maxTime {
		at.Time = time.UnixMicro(int64(b.Time * 1e6)).UTC()
	}
	if len(b.Events) == 0 {
		return events.Receipt{Applied: true}, p.to.Encode(at)
	}
	for i := range b.Events {
		e, of := &b.Events[i], at
		of.Event, of.Hashes, of.BlockSize, of.Count = kinds[e.Kind], e.Hashes, e.BlockSize, len(e.Tokens)
		of.Medium, of.Adapter, of.Group = e.Medium, e.Adapter, e.Group
		if e.HasParent {
			of.Parent = &e.Parent
		}
		if p.tokens {
			of.IDs = e.Tokens
		}
		if err := p.to.Encode(of); err != nil {
			return events.Receipt{Applied: true}, err
		}
	}
	return events.Receipt{Applied: true}, nil
}

func (p *printer) StreamNext(_, _, _ string) events.Position {
	p.mu.Lock()
	defer p.mu.Unlock()
	return events.Position{Next: p.next}
}

func (p *printer) StreamNote(_, _, _ string, n events.Note) error {
	if n == events.NoteRestarted || n == events.NoteRewound {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.next = 0
	}
	return nil
}

func (p *printer) RemovePod(string) error            { return nil }
func (p *printer) RemoveStream(_, _, _ string) error { return nil }
