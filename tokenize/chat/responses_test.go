package chat_test

import (
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// What vLLM's own functions make of 1,500 random bodies of the Responses API, with the types
// of the package openai 3.3: two readings of its main, and two that releases may have.
func TestResponsesMade(t *testing.T) {
	models := map[string]*chat.Model{
		"main":       newModel(t, showAll, chat.Options{}),
		"main/other": newModel(t, showAll, chat.Options{}),
		"0.27":       newModel(t, showAll, chat.Options{Engine: "0.27"}),
		"0.25":       newModel(t, showAll, chat.Options{Engine: "0.25"}),
	}
	var n outcomes
	readMade(t, "responses.jsonl.gz", "KVINDEX_RESPONSES", func(row made) {
		n.compareMade(t, "/v1/responses", row, models)
	})
	t.Logf("%+v", n)
	if n.taken < 4000 || n.refused > n.taken {
		t.Errorf("%+v", n)
	}
}
