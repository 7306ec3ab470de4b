package index

import (
	"fmt"
	"slices"
	"strings"
)

// This file names the values of enumerations, in JSON too.

var (
	groupNames  = []string{"full", "window", "mamba", "chunked", "other"}
	copiesNames = []string{"default", "guarded", "exact", "set"}
	mediaNames  = []string{"offsets", "bare", "pad"}
)

func (k GroupKind) String() string { return nameOf(groupNames, k) }

// MarshalText returns the String of k.
func (k GroupKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (k *GroupKind) UnmarshalText(text []byte) error { return setByName(k, groupNames, text) }

func (c Copies) String() string { return nameOf(copiesNames, c) }

// MarshalText returns the String of c.
func (c Copies) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (c *Copies) UnmarshalText(text []byte) error { return setByName(c, copiesNames, text) }

func (m MediaForm) String() string { return nameOf(mediaNames, m) }

// MarshalText returns the String of m.
func (m MediaForm) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (m *MediaForm) UnmarshalText(text []byte) error { return setByName(m, mediaNames, text) }

// MarshalText returns the String of t.
func (t Tier) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (t *Tier) UnmarshalText(text []byte) error { return setByName(t, tierNames[:], text) }

func nameOf[E ~uint8](names []string, e E) string {
	if int(e) < len(names) {
		return names[e]
	}
	return "invalid"
}

func setByName[E ~uint8](e *E, names []string, text []byte) error {
	i := slices.Index(names, string(text))
	if i < 0 {
		return fmt.Errorf("index: %q is none of %s", text, strings.Join(names, ", "))
	}
	*e = E(i)
	return nil
}
