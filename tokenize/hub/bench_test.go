package hub_test

import (
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkFind finds a snapshot that is in the cache.
func BenchmarkFind(b *testing.B) {
	h := newFake(b)
	h.commit("org/m", "main", whole("1"))
	c := h.client(b.TempDir())
	if _, err := c.Find(b.Context(), "org/m"); err != nil {
		b.Fatal(err)
	}
	h.asked()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Find(b.Context(), "org/m"); err != nil {
			b.Fatal(err)
		}
	}
	if len(h.asked()) > 0 {
		b.Error("requests")
	}
}

// BenchmarkDownload compares a download with a bare copy of the same bytes to a file, hashed and
// synced.
func BenchmarkDownload(b *testing.B) {
	h := newFake(b)
	source := rand.New(rand.NewPCG(1, 2))
	content := make([]byte, 32<<20)
	for i := range content {
		content[i] = byte(source.Uint32())
	}
	h.commit("org/m", "main", files{"tokenizer.json": string(content)})
	dir := b.TempDir()
	b.Run("bare", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			r, err := http.Get(h.server.URL + "/org/m/resolve/main/tokenizer.json")
			must(b, err)
			f, err := os.Create(filepath.Join(dir, "bare"))
			must(b, err)
			_, err = io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(f, sha256.New())}, r.Body, make([]byte, 256<<10))
			if err != nil || f.Sync() != nil || f.Close() != nil {
				b.Fatal(err)
			}
			r.Body.Close()
			os.Remove(f.Name())
		}
	})
	b.Run("client", func(b *testing.B) {
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			c := h.client(filepath.Join(dir, "cache"))
			if _, err := c.Find(b.Context(), "org/m"); err != nil {
				b.Fatal(err)
			}
			os.RemoveAll(c.Dir)
		}
	})
}
