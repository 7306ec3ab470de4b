package sequence

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvindex/kvindex/internal/sections"
)

const (
	// stateVersion is the version of AppendBinary's form.
	stateVersion = 1
	// stateRoom and messageRoom bound the bytes of a state with its marks, and of each message
	// of it in order.
	stateRoom   = 2 * maxMarks * 26
	messageRoom = 9
)

// The bits of the flags of a state.
const (
	stateStarted = 1 << iota
	stateTimed
	stateOther
	stateBlind
	stateAway
	stateAsked
	stateClocked

	stateFlags = 1<<iota - 1 // all of them
)

// AppendBinary appends the whole state of s. A Sequencer that UnmarshalBinary has read from
// that decides as s. It takes about 10 bytes for each of the last 1,024 messages, and as many
// for the life before. The error is nil.
func (s *Sequencer) AppendBinary(b []byte) ([]byte, error) {
	var flags byte
	for i, set := range [...]bool{s.started, s.timed, s.other, s.blind, s.away, s.asked, s.clocked} {
		if set {
			flags |= 1 << i
		}
	}
	// At once, because messages wait meanwhile.
	b = slices.Grow(b, stateRoom+messageRoom*(len(s.had.recent)+len(s.before.recent)))
	b = append(b, stateVersion, flags, byte(min(s.back, backLimit-1)))
	b = binary.AppendUvarint(b, s.next)
	b = binary.AppendUvarint(b, s.epoch)
	b = binary.AppendUvarint(b, s.oldNext)
	for _, t := range [...]float64{s.time, s.last, s.sure, s.oldTime, s.olderTime} {
		b = appendFloat(b, t)
	}
	return s.before.append(s.had.append(b)), nil
}

func appendFloat(b []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
}

func (m *memory) append(b []byte) []byte {
	b = binary.AppendUvarint(b, m.floor)
	b = binary.AppendUvarint(b, m.stride)
	b = binary.AppendUvarint(b, uint64(len(m.recent)))
	due := uint64(0)
	for i := range m.recent {
		d := m.at(i)
		b = binary.AppendUvarint(b, d.seq-due)
		b = binary.LittleEndian.AppendUint64(b, d.digest)
		due = d.seq + 1
	}
	b = binary.AppendUvarint(b, uint64(len(m.marks)))
	for _, k := range m.marks {
		b = binary.AppendUvarint(b, k.seq)
		b = binary.LittleEndian.AppendUint64(b, k.digest)
		b = appendFloat(b, k.time)
	}
	return b
}

// UnmarshalBinary reads the state of a Sequencer from AppendBinary. Any other data is an
// error, and leaves s as it was. Whatever the bytes are, s is as bounded as any Sequencer.
func (s *Sequencer) UnmarshalBinary(data []byte) error {
	f := sections.NewFields(data)
	if v := f.Byte(); f.Err() == nil && v != stateVersion {
		return fmt.Errorf("sequence: the state of a Sequencer has version %d, and only version %d can be read", v, stateVersion)
	}
	flags := f.Byte()
	is := func(bit byte) bool { return flags&bit != 0 }
	read := Sequencer{
		started: is(stateStarted), timed: is(stateTimed), other: is(stateOther), blind: is(stateBlind),
		away: is(stateAway), asked: is(stateAsked), clocked: is(stateClocked),
		back: int(f.Byte()), next: f.Uvarint(), epoch: f.Uvarint(), oldNext: f.Uvarint(),
		time: f.Float64(), last: f.Float64(), sure: f.Float64(), oldTime: f.Float64(), olderTime: f.Float64(),
	}
	read.had.read(f)
	read.before.read(f)
	if flags&^stateFlags != 0 {
		f.Refuse(errors.New("flags that are not known"))
	}
	if err := read.validate(); err != nil {
		f.Refuse(err)
	}
	if err := f.End(); err != nil {
		return fmt.Errorf("sequence: the state of a Sequencer: %w", err)
	}
	*s = read
	return nil
}

func (m *memory) read(f *sections.Fields) {
	m.floor, m.stride = f.Uvarint(), f.Uvarint()
	due, wrapped := uint64(0), false
	n := f.Count()
	for range min(n, digestRing) {
		seq := due + f.Uvarint()
		if seq < due || wrapped {
			f.Refuse(errors.New("numbers out of order"))
		}
		m.recent = append(m.recent, delivery{seq, f.Uint64()})
		due = seq + 1
		wrapped = due == 0
	}
	marks := f.Count()
	for range min(marks, maxMarks) {
		m.marks = append(m.marks, mark{delivery{f.Uvarint(), f.Uint64()}, f.Float64()})
	}
	if n > digestRing || marks > maxMarks {
		f.Refuse(errors.New("more messages than are remembered"))
	}
}

// validate refuses the states that no Sequencer has.
func (s *Sequencer) validate() error {
	for _, t := range [...]float64{s.time, s.last, s.sure, s.oldTime, s.olderTime} {
		if t != t {
			return errors.New("a time is NaN")
		}
	}
	had, marks := len(s.had.recent), len(s.had.marks)
	switch {
	case s.back >= backLimit:
		return fmt.Errorf("%d messages that contradict", s.back)
	case !s.started && (s.next != 0 || had+marks > 0):
		return errors.New("messages of a stream that has not begun")
	case had > 0 && s.had.at(had-1).seq+1 != s.next, marks > 0 && s.had.marks[marks-1].seq >= s.next, s.had.floor > s.next:
		return errors.New("the number that is due is not behind the last one")
	}
	if err := s.had.validate(); err != nil {
		return err
	}
	return s.before.validate()
}

func (m *memory) validate() error {
	if m.stride == 0 && len(m.recent)+len(m.marks) > 0 || m.stride&(m.stride-1) != 0 {
		return fmt.Errorf("marks at multiples of %d", m.stride)
	}
	for i, k := range m.marks {
		switch {
		case k.time != k.time:
			return errors.New("the time of a mark is NaN")
		case k.seq%m.stride != 0, i > 0 && k.seq <= m.marks[i-1].seq:
			return fmt.Errorf("a mark of number %d is not where marks are", k.seq)
		}
	}
	return nil
}
