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
		testdata.Default{Name: "defaultQueue", Zero: int64(p.cfg.Queue), Want: defaultQueue},
		testdata.Default{Name: "defaultConns", Zero: int64(p.cfg.MaxConns), Want: defaultConns},
	)
}
