package offload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A segment file is a header, and records behind it. All begin at multiples of the
// file's alignment; the bytes between them are undefined. All numbers are little-endian.
//
//	file header                      record header
//	 0  8  "kvoffseg"                 0  4  "kvof"
//	 8  4  version, 1                 4  2  version, 1
//	12  4  alignment                  6  2  kind: 1 a block, 2 its deletion
//	16  8  nonce                      8  8  nonce of the file
//	24  4  CRC-32C of 0 to 24        16 16  space
//	                                 32 32  key
//	                                 64  4  length of the body, which follows the header
//	                                 68  4  CRC-32C of the body
//	                                 72  8  offset of the record in the file
//	                                 80 12  zero
//	                                 92  4  CRC-32C of 0 to 92
//
// The nonce keeps bytes of another file, and the offset those of another place, from being
// taken for a record: a body can contain a whole segment.
const (
	fileMagic   = "kvoffseg"
	recordMagic = "kvof"
	version     = 1
	fileHeader  = 28
	recordBytes = 96
	maxAlign    = 4096

	kindBlock    = 1
	kindDeletion = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// format is the content of a segment file's header.
type format struct {
	align int64
	nonce uint64
}

func (f format) append(b []byte) []byte {
	at := len(b)
	b = append(b, fileMagic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, uint32(f.align))
	b = binary.LittleEndian.AppendUint64(b, f.nonce)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// errNoSegment is returned for a file that does not begin as a segment does.
var errNoSegment = errors.New("no header of a segment")

func readFormat(r io.ReaderAt) (f format, err error) {
	var b [fileHeader]byte
	if _, err := r.ReadAt(b[:], 0); errors.Is(err, io.EOF) {
		return f, errNoSegment
	} else if err != nil {
		return f, err
	}
	f = format{int64(binary.LittleEndian.Uint32(b[12:])), binary.LittleEndian.Uint64(b[16:])}
	if string(b[:8]) != fileMagic || crc32.Checksum(b[:24], castagnoli) != binary.LittleEndian.Uint32(b[24:]) {
		return f, errNoSegment
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != version {
		return f, fmt.Errorf("version %d of segments, not %d", v, version)
	}
	if f.align < 64 || f.align > maxAlign || f.align&(f.align-1) != 0 {
		return f, fmt.Errorf("%w: alignment %d", errNoSegment, f.align)
	}
	return f, nil
}

// padded returns the bytes that a record with a body of n bytes takes in a file.
func (f format) padded(n int) int64 { return (int64(recordBytes+n) + f.align - 1) &^ (f.align - 1) }

// record is the header of a record.
type record struct {
	kind   uint16
	space  SpaceID
	key    Key
	length int
	sum    uint32 // of the body
}

func (rec record) append(b []byte, f format, at int64) []byte {
	start := len(b)
	b = append(b, recordMagic...)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = binary.LittleEndian.AppendUint16(b, rec.kind)
	b = binary.LittleEndian.AppendUint64(b, f.nonce)
	b = append(b, rec.space[:]...)
	b = append(b, rec.key[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(rec.length))
	b = binary.LittleEndian.AppendUint32(b, rec.sum)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	b = append(b, make([]byte, 12)...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// parse reads a record header, and reports false for anything that is not the one of
// this place.
func (f format) parse(b []byte, at int64) (rec record, ok bool) {
	if string(b[:4]) != recordMagic || crc32.Checksum(b[:92], castagnoli) != binary.LittleEndian.Uint32(b[92:]) {
		return rec, false
	}
	rec = record{
		kind: binary.LittleEndian.Uint16(b[6:]), space: SpaceID(b[16:32]), key: Key(b[32:64]),
		length: int(binary.LittleEndian.Uint32(b[64:])), sum: binary.LittleEndian.Uint32(b[68:]),
	}
	return rec, binary.LittleEndian.Uint16(b[4:]) == version && binary.LittleEndian.Uint64(b[8:]) == f.nonce &&
		binary.LittleEndian.Uint64(b[72:]) == uint64(at) && binary.LittleEndian.Uint32(b[64:]) <= maxBlockBytes && // before it is an int of 32 bits
		(rec.kind == kindBlock || rec.kind == kindDeletion && rec.length == 0)
}

// damage is what a reader of a segment found beside whole records.
type damage struct {
	torn    int // records that the file ends in, or that were never written
	corrupt int // runs of bytes where a record should begin and none does
}

// scan calls each for the records of a file of so many bytes, by their headers alone, and
// returns where the last of them ends. It reads on behind bytes that are no record.
func (f format) scan(r io.ReaderAt, size int64, each func(rec record, at int64) error) (end int64, d damage, err error) {
	end = f.align
	window := make([]byte, 0, 64<<10) // bytes of the file, from its place from on
	var from int64
	lost, ahead := false, recordBytes // it looks for the next record; how much it reads at once
	at := f.align
	for ; at+recordBytes <= size; at += f.align {
		if at+recordBytes > from+int64(len(window)) {
			window, from = window[:min(int64(ahead), size-at)], at
			if _, err := r.ReadAt(window, at); err != nil {
				return end, d, err
			}
		}
		b := window[at-from:][:recordBytes]
		rec, ok := f.parse(b, at)
		switch {
		case !ok && lost:
		case !ok && [recordBytes]byte(b) == [recordBytes]byte{}:
			lost, ahead = true, cap(window)
			d.torn++
		case !ok:
			lost, ahead = true, cap(window)
			d.corrupt++
		case at+recordBytes+int64(rec.length) > size:
			d.torn++
			return end, d, nil
		default:
			lost, ahead = false, recordBytes
			if rec.length < cap(window)/8 { // the next ones are likely as small
				ahead = cap(window)
			}
			if err := each(rec, at); err != nil {
				return end, d, err
			}
			end = at + f.padded(rec.length)
			at = end - f.align
		}
	}
	if !lost && at < size {
		d.torn++
	}
	return end, d, nil
}
