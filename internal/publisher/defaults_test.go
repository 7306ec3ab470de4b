package publisher

import (
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
)

func TestDefaults(t *testing.T) {
	p, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	testdata.Defaults(t,
		testdata.Default{Name: "DefaultBuffer", Zero: int64(p.cfg.Buffer), Want: DefaultBuffer},
		testdata.Default{Name: "DefaultQueue", Zero: int64(p.cfg.Queue), Want: DefaultQueue},
		testdata.Default{Name: "DefaultConns", Zero: int64(p.cfg.MaxConns), Want: DefaultConns},
	)
}
