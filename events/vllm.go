package events

import (
	"fmt"
	"math"
	"strconv"

	"github.com/kvindex/kvindex/internal/fault"
)

// This file reads the batches of vLLM, vllm/distributed/kv_events.py. Its publisher encodes
// them with msgspec, which never shortens an array and sends nil for unset fields.
//
// A batch is an array of these positions, or (in one development snapshot) a
// map of these keys:
//
//	0  ts                  float, seconds
//	1  events              list
//	2  data_parallel_rank  int or nil; since 0.9.1
//
// An event is an array that begins with the name of its kind, or (since June
// 2026, PR 42892, in 0.24.0) a map with that name under "type". In a map, the
// fields up to lora_name, and to medium in a BlockRemoved, are always there;
// the others are left out at their defaults, which are nil.
//
//	   BlockStored                   type                   since
//	1  block_hashes                  [int or bytes]         0.9.0
//	2  parent_block_hash             int, bytes or nil      0.9.0
//	3  token_ids                     [int] or nil           0.9.0
//	4  block_size                    int; nil or 0 possible 0.9.0
//	5  lora_id                       int or nil             0.9.0
//	6  medium                        str or nil             0.10.2, PR 19737
//	7  lora_name                     str or nil             0.14.0, PR 27577
//	8  extra_keys                    list or nil            2026-02-20, PR 33304
//	9  group_idx                     int or nil             2026-04-12, PR 37688
//	10 kv_cache_spec_kind            str or nil             2026-05-12, PR 40984
//	11 kv_cache_spec_sliding_window  int or nil             2026-05-12, PR 40984
//	-  locality                      str or nil             2026-07-17, PR 48281
//	-  ownership                     str or nil             0.29.0, PR 52067
//	-  session_id                    str or nil             after 0.29.0, PR 51381; not read
//	-  origin                        str                    proposed, PR 51699
//
//	   BlockRemoved                  type                   since
//	1  block_hashes                  [int or bytes]         0.9.0
//	2  medium                        str or nil             0.10.2, PR 19737
//	3  group_idx                     int or nil             2026-04-12, PR 37688
//	-  locality                      str or nil             2026-07-17, PR 48281
//	-  ownership                     str or nil             0.29.0, PR 52067
//	-  remaining_copy_counts         [int]                  proposed, PR 48933
//
//	   AllBlocksCleared has no fields.
//
// The versions are hints: the types of the values decide the form, event by event. Items
// behind the last position and other keys are skipped. LMCache and Mooncake inside vLLM,
// Dynamo's consolidator and TensorRT-LLM's publisher (PR 17023) send these forms too. SGLang
// began with them: sglang.go has the further fields of its events.
//
// Below are the values of the fields that vLLM alone sends: lora_id, extra_keys,
// origin and remaining_copy_counts.

func (d *decoder) adapterID() error {
	f, n, err := d.next()
	if err != nil {
		return err
	}
	if f != formInt && f != formNegative {
		return fault.Errorf(fault.Type, "%s is not an id", describe(f, n))
	}
	d.loraID, d.lora = f, n
	return nil
}

// adapter names the adapter by its id.
func (d *decoder) adapter() string {
	var buf [20]byte
	digits := strconv.AppendUint(buf[:0], d.lora, 10)
	if d.loraID == formNegative {
		digits = strconv.AppendInt(buf[:0], int64(d.lora), 10)
	}
	s, _ := d.b.text(digits) // digits are UTF-8
	return s
}

func (d *decoder) extraKeys() error {
	n, err := d.array()
	if err != nil {
		return err
	}
	d.e.HasExtra, d.entries = true, n
	start := len(d.b.extra)
	for block := range n {
		if d.isNil() {
			continue
		}
		if err := d.extraKeysOf(block); err != nil {
			return fmt.Errorf("entry %d: %w", block, err)
		}
	}
	d.e.Extra = tail(d.b.extra, start)
	return nil
}

func (d *decoder) extraKeysOf(block int) error {
	n, err := d.array()
	if err != nil {
		return err
	}
	most := min(maxExtra, len(d.data)/minExtraBytes)
	if err := limit(len(d.b.extra)+n, most, "extra keys"); err != nil {
		return err
	}
	d.b.extra = grow(d.b.extra, n, most)
	for i := range n {
		key := ExtraKey{Block: block}
		if err := d.extraKey(&key); err != nil {
			return fmt.Errorf("key %d: %w", i, err)
		}
		d.b.extra = append(d.b.extra, key)
	}
	return nil
}

func (d *decoder) extraKey(key *ExtraKey) error {
	start := d.off
	f, n, err := d.next()
	if err != nil {
		return err
	}
	switch {
	case f == formStr:
		key.Kind = ExtraText
		key.Text, err = d.b.text(d.bytes(n))
		return err
	case isInt64(f, n):
		key.Kind, key.Int = ExtraInt, int64(n)
		return nil
	case f == formBin:
		key.Kind, key.Text = ExtraBytes, string(d.bytes(n))
		return nil
	case f == formArray && n == 2:
		pair := d.off
		if media, err := d.media(key); media {
			return err
		}
		if d.off = pair; d.tagged(key) {
			return nil
		}
	}
	// The bytes of the item identify it, because no two items have the same.
	d.off = start
	if err := d.skip(); err != nil {
		return err
	}
	key.Kind, key.Text = ExtraOpaque, string(d.data[start:d.off])
	return nil
}

// tagged reads the two items of a key that names its own kind: the name of an adapter, or a
// salt (proposed, PR 44706 and 48352). It reports whether they are of this form.
func (d *decoder) tagged(key *ExtraKey) bool {
	f, n, err := d.next()
	if err != nil || f != formStr {
		return false
	}
	tag := string(d.bytes(n))
	f, n, err = d.next()
	if err != nil || f != formStr || tag != "lora" && tag != "cache_salt" {
		return false
	}
	key.Kind = ExtraText
	key.Text, err = d.b.text(d.bytes(n))
	return err == nil
}

// media reads the two items of a media key and reports whether they are of this form.
func (d *decoder) media(key *ExtraKey) (bool, error) {
	f, n, err := d.next()
	if err != nil || f != formStr {
		return false, nil
	}
	identifier := d.bytes(n)
	f, n, err = d.next()
	if err != nil || !isInt64(f, n) {
		return false, nil
	}
	key.Kind, key.Int = ExtraMedia, int64(n)
	key.Text, err = d.b.text(identifier)
	return true, err
}

// isInt64 reports whether an item is an integer that an int64 can hold.
func isInt64(f form, bits uint64) bool {
	return f == formNegative || f == formInt && bits <= math.MaxInt64
}

// reused reads an origin. It is only proposed, so other values are skipped.
func (d *decoder) reused() (bool, error) {
	start := d.off
	if origin, err := d.str(); err == nil {
		return string(origin) == "REUSED", nil
	}
	d.off = start
	return false, d.skip()
}

// remaining reads remaining_copy_counts. They are only proposed, so other values are skipped.
func (d *decoder) remaining() ([]uint32, error) {
	start, from := d.off, len(d.b.counts)
	f, n, err := d.next()
	if err == nil && f == formArray && from+int(n) <= maxHashes {
		d.b.counts = grow(d.b.counts, int(n), from+d.left())
		counts := d.b.counts[:from+int(n)]
		if _, err := d.tokens(counts[from:]); err == nil {
			d.b.counts = counts
			return tail(counts, from), nil
		}
	}
	d.off = start
	return nil, d.skip()
}
