package fakeengine_test

import (
	"fmt"

	"github.com/kvindex/kvindex/internal/fakeengine"
)

func Example() {
	engine, err := fakeengine.New(fakeengine.Config{
		BlockSize: 4,
		HashSeed:  "0",
		Publish:   func(payload []byte) { fmt.Println("a batch of", len(payload), "bytes") },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	prompt := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	for range 2 {
		request, err := engine.Submit(fakeengine.Request{Tokens: prompt})
		if err != nil {
			fmt.Println(err)
			return
		}
		engine.Drain()
		fmt.Println("cached tokens:", request.CachedTokens())
	}
	fmt.Println("a third would find", engine.Cached(prompt, "", ""))
	// Output:
	// a batch of 202 bytes
	// cached tokens: 0
	// cached tokens: 8
	// a third would find 8
}
