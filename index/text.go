package index

// The names of the values of enumerations, also in JSON.

var (
	tierNames  = []string{"gpu", "cpu", "disk", "remote", "other"}
	groupNames = []string{"full", "window", "mamba", "chunked", "other"}
)

func (t Tier) String() string { return nameOf(tierNames, t) }

// MarshalText returns the String of t.
func (t Tier) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func (k GroupKind) String() string { return nameOf(groupNames, k) }

// MarshalText returns the String of k.
func (k GroupKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func nameOf[E ~uint8](names []string, e E) string {
	if int(e) < len(names) {
		return names[e]
	}
	return "invalid"
}
