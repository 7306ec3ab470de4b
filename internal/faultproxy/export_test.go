package faultproxy

// Held returns what is kept back in the direction of a Hold that has happened.
func (a *Armed) Held() string {
	a.lane.mu.Lock()
	defer a.lane.mu.Unlock()
	return string(a.lane.held)
}
