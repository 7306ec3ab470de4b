package zmtp

import (
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
)

func TestDefaults(t *testing.T) {
	c := Config{}.withDefaults()
	testdata.Defaults(t,
		testdata.Default{Name: "defaultMaxFrame", Zero: int64(c.MaxFrame), Want: defaultMaxFrame},
		testdata.Default{Name: "defaultMaxMessage", Zero: int64(c.MaxMessage), Want: defaultMaxMessage},
		testdata.Default{Name: "defaultHandshakeTimeout", Zero: int64(c.HandshakeTimeout), Want: int64(defaultHandshakeTimeout)},
		testdata.Default{Name: "defaultWriteTimeout", Zero: int64(c.WriteTimeout), Want: int64(defaultWriteTimeout)},
		testdata.Default{Name: "DefaultHeartbeat", Zero: int64(c.Heartbeat), Want: int64(DefaultHeartbeat)},
	)
}
