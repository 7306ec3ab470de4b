package redisindex

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// All pipelines go through exec, and one command is a pipeline, too. For a command outside of
// a pipeline, a ClusterClient of go-redis requests a server's list of commands. It waits 5
// seconds for that, and ignores the context of the caller.
// A program with go-redis v9.22.0 links five modules more, so the package has a module of its
// own. v9.23.0 needs Go 1.26.

// exec executes a pipeline; nothing else calls Exec. Without an error each command has an
// answer, or redis.Nil. go-redis leaves commands with neither an error nor an answer if Redis
// refuses the connection, as with another password (WRONGPASS) or while it loads (LOADING):
// these get that error.
func exec(ctx context.Context, p redis.Pipeliner) error {
	cmds, err := p.Exec(ctx)
	if err == nil {
		return nil
	}
	var first error // of a command
	sent := false
	for _, c := range cmds {
		own := c.Err()
		sent = sent || own != nil
		if first == nil && !errors.Is(own, redis.Nil) {
			first = own
		}
	}
	if errors.Is(err, redis.Nil) {
		return first
	}
	if !sent {
		for _, c := range cmds {
			c.SetErr(err)
		}
	}
	return err
}

// A client of Redis tries again until the context of the call ends, and then returns the
// context's error alone. So a probe asks Redis again, with more time and beside all calls, and
// their errors have its result.

const (
	probeTime = 3 * time.Second  // a client that cannot connect has given up before
	causeAge  = 10 * time.Second // of a cause that is out of date
)

// A cause is the reason why Redis did not answer.
type cause struct {
	error
	at time.Time
}

// askError is an error of Redis, or an answer that came too late.
type askError struct{ err error }

func (e *askError) Error() string { return "redisindex: " + e.err.Error() }
func (e *askError) Unwrap() error { return e.err }

// failed returns the error of a call that used some parts.
func (ix *redisIndex) failed(err error, parts ...part) error {
	ix.lookUp(err)
	return &askError{ix.because(err, parts...)}
}

// because adds the reason why Redis did not answer to the error of an ended context, once it
// is known.
func (ix *redisIndex) because(err error, parts ...part) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	ix.probe(parts)
	c := ix.cause.Load()
	if c == nil || time.Since(c.at) > causeAge {
		return err
	}
	return fmt.Errorf("%w; %v ago: %w", err, time.Since(c.at).Round(time.Millisecond), c.error)
}

// probe probes some parts, unless another probe is running.
func (ix *redisIndex) probe(parts []part) {
	select {
	case ix.probing <- struct{}{}:
	default:
		return
	}
	keys := []string{ix.names.root()}
	for _, of := range parts {
		keys = append(keys, ix.names.token(of, 0))
	}
	go func() {
		defer ix.probing.unlock()
		ctx, cancel := context.WithTimeout(ix.life, probeTime)
		defer cancel()
		p := ix.client.Pipeline()
		for _, key := range keys {
			p.Exists(ctx, key)
		}
		switch err := exec(ctx, p); {
		case err == nil:
			ix.cause.Store(nil)
		case errors.Is(err, context.DeadlineExceeded):
			ix.cause.Store(&cause{fmt.Errorf("no answer for %v: %w", probeTime, err), time.Now()})
		default:
			ix.cause.Store(&cause{err, time.Now()})
		}
	}()
}
