package chatcheck

// Side is side.
type Side = side

// Sides returns what a conversation is here, and in the engine.
func (c *Conversation) Sides() (here, engine Side) { return c.here, c.engine }
