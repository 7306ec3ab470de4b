package tokenize

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// A model turns a piece into ids (tokenizers 0.23.2, models/bpe/model.rs). Its
// symbols, which are merged, are the bytes of a piece or its characters.
type model struct {
	words *vocab   // the tokens that a piece can be, by what stands in the piece
	alone []uint64 // a bit for each of words: a piece that is the token comes to it alone
	// uncut: a piece is looked up in words before it is cut by joints, and found there
	// whatever merging makes of it.
	uncut  bool
	joints *joints // nil: no piece is cut

	symbols symbolTable
	merges  *mergeTable
	cached  bool // pieces of several tokens are kept in a call's memory
}

func (t *model) size() int {
	n := t.words.size() + 8*cap(t.alone) + t.symbols.size() + t.merges.size()
	if t.joints != nil {
		n += t.joints.size()
	}
	return n
}

// encode appends the ids of piece, which is not empty.
func (t *model) encode(w *scratch, dst []uint32, piece []byte) ([]uint32, error) {
	if t.joints == nil {
		return t.encodePart(w, dst, piece)
	}
	if t.uncut {
		if id, ok := t.words.id(piece); ok {
			return append(dst, id), nil
		}
	}
	var err error
	for len(piece) > 0 {
		n := t.joints.cut(piece)
		if err = w.spend(n); err != nil {
			return nil, err
		}
		if dst, err = t.encodePart(w, dst, piece[:n]); err != nil {
			return nil, err
		}
		piece = piece[n:]
	}
	return dst, nil
}

// parts reports whether any piece with l right before r encodes to the ids of the part that
// ends with l and then those of the part that begins with r.
func (t *model) parts(l, r rune) bool {
	return t.joints != nil && !t.uncut && !t.joints.join(l, r)
}

// encodePart appends the ids of a part that is not cut further.
func (t *model) encodePart(w *scratch, dst []uint32, part []byte) ([]uint32, error) {
	short := len(part) <= max(t.words.longest, cachedBytes)
	var hash uint64
	if short {
		hash = t.words.hash(part)
		if i := t.words.find(hash, part); i >= 0 && t.isAlone(i) {
			return append(dst, t.words.ids[i]), nil
		}
		if ids := w.words.find(hash, part); ids != nil {
			return append(dst, ids...), nil
		}
	}
	ids, err := t.mergePart(&w.merge, part)
	if err != nil {
		return nil, err
	}
	if short && t.cached {
		w.words.put(hash, part, ids)
	}
	return append(dst, ids...), nil
}

func (t *model) isAlone(i int) bool { return t.alone[i/64]>>(i%64)&1 != 0 }

// mergePart returns the ids of a part, in memory of w.
func (t *model) mergePart(w *mergeScratch, part []byte) ([]uint32, error) {
	w.ids = t.symbols.append(w.ids[:0], part)
	return t.merges.merge(w)
}

// A symbolTable has the symbols of a piece before any merge.
type symbolTable struct {
	bytes   *[256]uint32 // ids of bytes; nil if the symbols are characters
	written [256]rune    // the characters that a byte-level file writes bytes with
	runes   runeTable    // ids of characters
	missing bool         // some byte or character has no id of its own

	// A symbol without an id becomes fallback's ids of its bytes, if all have one; else it is
	// unknown, or left out if that is noID.
	fallback *[256]uint32
	unknown  uint32
	fuse     bool // unknown ones in a row become one
}

// noID stands for a missing token.
const noID = ^uint32(0)

func (t *symbolTable) size() int { return 3*4*256 + t.runes.size() }

// append appends the symbols of a piece.
func (t *symbolTable) append(dst []uint32, piece []byte) []uint32 {
	if t.bytes == nil || t.missing {
		return t.appendAny(dst, piece)
	}
	dst = slices.Grow(dst, len(piece))
	for _, b := range piece {
		dst = append(dst, t.bytes[b])
	}
	return dst
}

// appendAny does what merge_word does in tokenizers 0.23.2, models/bpe/model.rs.
// There an unknown token waits for the next symbol that has an id or is unknown,
// too: those that fall back go before it.
func (t *symbolTable) appendAny(dst []uint32, piece []byte) []uint32 {
	waiting := false
	for i := 0; i < len(piece); {
		id, n := t.symbol(piece[i:])
		char := piece[i : i+n]
		i += n
		if id != noID {
			if waiting {
				dst = append(dst, t.unknown)
				waiting = false
			}
			dst = append(dst, id)
			continue
		}
		var fell bool
		if dst, fell = t.fallBack(dst, char); fell || t.unknown == noID {
			continue
		}
		if waiting && !t.fuse {
			dst = append(dst, t.unknown)
		}
		waiting = true
	}
	if waiting {
		dst = append(dst, t.unknown)
	}
	return dst
}

// symbol returns the id of the symbol that s begins with, noID for none, and its
// length.
func (t *symbolTable) symbol(s []byte) (id uint32, n int) {
	if t.bytes != nil {
		return t.bytes[s[0]], 1
	}
	r, n := runeAt(s, 0)
	return t.runes.id(r), n
}

// fallBack appends the ids of the bytes of char, if all have one. Of a byte they
// are those of the character that byte-level files write it with.
func (t *symbolTable) fallBack(dst []uint32, char []byte) ([]uint32, bool) {
	if t.fallback == nil {
		return dst, false
	}
	var written [utf8.UTFMax]byte
	if t.bytes != nil {
		char = utf8.AppendRune(written[:0], t.written[char[0]])
	}
	for _, b := range char {
		if t.fallback[b] == noID {
			return dst, false
		}
	}
	for _, b := range char {
		dst = append(dst, t.fallback[b])
	}
	return dst, true
}

// A runeTable maps characters to ids.
type runeTable struct {
	block  []uint16 // by the upper bits of a character: its block of ids, plus one; 0 for none
	blocks [][runeBlock]uint32
}

const runeBlock = 64

func (t *runeTable) size() int { return 2*cap(t.block) + 4*runeBlock*cap(t.blocks) }

func (t *runeTable) set(r rune, id uint32) {
	if t.block == nil {
		t.block = make([]uint16, utf8.MaxRune/runeBlock+1)
	}
	b := &t.block[r/runeBlock]
	if *b == 0 {
		var none [runeBlock]uint32
		for i := range none {
			none[i] = noID
		}
		t.blocks = append(t.blocks, none)
		*b = uint16(len(t.blocks))
	}
	t.blocks[*b-1][r%runeBlock] = id
}

func (t *runeTable) id(r rune) uint32 {
	if t.block == nil || t.block[r/runeBlock] == 0 {
		return noID
	}
	return t.blocks[t.block[r/runeBlock]-1][r%runeBlock]
}

// A modelFile is a model section as it was read.
type modelFile struct {
	object        // its fields but these two
	vocab  *vocab // as the file writes it
	merges *mergeList
}

// newModel makes the model of a file whose pre-tokenizer is byte-level, or not.
func newModel(f *modelFile, byteLevel bool) (*model, error) {
	s, err := f.settings()
	if err != nil {
		return nil, err
	}
	t := &model{uncut: s.ignoreMerges, cached: true}
	if t.merges, err = f.merges.resolve(f.vocab); err != nil {
		return nil, err
	}
	t.words = f.vocab
	if byteLevel {
		t.words = byteWords(f.vocab)
	}
	t.symbols = newSymbolTable(f.vocab, s, byteLevel)
	if err := t.symbols.checkUnknown(s); err != nil {
		return nil, err
	}
	if !byteLevel && t.symbols.knowsAll() && !f.merges.haveBytes() {
		t.joints = newJoints(f.merges)
	}
	t.findAlone()
	return t, nil
}

// modelSettings are the fields of a model but its vocabulary and merges.
type modelSettings struct {
	unknown                             string
	hasUnknown                          bool
	fuseUnknown, fallBack, ignoreMerges bool
}

// settings checks all fields but vocab and merges.
func (f *modelFile) settings() (s modelSettings, err error) {
	if err := f.only("type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
		"fuse_unk", "byte_fallback", "ignore_merges"); err != nil {
		return s, err
	}
	if !f.absent("dropout") && string(f.values["dropout"]) != "0.0" {
		return s, unsupported("model dropout")
	}
	for _, name := range []string{"continuing_subword_prefix", "end_of_word_suffix"} {
		if f.absent(name) {
			continue
		}
		affix, err := f.text(name)
		if err != nil {
			return s, err
		}
		if affix != "" {
			return s, unsupported("model %s %.60q", name, affix)
		}
	}
	if s.hasUnknown = !f.absent("unk_token"); s.hasUnknown {
		if s.unknown, err = f.text("unk_token"); err != nil {
			return s, err
		}
	}
	for _, field := range []struct {
		name string
		flag *bool
	}{{"fuse_unk", &s.fuseUnknown}, {"byte_fallback", &s.fallBack}, {"ignore_merges", &s.ignoreMerges}} {
		if f.absent(field.name) {
			continue
		}
		if *field.flag, err = f.flag(field.name); err != nil {
			return s, err
		}
	}
	return s, nil
}

func newSymbolTable(v *vocab, s modelSettings, byteLevel bool) symbolTable {
	id := func(text string) uint32 {
		if id, ok := v.id([]byte(text)); ok {
			return id
		}
		return noID
	}
	t := symbolTable{unknown: noID, fuse: s.fuseUnknown, missing: true}
	if s.hasUnknown {
		t.unknown = id(s.unknown)
	}
	if s.fallBack {
		t.fallback = new([256]uint32)
		for b := range t.fallback {
			t.fallback[b] = id(fmt.Sprintf("<0x%02X>", b))
		}
	}
	if byteLevel {
		t.bytes, t.written = new([256]uint32), byteCharacters()
		t.missing = false
		for b, r := range t.written {
			t.bytes[b] = id(string(r))
			t.missing = t.missing || t.bytes[b] == noID && inUTF8(byte(b))
		}
		return t
	}
	for i, id := range v.ids {
		text := v.at(i)
		if r, n := utf8.DecodeRune(text); n > 0 && n == len(text) {
			t.runes.set(r, id)
		}
	}
	return t
}

// inUTF8 reports whether a byte can be in UTF-8.
func inUTF8(b byte) bool { return b != 0xc0 && b != 0xc1 && b < 0xf5 }

// knowsAll reports whether no character is unknown: each byte of UTF-8 is one to
// fall back to, or a character that has an id.
func (t *symbolTable) knowsAll() bool {
	if t.fallback == nil {
		return false
	}
	for b, id := range t.fallback {
		isCharacter := b < utf8.RuneSelf && t.runes.id(rune(b)) != noID
		if id == noID && inUTF8(byte(b)) && !isCharacter {
			return false
		}
	}
	return true
}

// checkUnknown refuses an unk_token that is not in the vocabulary, if any text could need it.
func (t *symbolTable) checkUnknown(s modelSettings) error {
	if s.hasUnknown && t.unknown == noID && t.missing && !t.knowsAll() {
		return malformed("model: unk_token %.60q is not in the vocabulary", s.unknown)
	}
	return nil
}

// findAlone finds the words that a piece becomes alone: those that merging makes of their own
// text, or all of them without merging.
func (t *model) findAlone() {
	t.alone = make([]uint64, (t.words.len()+63)/64)
	w := new(mergeScratch)
	for i, id := range t.words.ids {
		alone := t.uncut && t.joints == nil
		if text := t.words.at(i); !alone && len(text) > 0 {
			ids, err := t.mergePart(w, text)
			alone = err == nil && len(ids) == 1 && ids[0] == id
		}
		if alone {
			t.alone[i/64] |= 1 << (i % 64)
		}
	}
}

// byteWords returns the vocabulary by the bytes that its tokens stand for. A token
// with a character that stands for no byte is left out: no text can give it.
func byteWords(file *vocab) *vocab {
	alphabet := byteAlphabet()
	v := &vocab{
		text: make([]byte, 0, len(file.text)),
		ends: make([]uint32, 0, len(file.ends)),
		ids:  make([]uint32, 0, len(file.ids)),
	}
next:
	for i, id := range file.ids {
		from := len(v.text)
		for _, r := range string(file.at(i)) {
			if int(r) >= len(alphabet) || alphabet[r] < 0 {
				v.text = v.text[:from]
				continue next
			}
			v.text = append(v.text, byte(alphabet[r]))
		}
		v.close(id)
	}
	v.index()
	return v
}

// byteCharacters returns the character that byte-level files write each byte with.
// Bytes that print in Latin-1 stand for themselves, the rest for the characters
// from U+0100 on.
func byteCharacters() (characters [256]rune) {
	next := rune(0x100)
	for b := range rune(256) {
		if '!' <= b && b <= '~' || 0xa1 <= b && b <= 0xac || 0xae <= b {
			characters[b] = b
			continue
		}
		characters[b] = next
		next++
	}
	return characters
}

// byteAlphabet returns, for each character that byte-level files write a byte
// with, the byte; -1 for others.
func byteAlphabet() [0x144]int16 {
	var alphabet [0x144]int16
	for i := range alphabet {
		alphabet[i] = -1
	}
	for b, r := range byteCharacters() {
		alphabet[r] = int16(b)
	}
	return alphabet
}
