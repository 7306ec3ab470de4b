package tokenize_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kvindex/kvindex/tokenize"
)

func ExampleLoad() {
	t, err := tokenize.Load("testdata/tiny.json")
	if err != nil {
		log.Fatal(err)
	}
	ids, err := t.Encode(context.Background(), nil, "The boats come and go.<|end|>", true)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ids)
	// Output: [84 257 343 598 279 362 46 653]
}
