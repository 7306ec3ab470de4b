// Kvindexd is the service for programs that do not embed kvindex. It receives the KV events of
// engines, and reports over HTTP how much of a prompt each engine has cached.
//
//	kvindexd -h
//
// lists its commands, and docs/kvindexd.md describes them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/kvindex/kvindex/cmd/kvindexd/internal/config"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the process at once
	}()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "kvindexd:", err)
		os.Exit(1)
	}
}

const usage = `kvindexd [flags]             runs the service
kvindexd -demo               runs it with three simulated engines; takes -listen and -admin
kvindexd check-config        prints every setting and its origin, and starts nothing
kvindexd tail ENDPOINT       prints the events of an engine, such as tcp://10.0.0.7:5557
kvindexd healthcheck [URL]   asks /healthz of a service on this machine

Each setting of check-config is a flag (-block-size=16), a variable (KVINDEXD_BLOCK_SIZE=16),
and a key ("blockSize": 16) of the JSON file that -config names. docs/kvindexd-config.md
describes them.
`

// run runs the command that the arguments name, or prints the usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	err := command(ctx, args, stdout, stderr)
	if errors.Is(err, flag.ErrHelp) {
		_, err = io.WriteString(stdout, usage)
	}
	return err
}

func command(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if rest := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "-demo" || a == "--demo" }); len(rest) < len(args) {
		return demo(ctx, rest, stdout, stderr)
	}
	if len(args) > 0 {
		switch rest := args[1:]; args[0] {
		case "tail":
			return tail(ctx, rest, stdout, stderr)
		case "healthcheck":
			return healthcheck(ctx, rest)
		case "check-config":
			c, err := config.Load(rest, os.Environ(), os.ReadFile)
			if err != nil {
				return err
			}
			return c.Print(stdout)
		}
	}
	s, err := loadSettings(args, stderr)
	if err != nil {
		return err
	}
	redis.SetLogger(redisLog{s.log})
	return serve(ctx, s)
}

// logger returns a log that writes lines of JSON.
func logger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

// healthcheck requests /healthz of a service: that of the URL in args, or else the one that the
// environment's settings describe.
func healthcheck(ctx context.Context, args []string) error {
	set := flag.NewFlagSet("healthcheck", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	if err := set.Parse(args); err != nil {
		return err
	}
	url := set.Arg(0)
	switch set.NArg() {
	case 0:
		c, err := config.Load(nil, os.Environ(), os.ReadFile)
		if err != nil {
			return err
		}
		host, port, _ := net.SplitHostPort(c.Listen) // Load has checked it
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		url = "http://" + net.JoinHostPort(host, port) + "/healthz"
	case 1:
	default:
		return errors.New("healthcheck takes one URL at most")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	a.Body.Close()
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, a.Status)
	}
	return nil
}
