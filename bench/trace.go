package bench

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// Trace is a recording of requests, in the order of their arrival.
type Trace struct {
	BlockTokens int
	Requests    []Request
}

// Request is one request of a trace.
type Request struct {
	At     int64    // arrival in ms
	Input  int      // tokens of the prompt
	Output int      // tokens of the answer
	Blocks []uint64 // names of the full blocks of the prompt; one name has one content
}

// ErrTrace is wrapped by the errors about traces that cannot be read.
var ErrTrace = errors.New("bench: bad trace")

const (
	// maxTokens bounds the prompt and the answer of a request, and with them
	// what a line can make us allocate.
	maxTokens = 1 << 20
	// sharedNames is above the names in traces: block i of the system prompt and
	// tools is sharedNames+i in all conversations.
	sharedNames = 1 << 40
	// answerNames is above those: blocks of answers, which no trace names.
	answerNames = 1 << 41
)

// traces lists the files that Load reads.
var traces = map[string]struct {
	blockTokens int
	read        func(r io.Reader, blockTokens, limit int) ([]Request, error)
}{
	"conversation_512": {512, readIDs},
	"synthetic_512":    {512, readIDs},
	"agentic_64":       {64, readRuns},
}

// Load reads the trace NAME.jsonl.gz in a folder: the first limit requests to
// arrive, or all if limit is 0.
func Load(folder, name string, limit int) (*Trace, error) {
	form, ok := traces[name]
	if !ok {
		return nil, fmt.Errorf("%w: %q is not a known one", ErrTrace, name)
	}
	f, err := os.Open(filepath.Join(folder, name+".jsonl.gz"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrTrace, name, err)
	}
	requests, err := form.read(z, form.blockTokens, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Trace{BlockTokens: form.blockTokens, Requests: requests}, nil
}

// readIDs reads Mooncake's form: each line has the names of all blocks. Its last
// block is mostly not full, and no engine names such a block.
func readIDs(r io.Reader, blockTokens, limit int) ([]Request, error) {
	var requests []Request
	err := eachLine(r, func(line []byte) error {
		var v struct {
			Timestamp int64    `json:"timestamp"`
			Input     int      `json:"input_length"`
			Output    int      `json:"output_length"`
			IDs       []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(line, &v); err != nil {
			return err
		}
		q := Request{At: v.Timestamp, Input: v.Input, Output: v.Output}
		if err := q.check(); err != nil {
			return err
		}
		q.Blocks = slices.Clone(v.IDs[:min(len(v.IDs), v.Input/blockTokens)])
		for _, b := range q.Blocks {
			if b >= sharedNames {
				return fmt.Errorf("block %d", b)
			}
		}
		requests = append(requests, q)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(requests, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return requests[:first(limit, len(requests))], nil
}

// sessions is how many conversations of an agentic trace run at a time: the
// trace has the clock of each conversation alone.
const sessions = 32

// runs is a request of which the blocks are not listed yet: in most traces all
// lists together take a hundred times the memory of the runs.
type runs struct {
	Request
	runs   [][2]uint64 // first number and count
	first  uint64      // the number where the conversation begins
	system uint64      // how many numbers from there on are the system prompt's
}

// readRuns reads the agentic form: each line has the names of the blocks as runs
// of consecutive numbers, which are unique per conversation. The first
// system_tokens of a conversation, its lowest numbers, are a prompt that
// conversations share in production, and so here.
func readRuns(r io.Reader, blockTokens, limit int) ([]Request, error) {
	var all []runs
	var idle [sessions]int64 // when each session has ended its last conversation
	var name string          // of the current conversation
	var session, from int    // where it runs, and its first request in all
	err := eachLine(r, func(line []byte) error {
		var v struct {
			Conversation string      `json:"conv"`
			Timestamp    int64       `json:"timestamp"`
			Input        int         `json:"input_length"`
			Output       int         `json:"output_length"`
			System       int         `json:"system_tokens"`
			Runs         [][2]uint64 `json:"runs"`
		}
		if err := json.Unmarshal(line, &v); err != nil {
			return err
		}
		q := runs{Request: Request{At: v.Timestamp, Input: v.Input, Output: v.Output}, runs: v.Runs}
		if err := errors.Join(q.check(), q.checkRuns(v.System, blockTokens)); err != nil {
			return err
		}
		if v.Conversation != name || len(all) == 0 {
			for i := range all[from:] {
				idle[session] = max(idle[session], all[from+i].At+1)
			}
			name, from = v.Conversation, len(all)
			session = slices.Index(idle[:], slices.Min(idle[:]))
			q.first, q.system = v.Runs[0][0], uint64(v.System/blockTokens)
		} else {
			q.first, q.system = all[from].first, all[from].system
		}
		q.At += idle[session]
		all = append(all, q)
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b runs) int { return cmp.Compare(a.At, b.At) })
	requests := make([]Request, first(limit, len(all)))
	for i := range requests {
		requests[i] = all[i].Request
		requests[i].Blocks = all[i].list()
	}
	return requests, nil
}

func (q *runs) checkRuns(system, blockTokens int) error {
	if system < 0 || len(q.runs) == 0 {
		return fmt.Errorf("%d system tokens and %d runs", system, len(q.runs))
	}
	left := uint64(max(0, q.Input) / blockTokens)
	for _, run := range q.runs {
		if run[0] >= sharedNames || run[1] > left {
			return fmt.Errorf("run of %d from %d where %d blocks are left", run[1], run[0], left)
		}
		left -= run[1]
	}
	return nil
}

func (q *runs) list() []uint64 {
	var blocks []uint64
	for _, run := range q.runs {
		for i := range run[1] {
			b := run[0] + i
			if b >= q.first && b-q.first < q.system {
				b = sharedNames + b - q.first
			}
			blocks = append(blocks, b)
		}
	}
	return blocks
}

func (q *Request) check() error {
	const year = 366 * 24 * 3600 * 1000
	if q.At < 0 || q.At > year || q.Input < 0 || q.Input > maxTokens || q.Output < 0 || q.Output > maxTokens {
		return fmt.Errorf("%d and %d tokens at %d ms", q.Input, q.Output, q.At)
	}
	return nil
}

// first is how many of n a limit leaves; 0 is no limit.
func first(limit, n int) int {
	if limit <= 0 {
		return n
	}
	return min(limit, n)
}

func eachLine(r io.Reader, do func([]byte) error) error {
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		if err := do(lines.Bytes()); err != nil {
			return fmt.Errorf("%w: line %d: %w", ErrTrace, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrTrace, err)
	}
	return nil
}
