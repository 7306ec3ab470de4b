// Prompts that are texts: by what is known of their beginnings (package prefixcache), and
// by encoding the rest.
//
// A score needs of a text how many tokens it has, the locals of its units, and what ties
// are broken by: never the ids. What units are asked for shows only when the index is
// asked, so those are taken that were asked for last, and where others are missing the
// index is asked again. Units of several sizes come from one encoding.

package kvindex

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/prefixcache"
	"github.com/kvindex/kvindex/tokenize"
)

// maxForms is how many forms are remembered of a model.
const maxForms = 4

// form is a text in units of one kind.
type form struct {
	variant index.Variant // its Unit and Pairs
	text    prefixcache.Prompt
	whole   bool // it was known whole
}

// knownText is a text that has its locals from the prompt cache.
type knownText struct {
	tokenizer tokenize.Identified // nil: the prompt is no such text
	special   bool
	forms     []form // the first used ones are of the text
	used      int
	asked     []index.Variant // by the index
	missing   []index.Variant // of these, those that are not among forms
	ties      folded

	// Of the encoding, if there was one: the number of the first of sc.tokens, and where
	// other texts may go on.
	base   int
	places []tokenize.Mark
	folds  []fold // at places

	// Memory.
	scope []byte
	marks []prefixcache.Mark
	units []index.Local
}

// errMissing is what keysIn returns for a variant that the prompt was not cut in.
var errMissing = errors.New("kvindex: a form of the prompt is missing")

// encode sets the prompt to a text. special: the tokens are to be put around it that a
// model puts around texts.
func (sc *scorer) encode(ctx context.Context, t tokenize.Tokenizer, special bool) error {
	cache := sc.x.prompts
	if cache == nil || sc.allIDs {
		return sc.encodeWhole(ctx, t, special)
	}
	if len(sc.media) > 0 {
		cache.Pass()
		return sc.encodeWhole(ctx, t, special)
	}
	if h, ok := t.(tokenize.Holder); ok {
		held, err := h.Hold(ctx, sc.text)
		if err != nil {
			return err
		}
		t = held
	}
	id, ok := t.(tokenize.Identified)
	forms := sc.set.formsOf()
	if !ok || slices.ContainsFunc(forms, sc.isSalted) {
		cache.Pass()
		return sc.encodeWhole(ctx, t, special)
	}
	sc.known.tokenizer, sc.known.special = id, special
	err := sc.know(ctx, forms)
	if err != nil {
		sc.known.tokenizer = nil
	}
	return err
}

// encodeWhole is encode without the cache.
func (sc *scorer) encodeWhole(ctx context.Context, t tokenize.Tokenizer, special bool) (err error) {
	sc.known.tokenizer = nil
	sc.tokens, err = t.Encode(ctx, sc.tokens[:0], sc.text, special)
	sc.prompt, sc.length = sc.tokens, len(sc.tokens)
	return err
}

// isSalted reports whether the salt is in units of the prompt, which are then not what the
// text alone says.
func (sc *scorer) isSalted(v index.Variant) bool { return v.Media == MediaBare && sc.scope.salt != "" }

// knownForms are the variants that the index has asked for last, of prompts of a model.
type knownForms struct {
	heard    uint64 // since when: see candidateSet
	variants []index.Variant
}

// formsOf returns the forms that a text is likely to be asked for in.
func (set *candidateSet) formsOf() []index.Variant {
	if set.model != nil {
		if forms := set.model.forms.Load(); forms != nil {
			return forms.variants
		}
	}
	return firstForms
}

var firstForms = []index.Variant{{Unit: tieUnit}}

// learnForms remembers what variants the index has asked for, and for some pods only,
// what it has asked for before.
func (sc *scorer) learnForms() {
	set, md, all := sc.set, sc.set.model, sc.known.asked
	if md == nil || len(all) == 0 {
		return
	}
	was := md.forms.Load()
	if was != nil && was.heard == set.heard && set != md.everyone.set.Load() {
		for _, v := range was.variants {
			if len(all) < maxForms && !slices.Contains(all, v) {
				all = append(all, v)
			}
		}
		sc.known.asked = all
	}
	slices.SortFunc(all, compareVariants)
	if was == nil || was.heard != set.heard || !slices.Equal(was.variants, all) {
		md.forms.Store(&knownForms{set.heard, slices.Clone(all)})
	}
}

func compareVariants(a, b index.Variant) int {
	if a.Pairs != b.Pairs {
		return cmp.Compare(flags(a.Pairs), flags(b.Pairs))
	}
	return cmp.Or(cmp.Compare(a.Unit, b.Unit), cmp.Compare(a.Media, b.Media), cmp.Compare(a.Block, b.Block))
}

// know works out the locals of the text in some variants.
func (sc *scorer) know(ctx context.Context, variants []index.Variant) error {
	k, cache := &sc.known, sc.x.prompts
	first, from := k.used, -1
	for _, v := range variants {
		f := k.add(v)
		if f == nil {
			continue
		}
		f.whole = cache.Find(&f.text, sc.scopeOf(f.variant), sc.text)
		switch {
		case f.whole:
			sc.length = f.text.Tokens
			k.ties = folded{fold(f.text.Fold), f.text.Tail, f.text.Tokens}
		case from < 0:
			from = f.text.Resume
		case from != f.text.Resume:
			from = 0
		}
	}
	forms := k.forms[first:k.used]
	if from < 0 {
		return nil
	}
	if _, ok := k.tokenizer.(tokenize.Marker); !ok || sc.prompt != nil { // nothing to resume, or all ids are there
		from = 0
	}
	start := startOf(forms, from)
	if sc.prompt == nil {
		if err := sc.encodeFrom(ctx, forms, start, from); err != nil {
			return err
		}
	}
	if sc.length > 0 { // it is an error else
		sc.keep(forms, start)
	}
	return nil
}

// startOf returns what is known of the text up to a position, with as many ids as one of
// the forms needs. Position 0 makes them forget what is known.
func startOf(forms []form, from int) (start prefixcache.State) {
	for i := range forms {
		f := &forms[i]
		switch {
		case f.whole:
		case from == 0:
			f.text.State = prefixcache.State{Locals: f.text.Locals[:0], Tail: f.text.Tail[:0]}
		case len(f.text.Tail) >= len(start.Tail):
			start = f.text.State
		}
	}
	return start
}

// add returns a form for a variant, nil if there is one.
func (k *knownText) add(v index.Variant) *form {
	if k.form(v) != nil {
		return nil
	}
	if k.used == len(k.forms) {
		k.forms = append(k.forms, form{})
	}
	k.used++
	f := &k.forms[k.used-1]
	f.variant, f.whole = plainOf(v), false
	return f
}

func plainOf(v index.Variant) index.Variant { return index.Variant{Unit: v.Unit, Pairs: v.Pairs} }

// form returns the form of a variant, or nil.
func (k *knownText) form(v index.Variant) *form {
	for i := range k.forms[:k.used] {
		if k.forms[i].variant == plainOf(v) {
			return &k.forms[i]
		}
	}
	return nil
}

// scopeOf returns what separates equal texts: all that locals and ties depend on beside the
// text, and the salt, so that nobody learns from the time what others have sent.
func (sc *scorer) scopeOf(v index.Variant) []byte {
	id, seed := sc.known.tokenizer.Identity(), sc.x.index.Seed()
	b := append(append(sc.known.scope[:0], id[:]...), seed[:]...)
	b = append(b, flags(sc.known.special, v.Pairs))
	b = binary.AppendUvarint(b, uint64(v.Unit))
	b = binary.AppendUvarint(b, uint64(len(sc.scope.adapter)))
	b = append(append(b, sc.scope.adapter...), sc.scope.salt...)
	sc.known.scope = b
	return b
}

// encodeFrom sets sc.tokens to the last ids that are known at start, and to those of the text
// behind it. Tokens of the places is the number of ids from the beginning of the text on.
func (sc *scorer) encodeFrom(ctx context.Context, forms []form, start prefixcache.State, from int) (err error) {
	k := &sc.known
	k.places = k.places[:0]
	for i := range forms {
		if f := &forms[i]; !f.whole && len(f.text.Marks()) > len(k.places) {
			k.places = k.places[:0]
			for _, at := range f.text.Marks() {
				k.places = append(k.places, tokenize.Mark{At: at})
			}
		}
	}
	tokens := append(sc.tokens[:0], start.Tail...)
	if m, ok := k.tokenizer.(tokenize.Marker); ok {
		tokens, k.places, err = m.EncodeMarks(ctx, tokens, sc.text, from, k.special, k.places)
	} else {
		k.places = k.places[:0]
		tokens, err = k.tokenizer.Encode(ctx, tokens, sc.text, k.special)
	}
	if err != nil {
		return err
	}
	sc.tokens, k.base = tokens, start.Tokens-len(start.Tail)
	sc.length = k.base + len(tokens)
	if from == 0 {
		sc.prompt = tokens
	}
	for i := range k.places {
		k.places[i].Tokens += start.Tokens
	}
	return nil
}

// keep cuts the text in forms that were known up to start, and has the cache keep them.
func (sc *scorer) keep(forms []form, start prefixcache.State) {
	k := &sc.known
	for i := range forms {
		if f := &forms[i]; !f.whole {
			f.text.Locals = sc.cutPlain(f.text.Locals, f.variant, len(f.text.Locals)*f.variant.Unit-k.base)
		}
	}
	sc.foldPlaces(start)
	for i := range forms {
		if f := &forms[i]; !f.whole {
			sc.x.prompts.Add(&f.text, f.text.Locals, sc.marksOf(f.variant), prefixcache.Mark{
				At: len(sc.text), Resume: len(sc.text), Tokens: sc.length, Locals: len(f.text.Locals),
				Tail: k.ties.tail, Fold: uint64(k.ties.units),
			})
		}
	}
}

// cutPlain appends the locals of the whole units of sc.tokens from one of them on.
func (sc *scorer) cutPlain(dst []index.Local, v index.Variant, from int) []index.Local {
	tokens, width := sc.tokens[from:], v.Unit
	if v.Pairs {
		sc.pairs = appendPairs(sc.pairs[:0], tokens)
		tokens, width = sc.pairs, 2*width
	}
	return sc.x.hash.of(sc.scope.adapter).locals(dst, tokens, width, nil)
}

// foldPlaces works out the folds at places, and of the whole text.
func (sc *scorer) foldPlaces(start prefixcache.State) {
	k := &sc.known
	from := start.Tokens / tieUnit
	if f := k.form(firstForms[0]); f != nil {
		k.units = append(k.units[:0], f.text.Locals[from:]...)
	} else {
		k.units = sc.cutPlain(k.units[:0], firstForms[0], from*tieUnit-k.base)
	}
	at, sum := from, fold(start.Fold)
	k.folds = k.folds[:0]
	for _, p := range k.places {
		to := p.Tokens / tieUnit
		sum = sum.plus(at, k.units[at-from:to-from])
		at = to
		k.folds = append(k.folds, sum)
	}
	whole := sc.length / tieUnit
	k.ties = folded{sum.plus(at, k.units[at-from:whole-from]), sc.tokens[whole*tieUnit-k.base:], sc.length}
}

// marksOf returns what is to be kept of a form at places.
func (sc *scorer) marksOf(v index.Variant) []prefixcache.Mark {
	k := &sc.known
	k.marks = k.marks[:0]
	for i, p := range k.places {
		units := p.Tokens
		if v.Pairs {
			units--
		}
		units = max(units, 0) / v.Unit
		tail := min(units*v.Unit, p.Tokens/tieUnit*tieUnit)
		k.marks = append(k.marks, prefixcache.Mark{
			At: p.At, Resume: p.Resume, Tokens: p.Tokens, Locals: units,
			Tail: sc.tokens[tail-k.base : p.Tokens-k.base], Fold: uint64(k.folds[i]),
		})
	}
	return k.marks
}

// knownKeys returns the keys of a text in a variant, with errMissing if it was not cut in it.
func (sc *scorer) knownKeys(v index.Variant) ([]index.Key, error) {
	k := &sc.known
	f := k.form(v)
	if f == nil || sc.isSalted(v) {
		k.missing = append(k.missing, v)
		return nil, errMissing
	}
	return sc.keysOf(v, f.text.Locals), nil
}

// addMissing cuts the text in what was missing.
func (sc *scorer) addMissing(ctx context.Context) error {
	k := &sc.known
	missing := k.missing
	k.missing = k.missing[:0]
	if !slices.ContainsFunc(missing, sc.isSalted) {
		return sc.know(ctx, missing)
	}
	sc.x.prompts.Pass()
	if sc.prompt == nil {
		return sc.encodeWhole(ctx, k.tokenizer, k.special)
	}
	k.tokenizer = nil
	return nil
}

// release keeps the memory of k, and nothing of its text.
func (k *knownText) release() {
	k.tokenizer, k.used = nil, 0
	k.asked, k.missing, k.ties = k.asked[:0], k.missing[:0], folded{}
}
