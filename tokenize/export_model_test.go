package tokenize

import (
	"errors"
	"strings"
)

// Cold stops t from keeping the ids of pieces, until warm is called.
func Cold(t *BPE) (warm func()) {
	t.model.cached = false
	return func() { t.model.cached = true }
}

func Size(t *BPE) int { return t.size() }

// A Model is a model without the steps before it.
type Model = model

// ParseModel reads a model section.
func ParseModel(section string, byteLevel bool) (*Model, error) {
	f, err := readModel(newStream(strings.NewReader(section)))
	if err != nil {
		return nil, err
	}
	return newModel(f, byteLevel)
}

// EncodePiece encodes a piece twice, the second time from the kept ids.
func (t *model) EncodePiece(piece string) (ids, again []uint32, err error) {
	w := new(scratch)
	ids, err1 := t.encode(w, nil, []byte(piece))
	again, err2 := t.encode(w, nil, []byte(piece))
	return ids, again, errors.Join(err1, err2)
}

func (t *model) Parts(l, r rune) bool { return t.parts(l, r) }
func (t *model) Cuts() bool           { return t.joints != nil }

// A Vocab is a vocabulary of texts, with their positions as ids.
type Vocab struct{ v vocab }

// NewVocab returns the position of a repeated text, or -1.
func NewVocab(texts []string) (*Vocab, int) {
	v := new(Vocab)
	for i, s := range texts {
		v.v.add([]byte(s), uint32(i))
	}
	return v, v.v.index()
}

func (v *Vocab) ID(text string) (uint32, bool) { return v.v.id([]byte(text)) }

// A PairTable is the table in which merges are looked up.
type PairTable struct{ t pairTable }

func NewPairTable(n int) *PairTable                   { return &PairTable{newPairTable(n)} }
func (t *PairTable) Set(a, b, value uint32)           { t.t.set(a, b, value) }
func (t *PairTable) Value(a, b uint32) (uint32, bool) { v := t.t.value(a, b); return v, v != noMerge }

const (
	MaxSection     = maxSection
	MaxSetting     = maxSetting
	MaxMerges      = maxMerges
	MaxRankedToken = maxRankedToken
	StreamBuffer   = streamBuffer
)
