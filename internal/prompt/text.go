// Texts: the beginning of a text comes from the prompt cache (package prefixcache), and the
// rest is encoded.
//
// A score needs the number of tokens of a text, the locals of its units, and the hash for
// ties, but never the ids. Units of several sizes come from one encoding.
//
// The cache keeps no ids, so a text must be cut into units before the index requests their
// keys. It is cut in the forms that the index has requested last (Asked). If the index requests
// another form, KeysIn returns ErrMissing, the text is cut in that form too, and the index is
// queried again. This happens once after pods or units have come, and costs a lookup. The
// alternative is to request the variants from the backend first: a second call for each score,
// and another method of each backend.
//
// The forms of one text share one encoding. It starts at the position where the earlier text
// can be resumed, if all forms are cached up to there. Else the whole text is encoded.

package prompt

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/hashing"
	"github.com/kvindex/kvindex/internal/prefixcache"
	"github.com/kvindex/kvindex/internal/sections"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// form is a text in units of one kind.
type form struct {
	variant index.Variant // its Unit and Pairs
	text    prefixcache.Prompt
	whole   bool // the whole text was in the cache
}

// textLocals has the locals of a text that uses the prompt cache.
type textLocals struct {
	tokenizer tokenize.Identifier // nil: the prompt does not use the cache
	special   bool
	forms     []form // forms[:used] are of the text
	used      int
	missing   []index.Variant // variants that the index has requested and that are not in forms
	ties      hashing.PromptFold

	// base, places and folds are of the encoding, if there was one: the position of
	// tokens[0], and the places at which other texts may be resumed.
	base   int
	places []tokenize.Mark
	folds  []hashing.Fold // at places

	// scope and the fields below are memory.
	scope []byte
	marks []prefixcache.Mark
	units []index.Local
}

// A replaceable is a tokenizer that may be replaced, such as those of a tokenize.Pool,
// which may load another file for the same model. Hold returns the tokenizer that encodes text
// now, or nil if text must go to Encode and nothing of it be in the cache. Its error is the one
// that Encode would return for text before it encodes anything.
type replaceable interface {
	Hold(ctx context.Context, text string) (tokenize.Identifier, error)
}

// A marker is a tokenizer that reports where texts may be resumed, as a tokenize.BPE does.
type marker interface {
	EncodeMarks(ctx context.Context, dst []uint32, p tokenize.Passage) (ids []uint32, kept []tokenize.Mark, err error)
}

var _ marker = (*tokenize.BPE)(nil)

// ErrRequest is kvindex.ErrRequest.
var ErrRequest = errors.New("kvindex: bad request")

// ErrMissing is returned by KeysIn for a variant in which the text was not cut.
var ErrMissing = errors.New("kvindex: a form of the prompt is missing")

// Encode makes the locals or the tokens of p.Text. With special, the special tokens of the model
// are put around it. forms are the variants that the index will probably request.
func (p *Prompt) Encode(ctx context.Context, t tokenize.Tokenizer, special bool, forms []index.Variant) error {
	cache := p.cache
	if cache == nil || p.AllIDs {
		return p.encodeWhole(ctx, t, special)
	}
	if len(p.Media) > 0 || p.Chat != nil {
		cache.Pass()
		return p.encodeWhole(ctx, t, special)
	}
	if h, ok := t.(replaceable); ok {
		held, err := h.Hold(ctx, p.Text)
		if err != nil {
			return err
		}
		if held == nil {
			cache.Pass()
			return p.encodeWhole(ctx, t, special)
		}
		t = held
	}
	id, ok := t.(tokenize.Identifier)
	if !ok || slices.ContainsFunc(forms, p.isSalted) {
		cache.Pass()
		return p.encodeWhole(ctx, t, special)
	}
	p.known.tokenizer, p.known.special = id, special
	err := p.know(ctx, forms)
	if err != nil {
		p.known.tokenizer = nil
	}
	return err
}

// encodeWhole is Encode without the cache.
func (p *Prompt) encodeWhole(ctx context.Context, t tokenize.Tokenizer, special bool) (err error) {
	p.known.tokenizer = nil
	if p.Chat == nil {
		p.tokens, err = t.Encode(ctx, p.tokens[:0], p.Text, special)
	} else {
		p.tokens, err = p.encodePieces(ctx, t, p.tokens[:0])
	}
	p.IDs, p.Length = p.tokens, len(p.tokens)
	return err
}

// encodePieces encodes Text by one tokenizer, also if it is replaced meanwhile.
func (p *Prompt) encodePieces(ctx context.Context, t tokenize.Tokenizer, ids []uint32) ([]uint32, error) {
	if h, ok := t.(replaceable); ok {
		held, err := h.Hold(ctx, p.Text)
		if err != nil {
			return ids, err
		}
		if held != nil {
			t = held
		}
	}
	return p.Chat.Encode(ctx, ids, t)
}

// isSalted reports whether the salt is in units of the prompt, so that these do not depend on the
// text alone.
func (p *Prompt) isSalted(v index.Variant) bool {
	return v.Media == hashing.FormBare && p.Scope.Salt != ""
}

// FirstForms are the forms in which the first texts of a model are cut. FirstForms[0] is also
// the form for ties.
var FirstForms = []index.Variant{{Unit: hashing.TieUnit}}

// know makes the locals of the text in some variants.
func (p *Prompt) know(ctx context.Context, variants []index.Variant) error {
	k, cache := &p.known, p.cache
	first, from := k.used, -1
	for _, v := range variants {
		f := k.add(v)
		if f == nil {
			continue
		}
		f.whole = cache.Find(&f.text, p.scopeOf(f.variant), p.Text)
		switch {
		case f.whole:
			p.Length = f.text.Tokens
			k.ties = hashing.PromptFold{Units: hashing.Fold(f.text.Fold), Tail: f.text.Tail, Count: f.text.Tokens}
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
	if _, ok := k.tokenizer.(marker); !ok || p.IDs != nil { // nothing to resume, or all ids are there
		from = 0
	}
	start := startOf(forms, from)
	if p.IDs == nil {
		if err := p.encodeFrom(ctx, forms, start, from); err != nil {
			return err
		}
	}
	if p.Length > 0 { // it is an error else
		p.keep(forms, start)
	}
	return nil
}

// startOf returns the cached state of the text at a position, with as many ids as any of
// the forms needs. Position 0 clears the states of the forms.
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

// add adds a form for a variant. It returns nil if there is one.
func (k *textLocals) add(v index.Variant) *form {
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
func (k *textLocals) form(v index.Variant) *form {
	for i := range k.forms[:k.used] {
		if k.forms[i].variant == plainOf(v) {
			return &k.forms[i]
		}
	}
	return nil
}

// scopeOf returns the scope of a text in the cache: everything beside the text on which locals
// and ties depend, and the salt, so that no client learns from the time which texts others have sent.
func (p *Prompt) scopeOf(v index.Variant) []byte {
	id, seed := p.known.tokenizer.Identity(), p.seed
	b := append(append(p.known.scope[:0], id[:]...), seed[:]...)
	b = append(b, sections.Flags(p.known.special, v.Pairs))
	b = binary.AppendUvarint(b, uint64(v.Unit))
	b = binary.AppendUvarint(b, uint64(len(p.Scope.Adapter)))
	b = append(append(b, p.Scope.Adapter...), p.Scope.Salt...)
	p.known.scope = b
	return b
}

// encodeFrom sets tokens to the last ids before start and the ids of the text after it. It sets
// Tokens of the places to the number of ids from the beginning of the text.
func (p *Prompt) encodeFrom(ctx context.Context, forms []form, start prefixcache.State, from int) (err error) {
	k := &p.known
	k.places = k.places[:0]
	for i := range forms {
		if f := &forms[i]; !f.whole && len(f.text.Marks()) > len(k.places) {
			k.places = k.places[:0]
			for _, at := range f.text.Marks() {
				k.places = append(k.places, tokenize.Mark{At: at})
			}
		}
	}
	tokens := append(p.tokens[:0], start.Tail...)
	if m, ok := k.tokenizer.(marker); ok {
		tokens, k.places, err = m.EncodeMarks(ctx, tokens, tokenize.Passage{Text: p.Text, From: from, Special: k.special, Marks: k.places})
	} else {
		k.places = k.places[:0]
		tokens, err = k.tokenizer.Encode(ctx, tokens, p.Text, k.special)
	}
	if err != nil {
		return err
	}
	p.tokens, k.base = tokens, start.Tokens-len(start.Tail)
	p.Length = k.base + len(tokens)
	if from == 0 {
		p.IDs = tokens
	}
	for i := range k.places {
		k.places[i].Tokens += start.Tokens
	}
	return nil
}

// keep cuts the text in forms that are cached up to start, and adds them to the cache.
func (p *Prompt) keep(forms []form, start prefixcache.State) {
	k := &p.known
	for i := range forms {
		if f := &forms[i]; !f.whole {
			f.text.Locals = p.cutPlain(f.text.Locals, f.variant, len(f.text.Locals)*f.variant.Unit-k.base)
		}
	}
	p.foldPlaces(start)
	for i := range forms {
		if f := &forms[i]; !f.whole {
			p.cache.Add(&f.text, f.text.Locals, p.marksOf(f.variant), prefixcache.Mark{
				At: len(p.Text), Resume: len(p.Text), Tokens: p.Length, Locals: len(f.text.Locals),
				Tail: k.ties.Tail, Fold: uint64(k.ties.Units),
			})
		}
	}
}

// cutPlain appends the locals of the whole units of p.tokens[from:].
func (p *Prompt) cutPlain(dst []index.Local, v index.Variant, from int) []index.Local {
	tokens, width := p.tokens[from:], v.Unit
	if v.Pairs {
		p.pairs = appendPairs(p.pairs[:0], tokens)
		tokens, width = p.pairs, 2*width
	}
	return p.hashes.Of(p.Scope.Adapter).Locals(dst, tokens, width, nil)
}

// foldPlaces computes the folds at places, and of the whole text.
func (p *Prompt) foldPlaces(start prefixcache.State) {
	k := &p.known
	from := start.Tokens / hashing.TieUnit
	if f := k.form(FirstForms[0]); f != nil {
		k.units = append(k.units[:0], f.text.Locals[from:]...)
	} else {
		k.units = p.cutPlain(k.units[:0], FirstForms[0], from*hashing.TieUnit-k.base)
	}
	at, sum := from, hashing.Fold(start.Fold)
	k.folds = k.folds[:0]
	for _, m := range k.places {
		to := m.Tokens / hashing.TieUnit
		sum = sum.Plus(at, k.units[at-from:to-from])
		at = to
		k.folds = append(k.folds, sum)
	}
	whole := p.Length / hashing.TieUnit
	k.ties = hashing.PromptFold{Units: sum.Plus(at, k.units[at-from:whole-from]), Tail: p.tokens[whole*hashing.TieUnit-k.base:], Count: p.Length}
}

// marksOf returns the marks of a form at places, for the cache.
func (p *Prompt) marksOf(v index.Variant) []prefixcache.Mark {
	k := &p.known
	k.marks = k.marks[:0]
	for i, m := range k.places {
		units := m.Tokens
		if v.Pairs {
			units--
		}
		units = max(units, 0) / v.Unit
		tail := min(units*v.Unit, m.Tokens/hashing.TieUnit*hashing.TieUnit)
		k.marks = append(k.marks, prefixcache.Mark{
			At: m.At, Resume: m.Resume, Tokens: m.Tokens, Locals: units,
			Tail: p.tokens[tail-k.base : m.Tokens-k.base], Fold: uint64(k.folds[i]),
		})
	}
	return k.marks
}

// knownKeys returns the keys of a text in a variant, or ErrMissing if it was not cut in it.
func (p *Prompt) knownKeys(v index.Variant) ([]index.Key, error) {
	k := &p.known
	f := k.form(v)
	if f == nil || p.isSalted(v) {
		k.missing = append(k.missing, v)
		return nil, ErrMissing
	}
	return p.keysOf(v, f.text.Locals), nil
}

// Expand puts the tokens of media in their places among those of a chat.
func (p *Prompt) Expand(r *chat.Rendering) (err error) {
	p.expanded, p.Media, err = r.Expand(p.expanded[:0], p.IDs)
	p.IDs, p.Length = p.expanded, len(p.expanded)
	return err
}

// AddMissing cuts the text in the variants for which KeysIn has returned ErrMissing.
func (p *Prompt) AddMissing(ctx context.Context) error {
	k := &p.known
	missing := k.missing
	k.missing = k.missing[:0]
	if !slices.ContainsFunc(missing, p.isSalted) {
		return p.know(ctx, missing)
	}
	p.cache.Pass()
	if p.IDs == nil {
		return p.encodeWhole(ctx, k.tokenizer, k.special)
	}
	k.tokenizer = nil
	return nil
}

// release keeps the memory of k, and nothing of its text.
func (k *textLocals) release() {
	k.tokenizer, k.used = nil, 0
	k.missing, k.ties = k.missing[:0], hashing.PromptFold{}
}
