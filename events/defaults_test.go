package events

import (
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
)

func TestDefaults(t *testing.T) {
	p, err := NewPool(ignore{}, PoolConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	s, err := NewSubscriber(ignore{}, SubscriberConfig{Endpoint: "tcp://127.0.0.1:5557", Pod: "a", Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	testdata.Defaults(t,
		testdata.Default{Name: "DefaultConcurrency", Zero: int64(p.cfg.Concurrency), Want: DefaultConcurrency},
		testdata.Default{Name: "DefaultPoolMessages", Zero: int64(p.cfg.MaxMessages), Want: DefaultPoolMessages},
		testdata.Default{Name: "DefaultPoolBytes", Zero: p.cfg.MaxBytes, Want: DefaultPoolBytes},
		testdata.Default{Name: "DefaultMaxMessage", Zero: int64(s.cfg.MaxMessage), Want: DefaultMaxMessage},
		testdata.Default{Name: "DefaultMaxBuffered", Zero: s.cfg.MaxBuffered, Want: DefaultMaxBuffered},
		testdata.Default{Name: "DefaultMaxConns", Zero: int64(s.cfg.MaxConns), Want: DefaultMaxConns},
		testdata.Default{Name: "DefaultMaxTopics", Zero: int64(s.cfg.MaxTopics), Want: DefaultMaxTopics},
		testdata.Default{Name: "DefaultBackoffMin", Zero: int64(s.cfg.BackoffMin), Want: int64(DefaultBackoffMin)},
		testdata.Default{Name: "DefaultBackoffMax", Zero: int64(s.cfg.BackoffMax), Want: int64(DefaultBackoffMax)},
		testdata.Default{Name: "DefaultHeartbeat", Zero: int64(s.cfg.Heartbeat), Want: int64(DefaultHeartbeat)},
		testdata.Default{Name: "DefaultReplayTimeout", Zero: int64(s.cfg.ReplayTimeout), Want: int64(DefaultReplayTimeout)},
	)
}

// ignore is a sink of nothing.
type ignore struct{ ReplaySink }
