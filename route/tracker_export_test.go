package route

// InMemory returns the number of pods, and of notes of others, that a Tracker has in memory.
func (t *Tracker) InMemory() (pods, notes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range t.origins {
		notes += 1 + len(o.pods)
	}
	if read := t.read.Load(); read != nil {
		return max(len(t.pods), len(*read)), notes
	}
	return len(t.pods), notes
}

// Locked reports whether some pods are found with a lock only.
func (t *Tracker) Locked() bool { return t.newer.Load() }
