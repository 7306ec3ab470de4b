// Package load reads the load of an engine from its metrics page, for pods that other gateways
// use too. It opens no connection: the host gets the page, GET /metrics of vLLM, or of SGLang
// with --enable-metrics, and gives the reports to its route.Tracker:
//
//	reports, err := load.Read(resp.Body, pod.Ranks)
//	...
//	for _, r := range reports {
//		tracker.Reported(pod.Name, r.Rank, r.Waiting, r.Running)
//	}
package load

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// # The series
//
// vLLM (vllm/v1/metrics/loggers.py) has one series for each data-parallel rank, which the label
// "engine" names. Beside several API servers a series may have a label "pid" with one value
// for each of them (the process with the newest figure is not marked).
//
// SGLang (python/sglang/srt/observability/metrics_collector.py of 0.5.16, before it
// srt/metrics/collector.py) has the label "dp_rank", if it has such ranks. All tensor-parallel
// ranks of one report the same with --enable-metrics-for-all-schedulers. With priorities the
// total has the label priority="", and each priority has a series of its own.
//
// So all series of one rank are about the same requests, and the largest figure is the total.
// The figures of ranks are about different requests, and add up.

// A Report is the load of a rank, as its engine reports it.
type Report struct {
	Rank    int // data-parallel
	Waiting int // requests in the queue
	Running int // requests that are computed or generate
}

const (
	maxPage     = 16 << 20 // bytes
	maxRanks    = 1 << 10
	maxRequests = 1 << 20 // of a rank; the sum of all ranks is an int32
)

const (
	waiting = iota
	running
	figures
)

// An engine is how a kind of engine names its figures.
type engine struct {
	rank  string // the label
	names [figures]string
}

var engines = []engine{
	{"engine", [figures]string{
		waiting: "vllm:num_requests_waiting",
		running: "vllm:num_requests_running",
	}},
	{"dp_rank", [figures]string{
		waiting: "sglang:num_queue_reqs",
		running: "sglang:num_running_reqs",
	}},
}

// find returns the engine that has a series of this name, and its figure; nil: none has.
func find(name string) (*engine, int) {
	for i := range engines {
		if figure := slices.Index(engines[i].names[:], name); figure >= 0 {
			return &engines[i], figure
		}
	}
	return nil, 0
}

// Read reads a page in Prometheus' text format. Ranks is the number of data-parallel ranks that
// a request can be sent to (picker.Pod.Ranks). If it is at most 1, there is one Report, of rank
// 0: requests of all ranks are added. Else there is one for each rank that the page names, in
// their order.
//
// An error names the line, and what is wrong with it. It is one too if the page has a figure of
// neither engine, or lacks one for a rank, if it names ranks that are not below Ranks, or has
// figures of both engines. A page may have 16 MiB. Lines about other series are not read.
func Read(page io.Reader, ranks int) ([]Report, error) {
	text, err := io.ReadAll(io.LimitReader(page, maxPage+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("load: %w", err)
	case len(text) > maxPage:
		return nil, fmt.Errorf("load: the page is longer than %d bytes", maxPage)
	case len(text) > 0 && text[len(text)-1] != '\n':
		return nil, errors.New("load: the page ends within a line")
	}
	var of *engine
	found := make(map[int]*[figures]float64) // by rank; below 0: missing
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line = bytes.Trim(line, " \t\r\n")
		end := bytes.IndexAny(line, "{ \t")
		if end < 0 {
			continue
		}
		kind, figure := find(string(line[:end]))
		if kind == nil {
			continue
		}
		if of != nil && of != kind {
			return nil, fmt.Errorf("load: line %d: the page has figures of %s and of %s", number, of.names[0], kind.names[0])
		}
		of = kind
		rank, value, err := kind.sample(string(line[end:]))
		if err == nil && ranks > 1 && rank >= ranks {
			err = fmt.Errorf("rank %d, of %d ranks", rank, ranks)
		}
		if err != nil {
			return nil, fmt.Errorf("load: line %d: %s: %w", number, line[:end], err)
		}
		at := found[rank]
		if at == nil {
			at = &[figures]float64{-1, -1}
			found[rank] = at
		}
		at[figure] = max(at[figure], value)
	}
	if of == nil {
		return nil, errors.New("load: the page has no figures of vLLM or SGLang")
	}
	var reports []Report
	for _, rank := range slices.Sorted(maps.Keys(found)) {
		at := found[rank]
		for figure, value := range at {
			if value < 0 {
				return nil, fmt.Errorf("load: rank %d has no %s", rank, of.names[figure])
			}
		}
		reports = append(reports, Report{rank, int(at[waiting]), int(at[running])})
	}
	if ranks > 1 {
		return reports, nil
	}
	all := Report{}
	for _, r := range reports {
		all.Waiting, all.Running = all.Waiting+r.Waiting, all.Running+r.Running
	}
	return []Report{all}, nil
}

// sample reads the labels and the value of a line.
func (e *engine) sample(s string) (rank int, value float64, err error) {
	s = strings.TrimLeft(s, " \t")
	if strings.HasPrefix(s, "{") {
		var of string
		if of, s, err = label(s[1:], e.rank); err != nil {
			return 0, 0, err
		}
		if rank, err = strconv.Atoi(cmp.Or(of, "0")); err != nil || rank < 0 || rank >= maxRanks {
			return 0, 0, fmt.Errorf("%s is %.100q, a rank from 0 to %d is expected", e.rank, of, maxRanks-1)
		}
	}
	fields := strings.Fields(s) // a timestamp may follow
	if len(fields) == 0 {
		return 0, 0, errors.New("it has no value")
	}
	value, err = strconv.ParseFloat(fields[0], 64)
	switch {
	case err != nil || math.IsNaN(value):
		return 0, 0, fmt.Errorf("its value is %.100q", fields[0])
	case value < 0 || value > maxRequests || value != math.Trunc(value):
		return 0, 0, fmt.Errorf("its value is %.100q, a number of requests is expected", fields[0])
	}
	return rank, value, nil
}

// label returns the value of the label of this name, "" without it, and what follows the labels.
func label(s, name string) (value, rest string, err error) {
	for {
		s = strings.TrimLeft(s, " \t")
		if rest, ok := strings.CutPrefix(s, "}"); ok {
			return value, rest, nil
		}
		key, after, ok := strings.Cut(s, "=")
		if after = strings.TrimLeft(after, " \t"); !ok || !strings.HasPrefix(after, `"`) {
			return "", "", errors.New("a label has no value, or the labels have no end")
		}
		end := 1
		for ; end < len(after) && after[end] != '"'; end++ {
			if after[end] == '\\' {
				end++
			}
		}
		if end >= len(after) {
			return "", "", errors.New("the value of a label has no end")
		}
		if strings.TrimRight(key, " \t") == name {
			value = after[1:end]
		}
		s = strings.TrimLeft(after[end+1:], " \t")
		s = strings.TrimPrefix(s, ",")
	}
}
