package chats_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvindex/kvindex/internal/chats"
	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// folder returns the folder of a model with a template.
func folder(t *testing.T, template string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"tokenizer_config.json": `{"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {}}`,
		"chat_template.jinja":   template,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Concurrent requests for a model share one load.
func TestModelsLoadOnce(t *testing.T) {
	dir := folder(t, "{{ messages[0].content }}")
	var finds atomic.Int32
	found, release := make(chan struct{}), make(chan struct{})
	s := &chats.Models{Find: func(context.Context, string) (string, error) {
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

// Each request waits within its own context, the first one too, whatever Find does. The load
// continues for others.
func TestModelsWaitWithinContext(t *testing.T) {
	dir := folder(t, "x")
	var finds atomic.Int32
	release := make(chan struct{})
	s := &chats.Models{Find: func(ctx context.Context, _ string) (string, error) {
		finds.Add(1)
		<-release
		return dir, ctx.Err()
	}}
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		watch := &watchedContext{Context: ctx, waited: make(chan struct{})}
		go func() {
			<-watch.waited
			cancel()
		}()
		if _, err := s.Model(watch, "m"); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting: %v", err)
		}
	}
	close(release)
	if m, err := s.Model(t.Context(), "m"); m == nil || err != nil || finds.Load() != 1 {
		t.Errorf("%v, %v after %d searches", m, err, finds.Load())
	}
}

// watchedContext signals the first call of Done.
type watchedContext struct {
	context.Context
	once   sync.Once
	waited chan struct{}
}

func (c *watchedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.waited) })
	return c.Context.Done()
}

// The number of concurrent loads is bounded, and a load does not displace another.
func TestModelsBusy(t *testing.T) {
	dir := folder(t, "x")
	release := make(chan struct{})
	s := &chats.Models{Find: func(context.Context, string) (string, error) {
		<-release
		return dir, nil
	}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range chats.MaxModels {
		if _, err := s.Model(ended, fmt.Sprint(i)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if _, err := s.Model(t.Context(), "one more"); !errors.Is(err, tokenize.ErrBusy) {
		t.Errorf("one more: %v", err)
	}
	close(release)
	for i := range chats.MaxModels {
		if _, err := s.Model(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Model(t.Context(), "one more"); err != nil || s.Remembered() != chats.MaxModels {
		t.Errorf("one more, when all are loaded: %v, %d", err, s.Remembered())
	}
}

// Errors are cached, and the number of cached names is bounded.
func TestModelsBounds(t *testing.T) {
	missing := errors.New("missing")
	finds := 0
	s := &chats.Models{Find: func(context.Context, string) (string, error) {
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
	for i := range 3 * chats.MaxModels {
		_, _ = s.Model(t.Context(), fmt.Sprint(i))
	}
	if n := s.Remembered(); n != chats.MaxModels {
		t.Errorf("%d names are remembered, want %d", n, chats.MaxModels)
	}
	before := finds
	if _, err := s.Model(t.Context(), strings.Repeat("m", 1025)); !errors.Is(err, fs.ErrInvalid) || finds != before {
		t.Errorf("a name of 1,025 bytes: %v", err)
	}
}

// Names without a model do not displace models.
func TestModelsKeepModels(t *testing.T) {
	dir := folder(t, "x")
	finds := 0
	s := &chats.Models{Find: func(_ context.Context, name string) (string, error) {
		if name == "m" {
			finds++
			return dir, nil
		}
		return "", errors.New("missing")
	}}
	now := time.Unix(1, 0)
	s.SetNow(func() time.Time { return now })
	for i := range chats.MaxModels + 10 {
		if i == 0 || i == chats.MaxModels+9 {
			if _, err := s.Model(t.Context(), "m"); err != nil || finds != 1 {
				t.Fatalf("%v after %d searches", err, finds)
			}
		}
		now = now.Add(time.Millisecond)
		_, _ = s.Model(t.Context(), fmt.Sprint(i))
	}
}
