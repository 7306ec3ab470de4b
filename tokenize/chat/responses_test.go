package chat_test

import (
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// The chats of vLLM's functions for 1,500 random bodies of the Responses API, with the types of the
// package openai 3.3: of main (01ca842df), 0.18, 0.21 and 0.22, and of variants that main or a
// release may have. As it is not known which of them have a variant, the chats must be equal in
// all.
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
	readMade(t, "responses.jsonl.gz", "KVINDEX_RESPONSES", func(row recordedChat) {
		n.compareMade(t, "/v1/responses", row, models)
	})
	t.Logf("%+v", n)
	if n.taken < 4000 && !testing.Short() || n.refused > n.taken {
		t.Errorf("%+v", n)
	}
}
