package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/config"
	"github.com/kvindex/kvindex/cmd/kvindexd/internal/server"
	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/kvindextest"
	"github.com/kvindex/kvindex/tokenize/chat"
)

const (
	demoModel    = "demo"
	demoPrompt   = "Once upon a time there was a fleet of engines, and each of them remembered other prompts."
	demoTemplate = `{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}`
)

// letters is the tokenizer of the demo: each byte is a token.
type letters struct{}

func (letters) Encode(_ context.Context, dst []uint32, text string, _ bool) ([]uint32, error) {
	for _, b := range []byte(text) {
		dst = append(dst, uint32(b))
	}
	return dst, nil
}

// demo runs a service with three engines, and prints commands to try.
func demo(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := config.Load(args, []string{"KVINDEXD_LISTEN=127.0.0.1:8080"}, os.ReadFile)
	if err != nil {
		return err
	}
	for _, set := range c.Settings {
		if set.Name != "listen" && set.Name != "admin" && strings.HasPrefix(set.Origin, "flag") {
			return fmt.Errorf("%s: -demo takes -listen and -admin only", set.Origin)
		}
	}
	s, engines, err := demoSettings(ctx)
	for _, e := range engines {
		defer e.Close()
	}
	if err != nil {
		return err
	}
	s.listen, s.admin, s.log = c.Listen, c.Admin, logger(stderr, slog.LevelWarn)
	s.listening = func(public, admin string) {
		fmt.Fprintln(stdout, "Three engines are played, and kvindexd listens. Ctrl-C ends it.")
		if admin != "" {
			fmt.Fprintf(stdout, "Its page is http://%s/.\n", admin)
		}
		fmt.Fprintf(stdout, "Try:\n\n%s\n", strings.Join(tries(public, admin), "\n"))
	}
	return serve(ctx, s)
}

// demoSettings starts three engines that have cached the whole of a prompt, a part of it and
// none of it. It returns the settings of a service that follows them. The caller closes the
// engines, after an error too.
func demoSettings(ctx context.Context) (s settings, started []*kvindextest.Engine, err error) {
	m, err := chat.New(demoTemplate, nil, chat.Options{})
	if err != nil {
		return s, nil, err
	}
	var pods []events.Pod
	for i, share := range []int{1, 2, 3} {
		engines, pod, err := kvindextest.NewPod(kvindextest.EngineConfig{Pod: fmt.Sprintf("pod-%d", i), Model: demoModel, Replay: true}, 1)
		if err != nil {
			return s, started, err
		}
		started = append(started, engines...)
		tokens, _ := letters{}.Encode(ctx, nil, demoPrompt[:len(demoPrompt)*share/3], true)
		if _, err := engines[0].Serve(ctx, kvindextest.Request{Tokens: tokens}); err != nil {
			return s, started, err
		}
		pods = append(pods, pod)
	}
	s.server = server.Config{Model: demoModel, ReadyShare: 1}
	s.options = []kvindex.Option{kvindex.WithModel(demoModel, kvindex.Model{Tokenizer: letters{}, Chat: m})}
	s.sources = []events.PodSource{{Name: "demo", Run: func(ctx context.Context, set func([]events.Pod) error) error {
		err := set(pods)
		<-ctx.Done()
		return errors.Join(err, ctx.Err())
	}}}
	return s, started, nil
}

// tries returns shell commands that query the service of the demo.
func tries(public, admin string) []string {
	quoted := func(v any) string {
		b, _ := json.Marshal(v) // strings and maps of strings
		return "'" + string(b) + "'"
	}
	message := []any{map[string]string{"role": "user", "content": "Hello"}}
	post := func(path string, v any) string {
		return fmt.Sprintf("curl -s http://%s%s -d %s", public, path, quoted(v))
	}
	commands := []string{
		fmt.Sprintf("curl -s http://%s/readyz", public),
		post("/score_completions", map[string]any{"model": demoModel, "prompt": demoPrompt}),
		post("/score_chat_completions", map[string]any{"model": demoModel, "messages": message}),
		post("/v1/score", map[string]any{"prompt": demoPrompt, "top": 1}),
		post("/v1/select", map[string]any{"body": map[string]any{"model": demoModel, "messages": message}, "lease_ms": 60_000}),
	}
	if admin == "" {
		return commands
	}
	return append(commands,
		fmt.Sprintf("curl -s http://%s/v1/pods", admin),
		fmt.Sprintf("curl -sG http://%s/v1/explain -d pod=pod-0 -d model=%s --data-urlencode 'prompt=%s'", admin, demoModel, demoPrompt))
}
