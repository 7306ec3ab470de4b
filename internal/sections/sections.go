// Package sections is the container of a snapshot: a stream of sections that are
// checked before they are used.
//
//	header   8 bytes  magic "kvindex\x00"
//	         4 bytes  format version, little endian as all numbers
//	section  1 byte   kind; 0 is the end
//	         1 byte   flags: 1 is optional, the others are 0
//	         2 bytes  0
//	         4 bytes  length of the payload, at most Max
//	         8 bytes  checksum
//	         ...      payload
//
// The payload of the end is the number of sections before it, in 8 bytes.
//
// The checksum of a section is the xxh3 of its payload, seeded by the xxh3 of the checksum
// before it and of its own first 8 bytes. Before the first section is the header. So a section
// that is corrupt, repeated, misplaced or of another stream shows when it is read, and the
// checksum of the end is one of the whole.
package sections

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/zeebo/xxh3"
)

const (
	// version is the version of the format.
	version = 1
	// Max bounds the payload of a section.
	Max = 4 << 20

	magic     = "kvindex\x00"
	headerLen = len(magic) + 4
	frontLen  = 16 // of a section, before its payload

	flagOptional = 1
	// step is how much of a payload is read at first, before its buffer grows.
	step = 4096
)

// Kind is the kind of a section. Its meaning is up to the writer and the reader.
type Kind uint8

// end is the last section.
const end Kind = 0

func checksum(before uint64, front []byte, payload []byte) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], before)
	copy(b[8:], front[:8])
	return xxh3.HashSeed(payload, xxh3.Hash(b[:]))
}

func header() []byte { return binary.LittleEndian.AppendUint32([]byte(magic), version) }

// Writer writes sections. It keeps nothing of their payloads. Every method returns an error of
// the io.Writer unchanged; after one, nothing more can be written.
type Writer struct {
	w     io.Writer
	last  uint64 // the checksum before
	count uint64 // of sections
}

// NewWriter writes the header.
func NewWriter(w io.Writer) (*Writer, error) {
	h := header()
	return &Writer{w: w, last: xxh3.Hash(h)}, write(w, h)
}

// Write writes a section. A reader without the kind skips it if it is optional, and
// otherwise refuses the stream.
func (w *Writer) Write(k Kind, optional bool, payload []byte) error {
	if k == end || len(payload) > Max {
		return fmt.Errorf("a section of kind %d and %d bytes", k, len(payload))
	}
	w.count++
	return w.put(k, optional, payload)
}

// End writes the end.
func (w *Writer) End() error {
	return w.put(end, false, binary.LittleEndian.AppendUint64(nil, w.count))
}

func (w *Writer) put(k Kind, optional bool, payload []byte) error {
	var front [frontLen]byte
	front[0] = byte(k)
	if optional {
		front[1] = flagOptional
	}
	binary.LittleEndian.PutUint32(front[4:], uint32(len(payload)))
	w.last = checksum(w.last, front[:], payload)
	binary.LittleEndian.PutUint64(front[8:], w.last)
	if err := write(w.w, front[:]); err != nil {
		return err
	}
	return write(w.w, payload)
}

func write(w io.Writer, b []byte) error {
	n, err := w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}

// Reader reads the stream of a Writer, and no byte behind the end. Its errors name the section
// and the byte of the stream.
type Reader struct {
	r     io.Reader
	knows []Kind
	last  uint64
	count uint64 // of sections that were read
	at    uint64 // bytes that were read
	nth   uint64 // the section that was read last
	begin uint64 // where that begins
	front [frontLen]byte
	buf   []byte
	err   error // the error of the next Next
}

// NewReader reads the header. It refuses other data, and another version of the format.
// Optional sections of kinds that are not in knows are skipped.
func NewReader(r io.Reader, knows ...Kind) (*Reader, error) {
	s := &Reader{r: r, knows: knows}
	var h [headerLen]byte
	n, err := io.ReadFull(r, h[:])
	switch {
	case string(h[:min(n, len(magic))]) != magic[:min(n, len(magic))]:
		return nil, errors.New("this is no snapshot: it does not begin as one")
	case err != nil:
		return nil, fmt.Errorf("the header ends at byte %d: %w", n, unexpected(err))
	}
	if v := binary.LittleEndian.Uint32(h[len(magic):]); v != version {
		return nil, fmt.Errorf("the snapshot has version %d of the format, and only version %d can be read", v, version)
	}
	s.last, s.at = xxh3.Hash(h[:]), uint64(n)
	return s, nil
}

// Next returns the next section, after checking it. The payload is valid until the next call
// of Next. The error is io.EOF behind the end, if the stream is intact.
func (s *Reader) Next() (Kind, []byte, error) {
	for s.err == nil {
		k, optional, payload, err := s.read()
		switch {
		case err != nil:
			s.err = err
		case k == end:
			s.err = io.EOF
		case slices.Contains(s.knows, k):
			return k, payload, nil
		case !optional:
			s.err = s.wrong("its kind %d is not known: the snapshot is of a later version", k)
		}
	}
	return 0, nil, s.err
}

// Wrong returns an error about the section that Next has read last, which may be the end.
func (s *Reader) Wrong(err error) error {
	return fmt.Errorf("section %d at byte %d: %w", s.nth, s.begin, err)
}

func (s *Reader) wrong(format string, args ...any) error {
	return s.Wrong(fmt.Errorf(format, args...))
}

// read reads a section and checks it.
func (s *Reader) read() (k Kind, optional bool, payload []byte, err error) {
	s.nth, s.begin = s.count, s.at
	n, err := io.ReadFull(s.r, s.front[:])
	s.at += uint64(n)
	if err != nil {
		return 0, false, nil, s.wrong("there is no end: the stream stops at byte %d: %w", s.at, unexpected(err))
	}
	length := binary.LittleEndian.Uint32(s.front[4:])
	if length > Max {
		return 0, false, nil, s.wrong("a length of %d bytes, at most %d: it is corrupt", length, Max)
	}
	if err := s.readPayload(int(length)); err != nil {
		return 0, false, nil, s.wrong("%d bytes of %d: the stream stops at byte %d: %w", len(s.buf), length, s.at, unexpected(err))
	}
	s.last = checksum(s.last, s.front[:], s.buf)
	if s.last != binary.LittleEndian.Uint64(s.front[8:]) {
		return 0, false, nil, s.wrong("the checksum does not fit: it is corrupt, or in the wrong place")
	}
	k, flags := Kind(s.front[0]), s.front[1]
	if flags&^flagOptional != 0 || s.front[2] != 0 || s.front[3] != 0 {
		return 0, false, nil, s.wrong("flags that are not known: the snapshot is of a later version")
	}
	if k == end {
		if len(s.buf) != 8 || binary.LittleEndian.Uint64(s.buf) != s.count {
			return 0, false, nil, s.wrong("the end counts other sections than were read")
		}
		return k, false, nil, nil
	}
	s.count++
	return k, flags&flagOptional != 0, s.buf, nil
}

// readPayload reads n bytes into s.buf, which grows only with the received bytes.
func (s *Reader) readPayload(n int) error {
	s.buf = s.buf[:0]
	for len(s.buf) < n {
		room := cap(s.buf)
		if room == len(s.buf) {
			room = max(2*room, step)
			s.buf = append(make([]byte, 0, min(room, n)), s.buf...)
		}
		from := len(s.buf)
		s.buf = s.buf[:min(cap(s.buf), n)]
		got, err := io.ReadFull(s.r, s.buf[from:])
		s.buf = s.buf[:from+got]
		s.at += uint64(got)
		if err != nil {
			return err
		}
	}
	return nil
}

// unexpected replaces io.EOF by io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Flags returns a byte in which bit i is set[i].
func Flags(set ...bool) (b byte) {
	for i, s := range set {
		if s {
			b |= 1 << i
		}
	}
	return b
}
