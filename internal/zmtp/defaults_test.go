package zmtp

import (
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
)

func TestDefaults(t *testing.T) {
	c := Config{}.withDefaults()
	testdata.Defaults(t,
		testdata.Default{Name: "DefaultMaxFrame", Zero: int64(c.MaxFrame), Want: DefaultMaxFrame},
		testdata.Default{Name: "DefaultMaxFrames", Zero: int64(c.MaxFrames), Want: DefaultMaxFrames},
		testdata.Default{Name: "DefaultMaxMessage", Zero: int64(c.MaxMessage), Want: DefaultMaxMessage},
		testdata.Default{Name: "DefaultMaxCommand", Zero: int64(c.MaxCommand), Want: DefaultMaxCommand},
		testdata.Default{Name: "DefaultMaxMetadata", Zero: int64(c.MaxMetadata), Want: DefaultMaxMetadata},
		testdata.Default{Name: "DefaultHandshakeTimeout", Zero: int64(c.HandshakeTimeout), Want: int64(DefaultHandshakeTimeout)},
		testdata.Default{Name: "DefaultMessageTimeout", Zero: int64(c.MessageTimeout), Want: int64(DefaultMessageTimeout)},
		testdata.Default{Name: "DefaultWriteTimeout", Zero: int64(c.WriteTimeout), Want: int64(DefaultWriteTimeout)},
		testdata.Default{Name: "DefaultHeartbeat", Zero: int64(c.Heartbeat), Want: int64(DefaultHeartbeat)},
	)
}
