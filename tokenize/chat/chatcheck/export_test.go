package chatcheck

type Side = side

// Sides returns a conversation's result here and in the engine.
func (c *Conversation) Sides() (here, engine Side) { return c.here, c.engine }
