package index

import (
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
)

func TestDefaults(t *testing.T) {
	m, err := NewMemory(MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	testdata.Defaults(t,
		testdata.Default{Name: "DefaultPendingBytes", Zero: int64(m.cfg.PendingBytes), Want: DefaultPendingBytes},
		testdata.Default{Name: "DefaultMemory", Zero: m.cfg.Bytes, Want: DefaultMemory},
		testdata.Default{Name: "DefaultIdleNames", Zero: int64(m.cfg.IdleNames), Want: DefaultIdleNames},
	)
}
