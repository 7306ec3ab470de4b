package server

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/stats"
)

// /v1/watch sends the contents of the page as server-sent events: a whole picture first, and
// then, once a second, the rows that have changed. A message has at most maxMessage bytes; a
// longer picture is several messages, and only the last one has an id.
//
// A feed makes the picture at most once a second for all viewers together, and never without a
// viewer. A row has the number of the tick at which it changed last. The only state of a
// viewer is the tick that it has seen, which is the id of the message: a viewer that reconnects
// with it (Last-Event-ID) gets the rows that have changed since.

const (
	maxMessage = 64 << 10 // bytes of a message
	maxViewers = 64
	maxGone    = 2048 // removed pods that a feed remembers
	maxText    = 300  // bytes of an error in a message
	maxLosses  = 1024 // losses of all pods that a feed remembers, the last ones
	podLosses  = 20   // losses in the detail of a pod
)

// A podRow is a row of the fleet: a pod of a model. It has no field that changes with time
// alone, such as an age: an idle pod's row is not sent again.
type podRow struct {
	ID          uint64     `json:"id"`
	Pod         string     `json:"pod"`
	Model       string     `json:"model"`
	State       string     `json:"state"`
	Why         string     `json:"why,omitempty"`
	Source      string     `json:"source,omitempty"`
	Ranks       int        `json:"ranks"`
	LagMS       int64      `json:"lag_ms"`
	Blocks      tierCounts `json:"blocks,omitzero"`
	Lost        uint64     `json:"lost,omitempty"`
	Messages    uint64     `json:"messages"`
	LastMessage time.Time  `json:"last_message,omitzero"`
}

// tierCounts has the number of blocks by tier. Its JSON has the tiers with blocks, by name.
type tierCounts [len(kvindex.RankInfo{}.Blocks)]int

// MarshalJSON implements json.Marshaler.
func (c tierCounts) MarshalJSON() ([]byte, error) { return json.Marshal(byTier(c[:])) }

// totals has the figures of all pods together. Events, scores and tokens are counted since
// the start.
type totals struct {
	Now          time.Time         `json:"now"`
	Pods         int               `json:"pods"`
	Blocks       map[string]int    `json:"blocks,omitempty"`
	Bytes        int64             `json:"bytes"`
	Budget       int64             `json:"budget"` // 0: none
	Events       uint64            `json:"events"`
	Scores       uint64            `json:"scores"`
	PromptTokens uint64            `json:"prompt_tokens"`
	CachedTokens uint64            `json:"cached_tokens"`
	Failing      map[string]string `json:"failing,omitempty"` // checks of /readyz
	Model        string            `json:"model,omitempty"`   // of requests that name none
}

// A detail is all that the page shows of one pod.
type detail struct {
	Row     json.RawMessage   `json:"row"` // null: the pod does not exist
	Ranks   []rank            `json:"ranks"`
	Streams []streamDetail    `json:"streams"`
	Losses  []json.RawMessage `json:"losses"`
	Cut     bool              `json:"cut,omitempty"` // there are more ranks, streams or losses
}

type streamDetail struct {
	Stream      string        `json:"stream"`
	Link        string        `json:"link,omitempty"`
	Error       string        `json:"error,omitempty"`
	State       string        `json:"state,omitempty"`
	Replay      string        `json:"replay,omitempty"`
	Next        uint64        `json:"next"`
	LastMessage time.Time     `json:"last_message,omitzero"`
	Traffic     stats.Traffic `json:"traffic"`
}

// A loss is a kvindex.Loss and its time.
type loss struct {
	Noticed time.Time    `json:"noticed"`
	Loss    kvindex.Loss `json:"loss"`
}

// A feed is the picture that viewers see. Its zero value is empty.
type feed struct {
	mu     sync.Mutex // guards the fields below
	run    string     // random: separates the ids of this process from those of another one
	tick   uint64     // of the newest picture; 0: there is none
	made   time.Time  // of the newest picture
	totals []byte     // JSON
	rows   map[podModel]*feedRow
	order  []*feedRow // by pod and model
	nextID uint64
	gone   []goneRow // the oldest first
	floor  uint64    // gone is complete for later ticks only

	losses []loss // a ring
	lost   uint64 // the number of all losses, those that were overwritten included
}

type podModel struct{ pod, model string }

type feedRow struct {
	row     podRow
	json    []byte
	changed uint64 // the tick
	seen    uint64 // likewise
}

type goneRow struct{ id, tick uint64 }

// Lost records a loss for the page. It is a Hooks.Lost.
func (s *Server) Lost(l kvindex.Loss) {
	f := &s.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	noted := loss{time.Now(), l}
	if len(f.losses) < maxLosses {
		f.losses = append(f.losses, noted)
	} else {
		f.losses[f.lost%maxLosses] = noted
	}
	f.lost++
}

// lossesOf returns the last losses of a pod, the newest first.
func (f *feed) lossesOf(pod, model string) (of []loss) {
	for i := range uint64(len(f.losses)) {
		l := &f.losses[(f.lost-1-i)%maxLosses]
		if l.Loss.Pod == pod && l.Loss.Model == model && len(of) < podLosses {
			of = append(of, *l)
		}
	}
	return of
}

// refresh makes the next picture, unless the newest is younger than every.
func (s *Server) refresh(c *core, every time.Duration) {
	f := &s.feed
	if f.tick > 0 && time.Since(f.made) < every {
		return
	}
	if f.run == "" {
		f.run, f.rows = rand.Text()[:runLength], make(map[podModel]*feedRow)
	}
	f.tick++
	f.made = time.Now()
	of := make(map[string]*events.FleetPod)
	if c.fleet != nil {
		pods := c.fleet.Pods(nil)
		for i := range pods {
			of[pods[i].ID] = &pods[i]
		}
	}
	f.order = f.order[:0]
	for _, p := range c.ix.Pods(nil) {
		f.see(rowOf(&p, of[p.Pod]))
		delete(of, p.Pod)
	}
	for _, p := range of {
		f.see(podRow{Pod: p.ID, Model: p.Model, State: kvindex.StateUnknown.String(), Why: whyNot(p), Source: p.Source, Ranks: p.Ranks})
	}
	for key, r := range f.rows {
		if r.seen != f.tick {
			delete(f.rows, key)
			f.gone = append(f.gone, goneRow{r.row.ID, f.tick})
		}
	}
	if over := len(f.gone) - maxGone; over > 0 {
		f.floor = f.gone[over-1].tick
		f.gone = append(f.gone[:0], f.gone[over:]...)
	}
	f.totals = s.totalsOf(c, len(f.rows))
}

// see puts a row into the picture.
func (f *feed) see(row podRow) {
	key := podModel{row.Pod, row.Model}
	r := f.rows[key]
	if r == nil {
		f.nextID++
		r = &feedRow{row: podRow{ID: f.nextID}}
		f.rows[key] = r
	}
	row.ID, r.seen = r.row.ID, f.tick
	f.order = append(f.order, r)
	if row == r.row {
		return
	}
	b, err := json.Marshal(&row)
	if err != nil {
		panic(err) // it has no value that JSON lacks
	}
	r.row, r.json, r.changed = row, b, f.tick
}

func rowOf(p *kvindex.PodInfo, of *events.FleetPod) podRow {
	row := podRow{
		Pod: p.Pod, Model: p.Model, State: p.State.String(), Why: shorten(why(p, of)), Ranks: len(p.Ranks), LastMessage: p.LastMessage.Truncate(time.Second),
	}
	if of != nil {
		row.Source, row.Ranks = of.Source, max(row.Ranks, of.Ranks)
	}
	for i := range p.Ranks {
		r := &p.Ranks[i]
		row.LagMS = max(row.LagMS, r.Lag.Milliseconds())
		row.Messages += r.Messages
		for t, n := range r.Blocks {
			row.Blocks[t] += n
		}
	}
	for i := range p.Streams {
		row.Lost += p.Streams[i].Missing + p.Streams[i].Malformed
	}
	return row
}

// why returns the reason of a pod's state, "" for a live pod.
func why(p *kvindex.PodInfo, of *events.FleetPod) string {
	switch p.State {
	case kvindex.StateLive:
		return ""
	case kvindex.StateApproximate:
		return "it publishes no events: its blocks are estimated"
	case kvindex.StateReplaying:
		return "messages are missing, and the engine is asked for them"
	case kvindex.StateUnknown, kvindex.StateSilent, kvindex.StateUncertain:
		if at := whyNot(of); at != "" {
			return at
		}
	}
	for i := range p.Streams {
		if m := &p.Streams[i].LastMalformed; p.Streams[i].State == p.State.String() && m.Reason != "" && m.Time.Equal(p.Streams[i].LastMessage) {
			return fmt.Sprintf("the last message cannot be read: %s", m.Error)
		}
	}
	var evicted uint64
	for i := range p.Ranks {
		evicted += p.Ranks[i].Evicted
	}
	switch {
	case p.State == kvindex.StateUnknown:
		return "no event of it has come"
	case p.State == kvindex.StateSilent:
		return "it is followed, and one of its streams has brought no message yet"
	case p.State == kvindex.StateUncertain && p.Connected.IsZero():
		return "there is no connection: what it removes is not known"
	case p.State == kvindex.StateUncertain:
		return "messages were lost, or its streams have not gone on: some blocks may have gone"
	case evicted > 0:
		return fmt.Sprintf("the index is full and has given up %d of its blocks", evicted)
	}
	return "messages from before the first one, or lost ones, never came: it may hold more"
}

// whyNot returns the reason why a pod of the Fleet is not connected, "" if it is connected or p
// is nil.
func whyNot(p *events.FleetPod) string {
	if p == nil {
		return ""
	}
	for i := range p.Streams {
		l := &p.Streams[i]
		switch {
		case l.Err != nil:
			return shorten(fmt.Sprintf("%s: %v", l.Link, l.Err))
		case l.Link != "live" && l.Link != "replaying":
			return shorten(fmt.Sprintf("%s: %s", l.Link, l.Endpoint))
		}
	}
	return ""
}

func (s *Server) totalsOf(c *core, pods int) []byte {
	st := c.ix.Stats()
	w := totals{
		Now: time.Now(), Pods: pods, Blocks: byTier(st.Blocks[:]), Bytes: st.Index.Total, Budget: st.Index.Budget,
		Events:       st.Events["stored"] + st.Events["removed"] + st.Events["cleared"],
		PromptTokens: st.Scores.PromptTokens, CachedTokens: st.Scores.CachedTokens, Failing: s.failures(), Model: s.cfg.Model,
	}
	for _, n := range st.Scores.Outcomes {
		w.Scores += n
	}
	for name, text := range w.Failing {
		w.Failing[name] = shorten(text)
	}
	b, err := json.Marshal(&w)
	if err != nil {
		panic(err) // it has no value that JSON lacks
	}
	return b
}

// shorten cuts a text from outside to maxText bytes.
func shorten(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + " ..."
}

// messages returns the data of the messages for a viewer that has seen the picture of tick
// since (0: none), and the id of the last message. reset makes the viewer drop its picture.
func (f *feed) messages(since uint64, reset bool) (data [][]byte, id string) {
	if since < f.floor {
		since, reset = 0, true
	}
	var b []byte
	begin := func() {
		b = append(make([]byte, 0, 4096), `{"reset":`...)
		b = strconv.AppendBool(b, reset)
		b = append(b, `,"pods":[`...)
		reset = false
	}
	begin()
	empty := true
	for _, r := range f.order {
		if r.changed <= since {
			continue
		}
		if len(b)+len(r.json) > maxMessage-1024 {
			data = append(data, append(b, "]}"...))
			begin()
			empty = true
		}
		if !empty {
			b = append(b, ',')
		}
		b, empty = append(b, r.json...), false
	}
	const perGone = 21 // digits and a comma
	rest := len(f.totals) + 64
	for _, g := range f.gone {
		if g.tick > since {
			rest += perGone
		}
	}
	if len(b)+rest > maxMessage-1024 {
		data = append(data, append(b, "]}"...))
		begin()
	}
	b = append(b, `],"gone":[`...)
	empty = true
	for _, g := range f.gone {
		if g.tick <= since || since == 0 {
			continue
		}
		if !empty {
			b = append(b, ',')
		}
		b, empty = strconv.AppendUint(b, g.id, 10), false
	}
	b = append(b, `],"whole":`...)
	b = append(append(b, f.totals...), '}')
	return append(data, b), fmt.Sprintf("%s.%d", f.run, f.tick)
}

// detailOf returns the data of a message about one pod. f.mu is held.
func (f *feed) detailOf(c *core, pod, model string) []byte {
	d := detail{Ranks: []rank{}, Streams: []streamDetail{}, Losses: []json.RawMessage{}}
	size := 0
	fits := func(v any) bool {
		b, err := json.Marshal(v)
		if size += len(b); err != nil || size > maxMessage-4<<10 {
			d.Cut = true
		}
		return !d.Cut
	}
	if r := f.rows[podModel{pod, model}]; r != nil {
		d.Row, size = r.json, len(r.json)
	}
	links := c.linksOf(pod, model)
	if p, ok := c.ix.Pod(pod, model); ok {
		for i := range p.Ranks {
			if r := rankOf(&p.Ranks[i]); fits(r) {
				d.Ranks = append(d.Ranks, r)
			}
		}
		for i := range p.Streams {
			t := &p.Streams[i]
			of := streamDetail{Stream: t.Stream, State: t.State, Replay: t.Replay, Next: t.Next, LastMessage: t.LastMessage, Traffic: t.Traffic}
			if l, ok := links[t.Stream]; ok {
				of.Link, of.Error = l.Link, shorten(text(l.Err))
				delete(links, t.Stream)
			}
			if fits(of) {
				d.Streams = append(d.Streams, of)
			}
		}
	}
	for _, at := range slices.Sorted(maps.Keys(links)) { // the connections that have received nothing
		if of := (streamDetail{Stream: at, Link: links[at].Link, Error: shorten(text(links[at].Err))}); fits(of) {
			d.Streams = append(d.Streams, of)
		}
	}
	for _, l := range f.lossesOf(pod, model) {
		if b, err := json.Marshal(l); err == nil && fits(json.RawMessage(b)) {
			d.Losses = append(d.Losses, b)
		}
	}
	b, err := json.Marshal(struct {
		Detail *detail `json:"detail"`
	}{&d})
	if err != nil {
		panic(err) // it has no value that JSON lacks
	}
	return b
}

// linksOf returns the connections of the Fleet to a pod by their endpoints: an endpoint is the
// name of its stream.
func (c *core) linksOf(pod, model string) map[string]events.FleetStream {
	links := make(map[string]events.FleetStream)
	if c.fleet != nil {
		for _, p := range c.fleet.Pods(nil) {
			if p.ID == pod && p.Model == model {
				for _, l := range p.Streams {
					links[l.Endpoint] = l
				}
			}
		}
	}
	return links
}

const runLength = 8

var eventID = regexp.MustCompile(`^([A-Z2-7]{8})\.([0-9]{1,20})$`)

// since returns the tick of the last id that a viewer has seen, 0 for a new viewer and for an id
// of another process.
func (f *feed) since(id string) (uint64, error) {
	if id == "" {
		return 0, nil
	}
	m := eventID.FindStringSubmatch(id)
	if m == nil {
		return 0, bad("last-event-id: %.40q is no id of this service", id)
	}
	if m[1] != f.run {
		return 0, nil
	}
	tick, err := strconv.ParseUint(m[2], 10, 64)
	if err != nil || tick > f.tick {
		return 0, bad("last-event-id: %.40q is of no message that was sent", id)
	}
	return tick, nil
}

// watch sends the picture of the page until the viewer disconnects or the service ends.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	c := s.core.Load()
	switch {
	case foreign(r):
		write(w, http.StatusForbidden, fail("origin: a page of another site"))
		return
	case c == nil:
		write(w, http.StatusServiceUnavailable, s.noIndex())
		return
	case s.draining.Load():
		write(w, http.StatusServiceUnavailable, fail("not ready: the service ends"))
		return
	}
	if r.ContentLength != 0 { // there is no deadline for reading here: a body that never comes would never end
		write(w, http.StatusBadRequest, fail("body: there is none in a request for messages"))
		return
	}
	query, err := queryOf(r, "pod", "model")
	if err == nil && query.Has("model") && !query.Has("pod") {
		err = bad("pod: it is missing in the query")
	}
	if err != nil {
		write(w, statusOf(err, false), fail("%v", err))
		return
	}
	if s.viewers.Add(1) > maxViewers {
		s.viewers.Add(-1)
		write(w, http.StatusServiceUnavailable, fail("busy: %d viewers are watching", maxViewers))
		return
	}
	defer s.viewers.Add(-1)
	s.feed.mu.Lock()
	s.refresh(c, s.every)
	since, err := s.feed.since(r.Header.Get("Last-Event-ID"))
	s.feed.mu.Unlock()
	if err != nil {
		write(w, statusOf(err, false), fail("%v", err))
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // for nginx: pass messages on at once
	if r.Method == http.MethodHead {
		return
	}
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{})
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for reset := since == 0; ; reset = false {
		s.feed.mu.Lock()
		s.refresh(c, s.every*9/10) // a tick may come a little early
		data, id := s.feed.messages(since, reset)
		since = s.feed.tick
		if query.Has("pod") {
			model := cmp.Or(query.Get("model"), s.cfg.Model)
			data = append([][]byte{s.feed.detailOf(c, query.Get("pod"), model)}, data...)
		}
		s.feed.mu.Unlock()
		for i, d := range data {
			if i == len(data)-1 {
				d = append([]byte("id: "+id+"\n"), append([]byte("data: "), d...)...)
			} else {
				d = append([]byte("data: "), d...)
			}
			_ = out.SetWriteDeadline(time.Now().Add(s.slow))
			if _, err := w.Write(append(d, "\n\n"...)); err != nil {
				return
			}
			if err := out.Flush(); err != nil {
				return
			}
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
		}
		if s.draining.Load() || r.Context().Err() != nil {
			return
		}
	}
}
