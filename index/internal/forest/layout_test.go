package forest

import (
	"testing"
	"unsafe"

	"github.com/kvindex/kvindex/index/internal/mem"
)

// Shared data is laid out as documented: words loaded atomically are at multiples of 8 bytes, on
// 32-bit machines too.
func TestLayout(t *testing.T) {
	var (
		m slabMeta
		h headSegment
	)
	for name, c := range map[string]struct{ got, want uintptr }{
		"size of slabMeta":    {unsafe.Sizeof(m), 24},
		"slabMeta.header":     {unsafe.Offsetof(m.header), 0},
		"size of headSegment": {unsafe.Sizeof(h), 4096},
		"headSegment.slots":   {unsafe.Offsetof(h.slots), 0},
	} {
		if c.got != c.want {
			t.Errorf("%s is %d, want %d", name, c.got, c.want)
		}
	}
	if last := locOf(maxSlabs-1, slabSlots-1); last>>31 != 0 {
		t.Errorf("the last place is %x", last)
	}
	f := New(new(mem.Count), 1<<40)
	f.Place(0, 0, []Key{1, 2, 3}, make([]Loc, 3))
	if at := uintptr(unsafe.Pointer(f.meta(1))); at%8 != 0 {
		t.Errorf("a slab's header is at %x", at)
	}
}
