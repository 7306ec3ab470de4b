package publish

import (
	"fmt"
	"time"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/internal/msgpack"
)

// appendBatch appends the payload of a batch: an array of the time, the events, and the rank or
// nil (KVEventBatch).
func appendBatch(out []byte, b *events.Batch, now time.Time) ([]byte, error) {
	if err := b.Validate(); err != nil {
		return out, err
	}
	at := b.Time
	if at == 0 {
		at = float64(now.UnixNano()) / 1e9
	}
	out = msgpack.AppendFloat(msgpack.AppendArrayLen(out, 3), at)
	out = msgpack.AppendArrayLen(out, len(b.Events))
	for i := range b.Events {
		e := &b.Events[i]
		if e.Salt != "" {
			return out, fmt.Errorf("event %d has a Salt, which is SGLang's: vLLM's is in Extra", i)
		}
		if e.Group != 0 && !e.HasGroup {
			return out, fmt.Errorf("event %d has group %d without HasGroup, and would be sent without it", i, e.Group)
		}
		if len(e.Extra) > 0 && !e.HasExtra {
			return out, fmt.Errorf("event %d has Extra without HasExtra, and would be sent without it", i)
		}
		for _, k := range e.Extra {
			if k.Kind < events.ExtraText || k.Kind > events.ExtraBytes {
				return out, fmt.Errorf("event %d has an extra key of kind %d", i, k.Kind)
			}
		}
		out = appendEvent(out, e)
	}
	if !b.HasRank {
		return append(out, msgpack.Nil), nil
	}
	return msgpack.AppendInt(out, int64(b.Rank)), nil
}

// appendEvent appends an event as a map, whose fields have their names from
// vllm/distributed/kv_events.py. Fields that are not set are left out, but for those that
// every release with maps sends.
func appendEvent(out []byte, e *events.Event) []byte {
	fields := 0
	head := len(out)
	out = msgpack.AppendMapLen(out, 0)
	field := func(name string) {
		fields++
		out = msgpack.AppendString(out, name)
	}
	text := func(name, value string) {
		if value != "" {
			field(name)
			out = msgpack.AppendString(out, value)
		}
	}
	field("type")
	switch e.Kind {
	case events.Cleared:
		out = msgpack.AppendString(out, "AllBlocksCleared")
		text("medium", e.Medium)
		out[head] |= byte(fields)
		return out
	case events.Stored:
		out = msgpack.AppendString(out, "BlockStored")
	default:
		out = msgpack.AppendString(out, "BlockRemoved")
	}
	field("block_hashes")
	out = msgpack.AppendArrayLen(out, len(e.Hashes))
	for _, h := range e.Hashes {
		out = msgpack.AppendUint(out, h)
	}
	field("medium")
	out = msgpack.AppendStringOrNil(out, e.Medium)
	if e.HasGroup {
		field("group_idx")
		out = msgpack.AppendInt(out, int64(e.Group))
	}
	text("locality", e.Locality)
	text("ownership", e.Ownership)
	if e.Kind == events.Removed {
		if e.Remaining != nil {
			field("remaining_copy_counts")
			out = appendNumbers(out, e.Remaining)
		}
		out[head] |= byte(fields)
		return out
	}
	field("parent_block_hash")
	if e.HasParent {
		out = msgpack.AppendUint(out, e.Parent)
	} else {
		out = append(out, msgpack.Nil)
	}
	field("token_ids")
	if e.Pairs {
		out = msgpack.AppendArrayLen(out, len(e.Tokens)/2)
		for i := 0; i < len(e.Tokens); i += 2 {
			out = appendNumbers(out, e.Tokens[i:i+2])
		}
	} else {
		out = appendNumbers(out, e.Tokens)
	}
	field("block_size")
	out = msgpack.AppendInt(out, int64(e.BlockSize))
	field("lora_id")
	out = append(out, msgpack.Nil)
	field("lora_name")
	out = msgpack.AppendStringOrNil(out, e.Adapter)
	if e.HasExtra {
		field("extra_keys")
		out = appendExtra(out, e)
	}
	text("kv_cache_spec_kind", e.GroupKind)
	if e.Window != 0 {
		field("kv_cache_spec_sliding_window")
		out = msgpack.AppendInt(out, int64(e.Window))
	}
	if e.Reused {
		text("origin", "REUSED")
	}
	out[head] |= byte(fields)
	return out
}

func appendNumbers(out []byte, numbers []uint32) []byte {
	out = msgpack.AppendArrayLen(out, len(numbers))
	for _, n := range numbers {
		out = msgpack.AppendUint(out, uint64(n))
	}
	return out
}

// appendExtra appends a list for each hash, or nil for one without extra keys.
func appendExtra(out []byte, e *events.Event) []byte {
	out = msgpack.AppendArrayLen(out, len(e.Hashes))
	keys := e.Extra
	for block := range e.Hashes {
		n := 0
		for n < len(keys) && keys[n].Block == block {
			n++
		}
		if n == 0 {
			out = append(out, msgpack.Nil)
			continue
		}
		out = msgpack.AppendArrayLen(out, n)
		for _, k := range keys[:n] {
			switch k.Kind {
			case events.ExtraInt:
				out = msgpack.AppendInt(out, k.Int)
			case events.ExtraMedia:
				out = msgpack.AppendInt(msgpack.AppendString(msgpack.AppendArrayLen(out, 2), k.Text), k.Int)
			case events.ExtraBytes:
				out = msgpack.AppendBytes(out, []byte(k.Text))
			default:
				out = msgpack.AppendString(out, k.Text)
			}
		}
		keys = keys[n:]
	}
	return out
}
