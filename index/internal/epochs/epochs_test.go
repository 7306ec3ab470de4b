package epochs

import (
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"
)

// These are the steps of a script of TestOrders; n > 0 retires n.
const (
	doStep  = 0
	doEnter = -1
	doLeave = -2
)

// Nothing is reused while a reader is inside that entered before it was retired, in all orders of
// the steps of some readers and a writer.
func TestOrders(t *testing.T) {
	orders, kept := 0, 0
	for _, scripts := range [][][]int{
		{{1, doStep, 2, doStep, doStep, doStep}, {doEnter, doLeave}, {doEnter, doLeave}, {doEnter, doLeave}},
		{{doStep, 1, doStep, doStep, 2, 3, doStep}, {doEnter, doLeave, doEnter, doLeave}, {doEnter, doLeave}},
	} {
		at := make([]int, len(scripts))
		var order []int
		var try func()
		try = func() {
			end := true
			for i, s := range scripts {
				if at[i] < len(s) {
					end = false
					at[i]++
					order = append(order, i)
					try()
					order = order[:len(order)-1]
					at[i]--
				}
			}
			if end {
				orders++
				kept += playEpochs(t, scripts, order)
			}
		}
		try()
	}
	t.Logf("%d orders, in which something had to wait for a step %d times", orders, kept)
	if orders < 100_000 || kept < 100_000 {
		t.Error("the test tests too little")
	}
}

// playEpochs plays one order of scripts, and returns after how many steps something was not yet
// reusable.
func playEpochs(t *testing.T, scripts [][]int, order []int) (kept int) {
	e := &Epochs{stripes: make([]stripe, 1)}
	var l limbo
	var handed []uint32
	leave := make([]*atomic.Int64, len(scripts)) // of the readers inside
	visit := make([]int, len(scripts))           // number of visits
	type sighting struct{ reader, visit int }
	maySee := map[uint32][]sighting{}
	step := func() {
		e.Step()
		for {
			ref, ok := l.next(e)
			if !ok {
				break
			}
			handed = append(handed, ref)
			for _, s := range maySee[ref] {
				if leave[s.reader] != nil && visit[s.reader] == s.visit {
					t.Fatalf("order %v: %d was handed out while reader %d may see it", order, ref, s.reader)
				}
			}
		}
		kept += l.len()
	}
	next := make([]int, len(scripts))
	for _, i := range order {
		what := scripts[i][next[i]]
		next[i]++
		switch what {
		case doStep:
			step()
		case doEnter:
			leave[i] = e.Enter()
			visit[i]++
		case doLeave:
			leave[i].Add(-1)
			leave[i] = nil
		default:
			for r, in := range leave {
				if in != nil {
					maySee[uint32(what)] = append(maySee[uint32(what)], sighting{r, visit[r]})
				}
			}
			l.add(e, uint32(what))
		}
	}
	last := kept
	for range 2 { // without readers two steps suffice
		step()
	}
	if want := []uint32{1, 2, 3}[:len(handed)]; l.len() != 0 || len(handed) < 2 || !slices.Equal(handed, want) {
		t.Fatalf("order %v: %v were handed out, %d wait", order, handed, l.len())
	}
	return last
}

// limbo is a queue like those of slabs, records and ordinals.
type limbo struct{ queue []limboItem }

type limboItem struct{ ref, mark uint32 }

func (l *limbo) add(e *Epochs, ref uint32) { l.queue = append(l.queue, limboItem{ref, e.Mark()}) }

func (l *limbo) next(e *Epochs) (ref uint32, ok bool) {
	if len(l.queue) == 0 || !e.Passed(l.queue[0].mark) {
		return 0, false
	}
	ref = l.queue[0].ref
	l.queue = l.queue[1:]
	return ref, true
}

func (l *limbo) len() int { return len(l.queue) }

// Retired items become reusable under continuous reads, if no reader stays.
func TestGoOn(t *testing.T) {
	e := New()
	var l limbo
	handed := 0
	in := e.Enter()
	for ref := range uint32(100) {
		l.add(e, ref)
		next := e.Enter()
		in.Add(-1)
		in = next
		e.Step()
		for _, ok := l.next(e); ok; _, ok = l.next(e) {
			handed++
		}
	}
	if handed < 90 {
		t.Errorf("%d of 100 were handed out", handed)
	}
}

// The counters of a stripe have cache lines of their own.
func TestStripe(t *testing.T) {
	var s stripe
	if size, at := unsafe.Sizeof(s), unsafe.Offsetof(s.readers); size != 128 || at != 0 {
		t.Errorf("a stripe has %d bytes, its counters are at %d", size, at)
	}
}
