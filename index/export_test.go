package index

// ForestBytes returns the bytes of the keys, of their table and of their holders.
func ForestBytes(m Index) [3]int {
	_, by := m.(*memory).usage()
	return [3]int{by.keys, by.heads, by.holders}
}

// Names returns how many names of a source are kept, held or not.
func Names(m Index, src Source) int {
	return (*m.(*memory).models.Load())[src.Model].source(src).names.Len()
}
