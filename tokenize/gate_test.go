package tokenize

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// untouched returns how g differs from an unused gate.
func (g *gate) untouched() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.free != g.slots || g.line.Len() > 0 || g.long.Len() > 0 || g.begun != 0 || g.waiting != 0 || g.waiters != 0 {
		return fmt.Errorf("%d of %d slots are free, %d in line, %d long ones, %d bytes begun, %d texts of %d bytes wait",
			g.free, g.slots, g.line.Len(), g.long.Len(), g.begun, g.waiters, g.waiting)
	}
	return nil
}

// A plainGate is a plain model of a gate.
type plainGate struct {
	slots                int
	maxBegun, maxWaiting int64
	size                 map[int]int64
	inside, line, long   []int // texts, by number
	begun, begins        []int // begun: long ones anywhere; begins: not encoded yet
	refused              int
}

func (m *plainGate) sum(texts []int, least int64) (n int64) {
	for _, i := range texts {
		n += max(m.size[i], least)
	}
	return n
}

func (m *plainGate) settle() {
	for len(m.long) > 0 && (len(m.begun) == 0 || m.sum(m.begun, 0)+m.size[m.long[0]] <= m.maxBegun) {
		m.begun = append(m.begun, m.long[0])
		m.line = append(m.line, m.long[0])
		m.long = m.long[1:]
	}
	for len(m.line) > 0 && len(m.inside) < m.slots {
		m.inside = append(m.inside, m.line[0])
		m.begins = without(m.begins, m.line[0])
		m.line = m.line[1:]
	}
}

func without(texts []int, i int) []int {
	return slices.DeleteFunc(slices.Clone(texts), func(j int) bool { return j == i })
}

func (m *plainGate) leave(i int) {
	for _, in := range []*[]int{&m.inside, &m.line, &m.long, &m.begun, &m.begins} {
		*in = without(*in, i)
	}
	m.settle()
}

func (m *plainGate) arrive(i int, size int64) {
	m.size[i] = size
	others := slices.Clone(m.begins)
	m.begins = append(m.begins, i)
	if size >= longText {
		m.long = append(m.long, i)
	} else {
		m.line = append(m.line, i)
	}
	m.settle()
	if slices.Contains(m.inside, i) || len(others) == 0 {
		return
	}
	if max(size, waitCost)*waitShare > m.maxWaiting-m.sum(others, waitCost) {
		m.refused++
		m.leave(i)
	}
}

func (m *plainGate) pass(i int) {
	if len(m.line) > 0 {
		m.inside = without(m.inside, i)
		m.line = append(m.line, i)
		m.settle()
	}
}

// A guest goes through a gate by its orders.
type guest struct {
	gate   *gate
	size   int64
	cancel context.CancelFunc
	orders chan string

	mu     sync.Mutex
	inside bool
	err    error
}

func (g *guest) is(inside bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside, g.err = inside, err
}

func (g *guest) run(ctx context.Context) {
	v, err := g.gate.enter(ctx, g.size)
	g.is(err == nil, err)
	if err != nil {
		return
	}
	for order := range g.orders {
		if order == "leave" {
			break
		}
		g.is(false, nil)
		err := g.gate.pass(ctx, v)
		g.is(err == nil, err)
		if err != nil {
			break
		}
	}
	g.gate.leave(v)
	g.is(false, nil)
}

// Random arrivals, departures, cancellations and passings. After each, the same texts are inside as
// in the model, in the same order.
func TestGateAgainstModel(t *testing.T) {
	rounds, ops := 40, 400
	if testing.Short() {
		rounds = 8
	}
	var entered, passed, cancelled, held, refused int
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(round), 7))
			m := &plainGate{
				slots: 1 + r.IntN(3), maxBegun: longText * int64(4+r.IntN(4)), maxWaiting: longText * int64(1+r.IntN(400)),
				size: map[int]int64{},
			}
			g := &gate{slots: m.slots, free: m.slots, maxBegun: m.maxBegun, maxWaiting: m.maxWaiting}
			guests := map[int]*guest{}
			one := func(of []int) int { return of[r.IntN(len(of))] }
			for i := range ops {
				waiting := slices.Concat(m.line, m.long)
				switch k := r.IntN(10); {
				case k < 5:
					size := int64(r.IntN(2 * waitCost))
					if r.IntN(2) == 0 {
						size = longText * int64(1+r.IntN(4))
					}
					ctx, cancel := context.WithCancel(t.Context())
					guests[i] = &guest{gate: g, size: size, cancel: cancel, orders: make(chan string)}
					go guests[i].run(ctx)
					m.arrive(i, size)
				case k < 7 && len(m.inside) > 0:
					id := one(m.inside)
					guests[id].orders <- "leave"
					m.leave(id)
				case k < 9 && len(m.inside) > 0:
					passed += min(len(m.line), 1)
					id := one(m.inside)
					guests[id].orders <- "pass"
					m.pass(id)
				case len(waiting) > 0:
					cancelled++
					id := one(waiting)
					guests[id].cancel()
					m.leave(id)
				}
				synctest.Wait()
				held += min(len(m.long), 1)
				var inside []int
				busy := 0
				for id, guest := range guests {
					if guest.inside {
						inside = append(inside, id)
					}
					if errors.Is(guest.err, ErrBusy) {
						busy++
					}
				}
				want := slices.Sorted(slices.Values(m.inside))
				if slices.Sort(inside); !slices.Equal(inside, want) || busy != m.refused {
					t.Fatalf("round %d, after %d: inside %v, refused %d, want %v, %d", round, i, inside, busy, want, m.refused)
				}
				if g.waiters != len(m.begins) || g.waiting != m.sum(m.begins, waitCost) || g.begun != m.sum(m.begun, 0) {
					t.Fatalf("round %d, after %d: %d texts of %d bytes wait, %d begun, want %d, %d, %d",
						round, i, g.waiters, g.waiting, g.begun, len(m.begins), m.sum(m.begins, waitCost), m.sum(m.begun, 0))
				}
			}
			entered += len(guests)
			refused += m.refused
			for len(m.size) > 0 { // all leave
				for id := range m.size {
					if guests[id].inside {
						guests[id].orders <- "leave"
					} else {
						guests[id].cancel()
					}
					delete(m.size, id)
					synctest.Wait()
				}
			}
			if err := g.untouched(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Logf("%d texts came, %d were refused, %d gave up, %d passed a slot on, %d times long ones were held", entered, refused, cancelled, passed, held)
	if min(refused, cancelled, passed, held) < 2*rounds {
		t.Error("too few of one kind")
	}
}

func TestGateRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxWaiting = 1 << 20
		g := &gate{slots: 1, free: 1, maxBegun: 1 << 20, maxWaiting: maxWaiting}
		v, err := g.enter(t.Context(), 1)
		must(t, err)
		var ends sync.WaitGroup
		waits := func(size int64) {
			t.Helper()
			ends.Go(func() {
				v, err := g.enter(t.Context(), size)
				if err != nil {
					t.Errorf("%d bytes: %v", size, err)
					return
				}
				g.leave(v)
			})
			synctest.Wait()
		}
		refused := func(size int64) {
			t.Helper()
			if _, err := g.enter(t.Context(), size); !errors.Is(err, ErrBusy) {
				t.Errorf("%d bytes: %v", size, err)
			}
			if _, err := g.queue(size); !errors.Is(err, ErrBusy) {
				t.Errorf("%d bytes before their tokenizer: %v", size, err)
			}
		}
		waits(maxWaiting/2 + waitCost) // no other text waits
		refused(maxWaiting / 16)
		left := maxWaiting/2 - waitCost
		for left/waitShare >= waitCost { // room for more short texts
			waits(1)
			left -= waitCost
		}
		refused(1)
		if g.refused != 4 {
			t.Errorf("%d counted", g.refused)
		}
		g.leave(v)
		ends.Wait()
		if err := g.untouched(); err != nil {
			t.Error(err)
		}
	})
}

func TestGateCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{slots: 1, free: 1, maxBegun: longText, maxWaiting: 1 << 40}
		long, err := g.enter(t.Context(), longText)
		must(t, err)
		var ends sync.WaitGroup
		closed := make(chan struct{})
		ends.Go(func() {
			short, err := g.enter(t.Context(), 1)
			if err != nil {
				t.Error(err)
				return
			}
			<-closed
			if err := g.pass(t.Context(), short); err != ErrPoolClosed {
				t.Errorf("inside: %v", err)
			}
			g.leave(short)
		})
		synctest.Wait()
		ends.Go(func() {
			if err := g.pass(t.Context(), long); err != ErrPoolClosed {
				t.Errorf("passing on: %v", err)
			}
			g.leave(long)
		})
		synctest.Wait()
		for _, size := range []int64{1, longText, 1, longText} {
			ends.Go(func() {
				if _, err := g.enter(t.Context(), size); err != ErrPoolClosed {
					t.Errorf("waiting with %d bytes: %v", size, err)
				}
			})
		}
		synctest.Wait()
		g.close()
		close(closed)
		ends.Wait()
		if _, err := g.enter(t.Context(), 1); err != ErrPoolClosed {
			t.Errorf("afterwards: %v", err)
		}
		if err := g.untouched(); err != nil {
			t.Error(err)
		}
	})
}

// Every text pauses as often as a gate expects.
func TestTextsPause(t *testing.T) {
	bpe, err := Load("testdata/tiny.json")
	must(t, err)
	const turns = 8
	for _, unit := range []string{"a boat ", "a", "th", " ", "<|end|>", "<|en", "日", "\xff"} {
		text := strings.Repeat(unit, turns*longText/len(unit)+1)
		pauses := 0
		if _, _, err := bpe.encode(call{t.Context(), func(context.Context) error {
			pauses++
			return nil
		}}, nil, Passage{Text: text, Special: true}); err != nil || pauses < turns-1 {
			t.Errorf("%q: %d pauses, %v", unit, pauses, err)
		}
		left := turns / 2
		broken := errors.New("broken")
		ids := []uint32{7}
		got, _, err := bpe.encode(call{t.Context(), func(context.Context) error {
			if left--; left == 0 {
				return broken
			}
			return nil
		}}, ids, Passage{Text: text, Special: true})
		if err != broken || !slices.Equal(got, ids) {
			t.Errorf("%q: %d ids, %v", unit, len(got), err)
		}
	}
}
