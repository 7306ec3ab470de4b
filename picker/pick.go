package picker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/route"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// A Pick is a request that is to be sent to a pod. It counts as load of the pod, and its
// prompt as cached there, until Done, Failed or Next ends it, or the Lease. After its end its
// methods do nothing. The methods are safe for concurrent use.
type Pick struct {
	Pod Pod
	// Rank is the data-parallel rank for the request. If Pod.Ranks is above 1, send it in the
	// HTTP header X-data-parallel-rank, or the prediction is wrong.
	Rank int
	// Fallbacks are the pods that the policy would choose without Pod, and without each other,
	// in this order: at most Config.Fallbacks. They are for a proxy that gets all pods at
	// once and tries them by itself. The request does not count as their load: if one of them
	// answers, end the pick by Failed, and pick again with Request.Pods.
	Fallbacks []Pod
	// PromptTokens is the length of the prompt. CachedTokens and PredictedTokens are those of
	// the kvindex.PodScore of the pod and rank. If the request was picked by load, both are 0,
	// and PromptTokens is a quarter of the bytes of the request, from 1 to 8,192, because most
	// of a large body is images.
	PromptTokens, CachedTokens, PredictedTokens int
	// Err is nil unless the request was picked by load only (then it is the error of
	// ScoreRequest, Answer.Unknown or Answer.Degraded) or its prompt does not count at the pod
	// (then it is the error of Routed).
	Err error

	picker  *Picker
	request *kvindex.Request
	tried   []string
	flight  *route.Flight
	ticket  kvindex.Ticket
	first   atomic.Bool
	ended   atomic.Bool
	hop     bool // another pod computes the prompt (PickPair)
	limit   limit
}

// Pick picks a pod for a request and registers the request there. Call Watch, or FirstToken
// and then Done or Failed. r must not change until the pick has ended. A nil r, or
// one with no Body, Prompt and Tokens, is a request without a prompt, which is picked by load;
// chance decides between pods of equal load, whatever their names are.
//
// Request.Pods, if not nil, limits the pick to these pods. The fields Candidates, Ranks and Top
// have no effect.
//
// Pods that are not registered take part as cold ones, and so do all ranks of a pod
// that have published nothing. A request that cannot be scored, or not in time, or whose
// context has ended, is picked by load. An error wraps ErrNoPod, or kvindex.ErrRequest if no
// engine would take the request: a gateway answers 503 or 400.
func (p *Picker) Pick(ctx context.Context, r *kvindex.Request) (*Pick, error) {
	return p.pick(ctx, r, nil)
}

// Next ends k like Failed, and picks again for the same request, among the pods to which it
// was not sent yet.
func (k *Pick) Next(ctx context.Context) (*Pick, error) {
	if !k.end(func() { k.abandon() }) {
		return nil, errors.New("picker: the pick has ended already")
	}
	next, err := k.picker.pick(ctx, k.request, append(slices.Clip(k.tried), k.Pod.Name))
	if err == nil && k.hop {
		next.holdPrompt()
	}
	return next, err
}

// holdPrompt makes the prompt count as held by the pod: another one computes it.
func (k *Pick) holdPrompt() {
	k.hop = true
	k.flight.FirstToken()
}

// FirstToken records that the first token of the answer has come: the prompt is computed.
func (k *Pick) FirstToken() {
	if !k.ended.Load() && k.first.CompareAndSwap(false, true) {
		k.flight.FirstToken()
	}
}

// Done records that the whole answer has come, with the usage that it reports: see UsageOf. -1
// is a missing figure.
func (k *Pick) Done(u kvindex.Usage) {
	k.end(func() { k.picker.ix.Observe(k.ticket, u) })
}

// Failed records that no answer came, or not all of it. After FirstToken the prompt counts as
// computed.
func (k *Pick) Failed() { k.end(k.abandon) }

func (k *Pick) abandon() {
	if k.first.Load() {
		k.picker.ix.Observe(k.ticket, unknownUsage)
	} else {
		k.picker.ix.Abandon(k.ticket)
	}
}

var unknownUsage = kvindex.Usage{PromptTokens: -1, CachedTokens: -1}

// end ends k, unless it has ended.
func (k *Pick) end(observe func()) bool {
	if !k.ended.CompareAndSwap(false, true) {
		return false
	}
	k.flight.Done()
	if k.ticket != (kvindex.Ticket{}) {
		observe()
	}
	return true
}

// scratch is the memory of one call of pick.
type scratch struct {
	request kvindex.Request
	answer  kvindex.Answer
	names   []string
	seen    []bool
	pods    []route.Pod
	route   route.Request
	chance  bool // chance decides between equal pods
}

// release keeps the memory, and nothing of the request.
func (p *Picker) release(s *scratch) {
	s.request = kvindex.Request{}
	s.answer.Text, s.answer.Unknown, s.answer.Degraded = "", nil, nil
	p.scratch.Put(s)
}

// pick is Pick, but does not choose the pods in tried.
func (p *Picker) pick(ctx context.Context, r *kvindex.Request, tried []string) (*Pick, error) {
	pool := p.current()
	s, _ := p.scratch.Get().(*scratch)
	if s == nil {
		s = new(scratch)
	}
	defer p.release(s)
	k := &Pick{picker: p, request: r, tried: tried}
	if r == nil {
		r = new(kvindex.Request)
	}
	s.request = *r
	s.request.Candidates, s.request.Ranks, s.request.Top = pool.candidates, pool.ranked, 0
	names := pool.names
	if r.Pods != nil || tried != nil {
		names = pool.without(s.names[:0], r.Pods, tried)
		s.names, s.request.Pods, s.request.Candidates = names, names, nil
	}
	if len(names) == 0 {
		return nil, pool.none(p.cfg.Model, r, tried)
	}
	s.chance = !hasPrompt(k.request)
	err := p.score(ctx, k, s)
	if errors.Is(err, kvindex.ErrRequest) {
		return nil, err
	}
	if !s.chance {
		k.Err = cmp.Or(err, s.answer.Unknown, s.answer.Degraded)
	}
	k.PromptTokens = s.answer.PromptTokens
	if err != nil {
		k.PromptTokens = min(max(len(r.Tokens)+(len(r.Body)+len(r.Prompt))/4, 1), maxEstimate)
		for _, name := range names {
			s.answer.Pods = append(s.answer.Pods, kvindex.PodScore{Pod: name})
		}
	}
	if pool.ranked {
		s.fitRanks(pool, names)
	}
	s.route = route.Request{Tokens: k.PromptTokens}
	if p.cfg.Affinity != nil && k.request != nil {
		s.route.Affinity = p.cfg.Affinity(k.request)
	}
	i := p.choose(pool, s)
	if i < 0 || i >= len(s.pods) {
		return nil, fmt.Errorf("%w: the policy chose %d of %d pods", ErrNoPod, i, len(s.pods))
	}
	chosen := &s.answer.Pods[i]
	k.Pod, k.Rank = pool.all[pool.byName[chosen.Pod]], chosen.Rank
	k.CachedTokens, k.PredictedTokens = chosen.CachedTokens, chosen.PredictedTokens
	k.flight = p.loads.Sent(chosen.Pod, s.pods[i].Rank, k.PromptTokens, chosen.PredictedTokens)
	if err == nil {
		if k.ticket, err = p.ix.Routed(&s.answer, chosen.Pod, chosen.Rank); err != nil {
			k.Err = errors.Join(k.Err, err)
		}
	}
	for name := chosen.Pod; len(k.Fallbacks) < p.cfg.Fallbacks; {
		s.answer.Pods = slices.DeleteFunc(s.answer.Pods, func(e kvindex.PodScore) bool { return e.Pod == name })
		if len(s.answer.Pods) == 0 {
			break
		}
		s.route.Fallback = true
		if i = p.choose(pool, s); i < 0 || i >= len(s.pods) {
			break
		}
		name = s.answer.Pods[i].Pod
		k.Fallbacks = append(k.Fallbacks, pool.all[pool.byName[name]])
	}
	return k, nil
}

// maxEstimate bounds the estimated tokens of a request without a score.
const maxEstimate = 8192

// hasPrompt reports whether r has a prompt. An empty Body that is not nil counts: it is a request
// that engines refuse.
func hasPrompt(r *kvindex.Request) bool {
	return r != nil && (r.Body != nil || r.Prompt != "" || r.Tokens != nil)
}

var errNoPrompt = errors.New("picker: the request has no prompt")

// score scores the request of s in time. The answer has an entry for each of its pods.
func (p *Picker) score(ctx context.Context, k *Pick, s *scratch) error {
	if !hasPrompt(k.request) {
		s.answer = kvindex.Answer{Pods: s.answer.Pods[:0]}
		return errNoPrompt
	}
	if s.request.Model == "" && namesNoModel(s.request.Body) {
		s.request.Model = p.cfg.Model
	}
	k.limit = limit{Context: ctx, at: time.Now().Add(p.cfg.Timeout)}
	defer k.limit.stop()
	err := p.ix.ScoreRequest(&k.limit, &s.request, &s.answer)
	if s.request.Model != "" || !errors.Is(err, kvindex.ErrRequest) {
		return err
	}
	body, _ := chat.Parse(s.request.Path, s.request.Body)
	if body == nil || body.Model != "" {
		return err
	}
	// Engines accept a body that names no model.
	if s.request.Model = p.cfg.Model; s.request.Model == "" {
		return errors.New("picker: the request names no model: set Config.Model")
	}
	return p.ix.ScoreRequest(&k.limit, &s.request, &s.answer)
}

// namesNoModel reports whether a body certainly names no model, so that it need not be parsed
// twice. If it is false, the body may still name none.
func namesNoModel(body []byte) bool {
	return !bytes.Contains(body, []byte(`"model"`)) &&
		!bytes.Contains(body, []byte(`\u006`)) // each letter of the key may be escaped
}

// choose lets the policy choose one of the scores of s.
func (p *Picker) choose(pool *pool, s *scratch) int {
	s.pods = s.answer.RoutePods(s.pods[:0])
	for i := range s.pods {
		pod := &s.pods[i]
		if s.chance {
			pod.Tie = rand.Uint64()
		}
		if pool.speeds || pod.Rank != 0 {
			of := &pool.all[pool.byName[pod.Name]]
			if pod.Speed = of.Speed; of.Ranks <= 1 {
				pod.Rank = 0 // the pod has one load, whatever ranks its events name
			}
		}
	}
	p.loads.Fill(s.pods)
	return p.cfg.Policy(&s.route, s.pods)
}

// without appends the names of the pods that are up and not in tried. If only is not nil, it
// appends those in only.
func (of *pool) without(dst, only, tried []string) []string {
	if only == nil {
		only = of.names
	}
	for _, name := range only {
		if at, ok := of.byName[name]; ok && !of.all[at].Down && !slices.Contains(tried, name) {
			dst = append(dst, name)
		}
	}
	return dst
}

// none returns the error of a pick that has no pod to choose. model is Config.Model.
func (of *pool) none(model string, r *kvindex.Request, tried []string) error {
	switch {
	case len(of.all) == 0 && of.foreign != "":
		return fmt.Errorf("%w: the Fleet has pods of model %.100q, and none of Config.Model, %.100q", ErrNoPod, of.foreign, model)
	case len(of.all) == 0:
		return fmt.Errorf("%w: neither Set nor the Fleet has named one", ErrNoPod)
	case r.Pods != nil && len(tried) == 0:
		return fmt.Errorf("%w: of the %d pods that the request names, none is up", ErrNoPod, len(r.Pods))
	}
	return fmt.Errorf("%w: of %d pods %d are down, and %d were tried", ErrNoPod, len(of.all), len(of.all)-len(of.names), len(tried))
}

// fitRanks makes the answer have one entry for each rank that a request can be sent to. A rank
// that has published nothing gets an entry without a score. A pod of one rank keeps its best
// entry, whose rank the engine chooses.
func (s *scratch) fitRanks(pool *pool, names []string) {
	s.seen = append(s.seen[:0], make([]bool, pool.ranks)...)
	scores := s.answer.Pods[:0]
	for _, e := range s.answer.Pods {
		at := pool.byName[e.Pod]
		rank := e.Rank
		if pool.all[at].Ranks <= 1 {
			rank = 0
		}
		if rank < max(pool.all[at].Ranks, 1) && !s.seen[pool.firstRank[at]+rank] {
			s.seen[pool.firstRank[at]+rank] = true
			scores = append(scores, e)
		}
	}
	for _, name := range names {
		at := pool.byName[name]
		for rank := range max(pool.all[at].Ranks, 1) {
			if !s.seen[pool.firstRank[at]+rank] {
				scores = append(scores, kvindex.PodScore{Pod: name, Rank: rank})
			}
		}
	}
	s.answer.Pods = scores
}

// limit is a context that ends at a time. Only a score that waits needs a timer, and few do:
// context.WithTimeout would make one for each.
type limit struct {
	context.Context
	at time.Time

	mu      sync.Mutex // guards the fields below
	timed   context.Context
	cancel  context.CancelFunc
	stopped bool
}

func (l *limit) Deadline() (time.Time, bool) {
	if at, ok := l.Context.Deadline(); ok && at.Before(l.at) {
		return at, true
	}
	return l.at, true
}

func (l *limit) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timed == nil {
		l.timed, l.cancel = context.WithDeadline(l.Context, l.at)
		if l.stopped {
			l.cancel()
		}
	}
	return l.timed.Done()
}

func (l *limit) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.timed != nil:
		return l.timed.Err()
	case l.stopped:
		return context.Canceled
	case l.Context.Err() != nil:
		return l.Context.Err()
	case !time.Now().Before(l.at):
		return context.DeadlineExceeded
	}
	return nil
}

// stop ends the context.
func (l *limit) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped = true; l.cancel != nil {
		l.cancel()
	}
}
