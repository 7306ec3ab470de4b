package redisindex_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/index/redisindex/internal/redistest"
	"github.com/kvindex/kvindex/internal/sharedindex"
	"github.com/redis/go-redis/v9"
)

// TestCauses: contexts end before a client with default settings gives up.
func TestCauses(t *testing.T) {
	for _, trouble := range []struct {
		name, want string
		is         error
		set, end   func(*testing.T, *redistest.Server)
	}{
		{"killed", "connection refused", syscall.ECONNREFUSED,
			func(t *testing.T, s *redistest.Server) { s.Kill(t) }, func(t *testing.T, s *redistest.Server) { s.Restart(t) }},
		{"loading", "LOADING", nil, restartLoading, func(t *testing.T, s *redistest.Server) { s.LoadFast(t) }},
		{"master link down", "MASTERDOWN", nil, func(t *testing.T, s *redistest.Server) {
			s.Set(t, "replica-serve-stale-data", "no")
			s.Do(t, "REPLICAOF", "127.0.0.1", "1")
		}, func(t *testing.T, s *redistest.Server) { s.Promote(t) }},
	} {
		t.Run(trouble.name, func(t *testing.T) {
			s := redistest.Standalone(t)
			p, engines := newEngines(1)
			e := engines[0]
			one := startWith(t, redis.NewClient(&redis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true}), config)
			one.feed(t, e)
			s.Do(t, "SAVE") // data of a killed server after its restart
			trouble.set(t, s)
			wants := func(err error) error {
				if err == nil || !strings.Contains(err.Error(), trouble.want) || strings.Count(err.Error(), "redisindex:") > 1 ||
					trouble.is != nil && !errors.Is(err, trouble.is) {
					return fmt.Errorf("the error is %v", err)
				}
				return nil
			}
			var said error
			eventually(t, "the cause", func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				defer cancel()
				_, said = one.ask(ctx, p, 0, new(index.Matches))
				if !errors.Is(said, context.DeadlineExceeded) {
					return fmt.Errorf("the error is %v", said)
				}
				return wants(said)
			})
			t.Log(said)
			eventually(t, "the cause in Listing", func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				defer cancel()
				_, err := one.Listing(ctx)
				return wants(err)
			})
			e.storeTo(1, len(p.paths[1]))
			if err := one.do(t, e, e.version()); !errors.Is(err, sharedindex.ErrDelayed) {
				t.Errorf("Apply: %v", err)
			}
			eventually(t, "the cause in Trouble", func() error { return wants(one.Trouble()) })
			t.Log(one.Trouble())
			trouble.end(t, s)
			eventually(t, "all is there again", func() error { return one.equals(t.Context(), p, e) })
			var brief time.Duration
			within(t, 5*time.Second, "no cause", func() error {
				brief = (brief + 10*time.Microsecond) % time.Millisecond
				ctx, cancel := context.WithTimeout(t.Context(), brief)
				defer cancel()
				_, err := one.ask(ctx, p, 0, new(index.Matches))
				if err == nil || err.Error() != "redisindex: context deadline exceeded" {
					return fmt.Errorf("the error is %v", err)
				}
				return nil
			})
		})
	}
}
