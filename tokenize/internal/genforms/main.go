// Command genforms writes tokenize/tables/form_* from the Unicode Character
// Database. Nothing imports it; it runs only by hand:
//
//	apt-get install unicode-data   # or https://www.unicode.org/Public/15.0.0/ucd/
//	go run ./tokenize/internal/genforms /usr/share/unicode tokenize/tables
//
// Its first argument is the folder that has UnicodeData.txt, DerivedAge.txt and
// DerivedNormalizationProps.txt, of any version from 9.0.0 on: the decomposition
// of a code point, its combining class and its exclusion from composition never
// change once it is assigned, so that leaving out later code points gives the
// tables of the older version.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The version that unicode-normalization-alignments 0.1.12 has (src/tables.rs).
const major, minor = 9, 0

const (
	blockShift = 6
	blockSize  = 1 << blockShift
	codePoints = 0x110000

	// The bits of a code point's value and of a decomposition's head; forms.go
	// has them, too.
	back       = 1 << 8
	forward    = 1 << 9
	hangul     = 1 << 10
	decomposes = 1 << 15

	headLength  = 1<<4 - 1
	headCompat  = 1 << 4
	headNo      = 1 << 5
	headForward = 1 << 6
)

// A character has the properties of a code point in the database.
type character struct {
	class     int
	canonical []rune // in one step
	compat    []rune // in one step
	excluded  bool   // from composition
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: genforms FOLDER-OF-THE-UNICODE-DATA FOLDER-OF-THE-TABLES")
	}
	tables, err := generate(os.Args[1])
	if err != nil {
		log.Fatal("genforms: ", err)
	}
	for name, table := range tables {
		if err := os.WriteFile(filepath.Join(os.Args[2], name), table, 0o644); err != nil {
			log.Fatal("genforms: ", err)
		}
	}
}

// generate returns the tables by the names of their files. forms.go describes them.
func generate(folder string) (map[string][]byte, error) {
	chars, err := readCharacters(folder)
	if err != nil {
		return nil, err
	}
	pairs := pairsOf(chars)
	values, texts, err := valuesOf(chars, pairs)
	if err != nil {
		return nil, err
	}
	index, blocks, err := compress(values)
	if err != nil {
		return nil, err
	}
	tables := map[string][]byte{"form_index": index, "form_texts": texts}
	for _, v := range blocks {
		tables["form_blocks"] = binary.LittleEndian.AppendUint16(tables["form_blocks"], v)
	}
	for _, p := range packPairs(pairs) {
		tables["form_pairs"] = binary.LittleEndian.AppendUint64(tables["form_pairs"], p)
	}
	return tables, nil
}

// readCharacters returns those code points that the version has and that
// normalization has anything to do with. Hangul syllables are not among them:
// they follow from arithmetic.
func readCharacters(folder string) (map[rune]*character, error) {
	old, err := readAges(filepath.Join(folder, "DerivedAge.txt"))
	if err != nil {
		return nil, err
	}
	chars := map[rune]*character{}
	err = eachRange(filepath.Join(folder, "UnicodeData.txt"), func(c, _ rune, fields []string) error {
		h, err := parseCharacter(fields[2], fields[4])
		if old[c] && (h.class != 0 || h.canonical != nil || h.compat != nil) {
			chars[c] = h
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = eachRange(filepath.Join(folder, "DerivedNormalizationProps.txt"), func(first, last rune, fields []string) error {
		for c := first; c <= last; c++ {
			if fields[0] == "Full_Composition_Exclusion" && chars[c] != nil {
				chars[c].excluded = true
			}
		}
		return nil
	})
	return chars, err
}

// readAges reports which code points the version has.
func readAges(path string) ([]bool, error) {
	old := make([]bool, codePoints)
	err := eachRange(path, func(first, last rune, fields []string) error {
		var a, b int
		if _, err := fmt.Sscanf(fields[0], "%d.%d", &a, &b); err != nil {
			return err
		}
		for c := first; c <= last; c++ {
			old[c] = a < major || a == major && b <= minor
		}
		return nil
	})
	return old, err
}

// parseCharacter reads a combining class and a decomposition: code points in hex,
// after what kind it is in angle brackets if it is not canonical.
func parseCharacter(class, text string) (*character, error) {
	h := new(character)
	var err error
	if h.class, err = strconv.Atoi(class); err != nil {
		return h, err
	}
	to := &h.canonical
	if strings.HasPrefix(text, "<") {
		_, text, _ = strings.Cut(text, "> ")
		to = &h.compat
	}
	for _, f := range strings.Fields(text) {
		d, err := strconv.ParseUint(f, 16, 21)
		if err != nil {
			return h, err
		}
		*to = append(*to, rune(d))
	}
	return h, nil
}

// eachRange calls f with each line's code points and its fields after them.
func eachRange(path string, f func(first, last rune, fields []string) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Split(line, ";")
		if len(fields) < 2 {
			continue
		}
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		low, high, isRange := strings.Cut(fields[0], "..")
		if !isRange {
			high = low
		}
		first, err1 := strconv.ParseUint(low, 16, 21)
		last, err2 := strconv.ParseUint(high, 16, 21)
		if err1 != nil || err2 != nil || last >= codePoints {
			return fmt.Errorf("%s:%d: %q is not a range of code points", path, n, fields[0])
		}
		if err := f(rune(first), rune(last), fields[1:]); err != nil {
			return fmt.Errorf("%s:%d: %w", path, n, err)
		}
	}
	return lines.Err()
}

// decompose appends c decomposed as far as it goes.
func decompose(dst []rune, chars map[rune]*character, c rune, compat bool) []rune {
	var step []rune
	if h := chars[c]; h != nil {
		step = h.canonical
		if compat && step == nil {
			step = h.compat
		}
	}
	if step == nil {
		return append(dst, c)
	}
	for _, d := range step {
		dst = decompose(dst, chars, d, compat)
	}
	return dst
}

// pairsOf returns what each pair of code points composes to.
func pairsOf(chars map[rune]*character) map[[2]rune]rune {
	pairs := map[[2]rune]rune{}
	for c, h := range chars {
		if len(h.canonical) == 2 && !h.excluded {
			pairs[[2]rune(h.canonical)] = c
		}
	}
	return pairs
}

// plainValues returns each code point's value as if none decomposed.
func plainValues(chars map[rune]*character, pairs map[[2]rune]rune) []uint16 {
	values := make([]uint16, codePoints)
	for c, h := range chars {
		values[c] = uint16(h.class)
	}
	for p := range pairs {
		values[p[0]] |= forward
		values[p[1]] |= back
	}
	set := func(first, last rune, value uint16) {
		for c := first; c <= last; c++ {
			values[c] = value
		}
	}
	set(0x1100, 0x1112, forward) // leading consonants
	set(0x1161, 0x1175, back)    // vowels
	set(0x11a8, 0x11c2, back)    // trailing consonants
	set(0xac00, 0xd7a3, hangul)
	return values
}

// valuesOf returns each code point's value and the decompositions that some of
// them refer to. It checks what forms.go takes for granted.
func valuesOf(chars map[rune]*character, pairs map[[2]rune]rune) (values []uint16, texts []byte, err error) {
	plain := plainValues(chars, pairs)
	values = slices.Clone(plain)
	seen := map[string]int{}
	for c := range rune(codePoints) {
		h := chars[c]
		if h == nil || h.canonical == nil && h.compat == nil {
			continue
		}
		var canonical []rune
		if h.canonical != nil {
			canonical = decompose(nil, chars, c, false)
		}
		compat := decompose(nil, chars, c, true)
		if plain[c]&back != 0 || h.class != 0 && !h.excluded || len(string(canonical)) > headLength ||
			h.canonical != nil && !h.excluded && plain[canonical[0]]&^forward != 0 {
			return nil, nil, fmt.Errorf("%U is of a kind that forms.go does not know", c)
		}
		text := record(canonical, compat, h.excluded, plain[c]&forward != 0)
		at, ok := seen[text]
		if !ok {
			at = len(texts)
			seen[text] = at
			texts = append(texts, text...)
		}
		if at >= decomposes {
			return nil, nil, fmt.Errorf("the decompositions do not fit their offsets")
		}
		values[c] = decomposes | uint16(at)
	}
	return values, texts, nil
}

// record writes one entry of formTexts. canonical is nil for a code point that
// only the compatibility forms decompose.
func record(canonical, compat []rune, excluded, isForward bool) string {
	head := byte(len(string(canonical)))
	if excluded {
		head |= headNo
	}
	if isForward {
		head |= headForward
	}
	if slices.Equal(canonical, compat) {
		return string([]byte{head}) + string(canonical)
	}
	return string([]byte{head | headCompat}) + string(canonical) +
		string([]byte{byte(len(string(compat)))}) + string(compat)
}

// compress cuts values into blocks and keeps each distinct one once. Block 0 is
// all zeros.
func compress(values []uint16) (index []byte, blocks []uint16, err error) {
	seen := map[[blockSize]uint16]int{{}: 0}
	blocks = make([]uint16, blockSize)
	for at := 0; at < len(values); at += blockSize {
		block := [blockSize]uint16(values[at:])
		n, ok := seen[block]
		if !ok {
			n = len(seen)
			seen[block] = n
			blocks = append(blocks, block[:]...)
		}
		index = append(index, byte(n))
	}
	if len(seen) > 256 {
		return nil, nil, fmt.Errorf("%d blocks do not fit the index's bytes", len(seen))
	}
	return bytes.TrimRight(index, "\x00"), blocks, nil
}

// packPairs returns the pairs sorted: the first, the second and what they become, of
// 21 bits each.
func packPairs(pairs map[[2]rune]rune) []uint64 {
	var packed []uint64
	for p, c := range pairs {
		packed = append(packed, uint64(p[0])<<42|uint64(p[1])<<21|uint64(c))
	}
	slices.Sort(packed)
	return packed
}
