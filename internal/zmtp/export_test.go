package zmtp

import "net"

const MaxFrames = maxFrames

// NetConn is the connection that a Conn reads from.
func NetConn(c *Conn) net.Conn { return c.nc }

func (c Config) WithDefaults() Config { return c.withDefaults() }
