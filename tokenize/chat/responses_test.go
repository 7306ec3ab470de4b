package chat_test

import (
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// What vLLM's functions make of 1,500 random bodies of the Responses API, with the types of
// the package openai 3.3: those of main (01ca842df), of 0.18, 0.21 and 0.22, and variants that
// main at other times and releases may have: which did is not known, so the chats have to be
// equal in all of these.
func TestResponsesMade(t *testing.T) {
	models := map[string]*chat.Model{
		"main":       newModel(t, showAll, chat.Options{}),
		"main/other": newModel(t, showAll, chat.Options{}),
		"0.27":       newModel(t, showAll, chat.Options{Engine: "0.27"}),
		"0.25":       newModel(t, showAll, chat.Options{Engine: "0.25"}),
	}
	for _, engine := range []string{"0.18", "0.21", "0.22"} {
		models[engine] = newModel(t, showAll, chat.Options{Engine: engine})
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
