// Links: an address belongs to one pod. Links are listed by endpoint in the order in which
// they came. A link begins when no earlier one has its endpoint with a topic that overlaps
// with its own. A link leaves the list when its pod is forgotten, and not when its stream has
// ended. So an engine at a reused address never feeds both pods. Names are compared as text
// and not resolved: their meaning may change at any time, and a wrong guess would keep a good
// pod waiting.

package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvindex/kvindex/internal/zmtp"
)

// ofDaemon is the link.rank of Pod.TiersPort.
const ofDaemon = -1

// A link follows a rank of a Fleet's pod, or the daemon beside it. Fleet.mu guards it.
type link struct {
	f        *Fleet
	m        *member
	rank     int
	endpoint string
	topic    string
	sub      *Subscriber
	cancel   context.CancelFunc // of sub's Run
	running  bool
	dials    dialRank // of the next attempt to connect

	link  string
	since time.Time
	err   error

	failing repeatFilter // of attempts to connect
	again   bool         // the change from linkBackoff to linkConnecting is not reported yet
	losses  repeatFilter // of the connection
	shown   string       // what OnChange has, if the loss behind it is not reported; else ""
}

// errLost stands for all reasons of a loss: which of them a peer causes is its choice.
var errLost = errors.New("lost")

// newLink returns the link to a rank of member.is, or to its daemon. f.mu is held.
func newLink(f *Fleet, m *member, rank int) *link {
	cfg := f.cfg.Subscriber
	cfg.Pod, cfg.Model = m.id, m.is.Model
	if rank == ofDaemon {
		cfg.Endpoint, cfg.Tiers = endpoint(m.is.Host, m.is.TiersPort), true
	} else {
		cfg.Endpoint, cfg.Topic = endpoint(m.is.Host, m.is.Port+rank), m.is.Topic
		if m.is.ReplayPort > 0 {
			cfg.Replay = endpoint(m.is.Host, m.is.ReplayPort+rank)
		}
	}
	l := &link{f: f, m: m, rank: rank, endpoint: cfg.Endpoint, topic: cfg.Topic, link: linkNone, dials: dialNew, since: time.Now()}
	l.sub = newSubscriber(f.sink, cfg, f.budget)
	l.sub.link = l
	f.links[l.endpoint] = append(f.links[l.endpoint], l)
	f.streams++
	return l
}

// start follows the rank, if no earlier link has the address. f.mu is held.
func (f *Fleet) start(l *link) {
	r := f.run
	if r == nil || l.running || l.m.busy {
		return
	}
	at := f.links[l.endpoint]
	for _, o := range at[:slices.Index(at, l)] {
		if strings.HasPrefix(o.topic, l.topic) || strings.HasPrefix(l.topic, o.topic) {
			l.set(linkWaiting, fmt.Errorf("events: fleet: pod %q has %s", o.m.id, l.endpoint))
			return
		}
	}
	ctx, cancel := context.WithCancel(r.ctx)
	l.cancel, l.running = cancel, true
	l.set(linkConnecting, nil)
	r.work.Go(func() {
		_ = l.sub.Run(ctx)
		cancel()
		f.ended(r, l)
	})
}

// ended records that a link has stopped.
func (f *Fleet) ended(r *fleetRun, l *link) {
	f.mu.Lock()
	l.running = false
	m := l.m
	last := false
	if l.link == linkEnding {
		m.ending--
		last = m.ending == 0
	}
	f.mu.Unlock()
	if last {
		f.forget(r, m)
	}
}

// set records the state of the connection. A new attempt to connect is reported when it ends
// in another way than the one before, or when that end is reported again. A loss that is not
// to be reported again yet is reported by the next attempt that fails. f.mu is held.
func (l *link) set(to string, err error) {
	from := l.link
	l.err = err
	if from == to {
		return
	}
	l.link, l.since = to, time.Now()
	lost := to == linkBackoff && (from == linkReplaying || from == linkLive)
	switch {
	case lost && !l.losses.due(errLost):
		l.failing = repeatFilter{}
		l.shown = cmp.Or(l.shown, from)
		return
	case l.shown == "":
	case to == linkConnecting, to == linkReplaying && l.shown == linkLive:
		return
	default:
		if from, l.shown = l.shown, ""; from == to {
			return
		}
		if to == linkBackoff && !lost {
			l.failing.due(err)
		}
		l.emit(from, to, err)
		return
	}
	switch {
	case from == linkBackoff && to == linkConnecting:
		l.again = true
		return
	case from != linkConnecting:
		l.failing = repeatFilter{}
	case to == linkBackoff && !l.failing.due(err):
		l.again = false
		return
	}
	if l.again {
		l.again = false
		l.emit(linkBackoff, linkConnecting, nil)
	}
	l.emit(from, to, err)
}

func (l *link) emit(from, to string, err error) {
	l.f.emit(FleetChange{Kind: linkChanged, Pod: l.m.shown, Source: l.m.sourceName(), Rank: l.rank, From: from, To: to, Err: err})
}

// dial connects when the link has its turn.
func (l *link) dial(ctx context.Context, endpoint string, wire zmtp.Config) (*zmtp.Conn, error) {
	l.f.mu.Lock()
	if l.link == linkBackoff {
		l.set(linkConnecting, l.err)
	}
	rank := l.dials
	l.f.mu.Unlock()
	return l.f.dials.dial(ctx, rank, endpoint, wire)
}

// failed records that an attempt to connect has failed, or that the connection is lost. l may
// be nil.
func (l *link) failed(err error) {
	if l == nil {
		return
	}
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	if l.link != linkEnding {
		if l.link == linkConnecting {
			l.dials = dialAgain
		}
		l.set(linkBackoff, err)
	}
}

// noted records a note that the sink gets. l may be nil.
func (l *link) noted(n Note) {
	if l == nil {
		return
	}
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	switch l.link {
	case linkConnecting, linkReplaying, linkLive:
	default:
		return
	}
	if n == NoteConnected {
		l.dials = dialLost // the next time
	}
	switch n {
	case NoteConnected, NoteHeld:
		if l.sub.cfg.Replay != "" {
			l.set(linkReplaying, nil)
			break
		}
		fallthrough
	case NoteCurrent, NoteReleased, NoteNoReplay:
		l.set(linkLive, nil)
	}
}
