package redisindex

import (
	"testing"
	"time"
)

// TestDefaults: zeros mean the defaults in the comments of Config.
func TestDefaults(t *testing.T) {
	var c Config
	must(t, c.fill())
	want := Config{Prefix: "kvindex:", Lease: 2 * time.Second, TTL: time.Hour, Timeout: time.Second}
	if c != want {
		t.Errorf("zeros give %+v, want %+v", c, want)
	}
}

// TestShortTTL: a writer renews its keys at each heartbeat, so a TTL must last for several.
func TestShortTTL(t *testing.T) {
	for _, c := range []struct {
		lease, ttl time.Duration
		fine       bool
	}{
		{0, time.Minute, true}, {15 * time.Second, time.Minute, true}, {16 * time.Second, time.Minute, false},
		{15 * time.Minute, 0, true}, {16 * time.Minute, 0, false},
	} {
		if err := (&Config{Lease: c.lease, TTL: c.ttl}).fill(); (err == nil) != c.fine {
			t.Errorf("a lease of %v, a TTL of %v: %v", c.lease, c.ttl, err)
		}
	}
}
