package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
)

// trace is requests in the order of the lines of a file. Blocks have numbers from 0 on; a
// number stands for a block and all before it.
type trace struct {
	requests [][]numbers
	blocks   int    // different ones
	end      uint32 // behind the highest number
	touched  int    // by all requests together
}

// numbers are n numbers that follow each other.
type numbers struct{ first, n uint32 }

// Bounds of a line, and so of the memory that a line can allocate.
const (
	maxNumber = 1 << 26 // of blocks
	maxPrompt = 1 << 20 // blocks
)

// load reads a trace. A line has the blocks of a prompt as hash_ids, or as runs of
// [first, count]. Equal numbers are equal blocks.
func load(name string, limit int) (*trace, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tr, err := read(f, limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return tr, nil
}

func read(r io.Reader, limit int) (*trace, error) {
	in := bufio.NewReader(r)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = bufio.NewReader(z)
	}
	tr := &trace{}
	for line := 1; limit == 0 || len(tr.requests) < limit; line++ {
		text, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(text)) > 0 {
			if err := tr.add(text); err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
		}
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	if tr.touched == 0 {
		return nil, errors.New("no blocks")
	}
	seen := make([]bool, tr.end)
	for _, q := range tr.requests {
		for _, r := range q {
			for b := r.first; b < r.first+r.n; b++ {
				if !seen[b] {
					seen[b] = true
					tr.blocks++
				}
			}
		}
	}
	return tr, nil
}

func (tr *trace) add(text []byte) error {
	var v struct {
		IDs  []uint64    `json:"hash_ids"`
		Runs [][2]uint64 `json:"runs"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	var q []numbers
	for _, id := range v.IDs {
		v.Runs = append(v.Runs, [2]uint64{id, 1})
	}
	n := uint64(0)
	for _, run := range v.Runs {
		if run[0] > maxNumber || run[1] > maxPrompt || run[0]+run[1] > maxNumber || n+run[1] > maxPrompt {
			return fmt.Errorf("%d blocks from number %d on, behind %d: a prompt has at most %d, and numbers end at %d", run[1], run[0], n, maxPrompt, maxNumber)
		}
		n += run[1]
		tr.end = max(tr.end, uint32(run[0]+run[1]))
		q = append(q, numbers{uint32(run[0]), uint32(run[1])})
	}
	tr.touched += int(n)
	tr.requests = append(tr.requests, q)
	return nil
}

// list appends the blocks of a request.
func list(b []uint32, q []numbers) []uint32 {
	for _, r := range q {
		for i := range r.n {
			b = append(b, r.first+i)
		}
	}
	return b
}

// optimum returns how many blocks of prefixes a memory of so many blocks finds if it lets
// go of the block that is used last of all. A block is used by each request that uses one behind
// it, so of those that the same request uses next, the one that lies last in its prompt
// goes first: then what is there of a prompt is always a prefix, and no order finds more.
// A block that comes need not stay.
func (tr *trace) optimum(room int) (hits int) {
	type use struct{ depth, block uint32 }
	next := tr.next()
	due := make([][]use, len(tr.requests)) // the cached blocks, by the request that uses them next
	var blocks []uint32
	far := 0 // no block is used after it
	held := 0
	for t, q := range tr.requests {
		hits += len(due[t])
		held -= len(due[t])
		due[t] = nil
		blocks = list(blocks[:0], q)
		at := 0
		for _, r := range next[t] {
			for range r.n {
				if r.first != never {
					due[r.first] = append(due[r.first], use{uint32(at), blocks[at]})
					held++
					far = max(far, int(r.first))
				}
				at++
			}
		}
		for held > room {
			for len(due[far]) == 0 {
				far--
			}
			// A request before this one can have put the beginning behind the end.
			slices.SortFunc(due[far], func(a, b use) int { return cmp.Compare(a.depth, b.depth) })
			n := min(held-room, len(due[far]))
			due[far] = due[far][:len(due[far])-n]
			held -= n
		}
	}
	return hits
}

const never = math.MaxUint32

// next returns, for each request, the requests that use its blocks next: the first of these
// and for how many blocks, in the order of the blocks.
func (tr *trace) next() [][]numbers {
	next := make([][]numbers, len(tr.requests))
	later := make([]uint32, tr.end)
	for i := range later {
		later[i] = never
	}
	for t, q := range slices.Backward(tr.requests) {
		for _, r := range q {
			for b := r.first; b < r.first+r.n; b++ {
				if n := len(next[t]); n > 0 && next[t][n-1].first == later[b] {
					next[t][n-1].n++
				} else {
					next[t] = append(next[t], numbers{later[b], 1})
				}
				later[b] = uint32(t)
			}
		}
	}
	return next
}
