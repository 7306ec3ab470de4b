package tokenize_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kvindex/kvindex/tokenize"
)

// A pool finds models in the Hugging Face cache, and some elsewhere on the host.
func ExampleNewPool() {
	ours := map[string]string{"boats": "testdata/tiny.json"}
	var hub tokenize.Hub
	pool, err := tokenize.NewPool(tokenize.PoolConfig{
		Find: func(ctx context.Context, model string) (string, error) {
			if path, ok := ours[model]; ok {
				return path, nil
			}
			return hub.Find(ctx, model)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	ctx := context.Background()
	if err := pool.Preload(ctx, "boats"); err != nil {
		log.Fatal(err)
	}
	ids, err := pool.Tokenizer("boats").Encode(ctx, nil, "The boats come and go.", true)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ids, pool.Stats().Tokenizers)
	// Output: [84 257 343 598 279 362 46] 1
}
