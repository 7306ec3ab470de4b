package resp

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// conn is a connection. All but Close and commands belongs to its goroutine.
type conn struct {
	net.Conn
	s        *Server
	id       int64
	in       *reader
	out      reply
	commands atomic.Uint64
	authed   bool
	quit     bool
	db       uint32
	name     string // of CLIENT SETNAME
	waiting  bool   // the read deadline is that of a command
	vec      net.Buffers
}

func newConn(s *Server, nc net.Conn, id int64) *conn {
	c := &conn{Conn: nc, s: s, id: id, authed: len(s.cfg.Password) == 0, out: reply{resp: 2}}
	c.in = newReader(nc, c.wait)
	c.in.trusted = c.authed
	return c
}

// wait is called before a read that can wait. It writes the replies, and sets the deadline: there
// is none before a command of a client that may send one. A deadline that cannot be set is that
// of a closed connection.
func (c *conn) wait(inside bool) {
	if !inside && c.in.Buffered() > 0 {
		return
	}
	if c.flush() != nil {
		c.Close() // and the read fails
		return
	}
	switch {
	case inside || !c.authed:
		_ = c.SetReadDeadline(time.Now().Add(c.s.cfg.Stall))
	case c.waiting:
		_ = c.SetReadDeadline(time.Time{})
	}
	c.waiting = inside || !c.authed
}

// serve handles commands until the connection ends.
func (c *conn) serve() {
	if secure, ok := c.Conn.(*tls.Conn); ok {
		_ = c.SetDeadline(time.Now().Add(c.s.cfg.Stall))
		if secure.Handshake() != nil {
			return
		}
		_ = c.SetDeadline(time.Time{})
	}
	for !c.quit {
		cmd, err := c.in.begin()
		if err == nil {
			c.commands.Add(1)
			err = c.handle(&cmd)
		}
		if len(c.out.b) > outBytes && err == nil {
			err = c.flush()
		}
		if err != nil {
			var p protocolError
			if errors.As(err, &p) {
				c.out.errorf("ERR %v", p)
			}
			break
		}
	}
	c.flush() // it is over, whatever it returns
}

// outBytes is how much of replies is kept before it is written, and the most of a value that is
// copied.
const outBytes = 16 << 10

func (c *conn) flush() error {
	if len(c.out.b) == 0 {
		return nil
	}
	c.deadline(int64(len(c.out.b)))
	_, err := c.Write(c.out.b)
	c.out.b = c.out.b[:0]
	return err
}

func (c *conn) deadline(bytes int64) {
	_ = c.SetWriteDeadline(time.Now().Add(c.s.cfg.Stall + time.Duration(bytes/minRate)*time.Second))
}

// value writes a value as a bulk string, from where it lies.
func (c *conn) value(e *entry) error {
	c.out.number('$', e.size)
	c.vec = c.vec[:0]
	if e.size <= outBytes {
		for _, b := range e.buffers(c.vec) {
			c.out.b = append(c.out.b, b...)
		}
		c.out.b = append(c.out.b, "\r\n"...)
		return nil
	}
	c.vec = append(e.buffers(append(c.vec, c.out.b)), []byte("\r\n"))
	c.deadline(e.size)
	to := c.vec // WriteTo drops the slices that it has written
	_, err := to.WriteTo(c.Conn)
	c.out.b = c.out.b[:0]
	return err
}

// handle reads the rest of a command, and replies to it.
func (c *conn) handle(cmd *command) error {
	spec, ok := commands[strings.ToLower(string(cmd.args[0]))]
	if ok && spec.set && c.authed && len(cmd.args) == 2 && cmd.left > 0 {
		return c.set(cmd)
	}
	if err := c.in.rest(cmd); err != nil {
		return err
	}
	n := len(cmd.args)
	switch {
	case !ok:
		c.unknown(cmd.args)
	case spec.arity > 0 && n != spec.arity || n < -spec.arity:
		c.out.errorf("ERR wrong number of arguments for '%s' command", spec.name)
	case cmd.long > 0:
		c.out.errorf("ERR argument %d of '%s' has more than %d bytes, or all of them more than %d", cmd.long, spec.name, maxArg, maxArgBytes)
	case !c.authed && !spec.always:
		c.out.errorf("NOAUTH Authentication required.")
	case spec.set:
		return c.set(cmd)
	default:
		args := make([]string, n)
		for i, a := range cmd.args {
			args[i] = string(a)
		}
		return spec.do(c, args)
	}
	return nil
}

func (c *conn) unknown(args [][]byte) {
	var b strings.Builder
	for _, a := range args[1:] {
		if b.Len() >= keptOfLong {
			break
		}
		fmt.Fprintf(&b, "'%s' ", a[:min(len(a), keptOfLong-b.Len())])
	}
	c.out.errorf("ERR unknown command '%s', with args beginning with: %s", args[0][:min(len(args[0]), keptOfLong)], b.String())
}

// set is SET key value [EX seconds | PX milliseconds]. The value of an array is still to be
// read; that of a line is in args[2].
func (c *conn) set(cmd *command) error {
	key, cut, in := string(cmd.args[1]), cmd.long > 0, c.in
	var size int64
	if cmd.left > 0 {
		var err error
		if size, err = in.bulk(1<<63 - 1); err != nil {
			return err
		}
	} else {
		size = int64(len(cmd.args[2]))
		in = newReader(bytes.NewReader(cmd.args[2]), func(bool) {})
	}
	id, what := c.ref(key)
	v, most := c.s.values, c.s.cfg.MaxValue
	if what == metadata {
		most = int64(dataAt - nameAt - len(id.name))
	}
	var meta []byte
	var d *draft
	defer func() {
		if d != nil {
			d.abandon()
		}
	}()
	refused := cut || len(id.name) > maxName || size > most
	switch {
	case refused:
		if err := in.discard(size); err != nil {
			return err
		}
	case what == metadata:
		meta = make([]byte, size)
		if err := in.full(meta); err != nil {
			return err
		}
	default:
		d = v.draft(size)
		if err := d.fill(in); err != nil {
			return err
		}
	}
	options := cmd.args[2:]
	if cmd.left > 0 {
		if err := in.end(); err != nil {
			return err
		}
		cmd.left--
		if err := in.rest(cmd); err != nil {
			return err
		}
		options = cmd.args[2:]
	} else {
		options = options[1:]
	}
	ends, ok := int64(0), !refused
	if refused {
		c.out.errorf("ERR key of %d bytes, at most %d, or value of %d bytes, at most %d", len(key), maxName, size, max(most, 0))
	} else {
		ends, ok = c.expiry(options)
	}
	var err error
	switch {
	case what == whole && ok:
		err = v.put(header{ref: id, ends: ends}, d)
	case what != whole && !cut && len(id.name) <= maxName:
		h := &half{ref: id, part: what, meta: string(meta), ends: ends, lost: !ok || d != nil && d.lost}
		if !h.lost {
			h.draft, d = d, nil // the values have it
		}
		err = v.putHalf(h)
	}
	if err != nil {
		c.out.errorf("ERR not stored: %v", err)
	} else if ok {
		c.out.ok()
	}
	return nil
}

// expiry reads the options of a SET, and replies if it returns false.
func (c *conn) expiry(options [][]byte) (ends int64, ok bool) {
	for i := 0; i < len(options); i++ {
		var unit int64
		switch strings.ToUpper(string(options[i])) {
		case "EX":
			unit = 1000
		case "PX":
			unit = 1
		default:
			c.out.errorf("ERR SET with '%s' is not served, only EX and PX", options[i][:min(len(options[i]), keptOfLong)])
			return 0, false
		}
		if i++; i == len(options) || ends != 0 {
			c.out.errorf("ERR syntax error")
			return 0, false
		}
		n, err := strconv.ParseInt(string(options[i]), 10, 64)
		if err != nil {
			c.out.errorf("ERR value is not an integer or out of range")
			return 0, false
		}
		now := c.s.values.now().UnixMilli()
		if n <= 0 || n > (1<<63-1-now)/unit {
			c.out.errorf("ERR invalid expire time in 'set' command")
			return 0, false
		}
		ends = now + n*unit
	}
	return ends, true
}

// ref resolves a key of the protocol.
func (c *conn) ref(key string) (ref, part) {
	base, what := split(key)
	return ref{db: c.db, pair: what != whole, name: base}, what
}

// login compares a password in constant time, and replies if the login is wrong.
func (c *conn) login(user, password string) bool {
	want, got := sha256.Sum256(c.s.cfg.Password), sha256.Sum256([]byte(password))
	if len(c.s.cfg.Password) > 0 && subtle.ConstantTimeCompare(want[:], got[:]) != 1 || user != "default" {
		c.out.errorf("WRONGPASS invalid username-password pair or user is disabled.")
		return false
	}
	c.authed, c.in.trusted = true, true
	return true
}
