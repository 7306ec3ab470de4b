package index

import (
	"fmt"
	"slices"
	"strings"
)

// This file names the values of enumerations, in JSON too.

var groupNames = []string{"full", "window", "mamba", "chunked", "other"}

func (k GroupKind) String() string { return nameOf(groupNames, k) }

// MarshalText returns the String of k.
func (k GroupKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (k *GroupKind) UnmarshalText(text []byte) error { return setByName(k, groupNames, text) }

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
