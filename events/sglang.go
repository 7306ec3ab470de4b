package events

// This file reads the fields that only SGLang's events have,
// python/sglang/srt/disaggregation/kv_events.py. Its classes began as copies of vLLM's, so
// names, positions and encoder are the same up to the medium, and nothing in a message names
// its engine: every event is read by its content.
//
//	   BlockStored        type                        since
//	1  block_hashes       [int], signed               2025-05
//	2  parent_block_hash  int or nil                  2025-05
//	3  token_ids          [int], or pairs with EAGLE  2025-05
//	4  block_size         int, the page's length      2025-05
//	5  lora_id            nil                         2025-05
//	6  medium             str or nil                  2026-02-09, PR 18205
//	7  -                  map, only if salted         2026-07, PR 30827
//
//	   BlockRemoved       type                        since
//	1  block_hashes       [int], signed               2025-05
//	2  medium             str or nil                  2026-02-09, PR 18205
//
//	   AllBlocksCleared has no fields. One begins the first batch. (ATOM's, which
//	   has SGLang's events, may name a medium in position 1 or under that key.)
//
// The batch has a rank since 2025-06 (PR 6852). The map in position 7, where
// vLLM has lora_name, holds "cache_salt". Since 2026-09 (PR 37482) events are
// maps: medium, cache_salt and session_id are there if set; a newer file of the
// repository adds lora_name, which then is in the hashes too.
//
// Media are GPU, CPU_PINNED, DISK and EXTERNAL (PR 22894). Before mid 2026
// each page was an event; since then runs are joined. A page can be one token.
// Under EAGLE a token is the pair [t[i], t[i+1]].
//
// No event has extra_key, the namespace of a request, in which SGLang also puts the adapter.
// It is neither on the wire nor in the hashes, so blocks of two adapters have one name, and
// nothing distinguishes them.
//
// With --enable-kv-events-component-types (2026-09, off by default) each event names its
// layers in component_type: "full", "swa" or "mamba". The label may be in arrays too, behind
// the medium, and the kinds may be named BlockStoredWithComponentType and
// BlockRemovedWithComponentType. In a branch of the repository a list, component_types,
// replaces the map, and an event replaces earlier ones about the same blocks. No recorded
// message confirms the names on the wire. Events about other layers than the full ones are
// skipped and counted as unknown: an engine without the flag publishes the full ones alone,
// and a state of Mamba's has no parent in mid-text, so it would pass for the beginning of a
// prompt. No store of the branch can be applied without overcounting, so all stores with
// component_types are skipped; its removals are applied.

// nameOrMap reads the position where vLLM has lora_name and SGLang a map.
func (d *decoder) nameOrMap() (err error) {
	start := d.off
	f, n, err := d.next()
	switch {
	case err != nil:
		return err
	case f == formMap:
		return d.metadata(int(n))
	case f == formArray && n > 0:
		return d.components(int(n))
	}
	d.off = start
	name, err := d.text()
	// vLLM sends no name without an id.
	if d.loraID == formInvalid && (name == componentFull || isComponent(name)) {
		d.aside = name != componentFull
		return err
	}
	d.e.Adapter = name
	return err
}

// groupOrLabel reads the position where a removal of vLLM has group_idx and one of SGLang a
// label.
func (d *decoder) groupOrLabel() (err error) {
	if d.atStr() {
		return d.component()
	}
	d.e.HasGroup = true
	d.e.Group, err = d.size(maxGroup)
	return err
}

// The labels of SGLang's layers.
const componentFull = "full"

func isComponent(name string) bool { return name == "swa" || name == "mamba" }

// metadata is SGLang's map.
var metadata = layout{known: 1<<fieldCacheSalt | 1<<fieldComponent | 1<<fieldComponents}

// metadata reads the n pairs of SGLang's map.
func (d *decoder) metadata(n int) error {
	var seen fieldSet
	return d.pairs(&metadata, n, &seen)
}

// components reads the n items of a component_types in the place of the map.
func (d *decoder) components(n int) error {
	for range n {
		if _, err := d.text(); err != nil {
			return err
		}
	}
	d.componentTypes()
	return nil
}

// componentTypes skips an event with component_types.
func (d *decoder) componentTypes() {
	d.aside = true
	d.b.unrecognized(false, "component_types", nil)
}

// component reads a component_type.
func (d *decoder) component() error {
	name, err := d.text()
	if name != "" && name != componentFull {
		d.aside = true
		if !isComponent(name) {
			d.b.unrecognized(d.e.Kind == Removed, "component_type", []byte(name))
		}
	}
	return err
}
