package index

import (
	"fmt"
	"testing"
)

// Slabs in chunks that hot slabs pin are reused: each n-th chain is matched all the time, while
// chains of another length are stored.
func TestPinnedChunks(t *testing.T) {
	cases := []struct{ before, after, hot int }{
		{1, 512, 10}, {512, 1, 8}, {1, 512, 30}, {1, 512, 100}, {20, 512, 20}, {512, 1, 20}, {512, 20, 8}, {20, 1, 30},
	}
	for _, of := range cases[:choose(1, 1, len(cases))] {
		t.Run(fmt.Sprint(of), func(t *testing.T) {
			want := alone(t, of.after)
			c := newCrowd(t)
			var all, hot []storedChain
			for before := ""; before == ""; {
				all = append(all, c.store(Source{Pod: "a", Model: "before"}, of.before))
				if c.m.ground.lost > 0 {
					break
				}
			}
			for i := 0; i < len(all); i += of.hot {
				if c.run(all[i]) == of.before {
					hot = append(hot, all[i])
				}
			}
			pinned := c.m.MemoryUsage()
			room := want * (crowdBytes - len(hot)*int(pinned.Total)/len(all)) / crowdBytes
			begun, asked := c.stored, c.stored
			for c.stored < begun+3*want {
				c.store(Source{Pod: "b", Model: "after"}, of.after)
				if c.stored > asked+want/16 {
					asked = c.stored
					c.ask(hot)
				}
			}
			n := c.held("after")
			t.Logf("%d hot chains of %d, %d blocks, %d alone, %.2f of what fits beside the hot: %+v", len(hot), len(all), n, want, float64(n)/float64(room), c.m.MemoryUsage())
			if n < room*8/10 {
				t.Errorf("%d blocks, there is room for %d", n, room)
			}
		})
	}
}
