// Package predict has tickets and predictions: a prompt that was routed to a rank counts as cached
// there until the events of the rank decide.
//
// A score counts blocks that events have proven. But a request that is sent now is computed in
// a moment, and the next request with the same beginning may come before the first event. So
// the host registers by Routed where it has sent a prompt, and from then on the rank counts as
// if it had computed the prompt. That is a prediction. It ends once: when the index confirms
// it, after a time, when the engine's answer comes (Observe), when the host withdraws it
// (Abandon), or when the rank loses its blocks.
//
// A prediction is a chain of keys in a tree that all ranks share (package sent), so prompts with
// a common beginning share memory, and a score finds the longest beginning for each rank in one
// walk. The ticket outlives the prediction: an answer takes longer than the events. Predictions
// and tickets are in one list by age, because all have one TTL and one TicketAge.
//
// No goroutine ends predictions: each call ends those that are due. The clock is read only while
// predictions live.
//
// # Keys of units, and an answer that keeps them
//
// The tree has keys of units and not of blocks. The answer has the keys of its units already,
// so nothing is hashed, and pods of 16, 32 and 64 tokens to a block share one chain. A unit of
// 16 tokens takes 8 bytes, as a block of 16 tokens would. A beginning in units is cut down to
// whole blocks of the rank when a row is scored.
//
// An answer keeps its keys until it is scored again or routed. They are swapped with those of
// the scorer and not copied, so a score allocates nothing for them, and hosts that never call
// Routed pay a few words. That is why an answer is for one Routed: the first Routed has changed
// the score that a second one would be about. Routed queries the index once more, for the one
// pod, so the engine's report is compared with the figures at the time when the request was
// sent, and not when it was scored.
//
// # The last missing block confirms a prediction
//
// Routed finds the last whole block that the rank does not hold. The key of that block and the
// key before it give its local (unchain), and a store names the locals of its blocks. So
// the ingest compares a number for each stored block, against fewOf counters first, and hashes
// nothing. A local is of one unit and may occur in other prompts, so it only makes a suspect.
// After the message was applied, the index is queried whether the rank holds the whole prompt
// of a suspect. Such a query for all predictions after each message would cost each message a
// score. To count off blocks one by one, each block would have to be checked for the right
// parent, which is the index's work.
//
// Other predictions end by the TTL. The last missing block may come in a way that no store
// names: another Indexer of a shared index applies the message, or the query fails because an
// earlier block was evicted meanwhile. When events join their parents, or hidden blocks come
// back, all predictions of the rank are checked. The figure is then too high for the TTL at
// most, for blocks that were sent to the rank a moment ago.
//
// # A cold pod borrows its block size
//
// Prompts with a common beginning meet on a new pod before its first event, and a key needs
// blocks. Pods of one model and one form of media mostly have one configuration, so a pod that
// has announced no blocks is assumed to have the blocks on which the others agree (Lend). If
// they differ, it has none: a guess would be wrong for some. Its holders are marked, and count
// only as long as the others agree. The first blocks of the pod decide (Ledger.SetForm):
// predictions in other blocks are lost at once, because no later event could confirm them.
//
// Prompts that were routed to a pod that has not reported are kept beside the pods of the model
// (package catalog). They move to the pod when it reports. They do not register the pod: a
// request on its way to a pod that was just removed would register that pod again for good.
//
// # How they end
//
// A TTL needs no timer. All predictions have one TTL, so they end in the order of the list,
// and the next caller checks its head. A score compares a number, and takes the lock only
// when a prediction is due. Between two calls nothing reads an expired prediction.
//
// A ticket outlives its prediction, because an answer takes seconds or minutes, and the report
// belongs to the figures at the time when the request was sent. A ticket has these figures and
// a row to count in, and no keys. It has a serial number, so a slot that was reused for another
// request is not taken for it.
//
// Observe ends a prediction that its events have not ended. The request was computed or not,
// and the events decide from now on. To keep the prediction until the TTL would count prompts
// that the engine did not store.
//
// CachedTokens never counts a prediction: its promise is that it is never too high. An engine
// that sorts its queue in another way, or that fails, makes a prediction wrong.
package predict

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/engine"
	"github.com/kvindex/kvindex/internal/sent"
	"github.com/kvindex/kvindex/stats"
)

// Defaults of WithPredictions.
const (
	DefaultTTL       = 2 * time.Second
	defaultTicketAge = 10 * time.Minute
	defaultBytes     = 64 << 20
	MinBytes         = 256 << 10
)

// observations are the counts of a row of Stats.Observed.
type observations struct {
	observedAt
	cached, predicted accuracy
	otherLength       uint64
}

type accuracy struct{ exact, over, under stats.Accuracy }

// observe adds a request with an expected figure and the reported cached tokens.
func (a *accuracy) observe(figure, cached int) {
	of, tokens := &a.exact, cached
	switch d := figure - cached; {
	case d > 0:
		of, tokens = &a.over, d
	case d < 0:
		of, tokens = &a.under, -d
	}
	of.Requests++
	of.Tokens += uint64(tokens)
}

func (a *accuracy) words() map[string]stats.Accuracy {
	return map[string]stats.Accuracy{"exact": a.exact, "over": a.over, "under": a.under}
}

// maxObserved bounds the rows of Stats.Observed. Requests beyond it count with Model "".
const maxObserved = 1024

var (
	// ErrNotInRequest and ErrBlockSize are those of package kvindex.
	ErrNotInRequest = errors.New("kvindex: the pod was not in the request")
	ErrBlockSize    = errors.New("kvindex: the block size of the pod is not known")
)

// Config has the fields of kvindex.PredictionConfig.
type Config struct {
	TTL, TicketAge time.Duration
	Bytes          int64
	Now            func() time.Time
}

// Ticket is a ticket of a Ledger. The zero value is no ticket.
type Ticket struct {
	of     *Ledger
	slot   uint32
	serial uint64
}

// Ledger has the predictions and tickets of an Indexer.
type Ledger struct {
	ttl, age int64 // nanoseconds
	bytes    int64
	clock    func() time.Time
	began    time.Time

	// live is the number of live predictions, and due is the time at which the oldest of them
	// may end by its TTL. Both are read without mu.
	live atomic.Int64
	due  atomic.Int64

	mu      sync.RWMutex // the last lock taken but for statsMu; guards all below
	tree    sent.Tree
	holders []*holder     // by number; nil: free
	freeNo  []sent.Holder // free numbers

	slots       [][]ticket // of slotsOf each
	free        uint32     // the first free slot; 0: none. Slot n is number n-1
	first, last uint32     // the list of tickets, by age
	next        uint32     // the oldest ticket that may have a live prediction

	believed int64 // number of tickets with believed set
	serial   uint64
	counts
}

// counts are the counters for Stats.
type counts struct {
	routed      uint64
	predictions struct{ confirmed, expired, observed, abandoned, lost, pushedOut uint64 } // that have ended
	tickets     struct{ live, observed, abandoned, aged, unknown uint64 }
	observed    map[observedAt]*observations
}

type observedAt struct{ model, state string }

const slotsOf = 256

// fewOf is the number of counters in holder.few.
const fewOf = 512

// ticket is a request that was sent.
type ticket struct {
	serial     uint64 // 0: the slot is free
	at         int64  // the time when it was sent
	prev, next uint32 // the list by age; next of a free slot is the next free slot
	row        *observations
	// prompt, cached and predicted are tokens: the length, and the figures at that time.
	prompt, cached, predicted int32

	believed *estimatedPast // for a pod without events; else nil

	// near and the fields below are the prediction of the ticket.
	near bool    // a store may have completed it
	h    *holder // nil: the prediction has ended
	path sent.Prompt
	last index.Local // of the last block that was not held
	// alike links the tickets of the holder with the same last in a ring.
	alike [2]uint32
}

// holder is a rank that has, or had, predictions.
type holder struct {
	number  sent.Holder
	pod     *Pod
	view    *index.View // of its blocks; all live predictions have one block size
	variant index.Variant
	lent    bool // the blocks are those of other pods of the model: its pod has announced none
	live    int
	byLast  map[index.Local]uint32 // tickets by last
	few     [fewOf]uint16          // counts the keys of byLast by their low bits
	near    []ticketName           // the suspects: tickets with near set, and some that have ended
}

// ticketName names a ticket. Its slot may have another ticket by now.
type ticketName struct {
	slot   uint32
	serial uint64
}

// New returns an empty Ledger. With c nil it has the defaults.
func New(c *Config) *Ledger {
	l := &Ledger{ttl: int64(DefaultTTL), age: int64(defaultTicketAge), bytes: defaultBytes, clock: time.Now}
	if c != nil {
		if c.TTL > 0 {
			l.ttl = int64(min(c.TTL, 1<<62)) // a time and a TTL are an int64
		}
		if c.TicketAge > 0 {
			l.age = int64(c.TicketAge)
		}
		if c.Bytes > 0 {
			l.bytes = c.Bytes
		}
		if c.Now != nil {
			l.clock = c.Now
		}
	}
	l.age = max(l.age, l.ttl)
	l.began = l.clock()
	l.observed = make(map[observedAt]*observations)
	return l
}

func (l *Ledger) now() int64 { return int64(l.clock().Sub(l.began)) }

func (l *Ledger) at(slot uint32) *ticket {
	return &l.slots[(slot-1)/slotsOf][(slot-1)%slotsOf]
}

// expire ends predictions and tickets that are too old. mu is held.
func (l *Ledger) expire(now int64) {
	for l.next != 0 {
		t := l.at(l.next)
		if t.h != nil {
			if now-t.at < l.ttl {
				break
			}
			l.end(l.next, &l.predictions.expired)
		}
		l.next = t.next
	}
	l.due.Store(math.MaxInt64)
	if l.next != 0 {
		l.due.Store(l.at(l.next).at + l.ttl)
	}
	for l.first != 0 && now-l.at(l.first).at >= l.age {
		l.drop(l.first, &l.tickets.aged)
	}
}

// end ends the prediction of a ticket. mu is held.
func (l *Ledger) end(slot uint32, cause *uint64) {
	t := l.at(slot)
	h := t.h
	if h == nil {
		return
	}
	*cause++
	l.live.Add(-1)
	h.pod.predicted.Add(-1)
	h.live--
	l.tree.Remove(h.number, t.path)
	before, behind := l.at(t.alike[0]), l.at(t.alike[1])
	before.alike[1], behind.alike[0] = t.alike[1], t.alike[0]
	if t.alike[0] == slot {
		delete(h.byLast, t.last)
		h.few[t.last%fewOf]--
	} else if h.byLast[t.last] == slot {
		h.byLast[t.last] = t.alike[1]
	}
	t.h, t.near, t.path = nil, false, sent.Prompt{}
	if h.live == 0 {
		h.near = h.near[:0]
	}
}

// drop ends a ticket, and its prediction if it is live. mu is held.
func (l *Ledger) drop(slot uint32, cause *uint64) {
	l.end(slot, &l.predictions.pushedOut)
	*cause++
	t := l.at(slot)
	if t.prev != 0 {
		l.at(t.prev).next = t.next
	} else {
		l.first = t.next
	}
	if t.next != 0 {
		l.at(t.next).prev = t.prev
	} else {
		l.last = t.prev
	}
	if l.next == slot {
		l.next = t.next
	}
	if t.believed != nil {
		l.believed--
	}
	l.tickets.live--
	*t = ticket{next: l.free}
	l.free = slot
}

// taken returns the memory of tickets and predictions, in bytes. mu is held.
func (l *Ledger) taken() int64 {
	return int64(len(l.slots))*slotsOf*int64(unsafe.Sizeof(ticket{})) + l.believed*int64(unsafe.Sizeof(estimatedPast{})) + l.tree.Bytes()
}

// issue makes a ticket. mu is held.
func (l *Ledger) issue(now int64, row *observations) uint32 {
	if l.free == 0 {
		const more = slotsOf * int64(unsafe.Sizeof(ticket{}))
		if int64(len(l.slots)+1)*more <= l.bytes/2 && l.taken()+more <= l.bytes {
			from := uint32(len(l.slots) * slotsOf)
			l.slots = append(l.slots, make([]ticket, slotsOf))
			for n := from + slotsOf; n > from; n-- {
				*l.at(n) = ticket{next: l.free}
				l.free = n
			}
		} else {
			l.drop(l.first, &l.tickets.aged)
		}
	}
	slot := l.free
	t := l.at(slot)
	l.free = t.next
	l.serial++
	*t = ticket{serial: l.serial, at: now, prev: l.last, row: row}
	if l.last != 0 {
		l.at(l.last).next = slot
	} else {
		l.first = slot
	}
	l.last = slot
	if l.next == 0 {
		l.next = slot
		l.due.Store(now + l.ttl)
	}
	l.tickets.live++
	l.routed++
	return slot
}

// predict gives a ticket a prediction, if there is room for it. mu is held.
func (l *Ledger) predict(slot uint32, h *holder, keys []index.Key, last index.Local) {
	if int64(len(keys))*8 > l.bytes/4 {
		l.predictions.pushedOut++
		return
	}
	t := l.at(slot)
	t.h, t.path, t.last = h, l.tree.Add(h.number, keys), last
	h.live++
	h.pod.predicted.Add(1)
	l.live.Add(1)
	if first := h.byLast[last]; first != 0 {
		behind := l.at(first)
		t.alike = [2]uint32{behind.alike[0], first}
		l.at(behind.alike[0]).alike[1], behind.alike[0] = slot, slot
	} else {
		t.alike = [2]uint32{slot, slot}
		h.byLast[last] = slot
		h.few[last%fewOf]++
	}
}

// makeRoom ends the oldest tickets, except the last one, until the memory is within its bound.
// mu is held.
func (l *Ledger) makeRoom() {
	for l.taken() > l.bytes && l.first != l.last {
		l.drop(l.first, &l.tickets.aged)
	}
}

// row returns the counters for a model and a state. mu is held.
func (l *Ledger) row(model, state string) *observations {
	o := l.observed[observedAt{model, state}]
	if o == nil {
		if len(l.observed) >= maxObserved {
			model = ""
		}
		if o = l.observed[observedAt{model, state}]; o == nil {
			o = &observations{observedAt: observedAt{model, state}}
			l.observed[observedAt{model, state}] = o
		}
	}
	return o
}

// take looks up a ticket. If the ticket is valid, take returns with mu held.
func (l *Ledger) take(t Ticket) (slot uint32, ok bool) {
	l.mu.Lock()
	l.expire(l.now())
	if t.of == l && t.serial != 0 && l.at(t.slot).serial == t.serial {
		return t.slot, true
	}
	l.tickets.unknown++
	l.mu.Unlock()
	return 0, false
}

// Abandon implements Indexer.Abandon.
func (l *Ledger) Abandon(t Ticket) {
	if slot, ok := l.take(t); ok {
		if b := l.at(slot).believed; b != nil {
			b.of.cache.Undo(b.past, l.now())
		}
		l.end(slot, &l.predictions.abandoned)
		l.drop(slot, &l.tickets.abandoned)
		l.mu.Unlock()
	}
}

// Observe implements Indexer.Observe.
func (l *Ledger) Observe(of Ticket, promptTokens, cachedTokens int) {
	slot, ok := l.take(of)
	if !ok {
		return
	}
	defer l.mu.Unlock()
	t := l.at(slot)
	most := int(t.prompt) // that can be cached
	if promptTokens > 0 && promptTokens < math.MaxInt32 && promptTokens != most {
		t.row.otherLength++
		most = promptTokens
	}
	if nothing := promptTokens == 0 && cachedTokens == 0; !nothing && cachedTokens >= 0 && cachedTokens <= most {
		t.row.cached.observe(int(t.cached), cachedTokens)
		t.row.predicted.observe(int(t.predicted), cachedTokens)
		if b := t.believed; b != nil {
			b.of.cache.Observed(b.past, cachedTokens/b.block, l.now())
		}
	}
	l.end(slot, &l.predictions.observed)
	l.drop(slot, &l.tickets.observed)
}

// Stats fills in the figures of predictions and tickets. The maps are made without mu, for which
// scores wait.
func (l *Ledger) Stats(s *stats.Stats) {
	l.mu.Lock()
	l.expire(l.now())
	live, routed, p, t := l.live.Load(), l.routed, l.predictions, l.tickets
	rows := make([]observations, 0, len(l.observed))
	for _, o := range l.observed {
		rows = append(rows, *o)
	}
	l.mu.Unlock()
	s.Predictions = stats.Predictions{Routed: routed, Live: uint64(live), Ended: map[string]uint64{
		"confirmed": p.confirmed, "expired": p.expired, "observed": p.observed, "abandoned": p.abandoned, "lost": p.lost, "pushed_out": p.pushedOut,
	}}
	s.Tickets = stats.Tickets{Live: t.live, Unknown: t.unknown, Ended: map[string]uint64{"observed": t.observed, "abandoned": t.abandoned, "aged": t.aged}}
	for i := range rows {
		o := &rows[i]
		s.Observed = append(s.Observed, stats.Observations{
			Model: o.model, State: o.state, Cached: o.cached.words(), Predicted: o.predicted.words(), OtherLength: o.otherLength,
		})
	}
	slices.SortFunc(s.Observed, func(a, b stats.Observations) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.State, b.State))
	})
}

// Lose ends the predictions of a rank of a pod, or of all its ranks with rank -1, because the
// rank has lost its blocks. gone: the rank was removed.
func (l *Ledger) Lose(p *Pod, rank int, gone bool) {
	if p.predicted.Load() == 0 && !gone {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(l.now())
	p.holders = slices.DeleteFunc(p.holders, func(h *holder) bool {
		if rank >= 0 && h.view.Source.Rank != rank {
			return false
		}
		l.loseAll(h)
		if gone {
			l.holders[h.number] = nil
			l.freeNo = append(l.freeNo, h.number)
		}
		return gone
	})
	p.gone = p.gone || gone && rank < 0
}

// loseAll ends the predictions of a holder. mu is held.
func (l *Ledger) loseAll(h *holder) {
	for last, slot := range h.byLast {
		for h.byLast[last] != 0 {
			l.end(slot, &l.predictions.lost)
			slot = h.byLast[last]
		}
	}
}

// holder returns the holder of a rank, made if needed; nil: the pod has too many. view has its
// blocks, without a Source. mu is held.
func (l *Ledger) holder(p *Pod, source index.Source, view *index.View, v index.Variant) *holder {
	at, ok := slices.BinarySearchFunc(p.holders, source.Rank, func(h *holder, rank int) int { return h.view.Source.Rank - rank })
	if ok {
		h := p.holders[at]
		if h.variant != v || h.view.BlockSize != view.BlockSize || h.view.Group.ID != view.Group.ID {
			l.loseAll(h) // its blocks are different now
		}
		h.cache(source, view, v)
		return h
	}
	if len(p.holders) >= engine.MaxRanks {
		return nil
	}
	h := &holder{pod: p, byLast: make(map[index.Local]uint32)}
	h.cache(source, view, v)
	if n := len(l.freeNo); n > 0 {
		h.number = l.freeNo[n-1]
		l.freeNo = l.freeNo[:n-1]
		l.holders[h.number] = h
	} else {
		h.number = sent.Holder(len(l.holders))
		l.holders = append(l.holders, h)
	}
	p.holders = slices.Insert(p.holders, at, h)
	return h
}

// Hand moves the predictions of an unregistered pod to the pod that was registered for it.
func (l *Ledger) Hand(from, to *Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(l.now())
	to.holders, from.holders, from.gone = from.holders, nil, true
	to.predicted.Store(from.predicted.Swap(0))
	for _, h := range to.holders {
		if h.pod = to; to.form.Load() != nil { // its Profile has changed meanwhile
			l.loseAll(h)
		}
	}
}

// SetForm sets the blocks of a pod, nil: none. It ends predictions in lent blocks that differ
// from these.
func (l *Ledger) SetForm(p *Pod, form *index.View) {
	known := p.form.Swap(form)
	if known != nil || form == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expire(l.now())
	for _, h := range p.holders {
		if h.lent && !sameBlocks(h.view, form) {
			l.loseAll(h)
		}
		h.lent = false
	}
}

// cache sets the blocks of a holder.
func (h *holder) cache(source index.Source, view *index.View, v index.Variant) {
	h.variant = v
	if w := h.view; w != nil && w.Layout == view.Layout && w.Group == view.Group && w.BlockSize == view.BlockSize && w.Pairs == view.Pairs {
		return // a new view would be an allocation
	}
	of := *view
	of.Source = source
	h.view = &of
}
