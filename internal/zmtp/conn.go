package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// The flags of a frame. The other bits are reserved and must be zero.
const (
	flagMore     = 1 << 0
	flagLong     = 1 << 1
	flagCommand  = 1 << 2
	flagReserved = 0xff &^ (flagMore | flagLong | flagCommand)
)

const (
	shortHeader = 2 // flags, length
	longHeader  = 9 // flags, length in 8 bytes
)

// Buffers of a connection. An idle one must be cheap, because there are hundreds; a busy one
// reads many messages at once.
const (
	firstBuffer = 4 << 10
	// bulkBuffer is the read buffer of a busy connection, and the write buffer of one that
	// publishes. No Budget counts it.
	bulkBuffer = 32 << 10
	// keepBuffer is the largest grown buffer that is kept for the next message.
	keepBuffer = 256 << 10
	// smallBuffer is for the writes of a reader: subscriptions, heartbeats.
	smallBuffer = 512
)

// maxPingContext bounds the context of a PING (RFC 37).
const maxPingContext = 16

// Conn is one open connection. One goroutine at a time may receive; Subscribe, Send, Buffer,
// Flush and Close are safe for concurrent use, also with that goroutine. Errors name the peer.
// After an error of any method but Close the connection is unusable and must be closed.
type Conn struct {
	nc   net.Conn
	name string // the peer, for errors
	cfg  Config
	is31 bool // the peer speaks 3.1: heartbeats, subscriptions by command

	readBuffer
	skipped error    // why the current message is skipped, if it is
	parts   []frame  // of the current message
	frames  [][]byte // parts, as handed out

	deadline time.Time     // of the current message
	patience time.Duration // for silence within a message; 0 is no bound of its own
	armed    time.Time     // the present read deadline of nc

	mu     sync.Mutex // guards closed
	closed bool
	// overdrawn: the Budget has closed nc, because others needed the memory.
	overdrawn atomic.Bool

	wmu sync.Mutex // guards bw; held for a whole message
	bw  *bufio.Writer
	out *deadlineWriter
}

// A readBuffer has the window, buf[start:end]: received bytes that are not yet consumed. A
// message is parsed in place, so the window has all of it before it is handed out. Offsets of
// frames count from start, because the window moves to the front of buf, or to a larger buf,
// when more bytes are needed.
type readBuffer struct {
	buf        []byte
	start, end int
	handedOut  int  // length of the bytes that the caller has, to be consumed next
	filled     bool // the last read filled the buffer: there may be more to read
}

// A frame is the place of a frame in the window.
type frame struct {
	flags      byte
	start, end int // of its body; the header is before start
}

func newConn(nc net.Conn, name string, cfg Config) *Conn {
	outBuffer := smallBuffer
	if cfg.Type.publishes() {
		outBuffer = bulkBuffer
	}
	c := &Conn{nc: nc, name: name, cfg: cfg, out: &deadlineWriter{nc: nc, timeout: cfg.HandshakeTimeout}}
	c.buf = make([]byte, firstBuffer)
	c.bw = bufio.NewWriterSize(c.out, outBuffer)
	return c
}

// Close closes the connection and makes every pending call return. It may be
// called again.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	c.cfg.Budget.exchange(c, 0)
	return c.nc.Close()
}

// Receive returns the frames of the next message. They lie in memory of the connection and are
// valid until the next call: copy them to keep them. Meanwhile it answers the peer's
// heartbeats and sends its own; so a caller that does not come back soon lets the peer wait
// for answers.
//
// The error is io.EOF, wrapped, if the peer closed the connection between two messages. It is
// ErrSkipped, wrapped, with the frames of the message, for a message that Config.Skip has
// skipped: its frames that are too large are empty, the surplus ones are missing, and the
// connection goes on.
func (c *Conn) Receive() ([][]byte, error) {
	for {
		frames, _, err := c.next()
		if err == nil && frames != nil {
			err = c.skipped
		}
		if err != nil {
			return frames, fmt.Errorf("zmtp: receiving from %s: %w", c.name, err)
		}
		if frames != nil {
			return frames, nil
		}
	}
}

// ReceiveSubscription returns the next change of the peer's subscriptions, in
// the form of 3.1 (a command) or of 3.0 (a message that begins with 1 or 0).
// Other messages are skipped. The topic is valid until the next call.
func (c *Conn) ReceiveSubscription() (topic []byte, subscribe bool, err error) {
	for {
		frames, cmd, err := c.next()
		if err != nil {
			return nil, false, fmt.Errorf("zmtp: receiving from %s: %w", c.name, err)
		}
		switch {
		case string(cmd.name) == "SUBSCRIBE":
			return cmd.data, true, nil
		case string(cmd.name) == "CANCEL":
			return cmd.data, false, nil
		case len(frames) == 1 && len(frames[0]) > 0 && frames[0][0] <= 1:
			return frames[0][1:], frames[0][0] == 1, nil
		}
	}
}

// next reads to the end of a message, or of a command that is not about the connection itself.
func (c *Conn) next() ([][]byte, command, error) {
	c.start += c.handedOut
	c.handedOut, c.skipped = 0, nil
	c.parts = c.parts[:0]
	at, total := 0, 0
	for {
		if at == 0 {
			if err := c.await(); err != nil {
				return nil, command{}, err
			}
		}
		f, err := c.frame(at, min(c.cfg.MaxFrame, c.cfg.MaxMessage-total), maxCommand)
		if err != nil {
			return nil, command{}, midway(err)
		}
		if f.flags&flagCommand != 0 {
			cmd, err := c.command(f, at)
			if err != nil || cmd.name != nil {
				return nil, cmd, err
			}
			continue
		}
		switch {
		case len(c.parts) < maxFrames:
			c.parts = append(c.parts, f)
			at, total = f.end, total+f.end-f.start
		case c.cfg.Skip:
			c.skipped = fmt.Errorf("%w: more than %d frames", ErrSkipped, maxFrames)
			c.end = c.start + at + copy(c.buf[c.start+at:], c.buf[c.start+f.end:c.end])
		default:
			return nil, command{}, fmt.Errorf("%w: a message of more than %d frames", ErrLimit, maxFrames)
		}
		if f.flags&flagMore == 0 {
			c.handedOut = at
			return c.handOut(), command{}, nil
		}
	}
}

func (c *Conn) handOut() [][]byte {
	c.frames = c.frames[:0]
	for _, f := range c.parts {
		c.frames = append(c.frames, c.body(f))
	}
	return c.frames
}

// command reads the command f, which begins at offset at. It handles commands about the
// connection; any other is returned, to be consumed later.
func (c *Conn) command(f frame, at int) (command, error) {
	cmd, err := parseCommand(c.body(f))
	if err != nil {
		return command{}, err
	}
	own, err := c.control(cmd)
	if err != nil {
		return command{}, err
	}
	if at == 0 && !own {
		c.handedOut = f.end
		return cmd, nil
	}
	if !own {
		return command{}, fmt.Errorf("%w: %.20q inside a message", ErrProtocol, cmd.name)
	}
	// A heartbeat between the frames of a message: libzmq sends such, and the frames have to
	// lie in one piece.
	if at == 0 {
		c.start += f.end
	} else {
		c.end = c.start + at + copy(c.buf[c.start+at:], c.buf[c.start+f.end:c.end])
	}
	return command{}, nil
}

// control handles the commands about the connection itself.
func (c *Conn) control(cmd command) (own bool, err error) {
	switch string(cmd.name) {
	case "PING": // time to live (2 bytes, only for the end that gets the PING), context
		if len(cmd.data) < 2 || len(cmd.data) > 2+maxPingContext {
			return true, fmt.Errorf("%w: a PING of %d bytes", ErrProtocol, len(cmd.data))
		}
		return true, c.sendCommand("PONG", cmd.data[2:])
	case "PONG":
		return true, nil
	case "ERROR":
		return true, cmd.refusal()
	}
	return false, nil
}

// await waits for the first byte of a message or command.
func (c *Conn) await() error {
	c.deadline = time.Time{}
	c.shrink()
	if c.end > c.start {
		return nil
	}
	for pinged, idle := false, false; ; {
		var until time.Time
		if c.is31 || !idle {
			until = time.Now().Add(c.cfg.Heartbeat)
		}
		err := c.fill(until)
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if !idle && c.cfg.OnIdle != nil {
			c.cfg.OnIdle()
		}
		idle = true
		c.resize(firstBuffer)
		if !c.is31 {
			continue
		}
		if pinged {
			return fmt.Errorf("no answer to a heartbeat: %w", err)
		}
		// A time to live of 0 requests nothing: another would make the peer disconnect a
		// reader that is merely slow.
		if err := c.sendCommand("PING", []byte{0, 0}); err != nil {
			return err
		}
		pinged = true
	}
}

// frame makes the frame that begins at offset at of the window available. The limits are for
// the body of a message's frame and of a command.
func (c *Conn) frame(at, limit, commandLimit int) (frame, error) {
	if err := c.need(at + shortHeader); err != nil {
		return frame{}, err
	}
	h := c.window()[at:]
	f := frame{flags: h[0], start: at + shortHeader}
	size := uint64(h[1])
	if f.flags&flagReserved != 0 || f.flags&flagCommand != 0 && f.flags&flagMore != 0 {
		return frame{}, fmt.Errorf("%w: a frame with flags %02x", ErrProtocol, f.flags)
	}
	if f.flags&flagLong != 0 {
		if err := c.need(at + longHeader); err != nil {
			return frame{}, err
		}
		f.start = at + longHeader
		size = binary.BigEndian.Uint64(c.window()[at+1:])
	}
	if f.flags&flagCommand != 0 {
		limit = commandLimit
	}
	if size > uint64(limit) {
		if c.cfg.Skip && f.flags&flagCommand == 0 {
			c.skipped = fmt.Errorf("%w: a frame of %d bytes where %d are allowed", ErrSkipped, size, limit)
			f.end = f.start
			return f, c.discard(f.start, size)
		}
		return frame{}, fmt.Errorf("%w: a frame of %d bytes where %d are allowed", ErrLimit, size, limit)
	}
	f.end = f.start + int(size)
	return f, c.need(f.end)
}

// discard reads n bytes behind offset at of the window, and drops them.
func (c *Conn) discard(at int, n uint64) error {
	for {
		come := min(uint64(c.end-c.start-at), n)
		c.end = c.start + at + copy(c.window()[at:], c.window()[at+int(come):])
		if n -= come; n == 0 {
			return nil
		}
		if err := c.need(at + 1); err != nil {
			return err
		}
	}
}

func (c *Conn) window() []byte      { return c.buf[c.start:c.end] }
func (c *Conn) body(f frame) []byte { return c.buf[c.start+f.start : c.start+f.end : c.start+f.end] }

// need returns when the window has n bytes. It is called in the middle of a
// message, whose time runs from the first wait for more of it.
func (c *Conn) need(n int) error {
	for c.end-c.start < n {
		now := time.Now()
		if c.deadline.IsZero() {
			c.deadline = now.Add(messageTimeout)
		}
		until := c.deadline
		if quiet := now.Add(c.patience); c.patience > 0 && quiet.Before(until) {
			until = quiet
		}
		if err := c.fill(until); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("begun, but not complete in time: %w", err)
			}
			return err
		}
	}
	return nil
}

// fill waits until a deadline for at least one more byte; zero is no deadline.
func (c *Conn) fill(until time.Time) error {
	if err := c.makeRoom(); err != nil {
		return err
	}
	// Setting a deadline costs more than reading the clock. While messages come, nc's deadline
	// is earlier than necessary and stays: it is moved when it passes, once a heartbeat.
	if !until.IsZero() && (c.armed.IsZero() || until.Before(c.armed)) {
		if err := c.arm(until); err != nil {
			return err
		}
	}
	for {
		n, err := c.nc.Read(c.buf[c.end:])
		c.end += n
		c.filled = c.end == len(c.buf)
		if n > 0 {
			return nil // the error, if there is one, comes again
		}
		if err == nil {
			return io.ErrNoProgress
		}
		if c.overdrawn.Load() {
			return fmt.Errorf("%w: others needed the memory of an unfinished message of %d bytes", ErrLimit, c.end)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || c.armed.Equal(until) {
			return err
		}
		if err := c.arm(until); err != nil {
			return err
		}
	}
}

func (c *Conn) arm(until time.Time) error {
	c.armed = until
	return c.nc.SetReadDeadline(until)
}

// makeRoom makes room for more bytes behind the window. A buffer that a read filled grows, so
// that the next read takes more at once. One that is full of one unfinished message is
// doubled: so it is never more than twice the received bytes. The limits end a message before
// it can outgrow the largest buffer.
func (c *Conn) makeRoom() error {
	if c.filled && len(c.buf) < bulkBuffer {
		c.resize(min(4*len(c.buf), bulkBuffer))
	} else if c.start > 0 {
		c.move(c.buf)
	}
	if c.end < len(c.buf) {
		return nil
	}
	largest := c.cfg.MaxMessage + overhead
	size := min(2*len(c.buf), largest)
	if err := c.charge(size); err != nil {
		return err
	}
	c.move(make([]byte, size))
	return nil
}

// shrink gives up a buffer that one message made large, once the rest of the window fits a
// smaller one.
func (c *Conn) shrink() {
	if len(c.buf) > keepBuffer && c.end-c.start <= bulkBuffer/2 {
		c.resize(bulkBuffer)
	}
}

// resize makes the buffer one that no Budget counts.
func (c *Conn) resize(size int) {
	if size != len(c.buf) {
		c.move(make([]byte, size))
		_ = c.charge(0) // only taking can fail
	}
}

// move brings the window to the front of buf, which has room for it.
func (c *Conn) move(buf []byte) {
	c.end = copy(buf, c.window())
	c.start = 0
	c.buf = buf
	clear(c.frames[:cap(c.frames)]) // they would keep the old buffer alive
}

// charge makes n bytes the connection's share of the budget.
func (c *Conn) charge(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	if !c.cfg.Budget.exchange(c, n) {
		return fmt.Errorf("%w: no memory left for a message of more than %d bytes", ErrLimit, c.end)
	}
	return nil
}
