package tokenize

import "fmt"

const (
	LongText   = longText
	MaxLookups = maxLookups
	MaxFailed  = maxFailed
	MaxNames   = maxNames
	FailedFor  = failedFor
)

// Size is the size of t in a Pool.
func (t *BPE) Size() int64 { return int64(t.size()) }

// Begun returns the bytes of the long texts in progress.
func (p *Pool) Begun() int64 {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	return p.gate.begun
}

// SetMaxWaiting sets the bound of the waiting texts, in bytes.
func (p *Pool) SetMaxWaiting(bytes int64) { p.gate.maxWaiting = bytes }

// Check returns an inconsistency of an idle Pool.
func (p *Pool) Check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := map[*file]int{}
	for _, f := range *p.named.Load() {
		names[f]++
	}
	bytes := int64(0)
	for _, f := range p.files {
		bytes += f.size
		if f.size == 0 || f.lookups != 0 || f.names == 0 || f.names != names[f] || f.tokenizer == nil {
			return fmt.Errorf("a file of %d bytes has %d lookups and %d names, of %d", f.size, f.lookups, f.names, names[f])
		}
		delete(names, f)
	}
	switch {
	case len(names) > 0:
		return fmt.Errorf("names of %d files that are gone", len(names))
	case bytes != p.bytes || bytes > p.memory:
		return fmt.Errorf("%d bytes, counted %d, at most %d", bytes, p.bytes, p.memory)
	case len(p.pending) > 0 || len(p.lookups) > 0 || len(p.parses) > 0:
		return fmt.Errorf("%d lookups, %d places and %d parses are not over", len(p.pending), len(p.lookups), len(p.parses))
	case len(p.failed) > maxFailed || len(*p.named.Load()) > maxNames:
		return fmt.Errorf("%d failures and %d names are remembered", len(p.failed), len(*p.named.Load()))
	}
	return p.gate.untouched()
}
