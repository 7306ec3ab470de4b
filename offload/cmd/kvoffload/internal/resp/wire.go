package resp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Bounds of a command, but for the value of a SET. redis-server has 1 MiB of arguments and
// 512 MB a string; nothing that is served needs as much.
const (
	maxLine     = 16 << 10 // bytes of a length, or of a command without lengths
	maxArgs     = 1 << 16  // arguments of a command
	maxArg      = 4 << 10  // bytes of an argument; of a longer one the beginning is kept
	maxArgBytes = 1 << 20  // bytes of all arguments that are kept, counting 16 more for each
	keptOfLong  = 128      // bytes that are kept of an argument that is too long
)

// protocolError is a violation of the protocol, after which a connection is of no use. Its
// text is that of redis-server.
type protocolError string

func (e protocolError) Error() string { return "Protocol error: " + string(e) }

// command is one that has been read, whole or up to the value of a SET.
type command struct {
	args [][]byte // args[0] is the name; valid until the next command is read
	long int      // the first argument that is longer than maxArg, and not whole; 0 if none is
	left int      // arguments that are not read yet
}

// reader reads commands: arrays of bulk strings, or lines. It belongs to one goroutine.
type reader struct {
	*bufio.Reader
	raw     io.Reader
	wait    func(inside bool) // is called before reads that can wait; inside of a command or before one
	trusted bool              // not of a client that has yet to give the password
	kept    []byte            // the arguments
	ends    []int             // where each of them ends in kept
	args    [][]byte          // memory of command.args
}

func newReader(r io.Reader, wait func(inside bool)) *reader {
	return &reader{Reader: bufio.NewReaderSize(r, maxLine), raw: r, wait: wait}
}

// inside is called before more of a command is read.
func (r *reader) inside() {
	if r.Buffered() == 0 {
		r.wait(true)
	}
}

// line reads a line of a command, with its end.
func (r *reader) line() ([]byte, error) {
	if b, _ := r.Peek(r.Buffered()); bytes.IndexByte(b, '\n') < 0 {
		r.wait(true)
	}
	return r.ReadSlice('\n')
}

// begin reads the beginning of a command: its name, and for a SET its key as well. The rest
// is read by rest, or by value. Empty commands are skipped.
func (r *reader) begin() (command, error) {
	r.kept, r.ends = r.kept[:0], r.ends[:0]
	if cap(r.kept) > maxArg {
		r.kept = nil
	}
	for {
		r.wait(false)
		first, err := r.Peek(1)
		if err != nil {
			return command{}, err
		}
		if first[0] != '*' {
			args, err := r.inline()
			if err != nil || len(args) > 0 {
				return command{args: args}, err
			}
			continue
		}
		n, err := r.length('*', "invalid multibulk length", "too big mbulk count string", maxArgs)
		if err != nil {
			return command{}, err
		}
		if n <= 0 {
			continue
		}
		if n > 10 && !r.trusted {
			return command{}, protocolError("unauthenticated multibulk length")
		}
		c := command{left: n}
		err = r.take(&c, 1)
		if err == nil && n > 2 && equalFold(c.args[0], "SET") {
			err = r.take(&c, 1)
		}
		return c, err
	}
}

// rest reads the arguments that are left.
func (r *reader) rest(c *command) error {
	if c.left == 0 { // a line has no array of arguments
		return nil
	}
	return r.take(c, c.left)
}

// take reads n more arguments.
func (r *reader) take(c *command, n int) error {
	for range n {
		size, err := r.bulk(1<<63 - 1)
		if err != nil {
			return err
		}
		keep := int(min(size, maxArg))
		if size > maxArg || len(r.kept)+16*len(r.ends)+keep > maxArgBytes {
			keep = int(min(size, keptOfLong))
			if c.long == 0 {
				c.long = len(r.ends)
			}
		}
		at := len(r.kept)
		r.kept = append(r.kept, make([]byte, keep)...)
		if err := r.full(r.kept[at:]); err != nil {
			return err
		}
		if err := r.discard(size - int64(keep)); err != nil {
			return err
		}
		if err := r.end(); err != nil {
			return err
		}
		r.ends = append(r.ends, len(r.kept))
		c.left--
	}
	r.args = r.args[:0]
	from := 0
	for _, end := range r.ends {
		r.args = append(r.args, r.kept[from:end:end])
		from = end
	}
	c.args = r.args
	return nil
}

// bulk reads the length of a bulk string, of at most so many bytes.
func (r *reader) bulk(most int64) (int64, error) {
	r.inside()
	first, err := r.Peek(1)
	if err != nil {
		return 0, err
	}
	if first[0] != '$' {
		return 0, protocolError(fmt.Sprintf("expected '$', got '%c'", first[0]))
	}
	n, err := r.length64('$', "invalid bulk length", "too big bulk count string", most)
	if err == nil && n < 0 {
		err = protocolError("invalid bulk length")
	} else if err == nil && n > 16<<10 && !r.trusted {
		err = protocolError("unauthenticated bulk length")
	}
	return n, err
}

// end reads the end of a bulk string. As redis-server does, it takes any two bytes.
func (r *reader) end() error { return r.discard(2) }

// full reads all of b: from the buffer, and the rest past it.
func (r *reader) full(b []byte) error {
	n, err := io.ReadFull(r.Reader, b[:min(len(b), r.Buffered())])
	if err == nil && n < len(b) {
		r.wait(true)
		_, err = io.ReadFull(r.raw, b[n:])
	}
	return err
}

// discard skips n bytes.
func (r *reader) discard(n int64) error {
	for n > 0 {
		if int64(r.Buffered()) < n {
			r.wait(true)
		}
		m, err := r.Discard(int(min(n, maxLine)))
		if err != nil {
			return err
		}
		n -= int64(m)
	}
	return nil
}

func (r *reader) length(mark byte, invalid, long string, most int) (int, error) {
	n, err := r.length64(mark, invalid, long, int64(most))
	return int(n), err
}

// length64 reads a mark and a decimal number in a line of its own.
func (r *reader) length64(mark byte, invalid, long string, most int64) (int64, error) {
	line, err := r.line()
	if errors.Is(err, bufio.ErrBufferFull) {
		return 0, protocolError(long)
	} else if err != nil {
		return 0, err
	}
	digits, ok := bytes.CutSuffix(line[1:], []byte("\r\n"))
	n, err := strconv.ParseInt(string(digits), 10, 64)
	// ParseInt takes a plus, zeros in front and -0, which redis-server does not.
	if !ok || err != nil || n > most || line[0] != mark || strconv.FormatInt(n, 10) != string(digits) {
		return 0, protocolError(invalid)
	}
	return n, nil
}

// inline reads a command that is a line of words.
func (r *reader) inline() ([][]byte, error) {
	line, err := r.line()
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, protocolError("too big inline request")
	} else if err != nil {
		return nil, err
	}
	if bytes.ContainsAny(line, `"'`) {
		return nil, protocolError("quotes in an inline request")
	}
	r.kept = append(r.kept[:0], line...)
	return bytes.Fields(r.kept), nil
}

func equalFold(b []byte, upper string) bool {
	return len(b) == len(upper) && bytes.EqualFold(b, []byte(upper))
}

// reply is a buffer of bytes for a connection. flush takes its content.
type reply struct {
	b    []byte
	resp int // 2 or 3
}

func (r *reply) line(mark byte, s string) {
	r.b = append(append(append(r.b, mark), s...), '\r', '\n')
}

func (r *reply) number(mark byte, n int64) {
	r.b = append(strconv.AppendInt(append(r.b, mark), n, 10), '\r', '\n')
}

func (r *reply) ok()              { r.line('+', "OK") }
func (r *reply) integer(n int64)  { r.number(':', n) }
func (r *reply) array(n int)      { r.number('*', int64(n)) }
func (r *reply) bulkHeader(n int) { r.number('$', int64(n)) }
func (r *reply) errorf(f string, a ...any) {
	s := []byte(fmt.Sprintf(f, a...))
	for i, c := range s { // a reply of one line
		if c == '\r' || c == '\n' {
			s[i] = ' '
		}
	}
	r.line('-', string(s))
}

func (r *reply) bulk(s string) {
	r.bulkHeader(len(s))
	r.b = append(append(r.b, s...), '\r', '\n')
}

// null is the reply for an absent value.
func (r *reply) null() {
	if r.resp == 3 {
		r.line('_', "")
	} else {
		r.line('$', "-1")
	}
}

// mapHeader begins n pairs, which RESP2 has in an array.
func (r *reply) mapHeader(n int) {
	if r.resp == 3 {
		r.number('%', int64(n))
	} else {
		r.array(2 * n)
	}
}

// text writes a bulk string in RESP2, and a verbatim string of type txt in RESP3.
func (r *reply) text(s string) {
	if r.resp == 3 {
		r.number('=', int64(len(s)+4))
		r.b = append(append(append(r.b, "txt:"...), s...), '\r', '\n')
	} else {
		r.bulk(s)
	}
}
