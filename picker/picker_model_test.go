package picker_test

import (
	"errors"
	"flag"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/internal/fakeengine"
	"github.com/kvindex/kvindex/picker"
	"github.com/kvindex/kvindex/route"
)

var histories = flag.Int("picker.histories", 300, "histories of TestAgainstModel; long form: 10000")

const lease = time.Minute

// model is a plain picker: it computes loads again from the list of open picks.
type model struct {
	pods map[string]picker.Pod
	down map[string]bool // by SetDown
	open []*openPick
}

type openPick struct {
	*picker.Pick
	began   time.Time
	loadOf  int // the rank that the load counts for
	request *kvindex.Request
	tried   []string // its own pod included
	first   bool
	gone    bool // its load has ended, with the pod or with the lease
}

func (m *model) up(name string) bool {
	p, ok := m.pods[name]
	return ok && !p.Down && !m.down[name]
}

func (m *model) load(pod string, rank int, now time.Time) (l route.Load) {
	for _, o := range m.open {
		if o.gone = o.gone || now.Sub(o.began) >= lease; o.gone || o.Pod.Name != pod || o.loadOf != rank {
			continue
		}
		l.Requests++
		if o.first {
			l.Decode += o.PromptTokens
		} else {
			l.Prefill += o.PromptTokens - o.PredictedTokens
		}
	}
	return l
}

// best returns the pod and rank that a pick must choose, and their score.
func (m *model) best(t *testing.T, ix *kvindex.Indexer, r kvindex.Request, tried []string, now time.Time) (best kvindex.PodScore, ok bool) {
	limited := r.Pods
	r.Pods = []string{}
	for name, pod := range m.pods {
		r.Ranks = r.Ranks || pod.Ranks > 1
		if m.up(name) && !slices.Contains(tried, name) && (limited == nil || slices.Contains(limited, name)) {
			r.Pods = append(r.Pods, name)
		}
	}
	if len(r.Pods) == 0 {
		return best, false
	}
	var a kvindex.Answer
	must(t, ix.ScoreRequest(t.Context(), &r, &a))
	type place struct {
		pod  string
		rank int
	}
	scores := map[place]kvindex.PodScore{}
	for _, name := range r.Pods {
		for rank := range max(m.pods[name].Ranks, 1) {
			scores[place{name, rank}] = kvindex.PodScore{Pod: name, Rank: rank}
		}
	}
	for _, s := range slices.Backward(a.Pods) { // backward: of a pod of one rank the first entry counts
		at := place{s.Pod, s.Rank}
		if m.pods[s.Pod].Ranks <= 1 {
			at.rank = 0
		}
		if _, ok := scores[at]; ok {
			scores[at] = s
		}
	}
	a.Pods = slices.Collect(maps.Values(scores))
	pods := a.RoutePods(nil)
	for i := range pods {
		if m.pods[pods[i].Name].Ranks <= 1 {
			pods[i].Rank = 0
		}
		pods[i].Load, pods[i].Speed = m.load(pods[i].Name, pods[i].Rank, now), m.pods[pods[i].Name].Speed
	}
	return a.Pods[route.Default(&route.Request{Tokens: a.PromptTokens}, pods)], true
}

// TestAgainstModel plays random histories of picks, ends, failures, retries, leases, and pods
// that come, go and are down.
func TestAgainstModel(t *testing.T) {
	for seed := range *histories {
		synctest.Test(t, func(t *testing.T) { playHistory(t, uint64(seed)) })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func playHistory(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	ix, err := kvindex.New(kvindex.WithPredictions(kvindex.PredictionConfig{TTL: time.Second}))
	must(t, err)
	defer ix.Close()
	p, err := picker.New(ix, picker.Config{Lease: lease, Timeout: time.Hour})
	must(t, err)
	m := &model{pods: map[string]picker.Pod{}, down: map[string]bool{}}
	prompt := fakeengine.NewPrompt(seed, 16, 8)
	names := []string{"a", "b", "c", "d", "e"}
	for range 40 {
		switch name := names[r.IntN(len(names))]; r.IntN(9) {
		case 0: // pods come and go
			var pods []picker.Pod
			for _, name := range names {
				if r.IntN(3) > 0 {
					pods = append(pods, picker.Pod{Name: name, Ranks: r.IntN(3), Speed: float64(r.IntN(3)), Down: r.IntN(5) == 0})
				}
			}
			must(t, p.Set(pods))
			clear(m.pods)
			for _, pod := range pods {
				m.pods[pod.Name] = pod
			}
			maps.DeleteFunc(m.down, func(name string, _ bool) bool { return m.pods[name].Name == "" })
			for _, o := range m.open {
				o.gone = o.gone || m.pods[o.Pod.Name].Name == ""
			}
		case 1:
			down := r.IntN(2) == 0
			p.SetDown(name, down)
			if m.pods[name].Name != "" {
				m.down[name] = down
			}
		case 2: // an event
			must(t, ix.Ingest(name, "m", fakeengine.Payload(1, r.IntN(2), prompt.Stored(0, 1+r.IntN(8)))))
		case 3: // time passes
			time.Sleep(time.Duration(r.Int64N(int64(lease))) / time.Duration(1+r.IntN(8)))
		case 4, 5:
			request := &kvindex.Request{Model: "m", Tokens: prompt.Tokens[:16*(1+r.IntN(8))]}
			if r.IntN(4) == 0 {
				request.Pods = names[:r.IntN(len(names))]
			}
			want, ok := m.best(t, ix, *request, nil, time.Now())
			got, err := p.Pick(t.Context(), request)
			m.checkPick(t, got, err, want, ok, request, nil)
		default: // something happens to an open pick, or to one that has ended
			if len(m.open) == 0 {
				continue
			}
			i := r.IntN(len(m.open))
			o := m.open[i]
			if r.IntN(3) == 0 {
				o.FirstToken()
				o.first = true
				continue
			}
			m.open = slices.Delete(m.open, i, i+1)
			switch r.IntN(4) {
			case 3:
				m.next(t, ix, o)
				continue
			case 0:
				o.Done(kvindex.Usage{PromptTokens: o.PromptTokens, CachedTokens: -1})
			case 1:
				o.Failed()
			case 2:
				o.Failed()
				if next, err := o.Next(t.Context()); next != nil || err == nil {
					t.Errorf("a pick that has ended goes on: %v %v", next, err)
				}
			}
			for range r.IntN(3) {
				o.Done(kvindex.Usage{})
				o.FirstToken()
				o.Failed()
			}
		}
		m.check(t, p)
	}
	for _, o := range m.open {
		o.Done(kvindex.Usage{PromptTokens: -1, CachedTokens: -1})
	}
	m.open = nil
	m.check(t, p)
	if live := ix.Stats().Tickets.Live; live != 0 {
		t.Errorf("%d tickets are left", live)
	}
}

// checkPick compares a pick with the model's.
func (m *model) checkPick(t *testing.T, got *picker.Pick, err error, want kvindex.PodScore, ok bool, r *kvindex.Request, tried []string) {
	t.Helper()
	switch {
	case !ok:
		if !errors.Is(err, picker.ErrNoPod) || got != nil {
			t.Errorf("got %v, %v, and there is no pod", got, err)
		}
		return
	case err != nil:
		t.Fatal(err)
	}
	if got.Pod.Name != want.Pod || got.Rank != want.Rank || got.CachedTokens != want.CachedTokens || got.PredictedTokens != want.PredictedTokens {
		t.Errorf("got %s rank %d with %d cached, want %+v", got.Pod.Name, got.Rank, got.CachedTokens, want)
	}
	o := &openPick{Pick: got, began: time.Now(), request: r, tried: append(slices.Clip(tried), got.Pod.Name)}
	if got.Pod.Ranks > 1 {
		o.loadOf = got.Rank
	}
	m.open = append(m.open, o)
}

// next retries a pick, at a pod that is up and that the request was not sent to, if there is one.
func (m *model) next(t *testing.T, ix *kvindex.Indexer, o *openPick) {
	_, ok := m.best(t, ix, *o.request, o.tried, time.Now())
	got, err := o.Next(t.Context())
	var want kvindex.PodScore
	if got != nil {
		want = kvindex.PodScore{Pod: got.Pod.Name, Rank: got.Rank, CachedTokens: got.CachedTokens, PredictedTokens: got.PredictedTokens}
		if !m.up(want.Pod) || slices.Contains(o.tried, want.Pod) || o.request.Pods != nil && !slices.Contains(o.request.Pods, want.Pod) {
			t.Errorf("retried at %s, which is down or was tried (%q)", want.Pod, o.tried)
		}
	}
	m.checkPick(t, got, err, want, ok, o.request, o.tried)
}

// check compares the loads.
func (m *model) check(t *testing.T, p *picker.Picker) {
	t.Helper()
	for _, pod := range p.Pods() {
		if want := m.pods[pod.Name]; pod.Down == m.up(pod.Name) || pod.Ranks != want.Ranks || pod.Speed != want.Speed {
			t.Errorf("got %+v, want %+v", pod, want)
		}
		for rank := range max(pod.Ranks, 1) {
			got := []route.Pod{{Name: pod.Name, Rank: rank}}
			p.Loads().Fill(got)
			if want := m.load(pod.Name, rank, time.Now()); got[0].Load != want {
				t.Errorf("%s rank %d: got %+v, want %+v", pod.Name, rank, got[0].Load, want)
			}
		}
	}
	if got := len(p.Pods()); got != len(m.pods) {
		t.Errorf("%d pods, want %d", got, len(m.pods))
	}
}
