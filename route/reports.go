package route

import "math"

// flightSums has sums over flights that were sent.
type flightSums struct{ flights, prompt, prefill float64 }

func (f *flightSums) add(o flightSums) {
	f.flights += o.flights
	f.prompt += o.prompt
	f.prefill += o.prefill
}

// maxMeanFlights bounds the number of flights in a mean, to at most twice this number, so that the mean
// follows the traffic.
const maxMeanFlights = 4096

// Reported records how many requests wait and run at a rank of a pod, as its engine reports them:
// package route/load reads that from the engine's metrics. So the requests of gateways count
// that send no Changes. Call it for each rank of each pod, every second for example, as soon as
// the engine has answered; with 0 and 0 it takes an earlier report back.
//
// Requests that the Tracker counts, from flights and other gateways, are subtracted. The rest counts as
// load until the next report, at most for a MaxAge. Their prompts are not known, so
// each counts as the mean of the flights from here: as Prefill, in the proportion in which
// requests wait, and else as Decode. It is an estimate: engines report late, and flights on
// their way to the engine are subtracted too.
func (t *Tracker) Reported(pod string, rank, waiting, running int) {
	now := t.now()
	t.tidy(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	name, at := originName{engines: true}, podRank{pod, rank}
	o := t.origins[name]
	if o == nil {
		o = t.origin(name, 0)
	}
	known := -int64(o.pods[at].load.Requests) // without those of an earlier report
	if p := t.pods[at]; p != nil {
		known += p.own.requests.Load() + p.others.requests.Load()
		p.mu.Lock()
		t.sums.add(p.sums)
		p.sums = flightSums{}
		p.mu.Unlock()
	}
	if n := t.sums.flights; n > 2*maxMeanFlights {
		t.sums = flightSums{maxMeanFlights, t.sums.prompt * maxMeanFlights / n, t.sums.prefill * maxMeanFlights / n}
	}
	waits := int64(bounded(waiting))
	all := waits + int64(bounded(running))
	var rest Load
	if more := all - known; more > 0 {
		queued, flights := float64(more)*float64(waits)/float64(all), max(t.sums.flights, 1)
		rest = Load{
			Requests: int(min(more, math.MaxInt32)),
			Prefill:  int(min(queued*t.sums.prefill/flights, math.MaxInt32)),
			Decode:   int(min((float64(more)-queued)*t.sums.prompt/flights, math.MaxInt32)),
		}
	}
	o.received, o.seq = now, o.seq+1
	t.replace(o, at, lastNote{rest, o.seq, now})
}
