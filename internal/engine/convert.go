// Convert: events become changes of the index.
//
// # Media and embeddings
//
// Media and embeddings enter the local of a unit: an item enters the unit in which it starts,
// by its identifier and its offset. So a chain inherits them, and no other code handles them.
// With MediaPad (SGLang) the media are in the tokens already. No request can name embeddings,
// extra keys of an unknown form, or media of another form than that of the Profile. They enter
// too, so their blocks match nothing, and count as stats.Counters.Unscored.
//
// # Unknown events and labels
//
// They are marked and not guessed. An event of an unknown kind may be a removal, so the scores
// of its pod are upper bounds until the cache of the pod is emptied. An unknown label or key
// can only hide blocks. Names come from peers, so only a few are kept (MaxUnrecognized). There
// is no state for this: the view is as complete as before, and a state would make hosts
// distrust a pod because of a harmless event.

package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/hashunit"
	"github.com/kvindex/kvindex/stats"
	"github.com/zeebo/xxh3"
)

// Converter converts decoded batches to changes. Its memory is reused; the
// changes are valid until the next batch.
type Converter struct {
	Hash    hashing.Hasher
	Model   string
	Profile Profile
	// Partial: a part of the history of the rank is missing.
	Partial bool
	// Spared has the tiers that an event that empties the cache without naming a tier leaves,
	// because another stream reports them.
	Spared Tiers
	// Shared: other streams report the host memory, too, or alone.
	Shared bool
	Recent *Recent       // of the pod and model
	Groups []stats.Group // that earlier batches of the rank have named

	Changes []index.Change
	Skipped skips
	// Unrecognized has the parts of the batch that are not recognized, after the last change
	// that clears everything.
	Unrecognized []string
	// Tiered: the batch stores blocks in a tier below the gpu. Paged: some of these are pages.
	Tiered    bool
	Paged     bool
	Single    bool          // some chunks that describe themselves are one block, and those of the profile more
	MayRemove bool          // one of them may be a removal
	groups    []stats.Group // groups of the batch, corrected by the profile
	all       []stats.Group // Groups and those of the batch; empty: not needed yet
	locals    []index.Local
	hashes    []index.Hash
	extras    []hashing.Extra
}

// skips counts events of a batch that become no change, or one that no prompt matches.
type skips struct {
	Foreign   uint64 // events about copies that are not the pod's own
	Unscored  uint64 // stores whose blocks no prompt can name
	Chunks    uint64 // chunks of another length than Profile.Chunk
	Scopeless uint64 // stores of an engine that hides salts and media
}

// Convert appends the changes of b to c.Changes, and counts other events in c.Skipped.
func (c *Converter) Convert(b *events.Batch) {
	c.Skipped, c.Tiered, c.Paged, c.Single, c.all = skips{}, false, false, false, c.all[:0]
	c.Unrecognized, c.MayRemove = append(c.Unrecognized[:0], b.Unrecognized...), b.MayRemove
	hashes, units := 0, 0
	for i := range b.Events {
		hashes += len(b.Events[i].Hashes)
		if size := b.Events[i].BlockSize; size > 0 {
			units += len(b.Events[i].Tokens) / hashunit.Of(size)
		}
	}
	// Grown once: the changes point into these.
	c.hashes = slices.Grow(c.hashes[:0], hashes)
	c.locals = slices.Grow(c.locals[:0], units)
	c.learnGroups(b)
	for i := range b.Events {
		e := &b.Events[i]
		if foreign(e) {
			c.Skipped.Foreign++
			if l := e.Locality; l != "" && !strings.EqualFold(l, "LOCAL") && !strings.EqualFold(l, "REMOTE") {
				c.unknown("locality", l)
				c.MayRemove = c.MayRemove || e.Kind == events.Removed
			}
			continue
		}
		if e.Group >= index.MaxGroups {
			c.Skipped.Unscored++
			continue
		}
		switch e.Kind {
		case events.Stored:
			if !c.fits(b, e) {
				c.Skipped.Unscored++
				continue
			}
			c.Changes = append(c.Changes, c.stored(e))
			c.Tiered = c.Tiered || c.Changes[len(c.Changes)-1].Tier != index.TierGPU
			c.Paged = c.Paged || paged(e.Medium)
			c.spread(b, e)
			c.sink()
		case events.Removed:
			tier := c.tierOf(e)
			c.MayRemove = c.MayRemove || tier == index.TierOther
			c.Changes = append(c.Changes, index.Change{
				Op:        index.OpRemove,
				Tier:      tier,
				Group:     index.Group{ID: e.Group},
				Hashes:    c.hashesOf(e),
				Remaining: e.Remaining,
			})
			c.spread(b, e)
		case events.Cleared:
			if e.Medium != "" {
				tier := c.tierOf(e)
				c.Changes = append(c.Changes, index.Change{Op: index.OpClearTier, Tier: tier})
				c.MayRemove = c.MayRemove || tier == index.TierOther
				continue
			}
			c.Changes = c.cleared(c.Changes)
			c.Unrecognized, c.MayRemove = append(c.Unrecognized[:0], b.Unrecognized...), b.MayRemove // the list begins after the last clear
		}
	}
}

// named returns the groups that the rank has named, in this batch too.
func (c *Converter) named(b *events.Batch) []stats.Group {
	if len(c.all) == 0 {
		c.all = append(c.all, c.Groups...)
		for i := range b.Events {
			if b.Events[i].Kind == events.Stored {
				c.all = Learn(c.all, &b.Events[i])
			}
		}
	}
	return c.all
}

// fits reports whether a store is no chunk that ends inside a block of its group, and counts a chunk
// of another length than that of the profile. A store may be of parts of a block instead, and the
// size of its group that of a part, if chunks are of one block and there are Mamba groups.
func (c *Converter) fits(b *events.Batch, e *events.Event) bool {
	if len(e.Tokens) == 0 || placeOf(e) == index.TierGPU || paged(e.Medium) {
		return true
	}
	n, all := c.Profile.Chunk, c.named(b)
	for _, g := range all {
		if g.ID != e.Group || e.BlockSize < g.BlockSize {
			continue
		}
		if len(e.Tokens)%g.BlockSize > 0 {
			return false
		}
		if n > 0 && len(e.Tokens) != n*g.BlockSize && len(e.Tokens) != n*e.BlockSize &&
			(n > 1 || !slices.ContainsFunc(all, func(g stats.Group) bool { return g.Kind == index.GroupMamba })) {
			c.Skipped.Chunks++
			c.Single = c.Single || n > 1 && len(e.Tokens) == g.BlockSize
		}
	}
	return true
}

// maxSpread bounds the changes that spread makes of a batch.
const maxSpread = 1 << 16

// spread repeats the last change for the other groups of the rank, if its event is about a tier
// below the gpu and names no group, as those of vLLM's connector did until June 2026
// (59401ac9f18c, v1/offloading). These name a hash once for each group, so a second store of one
// proves nothing.
func (c *Converter) spread(b *events.Batch, e *events.Event) {
	ch := &c.Changes[len(c.Changes)-1]
	if e.HasGroup || e.Group != 0 || ch.Tier == index.TierGPU {
		return
	}
	all := c.named(b)
	if len(all) < 2 {
		return
	}
	ch.Unique = false
	if len(c.Changes)+len(all) > maxSpread {
		if ch.Op == index.OpRemove {
			*ch = index.Change{Op: index.OpClearTier, Tier: ch.Tier}
		}
		return
	}
	of := *ch
	for _, g := range all {
		if of.Group = c.Profile.Corrected(g.Group); of.Group.ID != e.Group {
			c.Changes = append(c.Changes, of)
		}
	}
}

// cleared appends the changes of an event that empties the cache without naming a tier.
func (c *Converter) cleared(to []index.Change) []index.Change {
	if c.Profile.ClearsGPU && !c.Spared.Has(index.TierGPU) {
		return append(to, index.Change{Op: index.OpClearTier, Tier: index.TierGPU})
	}
	return AppendClear(to, c.Spared)
}

// AppendClear appends the changes that empty all tiers but those that are spared.
func AppendClear(to []index.Change, spared Tiers) []index.Change {
	if spared == 0 {
		return append(to, index.Change{Op: index.OpClear})
	}
	for t := range index.Tier(index.NumTiers) {
		if !spared.Has(t) {
			to = append(to, index.Change{Op: index.OpClearTier, Tier: t})
		}
	}
	return to
}

// unknown notes something that is not recognized, and its name.
func (c *Converter) unknown(what, name string) {
	if len(c.Unrecognized) == MaxUnrecognized {
		return
	}
	if name != "" {
		what = fmt.Sprintf("%s %.40q", what, name)
	}
	if !slices.Contains(c.Unrecognized, what) {
		c.Unrecognized = append(c.Unrecognized, what)
	}
}

// tierOf returns the tier of an event, and notes an unknown medium.
func (c *Converter) tierOf(e *events.Event) index.Tier {
	t := placeOf(e)
	if t == index.TierOther {
		c.unknown("medium", e.Medium)
	}
	return t
}

// placeOf returns the tier of an event.
func placeOf(e *events.Event) index.Tier {
	t := tierOf(e.Medium)
	if t == index.TierDisk && shared(e) {
		return index.TierRemote
	}
	return t
}

// learnGroups notes the groups of the batch, if some of the profile's groups have Draft.
// One batch is enough: equal groups have their blocks filled in the same step of the engine,
// whose events come in one batch. Groups of an earlier batch may be from before a restart of
// the engine.
func (c *Converter) learnGroups(b *events.Batch) {
	c.groups = c.groups[:0]
	if !slices.ContainsFunc(c.Profile.Groups, func(g index.Group) bool { return g.Draft }) {
		return
	}
	for i := range b.Events {
		if e := &b.Events[i]; e.Kind == events.Stored {
			c.groups = Learn(c.groups, e)
		}
	}
	c.Profile.Correct(c.groups)
}

// groupOf returns the group of a store, corrected by the profile.
func (c *Converter) groupOf(e *events.Event) index.Group {
	g := c.Profile.Corrected(groupOf(e))
	if g.Kind == index.GroupOther && e.GroupKind != "" {
		c.unknown("kv_cache_spec_kind", e.GroupKind)
	}
	g.Draft = hasDraft(c.groups, stats.Group{Group: g, BlockSize: e.BlockSize})
	return g
}

// masked reports whether a store of so many tokens keeps only some of its blocks.
func masked(ch *index.Change, tokens int) bool {
	return ch.Tier == index.TierGPU && len(ch.Hashes)*ch.BlockSize < tokens
}

// sink moves a store that names its hashes before stores of other groups that do not: a dense
// store of the gpu before masked ones, and in a lower tier before those of hashes alone. Some
// engines announce their window groups first, whose hashes the full group names: else the
// index would have to keep these hashes until it does.
func (c *Converter) sink() {
	const most = 8 // groups of one request come together
	last := len(c.Changes) - 1
	isMasked := func(ch *index.Change) bool { return masked(ch, len(ch.Locals)*ch.Variant.Unit) }
	tier := c.Changes[last].Tier
	names := func(ch *index.Change) bool {
		return !isMasked(ch) && (tier == index.TierGPU || len(ch.Locals) > 0)
	}
	if len(c.Changes[last].Locals) == 0 || !names(&c.Changes[last]) {
		return
	}
	for at := last; at > max(0, last-most); at-- {
		before := &c.Changes[at-1]
		if before.Op != index.OpStore || before.Tier != tier || names(before) || before.Group.ID == c.Changes[at].Group.ID {
			return
		}
		c.Changes[at-1], c.Changes[at] = c.Changes[at], c.Changes[at-1]
	}
}

func (c *Converter) hashesOf(e *events.Event) []index.Hash {
	from := len(c.hashes)
	for _, h := range e.Hashes {
		c.hashes = append(c.hashes, index.Hash(h))
	}
	return c.hashes[from:len(c.hashes):len(c.hashes)]
}

func (c *Converter) stored(e *events.Event) index.Change {
	ch := index.Change{
		Op:        index.OpStore,
		Tier:      c.tierOf(e),
		Group:     c.groupOf(e),
		Copies:    c.Profile.Copies,
		Partial:   c.Partial,
		Hashes:    c.hashesOf(e),
		HasParent: e.HasParent,
		Parent:    index.Hash(e.Parent),
		Reused:    e.Reused,
		// vLLM's OffloadingConnector stores a chunk once; Profile.ClearsGPU shows that it runs.
		Unique: c.Profile.ClearsGPU && !c.Shared && strings.EqualFold(e.Medium, "CPU"),
	}
	if len(e.Tokens) == 0 || e.BlockSize <= 0 || paged(e.Medium) { // with tokens, pages would be one chunk
		return ch
	}
	v, ok := VariantOf(e.BlockSize, e.Pairs, c.Profile.Media)
	if !ok {
		c.Skipped.Unscored++ // stored by hash alone: no prompt is cut so
		return ch
	}
	if ch.Tier == index.TierGPU && len(e.Hashes) > 0 && !e.HasExtra {
		c.Skipped.Scopeless++
	}
	ch.BlockSize, ch.Variant = e.BlockSize, v
	// The extra keys of a masked store are those of the blocks that it keeps, but it
	// does not name these. Events about lower tiers leave out media, if there are any.
	ch.UncertainLocals = ch.Tier != index.TierGPU && len(c.Recent.Extras.Values) > 0 || masked(&ch, len(e.Tokens)) && slices.ContainsFunc(e.Extra, func(k events.ExtraKey) bool {
		return k.Kind != events.ExtraText || e.Adapter == "" || k.Text != e.Adapter // the event has the adapter too
	})
	s := hashing.Scope{Model: c.Model, Adapter: c.Profile.AdapterOf(e)}
	s.Salt = c.readExtras(e, v)
	width := v.Unit
	if v.Pairs {
		width *= 2
	}
	from := len(c.locals)
	c.locals = c.Hash.Of(s.Adapter).Locals(c.locals, e.Tokens, width, c.extras)
	ch.Locals = c.locals[from:len(c.locals):len(c.locals)]
	if !ch.HasParent {
		ch.Root = c.Hash.Root(s, v)
		if s.Salt != "" && len(s.Adapter) <= MaxName {
			c.Recent.Salted.add(SaltedRoot{ch.Root, v, s.Adapter})
		}
	}
	return ch
}

// readExtras sorts the extra keys of the blocks to their places and returns
// the salt. vLLM's order in a block is: adapter, media, salt (first block of a
// prompt only), prompt embeddings (v1/core/kv_cache_utils.py,
// generate_block_hash_extra_keys, 2026-08-17).
//
// A bare string in the first block of a prompt is the salt if it is the last
// one: since March 2026 media come with their offset, [id, start - block
// start], and enter the unit in which they start. Negative offsets are media of
// an earlier block, which the chain has. With MediaBare, media and salts are
// bare alike, and enter the first unit of their block.
//
// SGLang has no extra keys, and has the salt in every event.
func (c *Converter) readExtras(e *events.Event, v index.Variant) (salt string) {
	c.extras = c.extras[:0]
	salt = e.Salt
	adapter := c.Profile.AdapterOf(e)
	units := e.BlockSize / v.Unit
	unscored := false
	for i, k := range e.Extra {
		first := k.Block * units
		id := xxh3.HashString(k.Text)
		switch k.Kind {
		case events.ExtraMedia:
			if k.Int >= 0 && k.Int < int64(e.BlockSize) {
				c.extras = append(c.extras, hashing.MediaAt(k.Text, first*v.Unit+int(k.Int), v.Unit))
				unscored = unscored || v.Media != hashing.FormOffsets
			} else if k.Int >= 0 {
				c.extras = append(c.extras, hashing.Extra{Unit: first, Kind: hashing.Unreadable, ID: id, Offset: uint32(k.Int)})
				unscored = true
			}
		case events.ExtraText:
			opens := i == 0 || e.Extra[i-1].Block != k.Block
			if opens && k.Text == adapter && adapter != "" {
				continue
			}
			if v.Media != hashing.FormBare && k.Block == 0 && !e.HasParent && lastText(e.Extra[i:]) {
				salt = k.Text
				continue
			}
			c.extras = append(c.extras, hashing.BareAt(k.Text, first))
			unscored = unscored || v.Media != hashing.FormBare
		case events.ExtraInt:
			if strconv.FormatInt(k.Int, 10) != e.Adapter {
				c.extras = append(c.extras, hashing.Extra{Unit: first, Kind: hashing.Unreadable, ID: uint64(k.Int), Offset: 1})
				unscored = true
			}
		case events.ExtraBytes:
			c.extras = append(c.extras, hashing.Extra{Unit: first, Kind: hashing.Embeds, ID: id})
			unscored = true
		default:
			c.extras = append(c.extras, hashing.Extra{Unit: first, Kind: hashing.Unreadable, ID: id})
			unscored = true
			c.unknown("form of a key in extra_keys", "")
		}
	}
	if unscored {
		c.Skipped.Unscored++
	}
	for _, x := range c.extras[:min(len(c.extras), ringSize)] {
		x.Unit = 0
		c.Recent.Extras.add(x)
	}
	slices.SortStableFunc(c.extras, func(a, b hashing.Extra) int { return a.Unit - b.Unit })
	return salt
}

// lastText reports whether no other text of the same block follows extra[0].
func lastText(extra []events.ExtraKey) bool {
	for _, k := range extra[1:] {
		if k.Block != extra[0].Block {
			break
		}
		if k.Kind == events.ExtraText {
			return false
		}
	}
	return true
}

// foreign reports whether the copy belongs to another engine: vLLM's locality (PR
// 48281) may be REMOTE, and ownership (PR 52067) names another domain. Storage that others can
// read counts for the engine that has announced it.
func foreign(e *events.Event) bool {
	return shared(e) && (!isStorage(e.Medium) || e.Locality != "" && !strings.EqualFold(e.Locality, "LOCAL") && !strings.EqualFold(e.Locality, "REMOTE"))
}

// shared reports whether others have the copy, too.
func shared(e *events.Event) bool {
	return e.Locality != "" && !strings.EqualFold(e.Locality, "LOCAL") || e.Ownership != ""
}

func isStorage(medium string) bool {
	t := tierOf(medium)
	return t == index.TierDisk || t == index.TierRemote
}

// tierOf maps the media of engines to tiers, ignoring case. An unknown medium is
// index.TierOther, never the gpu.
func tierOf(medium string) index.Tier {
	switch strings.ToUpper(medium) {
	case "", "GPU":
		return index.TierGPU
	case "CPU", "CPU_PINNED", "CPU_TIER1", "CPU_TIER2":
		return index.TierCPU
	case "DISK", "FS", "STORAGE":
		return index.TierDisk
	case "OBJ", "EXTERNAL", "SHARED_STORAGE", "OBJECT_STORE", "REMOTE":
		return index.TierRemote
	}
	return index.TierOther
}

// paged reports whether a medium holds pages, each of which is a block: a store of several lists
// them all. These are the media below the gpu of SGLang (PR 22894). Other engines store chunks.
func paged(medium string) bool {
	switch strings.ToUpper(medium) {
	case "CPU_PINNED", "DISK", "EXTERNAL":
		return true
	}
	return false
}

// groupOf returns the group of an event without corrections.
func groupOf(e *events.Event) index.Group {
	if e.Group > 0 && e.GroupKind == "" { // vLLM from PR 37688 to PR 40984 has no kinds
		return index.Group{ID: e.Group, Kind: index.GroupOther}
	}
	return index.Group{ID: e.Group, Kind: groupKindOf(e.GroupKind), Window: e.Window}
}

// groupKindOf maps vLLM's kv_cache_spec_kind (v1/kv_cache_interface.py,
// 2026-08-17). An engine without kinds has full attention.
func groupKindOf(kind string) index.GroupKind {
	switch kind {
	case "", "full_attention", "mla_attention", "sink_full_attention":
		return index.GroupFull
	case "sliding_window", "sliding_window_mla":
		return index.GroupWindow
	case "mamba":
		return index.GroupMamba
	case "chunked_local_attention":
		return index.GroupChunked
	}
	return index.GroupOther
}

// Form returns the form of a rank with these groups behind the batch, if it is another one than known
// (nil: none). Parts of blocks are smaller, and change nothing, unless they are the first blocks of
// the rank's engine.
func (c *Converter) Form(known *index.View, groups []stats.Group, pairs bool) (f Form, changed bool) {
	same := known != nil && len(c.Groups) > 0 && known.Pairs == pairs && len(known.Groups) >= len(groups)
	for i := 0; same && i < len(groups); i++ {
		size := c.wholeSize(groups, i)
		same = slices.ContainsFunc(known.Groups, func(k index.GroupLayout) bool {
			return k.ID == groups[i].ID && (k.BlockSize == size || k.BlockSize > size && len(groups) > 1)
		})
	}
	if same || len(groups) == 0 {
		return f, false
	}
	f = Form{Groups: slices.Clone(groups), Pairs: pairs}
	for i := range f.Groups {
		f.Groups[i].BlockSize = c.wholeSize(groups, i)
	}
	return f, true
}

// wholeSize returns the block size of a group: of several groups, the newest store may be of a part
// of a block, and the largest of the batch counts.
func (c *Converter) wholeSize(groups []stats.Group, at int) int {
	size := groups[at].BlockSize
	if len(groups) > 1 {
		for i := range c.Changes {
			if ch := &c.Changes[i]; ch.Op == index.OpStore && ch.Tier == index.TierGPU && ch.Group.ID == groups[at].ID && len(ch.Locals) > 0 {
				size = max(size, ch.BlockSize)
			}
		}
	}
	return size
}
