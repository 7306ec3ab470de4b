// Fleet: the one place that starts streams, ends them and forgets pods.
//
// # No manager
//
// A list of a source is applied under Fleet.mu, at once. So Set has an effect when it returns,
// and waits for no network. A manager goroutine would need a queue, and an order between the
// queue and the answer of Pods. Goroutines are only where something waits: a stream, a source,
// a sink that forgets, a hook.
//
// Fleet.mu is not held when a sink, a source, a hook or dialLine.mu is. A source may hold a
// lock of its own when it calls set, which takes Fleet.mu.
//
// # A member is what is wanted and what is
//
// member.want is the description of the source, and member.is is the pod that the sink may
// hold. Fleet.advance compares the two and begins one step, if none is under way
// (member.busy): new links (begin), or the end of old links (end) and then forget. Changes
// meanwhile only set want, and the next advance compares again. So ten changes during a slow
// end are one, and no order of calls leads to a state of its own. A pod with the same feed
// (Pod.sameFeed) goes on undisturbed.
//
// # Ended before forgotten
//
// forget runs when Subscriber.Run has returned for the last of the old streams. A Subscriber
// calls its sink from that goroutine, so nothing is in flight then, and no message brings the
// pod back. A Pool before the sink has messages in a queue: its RemovePod waits behind them.
// If the sink fails to forget, the Fleet tries again with a backoff, and the member stays
// until then; otherwise the pod would go on to count.
//
// A pod that shrinks has other ranks that go on, and RemovePod would forget these. So Sink has
// RemoveStream.
//
// # Claims
//
// Each source has its own table of pods. The first source that names a pod keeps it until it
// drops it; then the next in the order of Run has it. A source of a higher rank does not take
// a pod away: two sources that disagree would otherwise move it to and fro, and each move
// forgets its blocks. A second source that names a pod is reported ("claimed").
//
// # Restored
//
// After a snapshot the sink has pods that no source may ever name. Forgetting them at once
// would defeat the snapshot; keeping them for ever would send prompts to dead pods. So they
// are forgotten when each source has called set once. A source that has not called set is not
// an empty one. A source whose Run returns is started again after a second, later after up to
// a minute, and its claims stay.
//
// # Hooks
//
// A hook that is called with a lock held cannot call the Fleet, and one that each stream calls
// gets changes in no order. So changes go into a queue, and one goroutine of Run gives them to
// the hook. The queue is bounded by 4,096 changes, and 8 more for each of MaxPods and each
// stream. Further changes are only counted, because waiting for a hook would hold up the
// fleet. Pods always has all.

package events

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

const (
	// defaultMaxPods is the default of FleetConfig.MaxPods.
	defaultMaxPods = 1 << 14
	// maxDials is how many connections are being made at one time.
	maxDials = 32
)

// FleetConfig configures a Fleet. A zero limit is its default.
type FleetConfig struct {
	// MaxPods bounds the pods of all sources. More are refused. 0: 16,384.
	MaxPods int
	// Restored are pods that the sink has from before, such as from a snapshot. When each
	// PodSource of Run has called set, those that no source has named are forgotten: at once, if
	// Run has no sources. So call Set before Run then.
	Restored []string
	// Subscriber has the times and limits of each connection, and its OnConnect. The room for
	// messages that are being received is for all connections together (MaxMessage). All fields
	// that a Pod has, and the other functions, must be zero.
	Subscriber SubscriberConfig

	// OnChange gets every change of a pod, in order, one at a time. It gets only some of the
	// attempts to connect that fail in the same way, and only some losses of a connection: at
	// intervals that double up to one minute. So "connecting" after "backoff" comes when that
	// attempt ends in another way, or when its failure is reported again. A link that loses
	// its connection again and again stays "live" for OnChange meanwhile, unless an attempt
	// to connect fails. A goroutine of Run calls OnChange without a lock, so it may
	// call methods of the Fleet. If it is so slow that 4,096 changes wait, and 8 more for each
	// pod of MaxPods and for each stream, newer changes are lost. OnError gets their number:
	// call Pods then.
	OnChange func(FleetChange)
	// OnError gets faults that do not end Run: refused pods, faults of sources, of connections
	// and of the sink. Each error is a *TransportError. Several goroutines call it at once. A
	// fault that lasts is reported again, at intervals that double up to one minute.
	OnError func(error)
}

// FleetPod is a pod as a Fleet has it.
type FleetPod struct {
	Pod                   // as described, with its defaults
	Source  string        // the name of its source; "" for a pod that is removed, but not forgotten yet
	Streams []FleetStream // by rank, and behind them that of Pod.TiersPort; none with EngineNone
}

// FleetStream is the stream of a rank of a pod, or of the offload daemon beside it.
type FleetStream struct {
	Endpoint string
	Tiers    bool // it is that of Pod.TiersPort
	// Link is the state of the connection:
	//
	//   - "none": there is no connection to be made, because Run does not run
	//   - "waiting": another pod has the address, which Err names
	//   - "connecting": it is being made, or waits because 32 others are being made
	//   - "backoff": the last attempt failed, or the connection is lost (Err). The next
	//     attempt follows
	//   - "replaying": it is connected, and requests older messages
	//   - "live": it is connected, and messages come as the engine publishes them
	//   - "ending": the pod, or this rank of it, was removed
	Link  string
	Since time.Time // of the Link
	Err   error     // why it is not connected; nil if it is. JSON has its text
}

// MarshalJSON writes Err as its text.
func (s FleetStream) MarshalJSON() ([]byte, error) {
	type fields FleetStream
	return json.Marshal(struct {
		fields
		Err string `json:",omitempty"`
	}{fields(s), errorText(s.Err)})
}

// errorText returns the text of an error, "" for nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FleetChange is a change of a pod.
type FleetChange struct {
	// Kind is one of these:
	//
	//   - "added"
	//   - "replaced": another address, port, model, topic, engine or UID. Its blocks
	//     are forgotten
	//   - "resized": other ranks. Removed ones are forgotten
	//   - "labelled": other labels, and nothing else
	//   - "claimed": another source names the pod too, and waits until Source drops it (Err)
	//   - "handed on": its source dropped it, and Source has the pod now
	//   - "removed": it is forgotten
	//   - "link changed": the FleetStream.Link of a rank
	Kind   string
	Pod    Pod    // as it is now; if it was removed, as it was
	Source string // its source, or its last one; "" for a pod of FleetConfig.Restored
	// Of a "link changed": the rank, or -1 for Pod.TiersPort, its Link before and now, and the
	// reason.
	Rank     int
	From, To string
	Err      error // JSON has its text
}

// MarshalJSON writes Err as its text.
func (c FleetChange) MarshalJSON() ([]byte, error) {
	type fields FleetChange
	return json.Marshal(struct {
		fields
		Err string `json:",omitempty"`
	}{fields(c), errorText(c.Err)})
}

// LogValue returns the attributes of a change for a log.
func (c FleetChange) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("kind", c.Kind), slog.String("pod", c.Pod.ID), slog.String("model", c.Pod.Model), slog.String("source", c.Source)}
	if c.Kind == linkChanged {
		attrs = append(attrs, slog.Int("rank", c.Rank), slog.String("from", c.From), slog.String("to", c.To))
	}
	if c.Err != nil {
		attrs = append(attrs, slog.String("err", c.Err.Error()))
	}
	return slog.GroupValue(attrs...)
}

// The states of a link: see FleetStream.Link.
const (
	linkNone       = "none"
	linkWaiting    = "waiting"
	linkConnecting = "connecting"
	linkBackoff    = "backoff"
	linkReplaying  = "replaying"
	linkLive       = "live"
	linkEnding     = "ending"
)

// The kinds of changes: see FleetChange.Kind.
const (
	podAdded    = "added"
	podReplaced = "replaced"
	podResized  = "resized"
	podLabelled = "labelled"
	podClaimed  = "claimed"
	podHandedOn = "handed on"
	podRemoved  = "removed"
	linkChanged = "link changed"
)

// Fleet follows the streams of many pods that come, change and go, and makes the sink forget
// removed pods. Sources name the pods: those of Run, and the host by Set, Put and Remove.
//
// A pod with the same description goes on undisturbed. If its address, model, topic, engine or
// UID changes, its streams end, the sink forgets the pod, and the new streams begin. If it has
// fewer ranks, the streams of the removed ranks end and are forgotten. A pod that no source
// names any more is forgotten when its streams have ended: no message in flight brings it
// back.
//
// If several sources name a pod, the first one has it until it drops it. If several pods have
// one address and topic, the first one has that, and the others wait until it is removed: a
// reused address must not feed two pods.
//
// All methods are safe for concurrent use. Only Run waits for a network.
//
// Package kvindex has an example of a Fleet that feeds an Indexer.
type Fleet struct {
	sink   Sink
	cfg    FleetConfig
	dials  *dialLine
	budget *zmtp.Budget

	version atomic.Uint64

	mu       sync.Mutex // guards all that follows, and what is reached from it
	running  bool
	run      *fleetRun // nil: nothing may begin
	sources  []*fleetSource
	members  map[string]*member
	ordered  []*member // by ID, if inOrder
	inOrder  bool
	present  int                // members that a source names
	links    map[string][]*link // by endpoint, in the order in which they came
	streams  int                // links of all members
	past     SubscriberStats    // of the Subscribers of removed links
	restored map[string]bool    // pods of FleetConfig.Restored that the sink may still have
	silent   int                // sources of Run that have not called set yet

	changes changeQueue   // not yet given to OnChange
	wake    chan struct{} // holds a token while changes may not be empty
}

type changeQueue struct {
	all  []FleetChange
	lost int // changes for which there was no room
}

// fleetRun is a call of Run.
type fleetRun struct {
	ctx  context.Context
	work sync.WaitGroup
}

// fleetSource is a source and its pods.
type fleetSource struct {
	name   string
	runs   bool              // it is one of Run's
	claims map[string]*claim // by ID
	round  uint64            // of Set
}

// A claim is a pod that a source names.
type claim struct {
	listed Pod // as the source describes it
	pod    Pod // with its defaults
	round  uint64
}

// member is a pod, from the first time that a source names it until it is forgotten.
type member struct {
	id     string
	shown  Pod          // its last description
	source *fleetSource // nil: no source names it
	want   *Pod         // the description of source; nil if there is none
	is     *Pod         // the pod that the sink may have; nil if none
	gone   bool         // no source names it, and it is not forgotten yet
	was    FleetChange  // podRemoved, with the pod as it was then

	links  []*link // by rank
	daemon *link   // of Pod.TiersPort; nil if there is none
	busy   bool    // streams are ending, or the sink is forgetting
	ending int     // streams that have to end first
	keep   int     // ranks that stay
}

// NewFleet returns a Fleet for a sink, such as Indexer.Sink. The error names each wrong field
// of cfg.
func NewFleet(sink Sink, cfg FleetConfig) (*Fleet, error) {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("events: fleet: "+format, args...))
	}
	if sink == nil {
		bad("the sink is nil")
	}
	if cfg.MaxPods < 0 {
		bad("MaxPods is %d, must not be negative", cfg.MaxPods)
	}
	cfg = cfg.withDefaults()
	c := &cfg.Subscriber
	if c.Endpoint != "" || c.Bind || c.Topic != "" || c.Pod != "" || c.Model != "" || c.Replay != "" {
		bad("Subscriber: Endpoint, Bind, Topic, Pod, Model and Replay must be zero: each Pod has its own")
	}
	if c.Tiers {
		bad("Subscriber: Tiers must be false: Pod.TiersPort is where an offload daemon publishes")
	}
	if c.ParseTopic != nil || c.ReplayOf != nil || c.OnListen != nil || c.OnError != nil {
		bad("Subscriber: ParseTopic, ReplayOf, OnListen and OnError must be nil: a Fleet does not listen, and has an OnError")
	}
	probe := *c
	probe.Endpoint, probe.Pod, probe.Model = endpoint("localhost", defaultPort), "pod", "model"
	probe.Bind, probe.Topic, probe.Replay, probe.ReplayOf = false, "", "", nil
	if sink != nil {
		if err := probe.validate(sink); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	c.OnError = cfg.OnError
	restored := make(map[string]bool, len(cfg.Restored))
	for _, id := range cfg.Restored {
		restored[id] = true
	}
	return &Fleet{
		sink:     sink,
		cfg:      cfg,
		dials:    newDialLine(maxDials),
		budget:   c.newBudget(),
		members:  make(map[string]*member),
		links:    make(map[string][]*link),
		restored: restored,
		wake:     make(chan struct{}, 1),
		past:     new(Subscriber).Stats(), // it has all reasons
	}, nil
}

func (c FleetConfig) withDefaults() FleetConfig {
	c.MaxPods = cmp.Or(c.MaxPods, defaultMaxPods)
	return c
}

// Run follows the pods until ctx ends, and returns its error when all of its goroutines have
// ended. If several sources name a pod and its source drops it, the next one in the order of
// sources has it; sources of Set and Put come last. The pods of each source stay: Run may be
// called again, and goes on. Pods that are removed while Run does not run are forgotten when
// it runs again.
func (f *Fleet) Run(ctx context.Context, sources ...PodSource) error {
	for i, s := range sources {
		if s.Run == nil {
			return fmt.Errorf("events: fleet: source %q has no Run", s.Name)
		}
		if slices.ContainsFunc(sources[:i], func(o PodSource) bool { return o.Name == s.Name }) {
			return fmt.Errorf("events: fleet: two sources have the name %q", s.Name)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &fleetRun{ctx: ctx}
	f.mu.Lock()
	if f.running {
		f.mu.Unlock()
		return errRunning
	}
	f.running, f.run, f.silent = true, r, len(sources)
	for _, s := range slices.Clone(f.sources) {
		s.runs = false
		f.leave(s)
	}
	for i, s := range sources {
		own := f.source(s.Name)
		own.runs = true
		at := slices.Index(f.sources, own)
		copy(f.sources[i+1:at+1], f.sources[i:at])
		f.sources[i] = own
		r.work.Go(func() { f.follow(r, s) })
	}
	f.forgetRestored()
	for _, m := range f.inOrderOfID() {
		f.advance(m)
	}
	f.mu.Unlock()
	var hooks sync.WaitGroup
	if f.cfg.OnChange != nil {
		hooks.Go(f.emitAll)
	}

	<-ctx.Done()
	f.mu.Lock()
	f.run = nil
	f.mu.Unlock()
	r.work.Wait()
	f.rest()
	f.mu.Lock()
	f.running = false
	f.ring()
	f.mu.Unlock()
	hooks.Wait()
	return ctx.Err()
}

// follow runs a source.
func (f *Fleet) follow(r *fleetRun, s PodSource) {
	var refused, failing repeatFilter // f.mu guards refused, for set may be called by several goroutines
	named := func(err error) error { return fmt.Errorf("events: fleet: source %q: %w", s.Name, err) }
	listed := false
	set := func(pods []Pod) error {
		f.mu.Lock()
		if err := r.ctx.Err(); err != nil { // the list may be old by now
			f.mu.Unlock()
			return err
		}
		err := f.set(s.Name, pods)
		if !listed {
			listed = true
			f.silent--
			f.forgetRestored()
		}
		reports := err != nil && refused.due(err)
		f.mu.Unlock()
		if reports {
			f.report(nil, named(err))
		}
		return err
	}
	ctx := context.WithValue(r.ctx, reportKey{}, func(err error) { f.report(nil, named(err)) })
	wait := backoff{min: time.Second, max: time.Minute}
	for r.ctx.Err() == nil {
		start := time.Now()
		err := s.Run(ctx, set)
		if r.ctx.Err() != nil {
			return
		}
		if err = named(cmp.Or(err, errSourceEnded)); failing.due(err) {
			f.report(nil, err)
		}
		if time.Since(start) > wait.max {
			wait.reset()
		}
		wait.sleep(r.ctx)
	}
}

// reportKey has the function of Report in the context of a source.
type reportKey struct{}

// Report is for authors of sources: it gives a fault that does not end a source to
// FleetConfig.OnError. ctx is that of PodSource.Run. Without a Fleet behind ctx it does nothing.
// Report each fault once, and again at growing intervals while it lasts.
func Report(ctx context.Context, err error) {
	if report, ok := ctx.Value(reportKey{}).(func(error)); ok {
		report(err)
	}
}

var errSourceEnded = errors.New("Run of the source has returned, and is called again")

// report gives OnError a fault of a member that is busy, or of no pod if m is nil.
func (f *Fleet) report(m *member, err error) {
	if f.cfg.OnError == nil {
		return
	}
	e := &TransportError{Rank: -1, Err: err}
	if m != nil {
		e.Pod, e.Model = m.id, m.is.Model
	}
	f.cfg.OnError(e)
}

// Set gives the Fleet all pods of a source, and removes those that are not among them. The
// error names each refused pod, up to a limit; the others are applied. A pod whose new
// description is refused stays as it was. The name of the source is kept for good, and so is
// its place behind the earlier sources.
func (f *Fleet) Set(source string, pods []Pod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.set(source, pods); err != nil {
		return fmt.Errorf("events: fleet: source %q: %w", source, err)
	}
	return nil
}

// Put adds or changes one pod of a source. The error is the reason of a refusal.
func (f *Fleet) Put(source string, pod Pod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.source(source)
	defer f.leave(s)
	if err := f.put(s, &pod, false); err != nil {
		return fmt.Errorf("events: fleet: source %q: %w", source, err)
	}
	return nil
}

// Remove removes a pod of a source. A pod that the source does not name is no error.
func (f *Fleet) Remove(source, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.source(source)
	defer f.leave(s)
	f.letGo(s, id)
}

// source finds a source or makes it. f.mu is held.
func (f *Fleet) source(name string) *fleetSource {
	for _, s := range f.sources {
		if s.name == name {
			return s
		}
	}
	s := &fleetSource{name: strings.Clone(name), claims: make(map[string]*claim)}
	f.sources = append(f.sources, s)
	return s
}

// leave forgets a source that names no pod, unless it has a rank of its own by Run or Set.
// f.mu is held.
func (f *Fleet) leave(s *fleetSource) {
	if len(s.claims) == 0 && s.round == 0 && !s.runs {
		f.sources = slices.DeleteFunc(f.sources, func(o *fleetSource) bool { return o == s })
	}
}

// maxRefusals bounds the refused pods that an error names.
const maxRefusals = 16

// set is Set. f.mu is held.
func (f *Fleet) set(source string, pods []Pod) error {
	s := f.source(source)
	listed := s.round + 1
	s.round += 2
	for i := range pods {
		if c := s.claims[pods[i].ID]; c != nil {
			c.round = listed
		}
	}
	for id, c := range s.claims { // first, so that there is room
		if c.round < listed {
			f.letGo(s, id)
		}
	}
	var errs []error
	refused := 0
	for i := range pods {
		if err := f.put(s, &pods[i], true); err != nil {
			if refused++; refused <= maxRefusals {
				errs = append(errs, err)
			}
		}
	}
	if refused > maxRefusals {
		errs = append(errs, fmt.Errorf("and %d more pods are refused", refused-maxRefusals))
	}
	return errors.Join(errs...)
}

// put applies a pod of a source. listed: it is in a list, which must not have it twice. f.mu
// is held.
func (f *Fleet) put(s *fleetSource, p *Pod, listed bool) error {
	c := s.claims[p.ID]
	if c != nil {
		if listed && c.round == s.round {
			return fmt.Errorf("pod %.100q is given twice", p.ID)
		}
		c.round = s.round
		if c.listed.same(p) {
			return nil
		}
	}
	n, err := p.normal()
	if err != nil {
		return err
	}
	if c != nil && c.pod.same(&n) { // another form of the same
		c.describe(p, n)
		return nil
	}
	m := f.members[n.ID]
	if c == nil {
		if m == nil || m.source == nil {
			if f.present >= f.cfg.MaxPods || m == nil && len(f.members)/2 >= f.cfg.MaxPods {
				return fmt.Errorf("pod %.100q: there are %d pods already (MaxPods)", n.ID, f.cfg.MaxPods)
			}
		}
		c = &claim{round: s.round}
		s.claims[strings.Clone(n.ID)] = c
		if m != nil && m.source != nil {
			f.emit(FleetChange{Kind: podClaimed, Pod: n, Source: m.source.name, Err: fmt.Errorf("source %q names the pod too", s.name)})
		}
	}
	before := c.pod
	c.describe(p, n)
	switch {
	case m == nil:
		m = &member{id: n.ID}
		f.members[m.id] = m
		f.inOrder = false
		fallthrough
	case m.source == nil:
		f.present++
		f.give(m, s, c)
		if !m.gone { // else when it is forgotten
			f.emit(FleetChange{Kind: podAdded, Pod: n, Source: s.name})
		}
	case m.source == s:
		f.give(m, s, c)
		kind := podLabelled
		if !before.sameFeed(&n) {
			kind = podReplaced
		} else if before.Ranks != n.Ranks {
			kind = podResized
		}
		if !m.gone {
			f.emit(FleetChange{Kind: kind, Pod: n, Source: s.name})
		}
	}
	f.advance(m)
	return nil
}

func (c *claim) describe(given *Pod, normal Pod) {
	c.listed, c.pod = *given, normal
	c.listed.Labels = normal.Labels // a copy
}

// give gives a member to a source. f.mu is held.
func (f *Fleet) give(m *member, s *fleetSource, c *claim) {
	m.source, m.want, m.shown = s, &c.pod, c.pod
	f.version.Add(1)
}

// letGo removes a pod from a source. f.mu is held.
func (f *Fleet) letGo(s *fleetSource, id string) {
	if s.claims[id] == nil {
		return
	}
	delete(s.claims, id)
	m := f.members[id]
	if m.source != s {
		return
	}
	for _, o := range f.sources {
		if c := o.claims[id]; c != nil {
			f.give(m, o, c)
			if !m.gone { // else it is added when it is forgotten
				f.emit(FleetChange{Kind: podHandedOn, Pod: c.pod, Source: o.name})
			}
			f.advance(m)
			return
		}
	}
	if !m.gone {
		m.was = FleetChange{Kind: podRemoved, Pod: m.shown, Source: s.name}
	}
	m.source, m.want, m.gone = nil, nil, true
	f.present--
	f.version.Add(1)
	f.advance(m)
}

// sourceName returns the name of a member's source.
func (m *member) sourceName() string {
	if m.source == nil {
		return ""
	}
	return m.source.name
}

// advance begins the next step from what a member is to what it is to be, if no step is under
// way. f.mu is held.
func (f *Fleet) advance(m *member) {
	switch {
	case m.busy:
	case m.is == nil && m.gone:
		f.forgotten(m)
		if m.want != nil {
			f.advance(m)
		}
	case f.run == nil:
	case m.is == nil:
		m.is = &Pod{}
		*m.is = *m.want
		f.begin(m)
	case m.keeps() < m.is.Ranks || !m.keepsFeed():
		f.end(m)
	default:
		*m.is = *m.want
		f.begin(m)
	}
}

// keepsFeed reports whether the streams of a member go on, but for ranks.
func (m *member) keepsFeed() bool { return !m.gone && m.want != nil && m.is.sameFeed(m.want) }

// keeps returns how many ranks of a member go on.
func (m *member) keeps() int {
	if !m.keepsFeed() {
		return 0
	}
	return min(m.is.Ranks, m.want.Ranks)
}

// begin starts a stream for each rank of a member, and for its daemon. f.mu is held.
func (f *Fleet) begin(m *member) {
	for rank := range m.is.Ranks {
		if rank == len(m.links) {
			m.links = append(m.links, newLink(f, m, rank))
		}
		f.start(m.links[rank])
	}
	if m.is.TiersPort > 0 {
		if m.daemon == nil {
			m.daemon = newLink(f, m, ofDaemon)
		}
		f.start(m.daemon)
	}
}

// from yields the links of the ranks from a number on, and that of the daemon, which goes on
// while there is a rank.
func (m *member) from(rank int) iter.Seq[*link] {
	return func(yield func(*link) bool) {
		for _, l := range m.links[min(rank, len(m.links)):] {
			if !yield(l) {
				return
			}
		}
		if rank == 0 && m.daemon != nil {
			yield(m.daemon)
		}
	}
}

// end ends the old streams of a member, and then makes the sink forget them. f.mu is held.
func (f *Fleet) end(m *member) {
	m.busy, m.keep = true, m.keeps()
	for l := range m.from(m.keep) {
		if l.running {
			m.ending++
			l.cancel()
		}
		l.set(linkEnding, nil)
	}
	if r := f.run; m.ending == 0 {
		r.work.Go(func() { f.forget(r, m) })
	}
}

// forget makes the sink forget the ended streams of a member.
func (f *Fleet) forget(r *fleetRun, m *member) {
	wait := backoff{min: 10 * time.Millisecond, max: time.Second}
	var failing repeatFilter
	err := f.forgetOf(m)
	for ; err != nil && r.ctx.Err() == nil; err = f.forgetOf(m) {
		if failing.due(err) {
			f.report(m, fmt.Errorf("events: fleet: pod %q: the sink failed to forget the pod, and is called again: %w", m.id, err))
		}
		wait.sleep(r.ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m.busy = false
	switch {
	case err != nil: // the next Run tries again
	case m.keep > 0:
		m.is.Ranks = m.keep
	default:
		m.is = nil
		delete(f.restored, m.id)
		if m.gone {
			f.forgotten(m)
		}
	}
	f.drop(m, m.keep) // behind podRemoved, because its addresses are free now
	if f.members[m.id] == m {
		f.advance(m)
	}
}

// forgetOf calls the sink once. The member is busy, so nothing else changes its fields.
func (f *Fleet) forgetOf(m *member) (err error) {
	if m.keep == 0 {
		return f.sink.RemovePod(m.id)
	}
	for rank := m.keep; rank < m.is.Ranks && err == nil; rank++ {
		err = f.sink.RemoveStream(m.id, m.is.Model, endpoint(m.is.Host, m.is.Port+rank))
	}
	return err
}

// drop removes the links of a member from a rank on (from), and starts those that waited for their
// addresses. None of the removed links is running. f.mu is held.
func (f *Fleet) drop(m *member, keep int) {
	for l := range m.from(keep) {
		f.streams--
		l.sub.count.addTo(&f.past)
		others := f.links[l.endpoint]
		others = slices.Delete(others, slices.Index(others, l), slices.Index(others, l)+1)
		if f.links[l.endpoint] = others; len(others) == 0 {
			delete(f.links, l.endpoint)
		}
		for _, o := range others {
			if o.link == linkWaiting {
				f.start(o)
			}
		}
	}
	m.links = slices.Delete(m.links, min(keep, len(m.links)), len(m.links))
	if keep == 0 {
		m.daemon = nil
	}
}

// forgotten ends a member that the sink has forgotten. f.mu is held.
func (f *Fleet) forgotten(m *member) {
	m.gone = false
	f.version.Add(1)
	f.emit(m.was)
	if m.want != nil {
		f.emit(FleetChange{Kind: podAdded, Pod: *m.want, Source: m.source.name})
		return
	}
	delete(f.members, m.id)
	f.inOrder = false
}

// rest records that nothing runs any more.
func (f *Fleet) rest() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.inOrderOfID() {
		for l := range m.from(0) {
			l.set(linkNone, nil)
		}
	}
}

// forgetRestored forgets the restored pods that no source has named, when all sources of Run
// have called set. f.mu is held.
func (f *Fleet) forgetRestored() {
	if f.silent > 0 || f.run == nil {
		return
	}
	for id := range f.restored {
		if m := f.restore(id); m != nil {
			f.advance(m)
		}
	}
	f.restored = nil
}

// restore returns a member to be forgotten for a restored pod; nil if there is a member. f.mu
// is held.
func (f *Fleet) restore(id string) *member {
	if f.members[id] != nil {
		return nil
	}
	m := &member{id: id, shown: Pod{ID: id}, is: &Pod{ID: id}, gone: true}
	m.was = FleetChange{Kind: podRemoved, Pod: m.shown}
	f.members[id] = m
	f.inOrder = false
	return m
}

// inOrderOfID returns the members ordered by ID. f.mu is held.
func (f *Fleet) inOrderOfID() []*member {
	if !f.inOrder {
		clear(f.ordered)
		f.ordered = slices.AppendSeq(f.ordered[:0], maps.Values(f.members))
		slices.SortFunc(f.ordered, func(a, b *member) int { return strings.Compare(a.id, b.id) })
		f.inOrder = true
	}
	return f.ordered
}

// emit queues a change for OnChange. f.mu is held.
func (f *Fleet) emit(c FleetChange) {
	switch {
	case f.cfg.OnChange == nil:
	case (len(f.changes.all)-queuedChanges)/queuedEach-f.streams >= f.cfg.MaxPods: // which may be the largest int
		f.changes.lost++
	default:
		f.changes.all = append(f.changes.all, c)
		f.ring()
	}
}

// Bounds of the changes that wait for OnChange: in all, and more for each pod and each stream.
const (
	queuedChanges = 1 << 12
	queuedEach    = 8
)

func (f *Fleet) ring() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// emitAll gives changes to OnChange until Run has ended.
func (f *Fleet) emitAll() {
	var changes []FleetChange
	for running := true; running; <-f.wake {
		f.mu.Lock()
		changes, f.changes.all = f.changes.all, changes[:0]
		lost := f.changes.lost
		f.changes.lost, running = 0, f.running
		f.mu.Unlock()
		for _, c := range changes {
			f.cfg.OnChange(c)
		}
		if lost > 0 {
			f.report(nil, fmt.Errorf("events: fleet: OnChange is too slow: %d changes are lost", lost))
		}
		clear(changes)
		if !running {
			return
		}
	}
}

// Version returns a number that grows when a pod is added, described in another way,
// removed, or forgotten; links do not change it. A host that keeps something of Pods compares it.
func (f *Fleet) Version() uint64 { return f.version.Load() }

// Stats returns the counts of all Subscribers that the Fleet has had.
func (f *Fleet) Stats() SubscriberStats {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.past
	s.Dropped = maps.Clone(f.past.Dropped)
	for _, m := range f.members {
		for l := range m.from(0) {
			l.sub.count.addTo(&s)
		}
	}
	return s
}

// Pods appends all pods to dst, ordered by ID, with those that wait, and with removed pods
// until they are forgotten. With room in dst it allocates nothing: the Streams of its elements
// are used again. Labels are shared: do not change them.
func (f *Fleet) Pods(dst []FleetPod) []FleetPod {
	f.mu.Lock()
	for _, m := range f.inOrderOfID() {
		if len(dst) < cap(dst) {
			dst = dst[:len(dst)+1]
		} else {
			dst = append(dst, FleetPod{})
		}
		p := &dst[len(dst)-1]
		*p = FleetPod{Pod: m.shown, Source: m.sourceName(), Streams: p.Streams[:0]}
		for l := range m.from(0) {
			p.Streams = append(p.Streams, FleetStream{Endpoint: l.endpoint, Tiers: l.rank == ofDaemon, Link: l.link, Since: l.since, Err: l.err})
		}
	}
	f.mu.Unlock()
	return dst
}
