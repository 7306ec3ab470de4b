package epochs

import (
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"
)

// The steps of a script of TestOrders, beside n > 0, which takes n out of reach.
const (
	doStep  = 0
	doEnter = -1
	doLeave = -2
)

// Whatever the order in which readers enter and leave, and a writer takes things
// out of reach and goes on, nothing is handed out while somebody is inside who
// entered before it was taken out of reach. All orders of some scripts are tried.
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

// playEpochs plays one order of scripts, and returns how often something was not
// handed out after a step.
func playEpochs(t *testing.T, scripts [][]int, order []int) (kept int) {
	e := &Epochs{stripes: make([]stripe, 1)}
	var l limbo
	var handed []uint32
	leave := make([]*atomic.Int64, len(scripts)) // of the readers that are inside
	visit := make([]int, len(scripts))           // how often they entered
	type seen struct{ reader, visit int }
	maySee := map[uint32][]seen{}
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
					maySee[uint32(what)] = append(maySee[uint32(what)], seen{r, visit[r]})
				}
			}
			l.add(e, uint32(what))
		}
	}
	last := kept
	for range 2 { // nobody is inside: two steps are enough
		step()
	}
	if want := []uint32{1, 2, 3}[:len(handed)]; l.len() != 0 || len(handed) < 2 || !slices.Equal(handed, want) {
		t.Fatalf("order %v: %v were handed out, %d wait", order, handed, l.len())
	}
	return last
}

// limbo is something that waits as slabs, records and ordinals do.
type limbo struct{ queue []waits }

type waits struct{ ref, mark uint32 }

func (l *limbo) add(e *Epochs, ref uint32) { l.queue = append(l.queue, waits{ref, e.Mark()}) }

func (l *limbo) next(e *Epochs) (ref uint32, ok bool) {
	if len(l.queue) == 0 || !e.Passed(l.queue[0].mark) {
		return 0, false
	}
	ref = l.queue[0].ref
	l.queue = l.queue[1:]
	return ref, true
}

func (l *limbo) len() int { return len(l.queue) }

// Things are handed out although there is always somebody inside, if nobody stays.
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
