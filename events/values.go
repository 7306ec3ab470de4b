package events

import (
	"fmt"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/fault"
)

// This file reads the values of fields into the event: value, and the types that more than one
// field or engine has. All events of a batch share one slice for each type of list, and recent
// strings are not allocated again.

// value reads the value of a field into the event. For all fields but the hashes, nil is the
// same as a missing field.
func (d *decoder) value(f field) (err error) {
	if f != fieldHashes && d.isNil() {
		return nil
	}
	e := d.e
	switch f {
	case fieldHashes:
		e.Hashes, err = d.blockHashes()
	case fieldParent:
		e.HasParent = true
		e.Parent, err = d.hash()
	case fieldTokens:
		err = d.tokenIDs()
	case fieldBlockSize:
		e.BlockSize, err = d.size(maxBlockSize)
	case fieldLoraID:
		err = d.adapterID()
	case fieldMedium:
		if e.Kind == Cleared && !d.atStr() {
			return d.skip() // all is cleared
		}
		e.Medium, err = d.text()
	case fieldLoraName:
		e.Adapter, err = d.text()
	case fieldNameOrMap:
		err = d.nameOrMap()
	case fieldExtraKeys:
		err = d.extraKeys()
	case fieldGroup:
		e.HasGroup = true
		e.Group, err = d.size(maxGroup)
	case fieldGroupOrLabel:
		err = d.groupOrLabel()
	case fieldGroupKind:
		e.GroupKind, err = d.text()
	case fieldWindow:
		e.Window, err = d.size(maxWindow)
	case fieldLocality:
		e.Locality, err = d.text()
	case fieldOwnership:
		e.Ownership, err = d.text()
	case fieldOrigin:
		e.Reused, err = d.reused()
	case fieldRemaining:
		e.Remaining, err = d.remaining()
	case fieldCacheSalt:
		e.Salt, err = d.text()
	case fieldComponent:
		err = d.component()
	case fieldComponents:
		d.componentTypes()
		err = d.skip()
	case fieldType:
		err = d.skip() // findType has read it
	}
	return err
}

func (d *decoder) blockHashes() ([]uint64, error) {
	n, err := d.array()
	if err != nil {
		return nil, err
	}
	start := len(d.b.hashes)
	if err := limit(start+n, maxHashes, "hashes"); err != nil {
		return nil, err
	}
	d.b.hashes = grow(d.b.hashes, n, start+d.left())[:start+n]
	if i, err := d.hashes(d.b.hashes[start:]); err != nil {
		return nil, fmt.Errorf("hash %d: %w", i, err)
	}
	return tail(d.b.hashes, start), nil
}

func (d *decoder) tokenIDs() error {
	n, err := d.array()
	if err != nil {
		return err
	}
	// The first token decides whether these are pairs, so a mixture fails at the first of the
	// other form.
	width := 1
	if d.e.Pairs = n > 0 && d.atArray(); d.e.Pairs {
		width = 2
	}
	start := len(d.b.tokens)
	if err := limit(start+n*width, maxTokens, "tokens"); err != nil {
		return err
	}
	d.b.tokens = grow(d.b.tokens, n*width, start+d.left())[:start+n*width]
	dst := d.b.tokens[start:]
	if d.e.Pairs {
		err = d.tokenPairs(dst)
	} else if i, bad := d.tokens(dst); bad != nil {
		err = fmt.Errorf("token %d: %w", i, bad)
	}
	d.e.Tokens = tail(d.b.tokens, start)
	return err
}

func (d *decoder) tokenPairs(dst []uint32) error {
	for i := 0; i < len(dst); i += 2 {
		n, err := d.array()
		if err == nil && n != 2 {
			err = fault.Errorf(fault.Type, "%d tokens are not a pair", n)
		}
		if err == nil {
			_, err = d.tokens(dst[i : i+2])
		}
		if err != nil {
			return fmt.Errorf("pair %d: %w", i/2, err)
		}
	}
	return nil
}

// size reads a number from 0 to most.
func (d *decoder) size(most uint64) (int, error) {
	f, n, err := d.next()
	if err != nil {
		return 0, err
	}
	if f != formInt || n > most {
		return 0, fault.Errorf(fault.Type, "%s is not a number from 0 to %d", describe(f, n), most)
	}
	return int(n), nil
}

// text reads a string.
func (d *decoder) text() (string, error) {
	raw, err := d.str()
	if err != nil {
		return "", err
	}
	return d.b.text(raw)
}

// maxRecent is the longest string worth remembering: an identifier, not a text.
const maxRecent = 256

// text turns raw into a string. It does not allocate for a usual or recent string.
func (b *Batch) text(raw []byte) (string, error) {
	if s, ok := usual(raw); ok {
		return s, nil
	}
	var sum uint64
	for _, c := range raw[max(0, len(raw)-8):] {
		sum = sum<<8 | uint64(c)
	}
	// The upper bits of a product depend on all bits of its factors.
	set := &b.recent[(sum^uint64(len(raw)))*0x9e3779b97f4a7c15>>(64-recentBits)]
	for _, s := range set {
		if s == string(raw) {
			return s, nil
		}
	}
	if !utf8.Valid(raw) {
		return "", errUTF8
	}
	s := string(raw)
	if len(s) <= maxRecent {
		copy(set[1:], set[:])
		set[0] = s
	}
	return s, nil
}

// usual returns the strings that engines themselves put into events: their media, and vLLM's
// kinds of groups (vllm/v1/kv_cache_interface.py) and localities.
func usual(raw []byte) (string, bool) {
	switch string(raw) {
	case "":
		return "", true
	case "GPU":
		return "GPU", true
	case "CPU":
		return "CPU", true
	case "cpu":
		return "cpu", true
	case "STORAGE":
		return "STORAGE", true
	case "FS":
		return "FS", true
	case "OBJ":
		return "OBJ", true
	case "CPU_PINNED":
		return "CPU_PINNED", true
	case "DISK":
		return "DISK", true
	case "EXTERNAL":
		return "EXTERNAL", true
	case "LOCAL":
		return "LOCAL", true
	case "REMOTE":
		return "REMOTE", true
	case "full_attention":
		return "full_attention", true
	case "mla_attention":
		return "mla_attention", true
	case "sliding_window":
		return "sliding_window", true
	case "sliding_window_mla":
		return "sliding_window_mla", true
	case "mamba":
		return "mamba", true
	case "chunked_local_attention":
		return "chunked_local_attention", true
	case "sink_full_attention":
		return "sink_full_attention", true
	case "encoder_only_attention":
		return "encoder_only_attention", true
	case "cross_attention":
		return "cross_attention", true
	case "unknown":
		return "unknown", true
	}
	return "", false
}

// grow returns s with room for n more, if at most most can ever be needed. It doubles, but not
// beyond that, so one payload makes less than three times the memory that it could need.
func grow[T any](s []T, n, most int) []T {
	need := len(s) + n
	if need <= cap(s) {
		return s
	}
	bigger := make([]T, len(s), max(need, min(2*cap(s), most)))
	copy(bigger, s)
	return bigger
}

// tail returns s[start:], nil if that is empty. The holder can neither reach later appends to
// s nor see whether s is longer.
func tail[T any](s []T, start int) []T {
	if start == len(s) {
		return nil
	}
	return s[start:len(s):len(s)]
}
