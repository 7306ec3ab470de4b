package tokenize

import (
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
)

func TestDefaults(t *testing.T) {
	p, err := NewPool(PoolConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	testdata.Defaults(t,
		testdata.Default{Name: "DefaultPoolMemory", Zero: p.memory, Want: DefaultPoolMemory},
		testdata.Default{Name: "DefaultPoolWaiting", Zero: p.gate.maxWaiting, Want: DefaultPoolWaiting},
		testdata.Default{Name: "DefaultPoolMaxText", Zero: int64(p.maxText), Want: DefaultPoolMaxText},
	)
}
