package chat_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// plainModel is the files of a model with a template.
func plainModel(template string) map[string]string {
	return map[string]string{
		"tokenizer_config.json": `{"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {}}`,
		"chat_template.jinja":   template,
	}
}

// All who ask for a model while it is loaded get the one that is loaded.
func TestModelsLoadOnce(t *testing.T) {
	dir := folder(t, plainModel("{{ messages[0].content }}"))
	var finds atomic.Int32
	found, release := make(chan struct{}), make(chan struct{})
	s := &chat.Models{Find: func(context.Context, string) (string, error) {
		if finds.Add(1) == 1 {
			close(found)
		}
		<-release
		return dir, nil
	}}
	var models [16]*chat.Model
	var wg sync.WaitGroup
	for i := range models {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var err error
			if models[i], err = s.Model(t.Context(), "m"); err != nil {
				t.Error(err)
			}
		}()
	}
	<-found
	close(release)
	wg.Wait()
	for _, m := range models {
		if m == nil || m != models[0] {
			t.Fatalf("%p beside %p", m, models[0])
		}
	}
	if n := finds.Load(); n != 1 {
		t.Errorf("%d searches", n)
	}
}

// Who waits does so within its context, and the end of one's context is not the
// error of another.
func TestModelsWaitWithinContext(t *testing.T) {
	dir := folder(t, plainModel("x"))
	found := make(chan struct{})
	var finds atomic.Int32
	s := &chat.Models{Find: func(ctx context.Context, _ string) (string, error) {
		if finds.Add(1) > 1 {
			return dir, nil
		}
		close(found)
		<-ctx.Done()
		return "", ctx.Err()
	}}
	first, cancelFirst := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() {
		_, err := s.Model(first, "m")
		errs <- err
	}()
	<-found
	second, cancelSecond := context.WithCancel(t.Context())
	cancelSecond()
	if _, err := s.Model(second, "m"); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting: %v", err)
	}
	third := &watched{Context: t.Context(), waited: make(chan struct{})}
	go func() {
		_, err := s.Model(third, "m")
		errs <- err
	}()
	<-third.waited
	cancelFirst()
	a, b := <-errs, <-errs
	if a == nil {
		a, b = b, a
	}
	if !errors.Is(a, context.Canceled) || b != nil {
		t.Errorf("the one that was cancelled: %v, the one that waited: %v", a, b)
	}
}

// A watched context tells when it is first waited for.
type watched struct {
	context.Context
	once   sync.Once
	waited chan struct{}
}

func (c *watched) Done() <-chan struct{} {
	c.once.Do(func() { close(c.waited) })
	return c.Context.Done()
}

// Errors are remembered, and so are only so many names.
func TestModelsBounds(t *testing.T) {
	missing := errors.New("missing")
	finds := 0
	s := &chat.Models{Find: func(context.Context, string) (string, error) {
		finds++
		return "", missing
	}}
	now := time.Unix(1, 0)
	s.SetNow(func() time.Time { return now })
	for i, want := range []int{1, 1, 2, 2} {
		if i == 2 {
			now = now.Add(time.Second)
		}
		if _, err := s.Model(t.Context(), "m"); !errors.Is(err, missing) || finds != want {
			t.Fatalf("attempt %d: %v after %d searches, want %d", i, err, finds, want)
		}
	}
	for i := range 3 * chat.MaxModels {
		_, _ = s.Model(t.Context(), fmt.Sprint(i))
	}
	if n := s.Remembered(); n != chat.MaxModels {
		t.Errorf("%d names are remembered, want %d", n, chat.MaxModels)
	}
}

// Names that lead to nothing do not make room at the cost of a model.
func TestModelsKeepModels(t *testing.T) {
	dir := folder(t, plainModel("x"))
	finds := 0
	s := &chat.Models{Find: func(_ context.Context, name string) (string, error) {
		if name == "m" {
			finds++
			return dir, nil
		}
		return "", errors.New("missing")
	}}
	now := time.Unix(1, 0)
	s.SetNow(func() time.Time { return now })
	for i := range chat.MaxModels + 10 {
		if i == 0 || i == chat.MaxModels+9 {
			if _, err := s.Model(t.Context(), "m"); err != nil || finds != 1 {
				t.Fatalf("%v after %d searches", err, finds)
			}
		}
		now = now.Add(time.Millisecond)
		_, _ = s.Model(t.Context(), fmt.Sprint(i))
	}
}
