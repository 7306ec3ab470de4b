package kvindex

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// A Model is what the texts and the chats of a model are scored with. LoadModel reads
// one from a folder, and Models finds many by their names.
type Model struct {
	// Tokenizer makes token ids of a text. It is needed for chats too.
	Tokenizer tokenize.Tokenizer
	// Chat makes the text of a chat; nil: chats are not scored.
	Chat *chat.Model
	// ChatErr says why Chat is nil, and is told to whoever sends a chat. It wraps
	// ErrNoTemplate if the model has no chat template, and chat.ErrUnsupported if the
	// engine renders its chats in a way that is not known here. Nil, with a nil Chat:
	// the host gave none.
	ChatErr error
}

// LoadModel reads the tokenizer of a model and its chat template, if it has one, from
// its folder, by [tokenize.LoadPretrained] and by [chat.Load] with the zero Options. A
// template that cannot be used is no error: it is the ChatErr of the Model, whose texts
// are scored. Who has other Options sets Chat to what chat.Load returns with them.
func LoadModel(dir string) (Model, error) {
	t, err := tokenize.LoadPretrained(dir)
	if err != nil {
		return Model{}, fmt.Errorf("kvindex: %w", err)
	}
	m := Model{Tokenizer: t}
	m.Chat, m.ChatErr = chat.Load(dir, chat.Options{})
	return m, nil
}

// ModelsConfig configures Models. A zero field is its default.
type ModelsConfig struct {
	// PoolConfig is that of the tokenizers. Its Find finds the folder of a model for
	// chat templates too, in calls of their own, up to 1,024 at a time; nil: in the
	// local HuggingFace cache.
	tokenize.PoolConfig
	// Options are those of a model's chats; nil: the zero Options for all.
	Options func(model string) chat.Options
}

// Models are the models of a fleet by their names, each read from its folder when it is
// first asked for. Their tokenizers are in a [tokenize.Pool], whose Stats are those of
// Models. All methods are safe for concurrent use.
type Models struct {
	*tokenize.Pool
	chats chat.Models
	stop  context.CancelFunc
}

// NewModels returns Models that have read nothing yet.
func NewModels(c ModelsConfig) (*Models, error) {
	pool, err := tokenize.NewPool(c.PoolConfig)
	if err != nil {
		return nil, fmt.Errorf("kvindex: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Models{Pool: pool, chats: chat.Models{Options: c.Options}, stop: stop}
	if c.Find != nil {
		s.chats.Find = func(_ context.Context, model string) (string, error) { return c.Find(ctx, model) }
	}
	return s, nil
}

// Close ends what waits for a tokenizer, as the Close of a [tokenize.Pool] does, and the
// context of each Find.
func (s *Models) Close() error {
	s.stop()
	return s.Pool.Close()
}

// Model returns a model by its name, for WithModels. Its chat template is there, or the
// ChatErr, when Model returns: it waits within ctx for the first time that the folder is
// read. Its tokenizer is found by the first text, which gets the error if there is none.
// Model returns no error but that of ctx.
func (s *Models) Model(ctx context.Context, name string) (Model, error) {
	m := Model{Tokenizer: s.Tokenizer(name)}
	m.Chat, m.ChatErr = s.chats.Model(ctx, name)
	return m, ctx.Err()
}

// Preload reads models, as the Preload of a [tokenize.Pool] does, with their chat
// templates, which are read once: a template that changes on disk needs new Models. A
// model without a template is no error; one whose template cannot be used is, although
// its tokenizer is there.
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
