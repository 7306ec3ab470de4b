package predict

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/stats"
)

const unit = 16

// world is a Ledger with its own clock, and its plain model: a list.
type world struct {
	*rand.Rand
	ledger *Ledger
	now    time.Time
	pods   []*Pod
	ranks  int
	sent   []*request
	want   stats.Predictions
	ticket stats.Tickets
}

// request is a prompt that was sent.
type request struct {
	Ticket
	pod, rank int
	keys      []index.Key
	at        time.Time
	predicted bool // its prediction is live
	open      bool // its ticket is valid
}

const (
	ttl = 100 * time.Millisecond
	age = time.Second
)

// newWorld has pods with blocks of 16 and of 32 tokens.
func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e9, 0), ranks: 2}
	w.ledger = New(&Config{TTL: ttl, TicketAge: age, Now: func() time.Time { return w.now }})
	var s stats.Stats
	w.ledger.Stats(&s)
	w.want, w.ticket = s.Predictions, s.Tickets
	for _, size := range []int{16, 32, 16} {
		p := new(Pod)
		w.ledger.SetForm(p, blocksOf(size))
		w.pods = append(w.pods, p)
	}
	return w
}

func blocksOf(size int) *index.View {
	return &index.View{BlockSize: size, Layout: &index.Layout{Groups: []index.GroupLayout{{BlockSize: size, Grain: size}}}}
}

// prompt draws a prompt of 2 to 9 units. Many share prefixes.
func (w *world) prompt() (locals []index.Local, run prompt.Run) {
	for range 2 + w.IntN(8) {
		locals = append(locals, index.Local(1+w.IntN(2)))
	}
	run = prompt.Run{Variant: index.Variant{Unit: unit}, Root: 7}
	run.Keys = hashing.Keys(nil, run.Root, locals)
	return locals, run
}

func (w *world) send(t *testing.T) {
	r := &request{pod: w.IntN(len(w.pods)), rank: w.IntN(w.ranks), at: w.now, predicted: true, open: true}
	_, run := w.prompt()
	r.keys = run.Keys
	p := w.pods[r.pod]
	s := Sending{Source: index.Source{Pod: string('a' + rune(r.pod)), Model: "m", Rank: r.rank}, State: "live", Tokens: len(r.keys)*unit + 1, View: p.Blocks(), Variant: run.Variant}
	s.FindLast(&run, nil)
	var err error
	if r.Ticket, err = w.ledger.Send(p, &s); err != nil {
		t.Fatal(err)
	}
	w.want.Routed++
	w.sent = append(w.sent, r)
}

// end ends the prediction of a request, if it lives.
func (w *world) end(r *request, how string) {
	if r.predicted {
		r.predicted = false
		w.want.Ended[how]++
	}
}

// pass advances the clock.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	for _, r := range w.sent {
		if w.now.Sub(r.at) >= ttl {
			w.end(r, "expired")
		}
		if r.open && w.now.Sub(r.at) >= age {
			r.open = false
			w.ticket.Ended["aged"]++
		}
	}
}

// close uses a ticket, possibly a used or expired one.
func (w *world) close() {
	if len(w.sent) == 0 {
		return
	}
	r := w.sent[w.IntN(len(w.sent))]
	how := "observed"
	if w.IntN(2) == 0 {
		how = "abandoned"
		w.ledger.Abandon(r.Ticket)
	} else {
		w.ledger.Observe(r.Ticket, -1, -1)
	}
	if !r.open {
		w.ticket.Unknown++
		return
	}
	r.open = false
	w.end(r, how)
	w.ticket.Ended[how]++
}

func (w *world) lose() {
	pod, rank := w.IntN(len(w.pods)), w.IntN(w.ranks+1)-1
	w.ledger.Lose(w.pods[pod], rank, false)
	for _, r := range w.sent {
		if r.pod == pod && (rank < 0 || r.rank == rank) {
			w.end(r, "lost")
		}
	}
}

// store ingests an event that stores a prompt on a rank, which confirms some predictions.
func (w *world) store(t *testing.T, c *Confirmation) {
	pod, rank := w.IntN(len(w.pods)), w.IntN(w.ranks)
	locals, run := w.prompt()
	if w.IntN(10) == 0 { // empties the rank
		if c.Find(w.ledger, w.pods[pod], rank, []index.Change{{Op: index.OpClear}}, &index.Effect{}) {
			t.Fatal("an empty rank has suspects")
		}
		for _, r := range w.sent {
			if r.pod == pod && r.rank == rank {
				w.end(r, "lost")
			}
		}
		return
	}
	size := w.pods[pod].Blocks().BlockSize
	change := index.Change{Op: index.OpStore, BlockSize: size, Variant: run.Variant, Locals: locals}
	if c.Find(w.ledger, w.pods[pod], rank, []index.Change{change}, &index.Effect{}) {
		for i := range c.Suspects {
			s := &c.Suspects[i]
			runs, tokens := c.Prompt(s)
			row := index.Row{View: &index.View{Source: s.View.Source, BlockSize: size}, GPU: int32(tokens / size)}
			if slices.Equal(runs[0].Keys, run.Keys) && s.Holds([]index.Row{row}, tokens) {
				w.ledger.Confirm(s)
			}
		}
	}
	for _, r := range w.sent {
		if r.pod == pod && r.rank == rank && slices.Equal(r.keys, run.Keys) {
			w.end(r, "confirmed")
		}
	}
}

// figures returns the predicted tokens of a prompt, by pod and rank.
func (w *world) figures(keys []index.Key) map[[2]int]int {
	figures := make(map[[2]int]int)
	for _, r := range w.sent {
		n := 0
		for r.predicted && n < min(len(keys), len(r.keys)) && keys[n] == r.keys[n] {
			n++
		}
		size := w.pods[r.pod].Blocks().BlockSize
		if tokens := n * unit / size * size; tokens > 0 {
			at := [2]int{r.pod, r.rank}
			figures[at] = max(figures[at], tokens)
		}
	}
	return figures
}

func (w *world) check(t *testing.T, f *Forecast) {
	_, run := w.prompt()
	want, got := w.figures(run.Keys), make(map[[2]int]int)
	f.Clear()
	f.Begin(0)
	if f.Find(w.ledger, Candidates{Pods: w.pods, Lent: &Lent{}}, []prompt.Run{run}, -1) {
		m, p := index.Matches{}, prompt.Prompt{Length: len(run.Keys)*unit + 1}
		f.Attach(&m, &p)
		for i := range m.Rows {
			row := &m.Rows[i]
			got[[2]int{int(row.Pod), row.Source.Rank}] = f.WithHit(i, row, p.Length, 0, 0)
			if !f.Made(i) || f.Proven(int32(i+1), 9) != 0 {
				t.Fatal("the row of a hit is proven")
			}
		}
	}
	if len(got) != len(want) {
		t.Fatalf("predicted %v, want %v", got, want)
	}
	for at, tokens := range want {
		if got[at] != tokens {
			t.Fatalf("predicted %v, want %v", got, want)
		}
	}
	var s stats.Stats
	w.ledger.Stats(&s)
	w.want.Live, w.ticket.Live = 0, 0
	for _, r := range w.sent {
		if r.predicted {
			w.want.Live++
		}
		if r.open {
			w.ticket.Live++
		}
	}
	if !reflect.DeepEqual(s.Predictions, w.want) || !reflect.DeepEqual(s.Tickets, w.ticket) {
		t.Fatalf("got  %+v %+v\nwant %+v %+v", s.Predictions, s.Tickets, w.want, w.ticket)
	}
	w.sent = slices.DeleteFunc(w.sent, func(r *request) bool { return !r.predicted && !r.open && w.IntN(4) == 0 })
}

// TestAgainstList compares a Ledger and its forecasts with a list of requests.
func TestAgainstList(t *testing.T) {
	var all [6]uint64
	for seed := range uint64(20) {
		w := newWorld(seed)
		var f Forecast
		f.Init()
		var c Confirmation
		for range 1000 {
			switch w.IntN(8) {
			case 0, 1, 2:
				w.send(t)
			case 3:
				w.pass(time.Duration(w.IntN(6)) * ttl / 20)
			case 4, 5:
				w.close()
			case 6:
				w.store(t, &c)
			case 7:
				if w.IntN(4) == 0 {
					w.lose()
				}
			}
			w.check(t, &f)
		}
		w.pass(age)
		w.check(t, &f)
		if w.want.Live != 0 || w.ticket.Live != 0 || slices.ContainsFunc(w.pods, func(p *Pod) bool { return p.Live() != 0 }) {
			t.Fatalf("seed %d: predictions live on: %+v %+v", seed, w.want, w.ticket)
		}
		for i, n := range []uint64{
			w.want.Ended["expired"], w.want.Ended["lost"], w.want.Ended["confirmed"], w.want.Ended["observed"], w.ticket.Unknown, w.ticket.Ended["aged"],
		} {
			all[i] += n
		}
	}
	if slices.Contains(all[:], 0) {
		t.Errorf("expired, lost, confirmed, observed, unknown, aged: %d", all)
	}
}

// TestOtherBlocks: a pod that borrowed the block size of others publishes blocks of another size.
func TestOtherBlocks(t *testing.T) {
	w := newWorld(1)
	p, keys := new(Pod), []index.Key{1, 2, 3, 4}
	s := Sending{Source: index.Source{Pod: "cold", Model: "m"}, Tokens: 65, View: blocksOf(16), Lent: true, Variant: index.Variant{Unit: unit}}
	s.FindLast(&prompt.Run{Keys: keys}, nil)
	if _, err := w.ledger.Send(p, &s); err != nil || p.Live() != 1 {
		t.Fatalf("%v, %d live", err, p.Live())
	}
	w.ledger.SetForm(p, blocksOf(32))
	if p.Live() != 0 {
		t.Error("a prediction lives on in blocks of others")
	}
	s.Lent = true
	if _, err := w.ledger.Send(p, &s); !errors.Is(err, ErrBlockSize) {
		t.Errorf("blocks that came behind the score: %v", err)
	}
	w.ledger.Lose(p, -1, true)
	if _, err := w.ledger.Send(p, &Sending{View: blocksOf(32)}); !errors.Is(err, ErrNotInRequest) {
		t.Errorf("a pod that is gone: %v", err)
	}
}

// TestLongestTTL: with it no score takes the lock of the Ledger.
func TestLongestTTL(t *testing.T) {
	w := newWorld(1)
	w.ledger = New(&Config{TTL: math.MaxInt64, Now: func() time.Time { return w.now }})
	for range 2 {
		w.now = w.now.Add(time.Second)
		w.send(t)
		if due := w.ledger.due.Load(); due < int64(time.Hour) {
			t.Errorf("due at %v", time.Duration(due))
		}
	}
}

// TestRoom: tickets and predictions stay within their bytes, and the oldest are dropped.
func TestRoom(t *testing.T) {
	w := newWorld(2)
	w.ledger = New(&Config{Bytes: MinBytes, Now: func() time.Time { return w.now }})
	for range 5000 {
		w.send(t)
		w.now = w.now.Add(time.Microsecond)
		if w.ledger.taken() > MinBytes {
			t.Fatalf("%d bytes", w.ledger.taken())
		}
	}
	var s stats.Stats
	if w.ledger.Stats(&s); s.Tickets.Ended["aged"] == 0 || s.Predictions.Ended["pushed_out"] == 0 || s.Tickets.Live == 0 {
		t.Errorf("%+v %+v", s.Tickets, s.Predictions)
	}
	if w.ledger.Abandon(w.sent[0].Ticket); w.ledger.tickets.unknown != 1 {
		t.Error("the oldest ticket is good")
	}
	if w.ledger.Abandon(w.sent[len(w.sent)-1].Ticket); w.ledger.tickets.unknown != 1 {
		t.Error("the newest ticket is not good")
	}
}

// After concurrent sends, reads and ends nothing is left.
func TestConcurrent(t *testing.T) {
	w := newWorld(3)
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			own := &world{Rand: rand.New(rand.NewPCG(uint64(g), 2)), ledger: w.ledger, now: w.now, pods: w.pods, ranks: w.ranks}
			var f Forecast
			f.Init()
			for range 300 {
				own.send(t)
				_, run := own.prompt()
				f.Clear()
				f.Find(w.ledger, Candidates{Pods: w.pods, Lent: &Lent{}}, []prompt.Run{run}, -1)
				w.ledger.Observe(own.sent[len(own.sent)-1].Ticket, -1, -1)
			}
		})
	}
	all.Wait()
	var s stats.Stats
	if w.ledger.Stats(&s); s.Predictions.Live != 0 || s.Tickets.Ended["observed"] != 1200 {
		t.Errorf("%+v %+v", s.Predictions, s.Tickets)
	}
}
