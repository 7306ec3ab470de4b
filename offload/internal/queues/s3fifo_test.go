package queues

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestGrow compares queues that grow with queues that have all slots from the beginning.
// TestStoreAgainstPlain of package offload compares the rules with a plain model.
func TestGrow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var there []uint32
	fixed, grown, slots := NewS3FIFO(300, 20), NewS3FIFO(0, 20), 0
	keys := make([]byte, 8*300)
	for _, p := range []*S3FIFO{fixed, grown} {
		p.PromoteAt, p.Share = 1, 10
		p.Key = func(slot uint32) []byte { return keys[8*slot : 8*slot+8] }
	}
	for step := range 20_000 {
		switch op := r.IntN(10); {
		case op < 4:
			slot := uint32(r.IntN(min(1+step/20, 300)))
			if slices.Contains(there, slot) {
				continue
			}
			for int(slot) >= slots {
				slots += 1 + r.IntN(20)
				grown.Grow(slots)
			}
			binary.BigEndian.PutUint64(keys[8*slot:], uint64(r.IntN(400)))
			if a, b := fixed.Insert(slot), grown.Insert(slot); a != b {
				t.Fatalf("step %d: slot %d is hot: %v, %v", step, slot, a, b)
			}
			there = append(there, slot)
		case op < 6 && len(there) > 0:
			slot := there[r.IntN(len(there))]
			fixed.Touch(slot)
			grown.Touch(slot)
		case op < 7 && len(there) > 0:
			i := r.IntN(len(there))
			fixed.Remove(there[i])
			grown.Remove(there[i])
			there = slices.Delete(there, i, i+1)
		default:
			var gone [2]uint32
			pinned := uint32(r.IntN(4))
			for i, p := range []*S3FIFO{fixed, grown} {
				for w := (Walk{}); ; {
					slot, ok := p.Next(&w)
					if !ok {
						gone[i] = 300
						break
					}
					if slot%4 == pinned {
						p.Pass(&w, slot)
					} else if !p.Stays(&w, slot) {
						p.Evict(slot)
						gone[i] = slot
						break
					}
				}
			}
			if gone[0] != gone[1] {
				t.Fatalf("step %d: %d goes, and %d", step, gone[0], gone[1])
			}
			there = slices.DeleteFunc(there, func(slot uint32) bool { return slot == gone[0] })
		}
	}
	if c := fixed.S3FIFOCounts; c != grown.S3FIFOCounts || c.GhostHits < 10 || c.Promoted < 100 || c.Reinserted < 100 || c.Passed < 100 {
		t.Errorf("%+v, %+v", c, grown.S3FIFOCounts)
	}
}
