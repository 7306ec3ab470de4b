package zmtp_test

import (
	"testing"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// TestDefaults: a zero Config has the values of the Default constants.
func TestDefaults(t *testing.T) {
	c := zmtp.Config{}.WithDefaults()
	tests := map[string]struct{ got, want int64 }{
		"DefaultMaxFrame":         {int64(c.MaxFrame), zmtp.DefaultMaxFrame},
		"DefaultMaxMessage":       {int64(c.MaxMessage), zmtp.DefaultMaxMessage},
		"DefaultHandshakeTimeout": {int64(c.HandshakeTimeout), int64(zmtp.DefaultHandshakeTimeout)},
		"DefaultWriteTimeout":     {int64(c.WriteTimeout), int64(zmtp.DefaultWriteTimeout)},
		"DefaultHeartbeat":        {int64(c.Heartbeat), int64(zmtp.DefaultHeartbeat)},
	}
	for name, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s is %d, a zero Config gives %d", name, tt.want, tt.got)
		}
	}
}
