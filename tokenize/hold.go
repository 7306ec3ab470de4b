// A request holds one tokenizer. The file that a Pool has under a name changes between two
// calls, and cached encodings must be of one file. Identity is a digest of the bytes, and not
// of the name, path and time of a file, which do not show its content. The names of a Pool are
// a map that is replaced and never changed, so that Hold takes no lock.

package tokenize

import (
	"context"
	"fmt"
)

// Tokenizer returns the tokenizer of a model. It returns at once and loads nothing. The
// first Encode starts the loading, and waits for it until its ctx ends; the loading
// goes on without the caller. If it fails, Encode returns the error.
func (p *Pool) Tokenizer(model string) Tokenizer { return poolTokenizer{p, model} }

// A poolTokenizer is the tokenizer of a model, looked up at each call.
type poolTokenizer struct {
	pool  *Pool
	model string
}

func (t poolTokenizer) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	h, err := t.hold(ctx, text)
	if err != nil {
		return dst, err
	}
	ids, _, err := h.encode(ctx, dst, Passage{Text: text, Special: special})
	return ids, err
}

// Hold returns the tokenizer that is loaded now, and waits until it is loaded, as Encode
// does. It uses no slot. With a tokenizer that is loaded it takes no lock, and allocates
// nothing. The error is one that Encode returns for text before it encodes anything.
//
// The result goes on to encode with that file, whatever the Pool loads or evicts
// meanwhile, until the Pool is closed. The file stays in memory as long as the result is
// in use, and counts in PoolConfig.Memory only as long as the Pool has it.
func (t poolTokenizer) Hold(ctx context.Context, text string) (Identifier, error) {
	h, err := t.hold(ctx, text)
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (t poolTokenizer) hold(ctx context.Context, text string) (*fileTokenizer, error) {
	if err := t.pool.check(ctx, text); err != nil {
		return nil, err
	}
	return t.pool.tokenizer(ctx, t.model, int64(len(text)))
}

// size is the number of bytes that are encoded.
func (p Passage) size() int64 { return int64(len(p.Text) - max(0, min(p.From, len(p.Text)))) }

// check returns the error of a text before any wait.
func (p *Pool) check(ctx context.Context, text string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(text) > p.maxText {
		return fmt.Errorf("tokenize: %w: %d bytes, at most %d", ErrTextTooLong, len(text), p.maxText)
	}
	return nil
}

// tokenizer returns the tokenizer of model for a text of size bytes.
func (p *Pool) tokenizer(ctx context.Context, model string, size int64) (*fileTokenizer, error) {
	if f := p.use(model); f != nil {
		return f.tokenizer, nil
	}
	v, err := p.gate.queue(size)
	if err != nil {
		return nil, err
	}
	defer p.gate.leave(v)
	l, err := p.look(ctx, model, false)
	if err != nil {
		return nil, err
	}
	return p.wait(ctx, l)
}

// use returns the file of a name that has one.
func (p *Pool) use(model string) *file {
	f := (*p.named.Load())[model]
	if f != nil {
		p.touch(f)
	}
	return f
}

// touch makes f the most recently used one. It writes nothing if f is that already, so that
// the users of one model do not slow each other down.
func (p *Pool) touch(f *file) {
	if f.used.Load() != p.clock.Load() {
		f.used.Store(p.clock.Add(1))
	}
}

// A fileTokenizer is the tokenizer of a file. Its encodings pass the gate of a Pool.
type fileTokenizer struct {
	pool *Pool
	bpe  *BPE
}

func (h *fileTokenizer) Identity() [32]byte { return h.bpe.Identity() }

func (h *fileTokenizer) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	ids, _, err := h.EncodeMarks(ctx, dst, Passage{Text: text, Special: special})
	return ids, err
}

func (h *fileTokenizer) EncodeMarks(ctx context.Context, dst []uint32, p Passage) ([]uint32, []Mark, error) {
	if err := h.pool.check(ctx, p.Text); err != nil {
		return dst, nil, err
	}
	return h.encode(ctx, dst, p)
}

// encode encodes p, which is checked, with a slot.
func (h *fileTokenizer) encode(ctx context.Context, dst []uint32, p Passage) ([]uint32, []Mark, error) {
	g := &h.pool.gate
	v, err := g.enter(ctx, p.size())
	if err != nil {
		return dst, nil, err
	}
	defer g.leave(v)
	pause := pauser(context.Context.Err)
	if v.long() {
		pause = func(ctx context.Context) error { return g.pass(ctx, v) }
	}
	return h.bpe.encode(call{ctx, pause}, dst, p)
}
