package redisindex

import (
	"testing"
	"time"
)

// TestDefaults: zeros give what the comments of Config say.
func TestDefaults(t *testing.T) {
	var c Config
	must(t, c.fill())
	want := Config{Prefix: "kvindex:", Lease: 2 * time.Second, TTL: time.Hour, Timeout: time.Second, Sweep: 1000}
	if c != want {
		t.Errorf("zeros give %+v, want %+v", c, want)
	}
}
