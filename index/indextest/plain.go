package indextest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/inmemory"
	"github.com/kvindex/kvindex/internal/trace"
)

// plain is an index of maps and slices behind one mutex, written to be read
// beside the contract and to be right, whatever it costs.
//
// All that it keeps of a cache is the names: of each hash, what it stands for
// and who holds it. Nothing is kept twice, so that nothing can contradict
// itself.
type plain struct {
	seed   [16]byte
	bounds Config
	cost   plainCost

	mu     sync.Mutex // guards what follows
	closed bool
	pods   map[string]map[index.Source]*plainSource
}

var (
	_ index.Index         = (*plain)(nil)
	_ index.Describer     = (*plain)(nil)
	_ index.SourceRemover = (*plain)(nil)
	_ inmemory.Explainer  = (*plain)(nil)
)

// NewPlain returns an empty index that passes [Run], so it serves tests as a second
// opinion, and its source the author of a backend as an example. Do not use it for
// anything else: an answer looks at every name of every candidate. A field of bounds
// that is 0 bounds nothing.
func NewPlain(seed [16]byte, bounds Config) index.Index { return newPlain(seed, bounds) }

func newPlain(seed [16]byte, bounds Config) *plain {
	return &plain{seed: seed, bounds: bounds, cost: plainCost{256, 160, 8}, pods: map[string]map[index.Source]*plainSource{}}
}

// plainCost is the count of a waiting store in bytes: it, and each of its
// hashes and locals.
type plainCost struct{ store, hash, local int }

// Seed implements index.Index.
func (p *plain) Seed() [16]byte { return p.seed }

// usable returns an error if a call cannot be served. The caller has locked p.
func (p *plain) usable(ctx context.Context) error {
	if p.closed {
		return index.ErrClosed
	}
	return ctx.Err()
}

// Apply implements index.Index.
func (p *plain) Apply(ctx context.Context, src index.Source, cur index.Cursor, changes []index.Change) (index.Effect, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(ctx); err != nil {
		return index.Effect{}, err
	}
	for i := range changes {
		if err := changes[i].Validate(); err != nil {
			return index.Effect{}, fmt.Errorf("change %d: %w", i, err)
		}
	}
	s := p.source(src)
	if cur != (index.Cursor{}) {
		if old, ok := s.cursors[cur.Stream]; ok && !old.Before(cur) {
			return index.Effect{Duplicate: true}, nil
		}
		s.cursors[cur.Stream] = cur
	}
	s.counts, s.changes = index.Counts{}, changes
	s.clearUnseen(changes)
	for i := range changes {
		s.apply(&changes[i])
	}
	s.settle()
	s.changes, s.prompt = nil, plainRoot{}
	return index.Effect{Counts: s.counts}, nil
}

func (p *plain) source(src index.Source) *plainSource {
	if p.pods[src.Pod] == nil {
		p.pods[src.Pod] = map[index.Source]*plainSource{}
	}
	s := p.pods[src.Pod][src]
	if s == nil {
		s = &plainSource{
			bounds: p.bounds, cost: p.cost, cursors: map[string]index.Cursor{}, groups: map[int]*plainGroup{},
			names: map[index.Hash]*plainName{}, before: map[plainKey]index.Key{},
		}
		p.pods[src.Pod][src] = s
	}
	return s
}

// Cursor implements index.Index.
func (p *plain) Cursor(ctx context.Context, src index.Source, stream string) (index.Cursor, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(ctx); err != nil {
		return index.Cursor{}, err
	}
	if s := p.pods[src.Pod][src]; s != nil {
		return s.cursors[stream], nil
	}
	return index.Cursor{}, nil
}

// Remove implements index.Index.
func (p *plain) Remove(ctx context.Context, pod string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(ctx); err != nil {
		return err
	}
	delete(p.pods, pod)
	return nil
}

// RemoveSource implements index.SourceRemover.
func (p *plain) RemoveSource(ctx context.Context, src index.Source) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(ctx); err != nil {
		return err
	}
	delete(p.pods[src.Pod], src)
	return nil
}

// Close implements index.Index.
func (p *plain) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.pods = true, nil
	return nil
}

// Describe implements index.Describer. It reports no bytes of names.
func (p *plain) Describe(dst []index.SourceInfo) []index.SourceInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, sources := range p.pods {
		for src, s := range sources {
			dst = append(dst, s.describe(src))
		}
	}
	return dst
}

// DescribeSource implements index.Describer.
func (p *plain) DescribeSource(src index.Source) (info index.SourceInfo, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.pods[src.Pod][src]
	if s == nil {
		return info, false
	}
	return s.describe(src), true
}

// MemoryUsage implements index.Describer. It reports no bytes.
func (p *plain) MemoryUsage() (u index.MemoryUsage) {
	for _, s := range p.Describe(nil) {
		for _, n := range s.Blocks {
			u.Memberships += n
		}
	}
	return u
}

func (s *plainSource) describe(src index.Source) index.SourceInfo {
	info := index.SourceInfo{Source: src}
	for h, n := range s.names {
		if s.unplaced(h) {
			info.Unplaced++
		}
		for _, b := range n.held {
			if b.n > 0 {
				info.Blocks[b.at.tier]++
			}
		}
	}
	for _, w := range s.waiting {
		if w.parked {
			info.Parked++
		}
	}
	return info
}

// Explain implements inmemory.Explainer.
func (p *plain) Explain(ctx context.Context, src index.Source, b inmemory.Block) (t trace.Trace, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(ctx); err != nil {
		return t, err
	}
	if err := b.Check(b.Variant.Unit); err != nil {
		return t, fmt.Errorf("%w: %w", index.ErrInvalid, err)
	}
	s := p.pods[src.Pod][src]
	if s == nil {
		return t, nil
	}
	t.Gone = s.gone(plainKey{b.Variant, b.Key})
	by, unplaced := plainCut{b.Variant, b.Size}, map[index.Hash]bool{}
	for _, w := range s.waiting {
		if !w.parked {
			for _, h := range w.hashes {
				if s.unplaced(h) && s.has(h, w.at) && (s.cutOf(s.names[h].of(w.at)) == by || s.cutOf(s.names[h].of(w.at)) == plainCut{}) {
					unplaced[h] = true
				}
			}
			continue
		}
		if w.by != by || w.gone[w.hashes[0]] {
			continue
		}
		units := w.by.units()
		for i := b.Number; (i+1)*units <= len(b.Locals); i++ {
			rest := b.Locals[i*units:]
			if n := min(len(rest), len(w.locals)); !slices.Equal(rest[:n], w.locals[:n]) {
				continue
			}
			if t.Parked++; t.Parked == 1 || i < t.ParkedAt {
				t.ParkedAt = i
			}
			break
		}
	}
	t.Unplaced = len(unplaced)
	return t, nil
}

// plainPrompt is a prompt in one variant: after how many units a key stands.
type plainPrompt struct {
	variant index.Variant
	units   int
	ends    map[index.Key]int
}

// Match implements index.Index. It requests keys with p unlocked, until it has
// those of all variants that the candidates have by then.
func (p *plain) Match(ctx context.Context, q *index.Query, m *index.Matches) error {
	m.Reset()
	var prompts []plainPrompt
	for {
		missing, err := p.answer(ctx, q, prompts, m)
		if err != nil || len(missing) == 0 {
			return err
		}
		for _, v := range missing {
			keys, err := q.Keys(v)
			if err != nil {
				return err
			}
			ends := map[index.Key]int{}
			for i, k := range keys {
				ends[k] = i + 1
			}
			prompts = append(prompts, plainPrompt{v, len(keys), ends})
		}
	}
}

// answer fills m, or returns the variants in which it needs the prompt as well.
func (p *plain) answer(ctx context.Context, q *index.Query, prompts []plainPrompt, m *index.Matches) (missing []index.Variant, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(ctx); err != nil {
		return nil, err
	}
	if q.Candidates == nil {
		return nil, fmt.Errorf("%w: the query has no Candidates", index.ErrInvalid)
	}
	pods := map[string]int32{} // the candidates' positions
	for i, pod := range q.Candidates.Pods() {
		pods[pod] = int32(i)
	}
	if q.Candidates.Pods() == nil {
		for pod := range p.pods {
			pods[pod] = -1
		}
	}
	each := func(f func(index.Source, *plainSource)) {
		for pod := range pods {
			for src, s := range p.pods[pod] {
				if src.Model == q.Candidates.Model() {
					f(src, s)
				}
			}
		}
	}
	each(func(_ index.Source, s *plainSource) {
		for _, v := range s.variants() {
			if !slices.Contains(missing, v) && !slices.ContainsFunc(prompts, func(p plainPrompt) bool { return p.variant == v }) {
				missing = append(missing, v)
			}
		}
	})
	if len(missing) > 0 {
		return missing, nil
	}
	each(func(src index.Source, s *plainSource) {
		layout := s.layout()
		for _, prompt := range prompts {
			for of, held := range s.blocks(prompt) {
				row := index.Row{Pod: pods[src.Pod], View: &index.View{
					Source: src, Group: s.groups[of.group].Group, BlockSize: of.by.size, Pairs: of.by.variant.Pairs, Layout: layout,
				}}
				count(&row, held)
				switch {
				case q.Held || len(row.Groups) != 1 || row.Groups[0].Kind != index.GroupFull:
					row.Held = heldBits(held, prompt.units/of.by.units(), m)
				case row.Run == 0:
					continue
				}
				m.Rows = append(m.Rows, row)
			}
		}
	})
	return nil, nil
}

// variants are those of the blocks that are held.
func (s *plainSource) variants() (variants []index.Variant) {
	for _, n := range s.names {
		for _, b := range n.held {
			if by := s.cutOf(b); b.n > 0 && by != (plainCut{}) && !slices.Contains(variants, by.variant) {
				variants = append(variants, by.variant)
			}
		}
	}
	return variants
}

// plainRow is whose blocks a row speaks of, within a source.
type plainRow struct {
	group int
	by    plainCut
}

// plainHeld is the blocks of a prompt that are held, by tier.
type plainHeld [index.NumTiers]map[int]bool

// blocks returns the blocks of a prompt that s holds. A block is seen if it ends where a
// block of the prompt does.
func (s *plainSource) blocks(prompt plainPrompt) map[plainRow]*plainHeld {
	rows := map[plainRow]*plainHeld{}
	for _, n := range s.names {
		for _, k := range n.keys {
			end, ok := prompt.ends[k.key]
			if !ok || k.variant != prompt.variant {
				continue
			}
			for _, b := range n.held {
				by := s.cutOf(b)
				if b.n == 0 || by.variant != prompt.variant || end%by.units() != 0 {
					continue
				}
				row := plainRow{b.at.group, by}
				if rows[row] == nil {
					rows[row] = new(plainHeld)
				}
				if rows[row][b.at.tier] == nil {
					rows[row][b.at.tier] = map[int]bool{}
				}
				rows[row][b.at.tier][end/by.units()-1] = true
			}
		}
	}
	return rows
}

func (s *plainSource) layout() *index.Layout {
	l := new(index.Layout)
	for _, id := range slices.Sorted(maps.Keys(s.groups)) {
		g := s.groups[id]
		l.Groups = append(l.Groups, index.GroupLayout{Group: g.Group, BlockSize: g.by.size, Grain: g.grain})
	}
	return l
}

// count fills in the runs of a row.
func count(row *index.Row, held *plainHeld) {
	for block := 0; ; block++ {
		best := slices.IndexFunc(held[:], func(blocks map[int]bool) bool { return blocks[block] })
		if best < 0 {
			return
		}
		if best == int(index.TierGPU) && row.GPU == row.Run {
			row.GPU++
		}
		row.Run++
		row.Tiers[best]++
	}
}

func heldBits(held *plainHeld, blocks int, m *index.Matches) *[index.NumTiers][]uint64 {
	var sets [index.NumTiers][]uint64
	for t := range held {
		for block := range held[t] {
			if sets[t] == nil {
				sets[t] = m.Bits(blocks)
			}
			sets[t][block/64] |= 1 << (block % 64)
		}
	}
	return &sets
}
