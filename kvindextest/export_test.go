package kvindextest

// ErrRestarted is errRestarted.
var ErrRestarted = errRestarted

// Requests is the number of requests in the engine.
func (e *Engine) Requests() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.engine.Waiting() + e.engine.Running()
}
