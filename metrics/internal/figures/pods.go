package figures

import (
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
)

// byPod has the pods with series, and their counters.
//
// A pod with series keeps them until it is removed, and a pod beyond the bound has none, even if it
// is the first by name. So no series changes its pod, and no counter falls when other pods come. If
// a rank or stream of a pod ends, its counts stay in the sum.
type byPod struct {
	most   int
	labels names
	pods   map[podModel]*podSeries
	round  uint64
	infos  []kvindex.PodInfo
}

type podModel struct{ pod, model string }

type podSeries struct {
	labels [2]string
	states [numStates][3]string
	tiers  [index.NumTiers][3]string
	total  counts
	parts  map[partName]*part
}

// A partName is a stream, or a rank without a stream.
type partName struct {
	stream string
	rank   int // -1: this is a stream
}

// counts has the order of podCounters.
type counts [len(podCounters)]uint64

type part struct {
	last  counts
	round uint64
}

// grow adds the growth of a part's counters since the last reading. A counter that is lower than
// then has restarted from 0.
func (p *podSeries) grow(name partName, now counts, round uint64) {
	of := p.parts[name]
	if of == nil {
		of = new(part)
		p.parts[name] = of
	}
	for i, n := range now {
		if n < of.last[i] {
			of.last[i] = 0
		}
		p.total[i] += n - of.last[i]
	}
	of.last, of.round = now, round
}

// read emits the series of ix. known is a recent number of its pods and models. If all of them have
// series, or no further one can get series, read lists only those with series.
func (b *byPod) read(ix *kvindex.Indexer, known int, models *names, emit Emit) {
	b.round++
	for key, p := range b.pods {
		info, ok := ix.Pod(key.pod, key.model)
		if ok {
			p.read(&info, b.round, emit)
			continue
		}
		delete(b.pods, key)
		b.labels.free(key.pod)
		models.free(key.model)
	}
	if len(b.pods) < min(known, b.most) {
		b.infos = ix.Pods(b.infos[:0])
		known = len(b.infos)
		for i := range b.infos {
			info := &b.infos[i]
			if b.pods[podModel{info.Pod, info.Model}] == nil && len(b.pods) < b.most {
				b.add(info, models).read(info, b.round, emit)
			}
		}
		clear(b.infos)
	}
	emit(podsBeyond, float64(max(known-len(b.pods), 0)), nil)
}

func (b *byPod) add(info *kvindex.PodInfo, models *names) *podSeries {
	pod, model := b.labels.of(info.Pod), models.of(info.Model)
	p := &podSeries{labels: [2]string{pod, model}, parts: make(map[partName]*part)}
	for i := range p.states {
		p.states[i] = [3]string{pod, model, kvindex.State(i).String()}
	}
	for i := range p.tiers {
		p.tiers[i] = [3]string{pod, model, index.Tier(i).String()}
	}
	if b.pods == nil {
		b.pods = make(map[podModel]*podSeries)
	}
	b.pods[podModel{info.Pod, info.Model}] = p
	return p
}

func (p *podSeries) read(info *kvindex.PodInfo, round uint64, emit Emit) {
	var blocks [index.NumTiers]int
	var evicted uint64
	var lag, age time.Duration
	for i := range info.Streams {
		s := &info.Streams[i]
		p.grow(partName{s.Stream, -1}, counts{1: s.Malformed, 2: s.Gaps, 3: s.Missing, 4: s.Restarts}, round)
	}
	for i := range info.Ranks {
		r := &info.Ranks[i]
		p.grow(partName{"", r.Rank}, counts{0: r.Messages, 5: r.Stored, 6: r.Removed, 7: r.NotHeld}, round)
		for t, n := range r.Blocks {
			blocks[t] += n
		}
		evicted += r.Evicted
		lag, age = max(lag, r.Lag), max(age, r.Age)
	}
	for name, of := range p.parts {
		if of.round != round {
			delete(p.parts, name)
		}
	}
	emit(podState, 1, p.states[min(int(info.State), numStates-1)][:])
	emit(podRanks, float64(len(info.Ranks)), p.labels[:])
	for t, n := range blocks {
		if n > 0 || t == 0 {
			emit(podBlocks, float64(n), p.tiers[t][:])
		}
	}
	emit(podEvicted, float64(evicted), p.labels[:])
	emit(podLag, lag.Seconds(), p.labels[:])
	emit(podAge, age.Seconds(), p.labels[:])
	emit(podUnrecognized, float64(len(info.Unrecognized)), p.labels[:])
	for i, n := range p.total {
		emit(podCounters[i], float64(n), p.labels[:])
	}
}
