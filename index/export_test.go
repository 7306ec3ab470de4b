package index

// ForestBytes returns the bytes of the keys, of their table and of their holders.
func ForestBytes(m Index) [3]int {
	_, by := m.(*memory).usage()
	return [3]int{by.keys, by.heads, by.holders}
}
