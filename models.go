package kvindex

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/kvindex/kvindex/internal/chats"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// A Model has the tokenizer and the chat template of a model. LoadModel reads a Model from a
// folder. Models reads many, by their names.
type Model struct {
	// Tokenizer makes token ids from a text. Chats need it too. If it is a chat.Renderer, such as
	// a remote.Engine, it also gets the bodies of requests that are not scorable here, and all
	// chats if Chat is nil. It gets no body that every engine refuses.
	Tokenizer tokenize.Tokenizer
	// Chat makes the text of a chat. If it is nil, chats are scored by a chat.Renderer alone.
	Chat *chat.Model
	// ChatErr is the reason why Chat is nil. It is part of the error for a request with a
	// chat. It wraps ErrNoTemplate if the model has no chat template, and chat.ErrUnsupported
	// if the engine makes the text of chats in a way that this package does not support.
	ChatErr error
}

// LoadModel reads the tokenizer of a model and its chat template from the folder of the
// model, by tokenize.LoadPretrained and chat.Load. If only the template cannot be read, the
// reason is in Model.ChatErr, and the error is nil, because texts can be scored.
//
// At most one chat.Options may be given. Its Engine counts for the tokenizer, too, and with its
// TokenizerMode "mistral" the tokenizer is that of the tekken.json, by tokenize.Load. Without it, the chat.Options are zero: vLLM's main of autumn 2026, without arguments.
func LoadModel(dir string, options ...chat.Options) (Model, error) {
	var o chat.Options
	switch len(options) {
	case 0:
	case 1:
		o = options[0]
	default:
		return Model{}, fmt.Errorf("kvindex: %d chat.Options for one model: %w", len(options), fs.ErrInvalid)
	}
	var t *tokenize.BPE
	var err error
	if path := tokenizerPath(dir, o); path == dir {
		t, err = tokenize.LoadPretrained(dir, o.Engine)
	} else {
		t, err = tokenize.Load(path)
	}
	if err != nil {
		return Model{}, fmt.Errorf("kvindex: %w", err)
	}
	m := Model{Tokenizer: t}
	m.Chat, m.ChatErr = chat.Load(dir, o)
	return m, nil
}

// tokenizerPath returns the path of the tokenizer of a model: that of mistral-common where the
// engine is to use it, whatever else is in the folder.
func tokenizerPath(dir string, o chat.Options) string {
	if o.TokenizerMode == "mistral" {
		return filepath.Join(dir, "tekken.json")
	}
	return dir
}

// ModelsConfig configures Models. The zero value is ready to use.
type ModelsConfig struct {
	// PoolConfig configures the pool of tokenizers. Its Find returns the folder of a
	// model; nil searches the local HuggingFace cache. Find is called once for the
	// tokenizer and once for the chat template, and at most 1,024 calls for templates run
	// at a time. PoolConfig.Engine must be nil: Options has the engine.
	tokenize.PoolConfig
	// Options returns the chat.Options of a model. Their Engine and the TokenizerMode "mistral"
	// count for the tokenizer, as for LoadModel. With nil they are zero for all models.
	Options func(model string) chat.Options
}

// Models reads models by their names, each from its folder when it is first used.
// The tokenizers are in a tokenize.Pool, which limits their memory. All methods are
// safe for concurrent use. It must be made by NewModels.
type Models struct {
	*tokenize.Pool
	chats chats.Models
	stop  context.CancelFunc
}

// NewModels returns Models, or an error that names a wrong field. It reads nothing yet.
func NewModels(c ModelsConfig) (*Models, error) {
	if c.Engine != nil {
		return nil, errors.New("kvindex: ModelsConfig: Engine is set: Options has the engine of a model")
	}
	find := c.Find
	if find == nil {
		find = tokenize.Hub{}.Find
	}
	if c.Options != nil {
		c.Engine = func(model string) string { return c.Options(model).Engine }
		c.Find = func(ctx context.Context, model string) (string, error) {
			dir, err := find(ctx, model)
			return tokenizerPath(dir, c.Options(model)), err
		}
	}
	pool, err := tokenize.NewPool(c.PoolConfig)
	if err != nil {
		return nil, fmt.Errorf("kvindex: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Models{Pool: pool, chats: chats.Models{Options: c.Options}, stop: stop}
	s.chats.Find = func(_ context.Context, model string) (string, error) { return find(ctx, model) }
	return s, nil
}

// Close ends calls that wait for a tokenizer, as the Close of a tokenize.Pool does, and
// cancels the context of each Find.
func (s *Models) Close() error {
	s.stop()
	return s.Pool.Close()
}

// Model returns a model by its name. It is the function for WithModels. The first call
// for a name reads the chat template, and waits for it until ctx ends. The first text reads
// the tokenizer; if this fails, the request with the text gets the error. So the error of
// Model is nil or the error of ctx.
func (s *Models) Model(ctx context.Context, name string) (Model, error) {
	m := Model{Tokenizer: s.Tokenizer(name)}
	m.Chat, m.ChatErr = s.chats.Model(ctx, name)
	return m, ctx.Err()
}

// Preload reads the tokenizers and chat templates of these models now. A model without
// a template is no error. A template that cannot be used is an error, but the tokenizer of
// the model is loaded. A second Preload reads tokenizers again, and not templates: make new
// Models if a template has changed.
func (s *Models) Preload(ctx context.Context, names ...string) error {
	errs := make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			if errs[i] = s.Pool.Preload(ctx, name); errs[i] != nil {
				return
			}
			if _, err := s.chats.Model(ctx, name); !errors.Is(err, ErrNoTemplate) {
				errs[i] = err
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
