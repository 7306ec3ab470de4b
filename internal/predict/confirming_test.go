package predict_test

import (
	"testing"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
)

// TestSuspectsOnce: a suspect is listed once, even if its slot was another suspect's before.
func TestSuspectsOnce(t *testing.T) {
	l := predict.New(nil)
	var p predict.Pod
	var c predict.Confirmation
	v := index.Variant{Unit: 16}
	view := &index.View{BlockSize: 16, Layout: &index.Layout{Groups: []index.GroupLayout{{BlockSize: 16, Grain: 16}}}}
	send := func(key index.Key) predict.Ticket {
		out := predict.Sending{Tokens: 16, View: view, Variant: v, Applied: p.Messages() + 1} // with a later message
		out.FindLast(&prompt.Run{Variant: v, Keys: []index.Key{key}}, nil)
		ticket, err := l.Send(&p, &out)
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	send(1)
	for range 1000 { // no message of the rank comes
		l.Observe(send(2), -1, -1)
	}
	if n := p.Suspects(); n > 4 {
		t.Errorf("%d suspects are kept of 1 that lives", n)
	}
	send(3)
	if !c.Find(l, &p, 0, nil, &index.Effect{}) || len(c.Suspects) != 2 {
		t.Fatalf("%d suspects of 2 predictions", len(c.Suspects))
	}
	for i, want := range []index.Key{1, 3} {
		if runs, tokens := c.Prompt(&c.Suspects[i]); tokens != 16 || runs[0].Keys[0] != want {
			t.Errorf("suspect %d: %d tokens, key %d", i, tokens, runs[0].Keys[0])
		}
	}
}
