package zmtp

import (
	"encoding/binary"
	"fmt"
	"net"
	"time"
)

// A deadlineWriter gives each write to the network its own deadline.
type deadlineWriter struct {
	nc      net.Conn
	timeout time.Duration // below 0: none
}

func (w *deadlineWriter) Write(p []byte) (int, error) {
	var until time.Time
	if w.timeout > 0 {
		until = time.Now().Add(w.timeout)
	}
	if err := w.nc.SetWriteDeadline(until); err != nil {
		return 0, err
	}
	return w.nc.Write(p)
}

// Send writes one message of one frame or more to the network. It keeps none of
// the slices.
func (c *Conn) Send(frames ...[]byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	err := c.writeMessage(frames)
	if err == nil {
		err = c.bw.Flush()
	}
	return c.sending(err)
}

// Buffer is Send, except that the message may wait for others or for Flush: many
// small messages then take one write.
func (c *Conn) Buffer(frames ...[]byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.sending(c.writeMessage(frames))
}

// Flush writes the buffered messages.
func (c *Conn) Flush() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.sending(c.bw.Flush())
}

// Subscribe requests the messages whose topic begins with topic.
func (c *Conn) Subscribe(topic string) error {
	if c.is31 {
		return c.sending(c.sendCommand("SUBSCRIBE", []byte(topic)))
	}
	return c.Send(append([]byte{1}, topic...))
}

func (c *Conn) sending(err error) error {
	if err != nil {
		return fmt.Errorf("zmtp: sending to %s: %w", c.name, err)
	}
	return nil
}

func (c *Conn) writeMessage(frames [][]byte) error {
	last := len(frames) - 1
	for i, body := range frames {
		var flags byte
		if i < last {
			flags = flagMore
		}
		if err := c.writeFrame(flags, body); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) sendCommand(name string, data []byte) error {
	body := make([]byte, 0, 1+len(name)+len(data))
	body = append(body, byte(len(name)))
	body = append(body, name...)
	body = append(body, data...)
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if err := c.writeFrame(flagCommand, body); err != nil {
		return err
	}
	return c.bw.Flush()
}

func (c *Conn) writeFrame(flags byte, body []byte) error {
	h := c.bw.AvailableBuffer()
	if len(body) > 255 {
		h = append(h, flags|flagLong)
		h = binary.BigEndian.AppendUint64(h, uint64(len(body)))
	} else {
		h = append(h, flags, byte(len(body)))
	}
	if _, err := c.bw.Write(h); err != nil {
		return err
	}
	_, err := c.bw.Write(body)
	return err
}
