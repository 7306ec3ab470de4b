package kvindex_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"io"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/kvindex/kvindex"
	"github.com/kvindex/kvindex/index"
)

func TestMain(m *testing.M) {
	undo := kvindex.OpenMemory(func(c index.MemoryConfig) (index.Index, error) {
		m, err := index.NewMemory(c)
		return &logged{Memory: m}, err
	})
	code := m.Run()
	undo()
	os.Exit(code)
}

// logged is an index whose snapshots are all that was applied.
type logged struct {
	*index.Memory
	mu  sync.Mutex
	log []applied
}

type applied struct {
	Src     index.Source
	Cur     index.Cursor
	Changes []index.Change
}

func (l *logged) Apply(ctx context.Context, src index.Source, cur index.Cursor, changes []index.Change) (index.Applied, error) {
	done, err := l.Memory.Apply(ctx, src, cur, changes)
	if err == nil && !done.Duplicate {
		a := applied{Src: src, Cur: cur}
		for _, c := range changes {
			c.Hashes, c.Locals, c.Remaining = slices.Clone(c.Hashes), slices.Clone(c.Locals), slices.Clone(c.Remaining)
			a.Changes = append(a.Changes, c)
		}
		l.mu.Lock()
		l.log = append(l.log, a)
		l.mu.Unlock()
	}
	return done, err
}

func (l *logged) Remove(ctx context.Context, pod string) error {
	l.mu.Lock()
	l.log = slices.DeleteFunc(l.log, func(a applied) bool { return a.Src.Pod == pod })
	l.mu.Unlock()
	return l.Memory.Remove(ctx, pod)
}

func (l *logged) Snapshot(ctx context.Context, write func([]byte) error, cut func(string, func() error) error) error {
	var pods []string
	l.mu.Lock()
	for _, a := range l.log {
		if !slices.Contains(pods, a.Src.Pod) {
			pods = append(pods, a.Src.Pod)
		}
	}
	l.mu.Unlock()
	for _, pod := range pods {
		var of []applied
		err := cut(pod, func() error {
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, a := range l.log {
				if a.Src.Pod == pod {
					of = append(of, a)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, a := range of {
			var b bytes.Buffer
			if err := gob.NewEncoder(&b).Encode(a); err != nil {
				return err
			}
			if err := write(b.Bytes()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *logged) Restore(ctx context.Context, read func() ([]byte, error)) error {
	for {
		b, err := read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var a applied
		if err := gob.NewDecoder(bytes.NewReader(b)).Decode(&a); err != nil {
			return err
		}
		if _, err := l.Apply(ctx, a.Src, a.Cur, a.Changes); err != nil {
			return err
		}
	}
}
