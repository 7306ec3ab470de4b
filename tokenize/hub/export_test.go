package hub

import (
	"context"
	"time"
)

var (
	ParseInfo = func(text []byte) (string, int, error) {
		commit, l, err := parseInfo(text)
		return commit, len(l.files), err
	}
	ParseTree = func(text []byte) (names []string, err error) {
		files, err := parseTree(text)
		for _, f := range files {
			names = append(names, f.name)
		}
		return names, err
	}
	Wanted = wanted
)

const (
	MaxFile    = maxFile
	MaxListing = maxListing
	MaxRetries = maxRetries
)

// SetPause replaces the wait between attempts. nil means no wait.
func (c *Client) SetPause(pause func(ctx context.Context, d time.Duration) error) {
	if pause == nil {
		pause = func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) }
	}
	c.pause = pause
}

func (c *Client) SetFault(fault func(op, path string) error) { c.fault = fault }
func (c *Client) SetNow(now func() time.Time)                { c.now = now }
func (c *Client) SetStall(d time.Duration)                   { c.stall = d }

// Waiting returns the number of calls that wait for a download.
func (c *Client) Waiting() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.calls {
		n += t.waiting
	}
	return n
}
