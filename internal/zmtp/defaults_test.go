package zmtp_test

import (
	"testing"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// TestDefaults: a zero Config gives what the Default constants say.
func TestDefaults(t *testing.T) {
	c := zmtp.Config{}.WithDefaults()
	tests := map[string]struct{ got, want int64 }{
		"DefaultMaxFrame":         {int64(c.MaxFrame), zmtp.DefaultMaxFrame},
		"DefaultMaxFrames":        {int64(c.MaxFrames), zmtp.DefaultMaxFrames},
		"DefaultMaxMessage":       {int64(c.MaxMessage), zmtp.DefaultMaxMessage},
		"DefaultMaxCommand":       {int64(c.MaxCommand), zmtp.DefaultMaxCommand},
		"DefaultMaxMetadata":      {int64(c.MaxMetadata), zmtp.DefaultMaxMetadata},
		"DefaultHandshakeTimeout": {int64(c.HandshakeTimeout), int64(zmtp.DefaultHandshakeTimeout)},
		"DefaultMessageTimeout":   {int64(c.MessageTimeout), int64(zmtp.DefaultMessageTimeout)},
		"DefaultWriteTimeout":     {int64(c.WriteTimeout), int64(zmtp.DefaultWriteTimeout)},
		"DefaultHeartbeat":        {int64(c.Heartbeat), int64(zmtp.DefaultHeartbeat)},
	}
	for name, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s is %d, a zero Config gives %d", name, tt.want, tt.got)
		}
	}
}
