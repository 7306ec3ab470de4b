package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// ErrCheckFailed is wrapped by errors about a model whose tokens differ from those that its
// engine makes.
var ErrCheckFailed = errors.New("the engine makes other tokens")

// A Judge compares the tokens that this process makes of texts and chats of a model with those of
// an engine. If one token differs, this process makes no more tokens for that model until Reset.
// Only Engine must be set, and the fields must not change after the first call. All methods are
// safe for concurrent use. A Judge has no goroutine and no connection of its own, and is not
// closed.
type Judge struct {
	// Engine makes the tokens that are compared. Its owner closes it.
	Engine *Engine

	// Fallback makes the tokens of texts and chats after a verdict. It can be Engine. nil makes
	// each of them an error that wraps ErrCheckFailed.
	Fallback *Engine

	// OnVerdict is called once for each verdict, by the Check that found it. err is what Check
	// returns: it names one of the Judge's own texts or chats, a position and two token ids.
	OnVerdict func(err error)

	state atomic.Pointer[verdict] // nil is as a verdict without an error
}

// A verdict is never changed. Reset makes a new one, so that a check which began before finds
// another pointer and cannot condemn what came after it.
type verdict struct{ err error }

// Verdict returns nil, or the error of the Check that found a difference.
func (j *Judge) Verdict() error {
	if v := j.state.Load(); v != nil {
		return v.err
	}
	return nil
}

// Reset lets the model be used again, if its files or its engine have been corrected. A Check that
// runs meanwhile gives no verdict. If the tokenizer is a kvindex.Models' or a tokenize.Pool's,
// Preload it before.
func (j *Judge) Reset() { j.state.Store(new(verdict)) }

// Check has the Engine encode some forty texts and chats, one after the other, and compares its
// tokens with those of local and model. If model is nil, chats are not compared. Call it when
// the engine has started, and again when the engine or the files may have changed.
//
// The error is nil if all that was compared is equal. It wraps ErrCheckFailed if there is a
// verdict, from this call or from an earlier one: then nothing is sent. Any other error is no
// verdict, and the model is used as before: the engine is away, slow or busy, serves another
// model or refuses all texts or chats, local fails, or ctx ended. Call Check again then. A chat
// that the engine refuses or has no tokens for, or that is not rendered here, is not compared.
//
// A difference counts if the engine and local repeat it, and the engine then lists its model at
// /v1/models, or has no such path.
func (j *Judge) Check(ctx context.Context, local tokenize.Tokenizer, model *chat.Model) error {
	was := j.state.Load()
	if was != nil && was.err != nil {
		return was.err
	}
	if j.Engine == nil {
		return errors.New("remote: Judge: Engine is nil")
	}
	if local == nil {
		return errors.New("remote: Judge: the tokenizer to check is nil")
	}
	for _, list := range [][]trial{textTrials(local), chatTrials(local, model)} {
		compared, skipped := 0, error(nil)
		for _, t := range list {
			err := j.try(ctx, was, t)
			switch {
			case err == nil:
				compared++
			case errors.Is(err, ErrCheckFailed) || !errors.Is(err, errSkipped):
				return err
			case skipped == nil:
				skipped = err
			}
		}
		if compared == 0 && skipped != nil {
			return fmt.Errorf("remote: the check compared nothing: %w", skipped)
		}
	}
	return nil
}

// errSkipped is wrapped by the error of a trial that cannot be compared.
var errSkipped = errors.New("not compared")

// A trial is a text or chat, as it is encoded here and by an engine. local returns errSkipped for
// what is not encoded here.
type trial struct {
	name   string
	local  func(context.Context) ([]uint32, error)
	engine func(context.Context, *Engine) ([]uint32, error)
}

// try makes a trial, and condemns if it differs.
func (j *Judge) try(ctx context.Context, was *verdict, t trial) error {
	here, there, err := j.both(ctx, t)
	if err != nil || slices.Equal(here, there) {
		return err
	}
	again, same, err := j.both(ctx, t)
	switch {
	case err != nil:
		return fmt.Errorf("remote: %s differs, and is not repeated: %s", t.name, err.Error()) // it is not skipped
	case !slices.Equal(here, again) || !slices.Equal(there, same):
		return fmt.Errorf("remote: %s differs, and is another when it is repeated", t.name)
	}
	if err := j.Engine.lists(ctx); err != nil {
		return fmt.Errorf("remote: %s differs, which counts only if the engine serves the model: %w", t.name, err)
	}
	v := &verdict{fmt.Errorf("remote: %w of model %q: %s: %s", ErrCheckFailed, j.Engine.Model, t.name, firstDifference(here, there))}
	if !j.state.CompareAndSwap(was, v) {
		if err := j.Verdict(); err != nil {
			return err // of a check that ran beside this one
		}
		return errors.New("remote: the Judge was reset during the check")
	}
	if j.OnVerdict != nil {
		j.OnVerdict(v.err)
	}
	return v.err
}

func (j *Judge) both(ctx context.Context, t trial) (here, there []uint32, err error) {
	if here, err = t.local(ctx); err != nil {
		return nil, nil, fmt.Errorf("remote: %s, here: %w", t.name, err)
	}
	if there, err = t.engine(ctx, j.Engine); err != nil {
		if errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrNotScorable) {
			err = fmt.Errorf("%w: %w", errSkipped, err)
		}
		return nil, nil, fmt.Errorf("remote: %s: %w", t.name, err)
	}
	return here, there, nil
}

func firstDifference(here, there []uint32) string {
	at := 0
	for at < min(len(here), len(there)) && here[at] == there[at] {
		at++
	}
	id := func(ids []uint32) string {
		if at == len(ids) {
			return "none"
		}
		return strconv.FormatUint(uint64(ids[at]), 10)
	}
	return fmt.Sprintf("token %d is %s in the engine, of %d, and %s here, of %d", at, id(there), len(there), id(here), len(here))
}

// lists checks that the engine serves the model. SGLang answers /tokenize for any.
func (e *Engine) lists(ctx context.Context) error {
	ctx, end, err := e.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	a := e.addresses[e.current.Load()%uint32(len(e.addresses))]
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url.JoinPath("/v1/models").String(), nil)
	if err != nil {
		return err
	}
	if e.Token != "" {
		request.Header.Set("Authorization", "Bearer "+e.Token)
	}
	response, err := a.client.Do(request)
	if err != nil {
		return fmt.Errorf("%s: %w", a.base, err)
	}
	defer response.Body.Close()
	var raw bytes.Buffer
	err = readAll(&raw, response, 1<<20)
	var list struct{ Data []struct{ ID string } }
	switch {
	case err != nil:
		return fmt.Errorf("%s/v1/models: %w", a.base, err)
	case response.StatusCode == http.StatusNotFound:
		return nil
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s/v1/models answers %d", a.base, response.StatusCode)
	case json.Unmarshal(raw.Bytes(), &list) != nil:
		return fmt.Errorf("%s/v1/models answers no list", a.base)
	}
	for _, m := range list.Data {
		if m.ID == e.Model {
			return nil
		}
	}
	return fmt.Errorf("%s/v1/models does not list %q", a.base, e.Model)
}

// Tokenizer returns local, as long as there is no verdict. After one it is Fallback, or an error.
// It is for a kvindex.Model, whose chats then are rendered by Fallback, too: an Indexer
// calls its Verdict before each chat. Tokenizer is cheap, and several of its results may be in
// use. The result is nil if local is nil.
//
// An encoding that has begun when a verdict comes may still be local. Later ones are not, and
// nothing in a prompt cache (kvindex.WithPromptCache) is used for them.
func (j *Judge) Tokenizer(local tokenize.Tokenizer) tokenize.Tokenizer {
	if local == nil {
		return nil // a kvindex.Model without a tokenizer stays one
	}
	t := judgedTokenizer{j, local}
	if j.Fallback != nil {
		return judgedRenderer{t, j.Fallback}
	}
	return t
}

// judgedTokenizer is local under a Judge without a Fallback. A judgedRenderer has one, and so is a
// chat.Renderer.
type judgedTokenizer struct {
	judge *Judge
	local tokenize.Tokenizer
}

type judgedRenderer struct {
	judgedTokenizer
	chat.Renderer
}

// Verdict is called by an Indexer before it renders a chat with a template.
func (t judgedTokenizer) Verdict() error { return t.judge.Verdict() }

func (t judgedTokenizer) Encode(ctx context.Context, dst []uint32, text string, special bool) ([]uint32, error) {
	err := t.Verdict()
	if err == nil {
		return t.local.Encode(ctx, dst, text, special)
	}
	if t.judge.Fallback != nil {
		return t.judge.Fallback.Encode(ctx, dst, text, special)
	}
	return dst, err
}

// Hold returns the local tokenizer, by which an Indexer finds its entries in the prompt cache. It
// is nil if there are none: after a verdict, and for a tokenizer without an identity.
func (t judgedTokenizer) Hold(ctx context.Context, text string) (tokenize.Identifier, error) {
	if err := t.Verdict(); err != nil {
		if t.judge.Fallback != nil {
			return nil, nil //nolint:nilnil // not an error: Encode is called, and nothing is kept
		}
		return nil, err
	}
	if h, ok := t.local.(interface {
		Hold(ctx context.Context, text string) (tokenize.Identifier, error)
	}); ok {
		return h.Hold(ctx, text)
	}
	id, _ := t.local.(tokenize.Identifier)
	return id, nil
}
