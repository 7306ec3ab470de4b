package fakeengine

import (
	"testing"

	"github.com/kvindex/kvindex/internal/testdata"
)

func TestDefaults(t *testing.T) {
	p, err := NewPublisher(PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	testdata.Defaults(t,
		testdata.Default{Name: "DefaultPublisherBuffer", Zero: int64(p.cfg.Buffer), Want: DefaultPublisherBuffer},
		testdata.Default{Name: "DefaultPublisherQueue", Zero: int64(p.cfg.Queue), Want: DefaultPublisherQueue},
	)
}
