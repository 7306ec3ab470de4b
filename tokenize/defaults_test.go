package tokenize

import (
	"runtime"
	"testing"
)

// The zero fields of a PoolConfig have the defaults in their comments.
func TestDefaults(t *testing.T) {
	p, err := NewPool(PoolConfig{})
	must(t, err)
	defer p.Close()
	if p.memory != 1<<30 || p.gate.maxWaiting != 256<<20 || p.maxText != 4<<20 || p.gate.slots != runtime.GOMAXPROCS(0) {
		t.Errorf("%d bytes of tokenizers, %d that wait, %d of a text, %d at a time", p.memory, p.gate.maxWaiting, p.maxText, p.gate.slots)
	}
}
