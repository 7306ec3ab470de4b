package zmtp

import "net"

const MaxFrames = maxFrames

// NetConn returns a Conn's underlying connection.
func NetConn(c *Conn) net.Conn { return c.nc }
