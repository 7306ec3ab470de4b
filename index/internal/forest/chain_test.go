package forest

import "math/bits"

// chain is index.Chain.
func chain(prev Key, local uint64) Key {
	return Key(bits.RotateLeft64((uint64(prev)+(local^0x9e3779b97f4a7c15))*(2*local+0xbf58476d1ce4e5b9), 32))
}
